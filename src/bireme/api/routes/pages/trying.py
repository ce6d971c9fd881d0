"""One request to a service, sent for who looks at its page; and what it was asked in the last hour.

A page may only talk to where it came from, and a service is at the router's address: so the daemon sends the request to
the router, as a client of this machine, and answers with what came back. It is for the service's owner and operators.
A key counts as always: it is among the headers that are sent, or it is not.

Invariants: the request goes to that service of that router and nowhere else: no redirect is followed; an answer costs
`MOST_ANSWER` bytes and `LIMIT_S` at most, and one user has one such request under way.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httptools
from starlette.requests import Request
from starlette.responses import Response

from bireme.api.problems import ProblemError, answer
from bireme.api.routes.services import own_service, seen_service
from bireme.api.routing import Context, Routes
from bireme.api.serving.peers import SCOPE_KEY

routes = Routes("services")
LIMIT_S = 30.0
MOST_ANSWER = 256 * 1024
MOST_SENT = 1 << 20
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VALUE = re.compile(r"[\t\x20-\x7e]{0,4096}")
_PATH = re.compile(r"/?[\x21-\x7e]{0,2000}")
_OURS = frozenset({"host", "connection", "content-length", "transfer-encoding", "upgrade", "te", "trailer", "expect"})
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class _Sent:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@routes.get("/v1/services/{service}/traffic")
async def service_traffic(api: Context, request: Request) -> Response:
    """Curves of the last hour in steps of ten seconds, as the router counted: requests and errors a second, latencies,
    requests in flight and queued. Without `curves` where nothing was heard of it since the daemon started."""
    service = seen_service(api, request)
    return answer({"curves": [], **api.service.traffic(service.name), "now": api.now()})


@routes.post(
    "/v1/services/{service}/try",
    body="`method` (GET), `path` (below the service's address), `headers` (object of texts), `body` (text).",
)
async def try_service(api: Context, request: Request) -> Response:
    """Send one request to a service through the router and answer with what came back. For its owner and operators.

    `status`, `headers` (a list of pairs), `body` (text; what is no UTF-8 is replaced), `cut` (it was longer), `took_s`.
    """
    service, sent = own_service(api, request), _read(await api.body(request))
    base = urlsplit(api.service.router_url())
    if not base.hostname or "problem" in api.service.router():
        raise ProblemError(503, "there is no router that answers: `bireme status` says why")
    target = f"{base.path.rstrip('/')}/{service.name}/{sent.path.lstrip('/')}"
    loop = asyncio.get_running_loop()
    async with api.trials.held_by(request.scope[SCOPE_KEY].uid):
        began = loop.time()
        try:
            async with asyncio.timeout(LIMIT_S):
                heard = await _ask(base.scheme, base.hostname, base.port, target, sent)
        except TimeoutError:
            raise ProblemError(504, f"no answer within {LIMIT_S:g} s: the request was broken off") from None
        except (OSError, ssl.SSLError, httptools.HttpParserError) as error:
            raise ProblemError(502, f"the router did not answer: {error}") from error
    return answer({**heard.told(), "took_s": loop.time() - began})


def _read(body: dict[str, Any]) -> _Sent:
    method, path, text = body.get("method", "GET"), body.get("path", ""), body.get("body", "")
    if method not in _METHODS:
        raise ProblemError(400, f"method: one of {', '.join(_METHODS)}")
    if not isinstance(path, str) or not _PATH.fullmatch(path) or "#" in path:
        raise ProblemError(400, "path: what comes after the service's address, as it stands in an address: no spaces")
    if ".." in path.partition("?")[0].split("/"):
        raise ProblemError(400, "path: below the service's address")
    if not isinstance(text, str) or len(text) > MOST_SENT:
        raise ProblemError(413, f"body: a text of at most {MOST_SENT >> 20} MiB")
    headers = body.get("headers", {})
    if not isinstance(headers, dict) or len(headers) > 50:
        raise ProblemError(400, "headers: an object with at most 50 texts")
    for name, value in headers.items():
        if not isinstance(value, str) or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ProblemError(400, f"headers: {name[:80]!r} cannot be sent with this value")
        if name.lower() in _OURS:
            raise ProblemError(400, f"headers: {name} is set by Bireme")
    return _Sent(method, path, headers, text.encode("utf-8", "replace"))


class _Heard:
    """An answer, as httptools tells it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()
        self.cut = self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_body(self, data: bytes) -> None:
        room = MOST_ANSWER - len(self.body)
        self.cut = self.cut or len(data) > room
        self.body += data[:room]

    def on_message_complete(self) -> None:
        self.complete = True

    def told(self) -> dict[str, Any]:
        text = self.body.decode("utf-8", "replace")
        return {"status": self.status, "headers": self.headers, "body": text, "cut": self.cut}


async def _ask(scheme: str, host: str, port: int | None, target: str, sent: _Sent) -> _Heard:
    secure = ssl.create_default_context() if scheme == "https" else None
    reader, writer = await asyncio.open_connection(host, port or (443 if secure else 80), ssl=secure)
    try:
        named = {"Host": host if port is None else f"{host}:{port}", "Accept": "*/*", "User-Agent": "bireme-web"}
        fields = {**named, **sent.headers, "Connection": "close", "Content-Length": str(len(sent.body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"{sent.method} {target} HTTP/1.1\r\n{head}\r\n".encode("ascii") + sent.body)
        await writer.drain()
        return await _answer_of(reader, sent.method)
    finally:
        writer.close()
        with suppress(OSError, ssl.SSLError):
            writer.transport.abort()


async def _answer_of(reader: asyncio.StreamReader, method: str) -> _Heard:
    heard = _Heard()
    parser = httptools.HttpResponseParser(heard)
    while not heard.complete and not heard.cut:
        piece = await reader.read(_PIECE)
        if not piece:
            break
        parser.feed_data(piece)
        heard.status = parser.get_status_code()
        if method == "HEAD" and heard.status:
            break
    if not heard.status:
        raise ConnectionResetError("it closed the connection without an answer")
    return heard
