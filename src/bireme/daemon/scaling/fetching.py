"""One request over HTTP/1.0, bounded in time and size, on the event loop: metrics of replicas, Prometheus, MLflow.

HTTP/1.0, so that the answer is neither chunked nor kept open: its end is the connection's. Who answers may be anybody's
program: nothing it says is believed but a status and a body, and of these only so much.
Invariant: it returns or raises Unanswered within `limit_s`, and holds no more than `limit_bytes` and a head.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from urllib.parse import urlsplit

MOST_HEAD_BYTES = 64 * 1024
_CHUNK = 64 * 1024


class Unanswered(Exception):  # noqa: N818  (says what it is)
    """No usable answer; the text says why, in a few words. `status`: of the answer that came, 0 where none did; `body`:
    of one that was not 200."""

    def __init__(self, text: str, status: int = 0, body: bytes = b"") -> None:
        super().__init__(text)
        self.status, self.body = status, body

    @property
    def refuses(self) -> bool:
        """Whether the server is there and says no: asked again it would say the same."""
        return 400 <= self.status < 500

    @property
    def silent(self) -> bool:
        """Nobody answered, or only somebody before it: whatever was asked, it would be so."""
        return self.status in (0, 502, 503, 504)


async def fetch(
    url: str,
    *,
    limit_s: float,
    limit_bytes: int,
    post: bytes | None = None,
    fields: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """The body of a 200. `post`: what is sent with it, which makes it a POST. Raises Unanswered."""
    try:
        async with asyncio.timeout(limit_s):
            return await _fetch(url, limit_bytes, post, fields)
    except TimeoutError:
        raise Unanswered(f"no answer within {limit_s:g} s") from None
    except ssl.SSLError as error:
        raise Unanswered(f"no secure connection: {error.reason or 'refused'}") from None
    except OSError as error:
        raise Unanswered(f"no connection: {error.strerror or 'refused'}") from None
    except (ValueError, asyncio.IncompleteReadError):
        raise Unanswered("the answer is not HTTP") from None


async def _fetch(url: str, limit_bytes: int, post: bytes | None, fields: Mapping[str, str]) -> bytes:
    parts = urlsplit(url)
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure, limit=MOST_HEAD_BYTES)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        told = {"Host": parts.netloc.rpartition("@")[2], "Accept": "*/*", **fields}
        if post is not None:
            told["Content-Length"] = str(len(post))
        lines = [f"{'GET' if post is None else 'POST'} {target} HTTP/1.0"]
        lines += [f"{name}: {value}" for name, value in told.items()]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError
        writer.write("\r\n".join((*lines, "", "")).encode("ascii", "strict") + (post or b""))
        await writer.drain()
        return await body_of(reader, limit_bytes)
    finally:
        writer.close()
        with suppress(OSError, ssl.SSLError):
            writer.transport.abort()


async def body_of(reader: asyncio.StreamReader, limit_bytes: int) -> bytes:
    """The body of an answer with status 200. Raises Unanswered, ValueError, OSError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise Unanswered("the answer's head has no end") from None
    lines = head.split(b"\r\n")
    protocol, _, rest = lines[0].partition(b" ")
    status = rest[:3]
    if not protocol.startswith(b"HTTP/") or not status.isdigit():
        raise ValueError
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
    if status != b"200":
        said = await _excuse(reader, fields.get(b"content-length"))
        raise Unanswered(f"answered with status {status.decode()}", int(status), said)
    if fields.get(b"transfer-encoding", b"identity").lower() != b"identity":
        raise Unanswered("the answer to HTTP/1.0 came in chunks", 200)
    return await _limited(reader, fields.get(b"content-length"), limit_bytes)


async def _excuse(reader: asyncio.StreamReader, length: bytes | None) -> bytes:
    """What is said beside a status that is not 200; nothing where it is broken or long."""
    with suppress(Unanswered, asyncio.IncompleteReadError, OSError):
        return await _limited(reader, length, MOST_HEAD_BYTES)
    return b""


async def _limited(reader: asyncio.StreamReader, length: bytes | None, limit_bytes: int) -> bytes:
    if length is not None and length.isdigit() and int(length) <= limit_bytes:
        return await reader.readexactly(int(length))
    found = bytearray()
    while piece := await reader.read(_CHUNK):
        found += piece
        if len(found) > limit_bytes:
            raise Unanswered(f"the answer is longer than {limit_bytes // 1024} KiB", 200)
    return bytes(found)
