"""uvicorn's HTTP protocol with an end to everybody's patience, and a place in the crowd.

What uvicorn does not limit is limited here: how long the head of a request takes, how large it is, how long a body or
the reader of an answer stands still, how many requests are sent ahead, how many connections there are. Who is cut off
gets a proper answer (408, 413, 429, 431, 503) that says what to do. A connection has two timers: one for what comes,
one for what goes, since a request may be sent while the answer before it stands still.

Invariant: a connection that is not busy holds nothing but itself, and ends within `Limits.head_s` or keep-alive.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from bireme.api.serving.crowd import Crowd, Limits
from bireme.api.serving.peers import PeerProtocol

HEAD_BYTES = 60 * 1024
"""A path, a query and all headers; the longest filter of our own commands is a tenth of it."""
STEADY_BYTES = 16 * 1024
"""A body goes on while so much of it comes within `Limits.body_s`."""
BEGUN_BYTES = 4 * 1024
"""A request begins when its body is there, or so much of it."""
AHEAD = 8
"""So many requests may be sent before the first is answered."""
RETRY_AFTER_S = 1

TOO_MANY_OF_YOURS = (
    429, "Too many connections", "you have {each} connections to the daemon, all of them busy: end some, or try again"
)  # fmt: skip
TOO_MANY_AT_ONCE = (429, "Too many connections", "hundreds of yours wait to be served: try again")
TOO_MANY = (503, "Too many connections", "the daemon serves {most} connections, all of them busy: try again")
GAVE_WAY = (408, "The request did not arrive in time", "it made way for a newer connection: send it in one piece")
HEAD_TOO_SLOW = (408, "The request did not arrive in time", "its head took longer than {head_s:g} s")
BODY_TOO_SLOW = (408, "The request did not arrive in time", "nothing more of its body came for {body_s:g} s")
HEAD_TOO_LARGE = (431, "The request is too long", f"path, query and headers may have {HEAD_BYTES} bytes together")
TOO_FAR_AHEAD = (429, "Too many requests at once", f"at most {AHEAD} may be sent before the first is answered")

Refused = tuple[int, str, str]


class CrowdProtocol(PeerProtocol):
    """One connection. `crowd` and `limits` are set by the server before it is made."""

    crowd: Crowd
    limits: Limits
    uid: int = -1
    _timer: asyncio.TimerHandle | None = None
    _watched: tuple[str, int] = ("", 0)
    """What of a request the timer waits for, and how far it was: nothing is armed anew for each byte."""
    _answer_timer: asyncio.TimerHandle | None = None
    _received = 0
    _head_from = 0
    """How much had been received when the head that is awaited began."""
    _head_bytes = 0
    _in_head = True
    _made_at = 0.0
    _idle_timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0
    """When the last answer was complete."""
    _held: tuple[RequestResponseCycle, ASGI3Application] | None = None
    """A request of which too little is there to begin."""

    # -- the connection ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        assert self._peer is not None
        self.uid = self._peer.uid
        self._made_at = self.loop.time()
        refused = self.crowd.enter(self)
        if refused:
            self._refuse(TOO_MANY_OF_YOURS if refused == "user" else TOO_MANY)
        else:
            self._watch("head", self.limits.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self.crowd.leave(self)
        self._held = None
        self._stop_watching()
        self._stop_watching_answer()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        super().connection_lost(exc)

    @property
    def busy(self) -> bool:
        """A request is there with its whole head and its answer is not all sent yet, or it is about to come."""
        cycle: Any = self.cycle  # None before the first request, whatever its type says
        if cycle is None:
            return self.loop.time() - self._made_at < self.limits.grace_s
        return not cycle.response_complete or self.transport.get_write_buffer_size() > 0

    def give_way(self) -> None:
        if self._received > self._head_from:
            self._refuse(GAVE_WAY)
        else:
            self.transport.close()
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # its place is another's now

    def _refuse(self, why: Refused) -> None:
        """Says why and ends the connection: what the other side still sends is not read."""
        status, message, hint = why
        limits = self.limits
        hint = hint.format(
            each=limits.connections_each, most=limits.connections, head_s=limits.head_s, body_s=limits.body_s
        )
        self._stop_watching()
        self._unset_keepalive_if_required()
        if not self.transport.is_closing():
            self.transport.write(refusal(status, message, hint))
            self.transport.close()

    # -- what comes --------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._received += len(data)
        super().data_received(data)
        if self._in_head and self._received - self._head_from > HEAD_BYTES:
            self._refuse(HEAD_TOO_LARGE)
        elif self._timer is None and not self.transport.is_closing():
            self._watch_the_rest()

    def _watch_the_rest(self) -> None:
        """Most requests come whole, and need no patience."""
        if not self._in_head:
            self._watch("body", self.limits.body_s)
        elif self._received > self._head_from:
            self._watch("head", self.limits.head_s)

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_watching()
        if self._head_bytes > HEAD_BYTES or len(self.pipeline) >= AHEAD:
            self._refuse(HEAD_TOO_LARGE if self._head_bytes > HEAD_BYTES else TOO_FAR_AHEAD)
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():  # else it was refused
            super().on_body(body)
            if self._held is not None and len(self.cycle.body) >= BEGUN_BYTES:
                self._begin()

    def on_message_complete(self) -> None:
        if self.transport.is_closing():
            return
        self._in_head = True
        self._head_from = self._received  # of what came in the same piece behind it nothing is counted twice
        self._stop_watching()
        super().on_message_complete()
        if self._held is not None:
            self._begin()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Half a request is a few objects while nothing has begun for it, and no work."""
        self._held = (cycle, app)
        if not cycle.more_body or cycle.waiting_for_100_continue:
            self._begin()

    def _begin(self) -> None:
        assert self._held is not None
        held, self._held = self._held, None
        super()._start_asgi_task(*held)

    # -- what goes ---------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Much is unsent; or it is closed, and ends when all is read: not everybody reads."""
        super().pause_writing()
        self._watch_answer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():  # else the rest is still to be read
            self._stop_watching_answer()

    def on_response_complete(self) -> None:
        """As uvicorn's, with one timer for all pauses of a connection: not one for each, set and taken back."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._look_whether_idle)

    def _look_whether_idle(self) -> None:
        """A request that is under way, or begun, has limits of its own; its answer is the next to call for a look."""
        self._idle_timer = None
        if not self.cycle.response_complete or self._received > self._head_from:
            return
        rest_s = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if rest_s > 0:
            self._idle_timer = self.loop.call_later(rest_s, self._look_whether_idle)
        elif not self.transport.is_closing():
            self.transport.close()

    # -- patience ----------------------------------------------------------------------------------------------------

    def _watch(self, what: str, patience_s: float) -> None:
        self._stop_watching()
        self._watched = (what, self._received)
        self._timer = self.loop.call_later(patience_s, self._look, patience_s)

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, patience_s: float) -> None:
        """A head has one time limit; a body only has to go on."""
        self._timer = None
        what, before = self._watched
        if what == "body" and (self.flow.read_paused or self._received - before >= STEADY_BYTES):
            self._watch(what, patience_s)
        elif what == "body":
            self._give_up_body()
        elif self._received > self._head_from:
            self._refuse(HEAD_TOO_SLOW)
        else:
            self.transport.close()

    def _watch_answer(self) -> None:
        self._stop_watching_answer()
        unread = self.transport.get_write_buffer_size()
        self._answer_timer = self.loop.call_later(self.limits.answer_s, self._look_at_answer, unread)

    def _stop_watching_answer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _look_at_answer(self, unread_before: int) -> None:
        """An answer has to go on, too."""
        self._answer_timer = None
        if self.transport.get_write_buffer_size() < unread_before:
            self._watch_answer()
        else:
            self.transport.abort()

    def _give_up_body(self) -> None:
        """The handler waits for the rest: it is told that nobody is there any more."""
        if self.cycle is not None and not self.cycle.response_started:
            self._refuse(BODY_TOO_SLOW)
        else:
            self.transport.abort()


def refusal(status: int, message: str, hint: str) -> bytes:
    """A whole HTTP answer, in the shape of all errors of the API."""
    _, headers, body = refusal_content(status, message, hint)
    lines = b"".join(b"%s: %s\r\n" % header for header in headers)
    return b"HTTP/1.1 %d %s\r\n%sconnection: close\r\n\r\n%s" % (status, message.encode(), lines, body)


def refusal_content(status: int, message: str, hint: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """A refusal's status, headers and body."""
    error: dict[str, Any] = {"message": message, "code": None, "slurm_errno": 11 if status != 431 else 22, "hint": hint}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status in (429, 503):
        headers.append((b"retry-after", b"%d" % RETRY_AFTER_S))
    return status, headers, body
