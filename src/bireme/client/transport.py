"""HTTP/1.1 over the daemon's unix socket, by hand.

The commands start hundreds of times a minute inside jobs, and `http.client` alone costs more to import than all of
this; so this speaks the small part of HTTP that uvicorn answers with: Content-Length, chunked and keep-alive. Not here:
what the routes mean (`client/sdk.py`, the commands). Invariant: a request is carried out at most once. A kept
connection is looked at before it is used, and replaced if the daemon closed it; a request is sent again only where the
daemon says that it did not look at it (`Retry-After`: too many at once); else whoever wants that needs an idempotency
key.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bireme.commands.refused import ApiError, BiremeError, BiremeUnavailable, refusal_in
from bireme.daemon.paths import Paths

__all__ = ["ApiError", "BiremeError", "BiremeUnavailable", "Json", "Response", "Stream", "Transport"]

Params = Mapping[str, "str | int | float | None"]

_READ_BYTES = 1 << 16
BUSY_S = 20.0
"""How long a daemon that has too much to do is asked again; then its refusal is what is said."""
SILENT_S = 10.0
"""How long it is waited without a word."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_IN_ROW_S = 1
_TIMEVAL = struct.Struct("@ll")
_MAX_SOCKET_PATH = 107  # sun_path holds 108 bytes, one of them NUL
_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/,:+[]")


class Json(bytes):
    """A body that is JSON already."""


class Response:
    """Status, headers (lower case) and the whole body."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)

    def raise_for_error(self) -> None:
        if self.status < 400:
            return
        try:
            content = json.loads(self.body)
        except ValueError:
            content = None
        raise refusal_in(self.status, content)


class Stream:
    """An answer that goes on: iterate over its chunks, or watch `fileno()`. Closing it tells the daemon."""

    def __init__(self, connection: _Connection, response: Response) -> None:
        self._connection = connection
        self._framing = _framing(response)
        self.headers = response.headers

    def fileno(self) -> int:
        return self._connection.fileno()

    def __iter__(self) -> Iterator[bytes]:
        return self._connection.read_body(self._framing)

    def lines(self) -> Iterator[str]:
        """The body as text lines, without their ends."""
        rest = b""
        for chunk in self:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace").removesuffix("\r")
        if rest:
            yield rest.decode("utf-8", "replace")

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Transport:
    """Requests to the daemon of one home, over one kept connection. Not for several threads at once."""

    def __init__(
        self, home: str | None = None, *, patience_s: float = 0.0, timeout_s: float = 100.0, tool: str = ""
    ) -> None:
        """`patience_s`: how long to wait for a daemon that is just starting again (srun inside a job does).

        `tool`: what the journal names as the cause of changes; default is the name of the program.
        """
        self.paths = Paths(home)
        self.patience_s = patience_s
        self.timeout_s = timeout_s
        self._agent = (tool or os.path.basename(sys.argv[0] or "python")).encode("ascii", "replace").decode()
        self._kept: _Connection | None = None
        self.asked_before = False
        """The daemon had what will be asked already, and ended before it answered."""
        self.out_of_date: Callable[[str], None] = lambda _: None
        """Is told when an answer shows another scheduler's queue as it was some time ago."""
        self.still_silent: Callable[[str], None] | None = None
        """Is told, once for each request, when a daemon that is there says nothing for `SILENT_S`."""

    def get(self, path: str, params: Params | None = None, *, timeout_s: float | None = None) -> Any:
        return self.request("GET", path, params, timeout_s=timeout_s).json()

    def get_bytes(self, path: str, params: Params | None = None) -> bytes:
        return self.request("GET", path, params).body

    def post(self, path: str, body: Any = None, params: Params | None = None, *, timeout_s: float | None = None) -> Any:
        """Posts `body` as JSON (bytes are sent as they are)."""
        return self.request("POST", path, params, body={} if body is None else body, timeout_s=timeout_s).json()

    def request(
        self,
        method: str,
        path: str,
        params: Params | None = None,
        *,
        body: Any = None,
        timeout_s: float | None = None,
    ) -> Response:
        """One exchange; raises ApiError for a status of 400 or more, BiremeUnavailable when nobody answers.

        A daemon that is too busy to look at it is asked again for `BUSY_S`.
        """
        message = _request_bytes(method, path, params, body, self._agent)
        pauses = _pauses(BUSY_S)
        at_once = timeout_s is None and not path.endswith("/wait")  # else it is waited for on purpose
        while True:
            response = self._exchange(message, self.timeout_s if timeout_s is None else timeout_s, at_once)
            if not _is_busy(response) or not next(pauses, False):
                break
        response.raise_for_error()
        remark = response.headers.get("bireme-out-of-date")
        if remark:
            self.out_of_date(remark)
        return response

    def _exchange(self, message: bytes, timeout_s: float | None, at_once: bool) -> Response:
        connection = self._connection(timeout_s)
        try:
            response = connection.exchange(message, self.still_silent if at_once else None)
        except (OSError, _BadAnswerError) as error:
            silent = connection.peer() if isinstance(error, TimeoutError) else ""
            self.close()
            doubtful = message.startswith(b"POST ")
            raise BiremeUnavailable(self.paths.socket, _cause(error), silent, doubtful=doubtful) from error
        except BaseException:
            self.close()  # interrupted half-way: the rest of the answer must not meet the next request
            raise
        if response.headers.get("connection", "").lower() == "close":
            self.close()
        return response

    def stream(self, path: str, params: Params | None = None, *, method: str = "GET", body: Any = None) -> Stream:
        """An answer without an end in sight, on a connection of its own, without a time limit."""
        message, pauses = _request_bytes(method, path, params, body, self._agent), _pauses(BUSY_S)
        while True:
            connection = self._connect(None)
            try:
                response = connection.begin(message)
            except (OSError, _BadAnswerError) as error:
                connection.close()
                raise BiremeUnavailable(self.paths.socket, _cause(error)) from error
            if response.status < 400:
                return Stream(connection, response)
            connection.close()
            if not _is_busy(response) or not next(pauses, False):
                response.raise_for_error()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def __enter__(self) -> Transport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connection(self, timeout_s: float | None) -> _Connection:
        if self._kept is not None and self._kept.is_stale():
            self.close()
        if self._kept is None:
            self._kept = self._connect(timeout_s)
        self._kept.set_timeout(timeout_s)
        return self._kept

    def _connect(self, timeout_s: float | None) -> _Connection:
        began = time.monotonic()
        pauses = _pauses(max(BUSY_S, self.patience_s))
        while True:
            try:
                return _Connection(self.paths.socket, timeout_s)
            except OSError as error:
                # More than it can take at once wait for it; a wrong owner or mode does not heal by waiting.
                patience_s = max(BUSY_S, self.patience_s) if isinstance(error, BlockingIOError) else self.patience_s
                if isinstance(error, PermissionError) or time.monotonic() - began >= patience_s:
                    silent = "the daemon" if isinstance(error, BlockingIOError) else ""
                    raise BiremeUnavailable(self.paths.socket, _cause(error), silent) from error
                if isinstance(error, BlockingIOError):
                    next(pauses, None)
                    continue
            time.sleep(0.1)


def _is_busy(response: Response) -> bool:
    """Whether an answer is a refusal without a look at the request, which says when to come again."""
    return response.status in (429, 503) and "retry-after" in response.headers


def _pauses(patience_s: float) -> Iterator[bool]:
    """Sleeps and says True, a little longer each time and never alike, until patience is over."""
    deadline, pause_s = time.monotonic() + patience_s, _FIRST_PAUSE_S
    while time.monotonic() < deadline:
        # Not alike: whoever was refused together must not come again together. (`random` takes longer to import.)
        time.sleep(pause_s * (0.5 + os.urandom(1)[0] / 256))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        yield True


class _BadAnswerError(Exception):
    """What came back is not HTTP, or ended early."""


class _Connection:
    """One socket and what was read from it ahead of need."""

    def __init__(self, path: str, timeout_s: float | None) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._ahead = b""
        self._timeout_s = timeout_s
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        try:
            _join_row(self._socket, path)
            self._socket.settimeout(timeout_s)
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def set_timeout(self, timeout_s: float | None) -> None:
        if timeout_s != self._timeout_s:
            self._socket.settimeout(timeout_s)
            self._timeout_s = timeout_s

    def close(self) -> None:
        self._socket.close()

    def is_stale(self) -> bool:
        """Between requests nothing may arrive: if something did, it is the daemon's goodbye."""
        return bool(self._ahead) or bool(self._poll.poll(0))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def begin(self, request: bytes) -> Response:
        """Sends it and reads the head of the answer; of a refusal all."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send(request)
        response = self.read_head()
        if response.status >= 400:
            response.body = b"".join(self.read_body(_framing(response)))
        return response

    def exchange(self, request: bytes, still_silent: Callable[[str], None] | None = None) -> Response:
        # The daemon may refuse a body that is too large before it has read all of it: its answer says why.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send(request)
        if still_silent is not None and not self._answers_within(SILENT_S):
            still_silent(f"{self.peer()} has not answered for {SILENT_S:g} s; still waiting (see: bireme doctor)")
        response = self.read_head()
        response.body = b"".join(self.read_body(_framing(response)))
        return response

    def peer(self) -> str:
        """In words, with its pid: of who listens, whether or not it ever took this connection."""
        pid = struct.unpack("iII", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return f"the daemon (pid {pid})" if pid else "the daemon"

    def _answers_within(self, seconds: float) -> bool:
        limit_s = self._timeout_s
        return bool(self._ahead) or bool(self._poll.poll(1000 * min(seconds, seconds if limit_s is None else limit_s)))

    def read_head(self) -> Response:
        while b"\r\n\r\n" not in self._ahead:
            self._ahead += self._receive()
        head, self._ahead = self._ahead.split(b"\r\n\r\n", 1)
        status_line, *lines = head.decode("latin-1").split("\r\n")
        words = status_line.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise _BadAnswerError(f"not an HTTP answer: {status_line[:60]!r}")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return Response(int(words[1]), headers, b"")

    def read_body(self, framing: int | None) -> Iterator[bytes]:
        """`framing`: a length, _CHUNKED, or None for 'until the connection ends'."""
        if framing == _CHUNKED:
            yield from self._read_chunked()
        elif framing is None:
            yield from self._read_to_end()
        else:
            yield from self._read_exactly(framing)

    def _read_exactly(self, count: int) -> Iterator[bytes]:
        while count:
            data = self._ahead or self._receive()
            piece, self._ahead = data[:count], data[count:]
            count -= len(piece)
            yield piece

    def _read_chunked(self) -> Iterator[bytes]:
        while size := int(self._read_line().split(b";")[0], 16):
            yield from self._read_exactly(size)
            self._read_line()
        while self._read_line():  # trailers
            pass

    def _read_to_end(self) -> Iterator[bytes]:
        while True:
            piece, self._ahead = self._ahead, b""
            if piece:
                yield piece
            piece = self._socket.recv(_READ_BYTES)
            if not piece:
                return
            self._ahead = piece

    def _read_line(self) -> bytes:
        while b"\r\n" not in self._ahead:
            self._ahead += self._receive()
        line, self._ahead = self._ahead.split(b"\r\n", 1)
        return line

    def _receive(self) -> bytes:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise _BadAnswerError("the connection ended in the middle of an answer")
        return data


_CHUNKED = -1


def _join_row(sock: socket.socket, path: str) -> None:
    """Connects; where many others do, the kernel lets them wait in a row for `_IN_ROW_S`. Raises OSError.

    Python's own time limits would not do: with them the kernel refuses whoever does not find the row short.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(_IN_ROW_S, 0))
    connect_unix(sock, path)
    try:
        sock.getpeername()
    except OSError as error:  # a signal came while it waited, which Python takes for the end of the wait
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(0, 0))


def connect_unix(sock: socket.socket, path: str) -> None:
    """Connects to `path`, also when it is longer than a socket address can hold."""
    encoded = os.fsencode(path)
    if len(encoded) <= _MAX_SOCKET_PATH:
        sock.connect(path)
        return
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        sock.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    finally:
        os.close(folder)


def _framing(response: Response) -> int | None:
    if response.headers.get("transfer-encoding", "").lower() == "chunked":
        return _CHUNKED
    length = response.headers.get("content-length")
    return None if length is None else int(length)


def _request_bytes(method: str, path: str, params: Params | None, body: Any, agent: str) -> bytes:
    target = quote(path) + _query(params)
    if body is None:
        payload, kind = b"", ""
    elif isinstance(body, Json):
        payload, kind = body, "Content-Type: application/json\r\n"
    elif isinstance(body, bytes):
        payload, kind = body, "Content-Type: application/octet-stream\r\n"
    else:
        payload, kind = json.dumps(body, separators=(",", ":")).encode(), "Content-Type: application/json\r\n"
    length = f"Content-Length: {len(payload)}\r\n" if method != "GET" else ""
    head = f"{method} {target} HTTP/1.1\r\nHost: bireme\r\nUser-Agent: {agent}\r\n{kind}{length}\r\n"
    return head.encode("ascii") + payload


def _query(params: Params | None) -> str:
    pairs = [
        f"{quote(name)}={quote(str(value)).replace('+', '%2B')}"
        for name, value in (params or {}).items()
        if value is not None
    ]
    return "?" + "&".join(pairs) if pairs else ""


def quote(text: str) -> str:
    """Percent-encoding for paths and values; `urllib.parse` would double the import time of this module."""
    if _SAFE.issuperset(text):
        return text
    return "".join(
        chr(byte) if chr(byte) in _SAFE else f"%{byte:02X}" for byte in text.encode("utf-8", "surrogateescape")
    )


def _cause(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no socket"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, BlockingIOError):
        return "too many wait for it"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
