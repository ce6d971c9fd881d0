"""The daemon's REST API over its unix socket: requests as the session of whoever looks at a page.

Every page, every live update and everything that is passed on comes through here. Not here: what the routes mean.
Invariants: no request goes without a session's token, but for those that bring a link's code: this process has no
rights of its own to fall back on; a request that may have been carried out is not sent again; every text that the
daemon told can be written as UTF-8.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import httptools

ANSWER_S = 60.0
MOST_AT_ONCE, MOST_KEPT = 64, 16
MOST_ANSWER = 64 << 20
_READ_BYTES = 1 << 16
VIEW = "bireme-view"
"""The header of an answer that is the same for all who have this view (`/v1/web/me`)."""
_JSON = "application/json"
_BUSY_PAUSES_S = (0.2, 0.5, 1.0)
_NO_CHARACTER = re.compile("[\ud800-\udfff]")


class AwayError(Exception):
    """The daemon does not answer. The text says how."""


class RefusedError(Exception):
    """The daemon answered, and says no."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body
        said = _error_in(body)
        self.message = str(said.get("message") or f"the daemon answered with status {status}")
        self.hint = str(said.get("hint") or "")
        self.code = str(said.get("code") or "")
        super().__init__(self.message)


def _error_in(body: bytes) -> Mapping[str, Any]:
    with suppress(ValueError, KeyError, TypeError):
        error = told_in(body)["error"]
        if isinstance(error, dict):
            return error
    return {}


@dataclass(slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes = b""


@dataclass(slots=True)
class _Parsed:
    """What the parser says of one answer, as it comes."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    has_head: bool = False
    is_whole: bool = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        self.is_whole = True


class Streamed:
    """An answer that is read as it comes. Closed by whoever opened it."""

    def __init__(self, connection: _Connection, parsed: _Parsed) -> None:
        self._connection, self._parsed = connection, parsed
        self.status, self.headers = parsed.status, parsed.headers

    async def pieces(self) -> AsyncIterator[bytes]:
        while True:
            pieces, self._parsed.pieces = self._parsed.pieces, []
            for piece in pieces:
                yield piece
            if self._parsed.is_whole:
                return
            await self._connection.read_more()

    def close(self) -> None:
        self._connection.close()


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._parser: Any = None
        self._parsed = _Parsed()

    @property
    def is_stale(self) -> bool:
        """Whether the daemon has hung up meanwhile."""
        return self._reader.at_eof() or self._writer.is_closing()

    async def begin(self, request: bytes) -> _Parsed:
        """Sends it and reads the head of its answer."""
        parsed = self._parsed = _Parsed()
        self._parser = httptools.HttpResponseParser(parsed)
        self._writer.write(request)
        await self._writer.drain()
        while not parsed.has_head:
            await self.read_more()
        parsed.status = self._parser.get_status_code()
        return parsed

    async def read_more(self) -> None:
        data = await self._reader.read(_READ_BYTES)
        if not data:
            raise AwayError("the daemon hung up")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise AwayError(f"what the daemon answered is not HTTP: {error}") from error

    def close(self) -> None:
        self._writer.transport.abort()


class Upstream:
    """Requests to the daemon whose API is at this socket."""

    def __init__(self, socket_path: str) -> None:
        self._path = socket_path
        self._kept: list[_Connection] = []
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)

    async def get(self, token: str, path: str, params: Mapping[str, str] | None = None) -> Any:
        """The JSON that is answered. Raises RefusedError or AwayError."""
        return (await self.read(token, target_of(path, params)))[0]

    async def read(self, token: str, target: str) -> tuple[Any, str]:
        """As `get`, with the view that it is the same for; empty: it is for who asked. Raises RefusedError or
        AwayError."""
        answer = await self.ask("GET", target, token)
        if answer.status != 200:
            raise RefusedError(answer.status, answer.body)
        return told_in(answer.body), answer.headers.get(VIEW, "")

    async def post(self, token: str, path: str, body: Any = None) -> Any:
        """As `get`, of a change."""
        answer = await self.ask("POST", target_of(path), token, json.dumps(body if body is not None else {}).encode())
        if answer.status != 200:
            raise RefusedError(answer.status, answer.body)
        return told_in(answer.body)

    async def begin_session(self, code: str, about: str) -> Any:
        """What a link's code is good for. Raises RefusedError or AwayError."""
        return await self._of_nobody("/v1/web/sessions", {"code": code, "about": about})

    async def whose_link(self, code: str) -> Any:
        """As whom it would log in. Raises RefusedError or AwayError."""
        return await self._of_nobody("/v1/web/links/whose", {"code": code})

    async def _of_nobody(self, path: str, content: Mapping[str, str]) -> Any:
        """A question of who is nobody yet, and has a link's code."""
        request = _request("POST", path, None, json.dumps(content).encode())
        async with self._slots:
            answer = await self._exchanged(request, again=False)
        if answer.status != 200:
            raise RefusedError(answer.status, answer.body)
        return told_in(answer.body)

    async def ask(
        self, method: str, target: str, token: str, body: bytes | None = None, kind: str = _JSON, *, lasts: bool = False
    ) -> Answer:
        """One exchange, whatever its status. A daemon that is too busy to look at it is asked again. Raises AwayError.

        `lasts`: it may take long; who asks bounds how many of them there are, and none takes a page's place.
        """
        request = _request(method, target, token, body, kind)
        for pause_s in (*_BUSY_PAUSES_S, None):
            async with nullcontext() if lasts else self._slots:
                answer = await self._exchanged(request, again=method == "GET")
            if pause_s is None or answer.status not in (429, 503) or "retry-after" not in answer.headers:
                break
            await asyncio.sleep(pause_s)
        return answer

    async def _exchanged(self, request: bytes, *, again: bool) -> Answer:
        while True:
            kept = self._fresh_kept()
            connection = kept or await self._connected()
            try:
                async with asyncio.timeout(ANSWER_S):
                    return await self._whole(connection, request)
            except TimeoutError:
                raise AwayError(f"the daemon has not answered for {ANSWER_S:g} s") from None
            except (OSError, AwayError) as error:
                if kept is None or not again:  # else it ended just as it was to be used
                    raise AwayError(str(error)) from error

    async def _whole(self, connection: _Connection, request: bytes) -> Answer:
        is_over = False
        try:
            parsed = await connection.begin(request)
            size = 0
            pieces: list[bytes] = []
            while True:
                new, parsed.pieces = parsed.pieces, []
                pieces += new
                size += sum(map(len, new))
                if size > MOST_ANSWER:
                    raise AwayError(f"the daemon's answer has more than {MOST_ANSWER >> 20} MiB")
                if parsed.is_whole:
                    break
                await connection.read_more()
            is_over = parsed.headers.get("connection", "").lower() != "close"
            return Answer(parsed.status, parsed.headers, b"".join(pieces))
        finally:
            if is_over and len(self._kept) < MOST_KEPT:
                self._kept.append(connection)
            else:
                connection.close()

    async def stream(self, method: str, target: str, token: str) -> Streamed:
        """An answer without an end in sight. Raises AwayError."""
        request = _request(method, target, token)
        connection = await self._connected()
        try:
            async with asyncio.timeout(ANSWER_S):
                parsed = await connection.begin(request)
            return Streamed(connection, parsed)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | TimeoutError):
                raise AwayError(str(error) or "no answer in time") from error
            raise

    def _fresh_kept(self) -> _Connection | None:
        while self._kept:
            connection = self._kept.pop()
            if not connection.is_stale:
                return connection
            connection.close()
        return None

    async def _connected(self) -> _Connection:
        try:
            return _Connection(*await asyncio.open_unix_connection(self._path, limit=_READ_BYTES))
        except OSError as error:
            raise AwayError(f"the daemon does not answer: {error.strerror or error}") from error


def told_in(body: bytes) -> Any:
    """JSON, with U+FFFD for what is no character: a name or a path that is not UTF-8 comes with half of one for each
    such byte, which no page can be sent with."""
    told = json.loads(body)
    return _in_characters(told) if b"\\ud" in body or b"\\uD" in body else told


def _in_characters(told: Any) -> Any:
    if isinstance(told, str):
        return _NO_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", told)
    if isinstance(told, list):
        return [_in_characters(each) for each in told]
    if isinstance(told, dict):
        return {_in_characters(name): _in_characters(each) for name, each in told.items()}
    return told


def target_of(path: str, params: Mapping[str, str] | None = None) -> str:
    """What stands in a request's first line."""
    query = urlencode({name: value for name, value in (params or {}).items() if value != ""})
    return quote(path, safe="/:@!$&'()*+,;=~-._") + (f"?{query}" if query else "")


def _request(method: str, target: str, token: str | None, body: bytes | None = None, kind: str = _JSON) -> bytes:
    """`token`: None is said on purpose (`_of_nobody`); an empty one is a mistake of ours."""
    assert token != "", "a request without a session's token would have this process's rights"
    if any(not "!" <= letter <= "~" for letter in method + target + (token or "")):
        raise RefusedError(400, b'{"error": {"message": "this is no address of a page"}}')
    lines = [f"{method} {target} HTTP/1.1", "Host: bireme", "User-Agent: bireme-web"]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    if body is not None:
        lines += [f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    return "\r\n".join((*lines, "", "")).encode("ascii") + (body or b"")
