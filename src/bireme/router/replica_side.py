"""A connection to a replica: sends it one request after the other, passes its answers on to the client as they come.

Made by `worker` when no unused one is there. It belongs to a `ClientSide` while a request is on it, and to its
`Backend.idle` else. Bytes of bodies are passed on as they came; only their end is looked for.

Invariant: a connection is used again only when its answer was read to its exact end, the request was sent whole, and
nothing came after it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from bireme.router.rules import heads, locations, rewriting
from bireme.router.rules.bodies import BodyError, ChunkedBody
from bireme.router.rules.heads import NO_LENGTH, Answer, HeadError
from bireme.router.rules.websocket import Frames
from bireme.router.turns import AT_ONCE, FULL_READ_BYTES

if TYPE_CHECKING:
    from bireme.router.backends import Backend
    from bireme.router.client_side import ClientSide
    from bireme.router.worker import Worker

IDLE, HEAD, COUNTED, CHUNKED, UNTIL_CLOSE, TUNNEL, CLOSED = range(7)
_NO_BODY = (204, 304)
_MAX_INTERIM = 16


class ReplicaSide(asyncio.Protocol):
    """One connection, from its making to its loss."""

    __slots__ = (
        "_body", "_closing", "_head", "_interim", "_is_behind", "_left", "_plain", "_unread", "_unread_at", "_worker",
        "backend", "client", "frames", "idle_since", "phase", "transport", "was_used",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, worker: Worker, backend: Backend) -> None:
        self._worker = worker
        self.backend = backend
        self.client: ClientSide | None = None
        self.phase = IDLE
        self.was_used = False
        self.idle_since = 0.0
        self._head = b""
        """The beginning of an answer's head whose end has not come."""
        self._left = 0
        self._body: ChunkedBody | None = None
        self._plain = False
        """The client cannot read chunks."""
        self._closing = False
        self._interim = 0
        self._is_behind = False
        """It has a place among the worker's turns, and is not read until it is called there."""
        self._unread, self._unread_at = b"", 0
        """What came and is not looked through, and from where on."""
        self.frames: Frames | None = None
        """Of a WebSocket."""

    # --- called by the loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        client = self.client
        if client is None:  # nobody asked for anything
            self.close()
            return
        client.touched = self._worker.now
        if self.phase == HEAD:
            self._take_head(client, data)
        elif self.phase == COUNTED:
            self._take_counted(client, data)
        elif self._unread:  # it was read although it is behind
            self._fall_behind(self._unread[self._unread_at :] + data, 0)
        elif self.phase == CHUNKED:
            self._take_chunks(client, data)
        else:
            self._take_any(client, data)
        if len(data) >= FULL_READ_BYTES and self.client is client:
            self._wait_for_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        client, phase = self.client, self.phase
        self.client, self.phase = None, CLOSED
        self._unread = b""
        if client is None:
            if self in self.backend.idle:
                self.backend.idle.remove(self)
        elif (phase == UNTIL_CLOSE and exc is None) or phase == TUNNEL:
            client.answered()
        else:
            client.broken(self, began=phase != HEAD, heard=bool(self._head))

    def pause_writing(self) -> None:
        if self.client is not None:
            self.client.replica_is_slow(True)

    def resume_writing(self) -> None:
        if self.client is not None:
            self.client.replica_is_slow(False)

    # --- called by the client's side ---

    def begin(self, client: ClientSide, data: bytes) -> None:
        """Sends a request, or its beginning."""
        self.client = client
        self.phase = HEAD
        self._interim = 0
        self.transport.write(data)

    def close(self) -> None:
        """Unused, or of no use any more: nothing of what is on it counts."""
        if self.client is None and self in self.backend.idle:
            self.backend.idle.remove(self)
        self.client = None
        self.phase = CLOSED
        self._unread = b""
        self.transport.abort()

    def resume(self) -> None:
        """Its client takes more."""
        if not self._is_behind:
            self.transport.resume_reading()

    # --- its turns ---

    def _fall_behind(self, data: bytes, at: int) -> None:
        self._unread, self._unread_at = data, at
        self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        """Others first."""
        if not self._is_behind:
            self._is_behind = True
            self._worker.turns.wait(self)
        self.transport.pause_reading()

    def go_on(self) -> None:
        """It is its turn."""
        self._is_behind = False
        if self._unread and self.client is not None:
            data, self._unread = self._unread, b""
            self.client.touched = self._worker.now
            take = self._take_chunks if self.phase == CHUNKED else self._take_any
            take(self.client, data, self._unread_at)
        if self.phase != CLOSED and (self.client is None or not self.client.is_full):
            self.resume()

    # --- answers ---

    def _take_head(self, client: ClientSide, data: bytes) -> None:
        if self._head:
            data = self._head + data
        end = data.find(b"\r\n\r\n")
        if (end if end >= 0 else len(data)) > heads.MAX_HEAD_BYTES:
            client.misanswered(self, f"the replica's answer has a head of more than {heads.MAX_HEAD_BYTES} bytes")
            return
        if end < 0:
            self._head = data
            if not heads.may_begin_answer(data):
                client.misanswered(self, "the replica's answer has no HTTP/1.1 status line that ends with CR LF")
            return
        self._head = b""
        try:
            answer = heads.read_answer(data[:end])
        except HeadError as error:
            client.misanswered(self, error.why)
            return
        rest = data[end + 4 :]
        if answer.status < 200:
            self._take_interim(client, answer, rest)
        else:
            self._begin_answer(client, answer, rest)

    def _take_interim(self, client: ClientSide, answer: Answer, rest: bytes) -> None:
        if answer.status == 101:
            if not client.request.upgrade or not answer.upgrade:
                client.misanswered(self, "the replica switched protocols though nobody asked it to")
                return
            self.phase = TUNNEL
            if answer.upgrade.lower() == b"websocket":
                self.frames = Frames()
            client.begin_tunnel(rewriting.answer_head(answer, closing=False))
            if rest:
                self._take_any(client, rest)
            return
        self._interim += 1
        if self._interim > _MAX_INTERIM:
            client.misanswered(self, "the replica sent too many interim answers")
            return
        if client.request.minor and not client.has_continued:
            client.transport.write(rewriting.answer_head(answer, closing=False))
        if rest:
            self._take_head(client, rest)

    def _begin_answer(self, client: ClientSide, answer: Answer, rest: bytes) -> None:
        request = client.request
        if answer.leads and client.prefix:
            answer = locations.below(answer, client.prefix, self._own_hosts(request.host or b""))
        if (
            answer.length == len(rest)
            and client.body_done
            and not (answer.close or client.close_after or self._worker.is_draining)
            and request.method != b"HEAD"
            and answer.status not in _NO_BODY
        ):  # the whole of it in one piece, as most are
            if not answer.passed_on:
                answer.passed_on = rewriting.answer_head(answer, closing=False)
            self.backend.tally.bytes_out += answer.length
            client.transport.write(answer.passed_on + rest)
            self.client = None
            self._rest()
            client.answered_whole(answer.status)
            return
        self._plain = False
        if request.method == b"HEAD" or answer.status in _NO_BODY:
            self.phase, self._left = COUNTED, 0
        elif answer.chunked:
            self.phase, self._body = CHUNKED, ChunkedBody()
            self._plain = not request.minor
        elif answer.length != NO_LENGTH:
            self.phase, self._left = COUNTED, answer.length
        else:
            self.phase = UNTIL_CLOSE
        self._closing = answer.close
        closing = client.began(answer.status) or self.phase == UNTIL_CLOSE
        client.close_after |= closing
        client.transport.write(rewriting.answer_head(answer, closing=closing, plain=self._plain))
        if self.phase == COUNTED:
            self._take_counted(client, rest)
        elif rest and self.phase == CHUNKED:
            self._take_chunks(client, rest)
        elif rest:
            self._take_any(client, rest)

    def _own_hosts(self, asked: bytes) -> set[bytes]:
        """What this replica may call itself: as the client does, or by where it listens."""
        port = self.backend.port
        here = {b"%b:%d" % (name, port) for name in (self.backend.host.encode(), b"localhost")}
        return here | {asked.lower()} if asked else here

    def _take_counted(self, client: ClientSide, data: bytes) -> None:
        size = len(data)
        if size < self._left:
            self._left -= size
            self.backend.tally.bytes_out += size
            if size:
                client.transport.write(data)
            return
        if size > self._left:
            data, self._closing = data[: self._left], True
        self.backend.tally.bytes_out += self._left
        client.transport.write(data)
        self._end(client)

    def _take_chunks(self, client: ClientSide, data: bytes, at: int = 0) -> None:
        body = self._body
        assert body is not None
        payload = bytearray() if self._plain else None
        try:
            end = body.take(data, payload, at, AT_ONCE)
        except BodyError as error:
            client.misanswered(self, str(error))
            return
        self.backend.tally.bytes_out += end - at
        if payload is not None:
            client.transport.write(bytes(payload))
        else:
            client.transport.write(data if end - at == len(data) else data[at:end])
        if body.done:
            self._closing |= end < len(data)
            self._end(client)
        elif end < len(data):
            self._fall_behind(data, end)

    def _take_any(self, client: ClientSide, data: bytes, at: int = 0) -> None:
        """What has no end of its own: a tunnel's, or to the connection's end."""
        end = len(data) if self.frames is None else self.frames.take(data, at, AT_ONCE)
        self.backend.tally.bytes_out += end - at
        client.transport.write(data if end - at == len(data) else data[at:end])
        if end < len(data):
            self._fall_behind(data, end)

    def _end(self, client: ClientSide) -> None:
        """The answer is whole."""
        self.client, self._body = None, None
        if self._closing or not client.body_done or self._worker.is_draining:
            self.phase = CLOSED
            self.transport.close() if client.body_done else self.transport.abort()
        else:
            self.resume()
            self._rest()
        client.answered()

    def _rest(self) -> None:
        """Unused, until the next request."""
        self.phase = IDLE
        self.was_used = True
        self.idle_since = self._worker.now
        self.backend.idle.append(self)
