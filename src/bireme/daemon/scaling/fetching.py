"""One GET over HTTP/1.0, bounded in time and size, on the event loop: for metrics of replicas and for Prometheus.

HTTP/1.0, so that the answer is neither chunked nor kept open: its end is the connection's. Who answers may be anybody's
program: nothing it says is believed but a status and a body, and of these only so much.
Invariant: it returns or raises Unanswered within `limit_s`, and holds no more than `limit_bytes` and a head.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from urllib.parse import urlsplit

MOST_HEAD_BYTES = 64 * 1024
_CHUNK = 64 * 1024


class Unanswered(Exception):  # noqa: N818  (says what it is)
    """No usable answer; the text says why, in a few words."""


async def fetch(url: str, *, limit_s: float, limit_bytes: int) -> bytes:
    """The body of a 200. Raises Unanswered."""
    try:
        async with asyncio.timeout(limit_s):
            return await _fetch(url, limit_bytes)
    except TimeoutError:
        raise Unanswered(f"no answer within {limit_s:g} s") from None
    except ssl.SSLError as error:
        raise Unanswered(f"no secure connection: {error.reason or 'refused'}") from None
    except OSError as error:
        raise Unanswered(f"no connection: {error.strerror or 'refused'}") from None
    except (ValueError, asyncio.IncompleteReadError):
        raise Unanswered("the answer is not HTTP") from None


async def _fetch(url: str, limit_bytes: int) -> bytes:
    parts = urlsplit(url)
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure, limit=MOST_HEAD_BYTES)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        head = f"GET {target} HTTP/1.0\r\nHost: {parts.netloc.rpartition('@')[2]}\r\nAccept: */*\r\n\r\n"
        writer.write(head.encode("ascii", "strict"))
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
    if status != b"200":
        raise Unanswered(f"answered with status {status.decode()}")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
    if fields.get(b"transfer-encoding", b"identity").lower() != b"identity":
        raise Unanswered("the answer to HTTP/1.0 came in chunks")
    length = fields.get(b"content-length")
    if length is not None and length.isdigit() and int(length) <= limit_bytes:
        return await reader.readexactly(int(length))
    found = bytearray()
    while piece := await reader.read(_CHUNK):
        found += piece
        if len(found) > limit_bytes:
            raise Unanswered(f"the answer is longer than {limit_bytes // 1024} KiB")
    return bytes(found)
