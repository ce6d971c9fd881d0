"""HTTP/1.1 to the API server over a few kept connections: bytes in, status and bytes out; watches as streams of lines.

`api.py` makes requests of it. A scheduler makes two requests for every pod, and a general HTTP library costs several
times what this does (`make bench-kubernetes`). Credentials and trust are still lightkube's reading of the kubeconfig.
Invariant: a connection carries one exchange at a time, one that failed is never used again, and only a GET is repeated.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httptools
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import User

CONNECTIONS = 32
PATIENCE_S = 30.0
_CONNECT_S = 10.0
_JSON = "application/json"


@dataclass(slots=True)
class Answer:
    status: int = 0
    body: bytes = b""


@dataclass(slots=True)
class _Exchange:
    done: asyncio.Future[None]
    answer: Answer = field(default_factory=Answer)
    body: list[bytes] = field(default_factory=list)
    chunks: asyncio.Queue[bytes | None] | None = None
    """Of a watch: as they come, None at the end."""
    keep: bool = True


class _Wire(asyncio.Protocol):
    """One connection. The parser calls `on_*`; the exchange that is under way collects."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.exchange: _Exchange | None = None
        self.closed = False
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._fail(ConnectionError(f"the connection was closed{f': {exc}' if exc else ''}"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"the answer is not HTTP: {error}"))
            self.close()

    def on_headers_complete(self) -> None:
        if self.exchange is not None:
            self.exchange.answer.status = self._parser.get_status_code()
            if self.exchange.chunks is not None and self.exchange.answer.status < 400:
                _settle(self.exchange)

    def on_body(self, body: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            return
        if exchange.chunks is not None and exchange.answer.status < 400:
            exchange.chunks.put_nowait(body)
        else:
            exchange.body.append(body)

    def on_message_complete(self) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        exchange.keep = self._parser.should_keep_alive()
        exchange.answer.body = b"".join(exchange.body)
        if exchange.chunks is not None:
            exchange.chunks.put_nowait(None)
        _settle(exchange)

    def begin(self, exchange: _Exchange, request: bytes) -> None:
        assert self.transport is not None
        assert self.exchange is None, "one exchange at a time"
        self.exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self.transport.write(request)

    def close(self) -> None:
        self.closed = True
        if self.transport is not None:
            self.transport.close()

    def _fail(self, error: Exception) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        if exchange.chunks is not None:
            exchange.chunks.put_nowait(None)
        if not exchange.done.done():
            exchange.done.set_exception(error)


def _settle(exchange: _Exchange) -> None:
    if not exchange.done.done():
        exchange.done.set_result(None)


class Wires:
    """All connections to one API server. Raises OSError (TimeoutError, ssl.SSLError are) when it does not answer."""

    def __init__(self, config: SingleConfig) -> None:
        server = urlsplit(config.cluster.server)
        self._host = server.hostname or ""
        self._port = server.port or (443 if server.scheme == "https" else 80)
        self._prefix = server.path.rstrip("/")
        self._user = config.user or User()
        secure = server.scheme == "https"
        self._tls = verify_cluster(config.cluster, self._user, config.abs_file) if secure else None
        self._bearer: str | None = None
        self._room = asyncio.Semaphore(CONNECTIONS)
        self._idle: deque[_Wire] = deque()
        self._open: set[_Wire] = set()

    async def close(self) -> None:
        for wire in list(self._open):
            self._drop(wire)

    async def exchange(self, method: str, path: str, body: bytes | None, media: str = _JSON) -> Answer:
        """Credentials that were refused are renewed once: tokens expire."""
        answer = await self._once(method, path, body, media)
        if answer.status == 401 and self._renewable:
            self._bearer = None
            answer = await self._once(method, path, body, media)
        return answer

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator[tuple[Answer, AsyncIterator[bytes]]]:
        """(status, chunks of whole lines as they come); a refusal has its body in the answer instead."""
        request = await self._request("GET", path, None, _JSON)
        wire = await self._connected()
        exchange = _Exchange(asyncio.get_running_loop().create_future(), chunks=asyncio.Queue())
        try:
            wire.begin(exchange, request)
            async with asyncio.timeout(PATIENCE_S):
                await exchange.done
            if exchange.answer.status == 401:
                self._bearer = None
            yield exchange.answer, _whole_lines(exchange)
        finally:
            self._drop(wire)

    async def _once(self, method: str, path: str, body: bytes | None, media: str) -> Answer:
        request = await self._request(method, path, body, media)
        async with self._room:
            while True:
                used = bool(self._idle)
                wire = self._idle.pop() if used else await self._connected()
                if wire.closed:
                    self._drop(wire)
                    continue
                exchange = _Exchange(asyncio.get_running_loop().create_future())
                try:
                    wire.begin(exchange, request)
                    async with asyncio.timeout(PATIENCE_S):
                        await exchange.done
                except BaseException as error:
                    self._drop(wire)
                    if used and method == "GET" and isinstance(error, ConnectionError):
                        continue  # an idle connection was closed under us
                    raise
                if exchange.keep and not wire.closed:
                    self._idle.append(wire)
                else:
                    self._drop(wire)
                return exchange.answer

    async def _request(self, method: str, path: str, body: bytes | None, media: str) -> bytes:
        if self._bearer is None:
            token = await self._token()
            self._bearer = f"Authorization: Bearer {token}\r\n" if token else ""
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\nHost: {self._host}\r\nAccept: {_JSON}\r\n{self._bearer}"
        if body is not None:
            head += f"Content-Type: {media}\r\nContent-Length: {len(body)}\r\n"
        return f"{head}User-Agent: bireme\r\n\r\n".encode("latin-1") + (body or b"")

    async def _connected(self) -> _Wire:
        making = asyncio.get_running_loop().create_connection(_Wire, self._host, self._port, ssl=self._tls)
        try:
            async with asyncio.timeout(_CONNECT_S):  # not wait_for, which may lose a cancellation (Python 3.11)
                _, wire = await making
        except TimeoutError:
            raise TimeoutError(f"no connection within {_CONNECT_S:g} s") from None
        self._open.add(wire)
        return wire

    def _drop(self, wire: _Wire) -> None:
        self._open.discard(wire)
        wire.close()

    # --- who we are ----------------------------------------------------------------------------------------

    @property
    def _renewable(self) -> bool:
        return self._user.token_file is not None or self._user.exec is not None

    async def _token(self) -> str:
        if self._user.token_file is not None:
            return Path(self._user.token_file).read_text().strip()
        if self._user.token is not None:
            return str(self._user.token)
        return await self._token_of_a_program() if self._user.exec is not None else ""

    async def _token_of_a_program(self) -> str:
        """An `exec` entry of the kubeconfig: cloud vendors hand out short-lived tokens this way."""
        asked = self._user.exec
        assert asked is not None, "asked only of a user who has one"
        info = {"apiVersion": asked.apiVersion, "kind": "ExecCredential", "spec": {"interactive": False}}
        extra = {one.name: one.value for one in asked.env or ()}
        process = await asyncio.create_subprocess_exec(
            asked.command,
            *(asked.args or ()),
            env={**os.environ, **extra, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, said = await process.communicate()
        if process.returncode != 0:
            raise PermissionError(f"{asked.command} gave no credentials: {said.decode(errors='replace').strip()}")
        return str(json.loads(out).get("status", {}).get("token", ""))


async def _whole_lines(exchange: _Exchange) -> AsyncIterator[bytes]:
    assert exchange.chunks is not None
    rest = b""
    while (chunk := await exchange.chunks.get()) is not None:
        whole, newline, left = chunk.rpartition(b"\n")
        if newline:
            yield rest + whole
            rest = left
        else:
            rest += left
    if rest:
        yield rest
