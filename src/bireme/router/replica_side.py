"""A connection to a replica: sends it one request after the other, passes its answers on to the client as they come.

Made by `worker` when no unused one is there. It belongs to a `ClientSide` while a request is on it, and to its
`Backend.idle` else. Bytes of bodies are passed on as they came; only their end is looked for.

Invariant: a connection is used again only when its answer was read to its exact end, the request was sent whole, and
nothing came after it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from bireme.router.rules import heads, rewriting
from bireme.router.rules.bodies import BodyError, ChunkedBody
from bireme.router.rules.heads import NO_LENGTH, Answer, HeadError
from bireme.router.rules.websocket import Frames

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
        "_body", "_closing", "_head", "_interim", "_left", "_out", "_plain", "_worker", "backend", "client",
        "frames", "idle_since", "phase", "transport", "was_used",
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
        elif self.phase == CHUNKED:
            self._take_chunks(client, data)
        else:
            if self.frames is not None:
                self.frames.take(data)
            self.backend.tally.bytes_out += len(data)
            client.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        client, phase = self.client, self.phase
        self.client, self.phase = None, CLOSED
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
        self.transport.abort()

    # --- answers ---

    def _take_head(self, client: ClientSide, data: bytes) -> None:
        if self._head:
            data = self._head + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._head = data
            if len(data) > heads.MAX_HEAD_BYTES:
                client.misanswered(self, f"the replica's answer has a head of more than {heads.MAX_HEAD_BYTES} bytes")
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
                self.frames.take(rest)
            client.begin_tunnel(rewriting.answer_head(answer, closing=False) + rest)
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
            self.backend.tally.bytes_out += len(rest)
            client.transport.write(rest)

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

    def _take_chunks(self, client: ClientSide, data: bytes) -> None:
        body = self._body
        assert body is not None
        payload: list[bytes] | None = [] if self._plain else None
        try:
            end = body.take(data, payload)
        except BodyError as error:
            client.misanswered(self, str(error))
            return
        if end < len(data):
            data, self._closing = data[:end], True
        self.backend.tally.bytes_out += len(data)
        client.transport.write(data if payload is None else b"".join(payload))
        if body.done:
            self._end(client)

    def _end(self, client: ClientSide) -> None:
        """The answer is whole."""
        self.client, self._body = None, None
        if self._closing or not client.body_done or self._worker.is_draining:
            self.phase = CLOSED
            self.transport.close() if client.body_done else self.transport.abort()
        else:
            self.transport.resume_reading()
            self._rest()
        client.answered()

    def _rest(self) -> None:
        """Unused, until the next request."""
        self.phase = IDLE
        self.was_used = True
        self.idle_since = self._worker.now
        self.backend.idle.append(self)
