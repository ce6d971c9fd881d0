"""A client's connection: reads requests one after the other, finds a replica for each, and goes on when it is answered.

`worker` makes one for each connection and looks at all of them twice a second (`look`): no request has a timer or a
task of its own. What the request says is read in `rules`; the answer is passed on by `replica_side`.

Invariants: a request in flight is counted at one backend and, with a key, at one key, until `_release`; a request is
sent a second time only if nothing of it was sent or it is safe to repeat, and no byte of an answer has gone out.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from typing import TYPE_CHECKING, cast

from bireme.router.backends import Backend, KeyUse, Served
from bireme.router.replica_side import ReplicaSide
from bireme.router.rules import answers, heads, rewriting, websocket
from bireme.router.rules.addresses import Own, model_of_body, model_of_path
from bireme.router.rules.answers import Reply, refusal
from bireme.router.rules.bodies import BodyError, ChunkedBody
from bireme.router.rules.heads import HeadError, Request
from bireme.router.rules.keys import not_ours
from bireme.router.turns import AT_ONCE, FULL_READ_BYTES

if TYPE_CHECKING:
    from bireme.router.worker import Worker

HEAD, COLLECTING, WAITING, CONNECTING, ACTIVE, TUNNEL, LINGERING, CLOSED = range(8)
_REPEATABLE = frozenset((b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"))
_MAX_TRIES = 3
_MAX_REPLAY = 65_536
_AHEAD = 65_536
"""Bytes of a body that are read before a replica has taken the request, and of requests behind the one in work."""
_MOST_PASSES = 5
_UNKNOWN = 1 << 62
"""Bytes that a client has not taken, as long as nobody has looked."""
_LINGER_S = 5.0
_LINGER_BYTES = 4 << 20
_RETRY_S = 0.2
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LEFT = 499
"""The client closed its connection: counted with the 4xx."""
_TCP_ESTABLISHED = 1


class ClientSide(asyncio.Protocol):
    """One connection, from its making to its loss."""

    __slots__ = (
        "_attempt", "_block", "_block_for", "_body", "_body_bytes", "_buffer", "_connect_since", "_credentials",
        "_is_behind", "_is_counted", "_is_slow", "_key", "_left", "_measured", "_paced", "_pending",
        "_pending_size", "_plain", "_proto", "_state", "_taken_since", "_target", "_tries", "_unread", "_unread_at",
        "_untaken", "_worker", "affinity", "backend", "body_done", "close_after", "connection", "has_begun",
        "has_continued", "holder", "is_full", "is_local", "peer", "prefix", "request", "served", "since", "started",
        "status", "touched", "transport",
    )  # fmt: skip

    transport: asyncio.Transport
    request: Request
    served: Served

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._state = HEAD
        self._buffer = bytearray()
        """What came and is not read yet: the beginning of a head, or requests behind the one in work."""
        self.since = self.touched = worker.now
        self.connection: ReplicaSide | None = None
        self.backend: Backend | None = None
        self._key: KeyUse | None = None
        self._block_for: tuple[bytes | None, bytes] | None = None
        self._block = b""
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._is_slow = False
        self.is_full = False
        """It has not taken what was written."""
        self._is_behind = False
        """It has a place among the worker's turns, and is not read until it is called there."""
        self._unread, self._unread_at = b"", 0
        """What came of a body and is not looked through, and from where on."""
        self._plain: bytearray | None = None
        """The data of a chunked body in which a model is looked for."""
        self._paced, self._measured = worker.now, 0
        self._taken_since, self._untaken = worker.now, 0
        self._attempt: asyncio.Task[None] | None = None
        self.body_done = True
        self.close_after = False

    # --- called by the loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if address else ""
        self.is_local = self.peer.startswith(("127.", "::ffff:127.")) or self.peer == "::1"
        self.holder = self._worker.holder_of(self, transport)
        """Among whose connections it is counted."""
        self._proto = b"https" if transport.get_extra_info("sslcontext") else b"http"
        self.transport.set_write_buffer_limits(self._worker.settings.buffer_bytes)
        self._worker.enter(self)

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state == HEAD:
            self._take_head(data)
        elif state >= LINGERING:
            self._measured += len(data)
            if self._measured > _LINGER_BYTES:
                self.abort()
        elif not self.body_done:
            self.touched = self._worker.now
            self._take_more(data)
        elif state == TUNNEL and self.connection is not None:
            self.touched = self._worker.now
            self.connection.transport.write(data)
        else:
            self._buffer += data
            self._hold_back()
        if len(data) >= FULL_READ_BYTES and not self._is_behind and self._state < LINGERING:
            self._wait_for_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        state, self._state = self._state, CLOSED
        self._worker.leave(self)
        self._unread = b""
        self._forget_pending()
        if state == WAITING:
            self.served.leave(self, time.monotonic())
        if COLLECTING <= state <= TUNNEL:
            self._drop_connection()
            self._release(self.status or _LEFT)

    def eof_received(self) -> None:
        """It sends no more, but may read on: a body that is shorter than it said is told so. It is closed then."""
        if COLLECTING <= self._state <= ACTIVE and self._state != WAITING and not (self.body_done or self.has_begun):
            self._reply(refusal(400, "the request's body ended before its length", "bad_body"))

    def pause_writing(self) -> None:
        self.is_full = True
        self._begin_taking()
        if self.connection is not None:
            self.connection.transport.pause_reading()

    def resume_writing(self) -> None:
        self.is_full = False
        if self.connection is not None:
            self.connection.resume()
        elif self._state == HEAD:
            self._go_on()

    # --- its turns ---

    def _wait_for_turn(self) -> None:
        """Others first."""
        if not self._is_behind:
            self._is_behind = True
            self._worker.turns.wait(self)
        self.transport.pause_reading()

    def go_on(self) -> None:
        """It is its turn."""
        self._is_behind = False
        if self._state > TUNNEL:
            return
        if self._unread:
            data, self._unread = self._unread, b""
            self.touched = self._worker.now
            self._take_more(data, self._unread_at)
        self._resume()

    def _resume(self) -> None:
        """It is read on, unless there is a reason not to."""
        if not (self._is_behind or self._is_slow or self._is_ahead() or self._state > TUNNEL):
            self.transport.resume_reading()

    # --- a request comes ---

    def _take_head(self, data: bytes) -> None:
        buffer = self._buffer
        if self.is_full:  # it has not taken its answers yet: nothing is begun that would make more of them
            buffer += data
            self._hold_back()
            return
        if buffer:
            searched = max(0, len(buffer) - 3)
            buffer += data
            end = buffer.find(b"\r\n\r\n", searched)
            data = bytes(buffer) if end >= 0 else b""
        else:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                buffer += data
                self.since = self._worker.now
        if 0 <= end <= heads.MAX_HEAD_BYTES:
            buffer.clear()
            if data[:2] == b"\r\n" and end:  # one empty line before a request is passed over
                data = data[2:]
                end -= 2
            self._begin(data[:end], data[end + 4 :])
        elif end > 0 or len(buffer) > heads.MAX_HEAD_BYTES:
            self._refuse_head(HeadError(431, f"a request's head has at most {heads.MAX_HEAD_BYTES} bytes"))
        else:
            self._check_beginning()

    def _check_beginning(self) -> None:
        """A head that will never be one is refused before its time is over."""
        end = self._buffer.find(b"\n")
        if end == 0 or (end > 0 and self._buffer[end - 1] != 13):
            self._refuse_head(HeadError(400, "lines end with CR LF"))
        elif end < 0 and len(self._buffer) > heads.MAX_TARGET_BYTES + 64:
            self._refuse_head(HeadError(414, f"the request's address has more than {heads.MAX_TARGET_BYTES} bytes"))

    def _refuse_head(self, error: HeadError) -> None:
        self._worker.unread += 1
        self._buffer.clear()
        self.transport.write(refusal(error.status, error.why, "bad_request").to_bytes(closing=True))
        self._linger()

    def _begin(self, head: bytes, rest: bytes) -> None:
        try:
            request = heads.read_request(head)
        except HeadError as error:
            self._refuse_head(error)
            return
        self.request = request
        self.started = time.monotonic()
        self.since = self.touched = self._paced = self._worker.now
        self._tries = self._measured = self.status = self._body_bytes = 0
        self._is_counted = self.has_begun = self.has_continued = False
        self.affinity = b""
        self._connect_since = 0.0
        self.close_after = request.close
        self._body = self._plain = None
        self._left = 0
        if request.chunked:
            self._body, self.body_done = ChunkedBody(), False
        elif request.length > 0:
            self._left, self.body_done = request.length, False
        else:
            self.body_done = True
        directory, route = request.route
        if directory is not self._worker.directory:
            directory = self._worker.directory
            route = directory.find(request.host or b"", request.target)
            request.route = directory, route
        found, self._target, self.prefix = route
        self._credentials = not_ours(request.credentials)
        if found is Own.BY_MODEL and request.chunked:
            self._plain = bytearray()
        if rest:
            try:
                self._queue_body(rest)
            except BodyError as error:
                self._state = COLLECTING
                self._reply(refusal(400, f"the request's body: {error}", "bad_body"))
                return
        if request.via and b",".join(request.via).count(rewriting.VIA) >= _MOST_PASSES:
            self._state = COLLECTING
            self._reply(refusal(508, "The request came by this router too often: its replica sends it back.", "loop"))
        elif isinstance(found, Served):
            self._admit(found)
        else:
            self._state = COLLECTING
            self._take_own(found)

    def _take_own(self, found: Own) -> None:
        """An address of the router's own, or one that the body decides."""
        if found is Own.BY_MODEL:
            self._collect()
        elif not self._worker.lets_in(self):
            self._reply(refusal(403, "Without a key services are for this machine only.", "loopback_only"))
        elif found is Own.HEALTH:
            self._reply(answers.HEALTHY)
        elif found is Own.TWO_MODELS:
            self._reply(refusal(400, "The request's address names its model more than once.", "bad_request"))
        elif found is Own.MODELS:
            self._reply(self._models())
        else:
            self._reply(self._unknown())

    def _unknown(self) -> Reply:
        word = self._target.partition(b"?")[0].decode(errors="replace")
        text = f"There is no service at {word}. Its address is /SERVICE/..., or /v1/... with its model in the body;"
        return refusal(404, f"{text} `bireme services` lists all of them.", "unknown_service")

    def _models(self) -> Reply:
        """Those of services that this client may use."""
        if self.request.method not in (b"GET", b"HEAD"):
            return refusal(405, "The list of models is read with GET.", "method_not_allowed")
        mine = [each for each in self._worker.directory.services if self._may_use(each)]
        if wanted := model_of_path(self._target):
            service = self._worker.directory.by_model(wanted)
            if service is None or service not in mine:
                return refusal(404, f"There is no model {wanted!r}; /v1/models lists them.", "model_not_found")
            return answers.one_model(wanted, service.name)
        return answers.listing([(name, each.name) for each in mine for name in (each.models or (each.name,))])

    def _may_use(self, served: Served) -> bool:
        return served.keys.find(self.request.credentials) is not None if served.keys else self.is_local

    # --- the service is in the body ---

    def _collect(self) -> None:
        """Reads the body of `/v1/...`, for its model."""
        limit = self._worker.settings.model_body_bytes
        if not self.is_local and not any(map(self._may_use, self._worker.directory.services)):
            self._reply(refusal(401, "Send a key of the service as `Authorization: Bearer KEY`.", "invalid_api_key"))
        elif max(self.request.length, self._pending_size - len(self._plain or b"")) > limit:
            self._reply(refusal(413, f"The router reads bodies of at most {limit} bytes for their model.", "too_large"))
        elif self._worker.held_bytes > self._worker.settings.held_bytes:
            self._reply(refusal(503, "The router holds too many bodies that wait.", "too_much", retry_after_s=1))
        elif self.body_done:
            self._choose_by_model()
        elif self.request.expects and not self.has_continued:
            self.has_continued = True
            self.transport.write(_CONTINUE)

    def _choose_by_model(self) -> None:
        directory = self._worker.directory
        try:
            model = model_of_body(self._collected(), self.request.value(b"content-type") or b"")
        except ValueError as error:
            self._reply(refusal(400, f"The router cannot read the request: {error}", "bad_body"))
            return
        service = directory.by_model(model) if model else directory.the_only_one()
        if service is not None:
            self._admit(service)
        elif not self._worker.lets_in(self):
            self._reply(refusal(403, "Without a key services are for this machine only.", "loopback_only"))
        elif model:
            text = f"There is no service or model {model!r}; /v1/models lists them."
            self._reply(refusal(404, text, "model_not_found"))
        else:
            self._reply(refusal(400, "The body names no model; /v1/models lists them.", "model_missing"))

    def _collected(self) -> bytes:
        """The data of a body that is there."""
        if self._plain is None:
            return b"".join(self._pending)
        body, self._plain = bytes(self._plain), None
        self._worker.held_bytes -= len(body)
        self._pending_size -= len(body)
        return body

    # --- the service is known ---

    def _admit(self, served: Served) -> None:
        """Who may use it, and how much of it."""
        self.served = served
        self._state = COLLECTING
        self._is_counted = True
        reply = self._check_key(served) if served.keys else None
        if not served.keys and not self.is_local:
            text = f"Service {served.name} has no key, and so is for its own machine only: "
            reply = refusal(403, f"{text}`bireme service key add {served.name}` makes one.", "loopback_only")
        limit = served.spec.body_limit
        if reply is None and limit and max(self.request.length, self._body_bytes) > limit:
            reply = refusal(413, f"Service {served.name} takes bodies of at most {limit} bytes.", "too_large")
        if reply is None and self._worker.is_crowded and self._worker.has_its_share(served):
            self.close_after = True
            text = f"The router has few connections left, and services of the owner of {served.name} have many of them."
            reply = refusal(503, text, "too_many_connections", retry_after_s=1)
        if reply is not None:
            self._reply(reply)
            return
        served.arrived += 1  # not before: who may not use it is no load, and starts no replica
        if served.affinity_header or served.affinity_cookie:
            self.affinity = self._affinity(served)
        self._dispatch()

    def _check_key(self, served: Served) -> Reply | None:
        """What to say to who has no key, or whose key has had its part."""
        found = served.keys.find(self.request.credentials)
        if found is None:
            text = f"Service {served.name} needs a key: send it as `Authorization: Bearer KEY`."
            if self.request.credentials:
                text = f"That is no key of service {served.name}, or it was revoked: its owner can make another."
            return refusal(401, text, "invalid_api_key")
        use, line = found
        self._credentials = [each for each in self._credentials if each[2] is not line]
        if use.is_full():
            text = f"This key may have {use.key.concurrency} requests at a time."
            return refusal(429, text, "concurrency_limit_exceeded", retry_after_s=1)
        wait_s = use.wait_s(time.time())
        if wait_s:
            text = f"This key may send {use.key.requests_per_minute} requests a minute."
            return refusal(429, text, "rate_limit_exceeded", retry_after_s=int(wait_s) + 1)
        use.begin()
        self._key = use
        return None

    def _affinity(self, served: Served) -> bytes:
        if served.affinity_header and (value := self.request.value(served.affinity_header)):
            return value
        if served.affinity_cookie:
            for pair in (self.request.value(b"cookie") or b"").split(b";"):
                name, _, value = pair.strip().partition(b"=")
                if name == served.affinity_cookie and value:
                    return value
        return b""

    def _dispatch(self) -> None:
        """To a replica now, or into the queue."""
        served = self.served
        now = time.monotonic() if self._tries or self._connect_since else self.started
        backend = None if served.is_behind() else served.pick(self.affinity, now)
        if backend is not None:
            self.start(backend, now)
            return
        spec = served.spec
        is_ready = served.is_ready
        if served.is_removed:
            self._reply(self._unknown())
        elif not is_ready and not spec.wakes:
            text = f"Service {served.name} {spec.closed or 'has no replica'}."
            self._reply(refusal(503, text, "no_replica", retry_after_s=5))
        elif served.queued >= spec.queue:
            text = f"Service {served.name} has {spec.queue} requests waiting already."
            self._reply(refusal(503, text, "queue_full", retry_after_s=1 if is_ready else 5))
        else:
            self._state = WAITING
            self.since = self._worker.now
            served.wait(self, time.monotonic())
            if not is_ready:
                self._worker.tell_wait(served)

    def start(self, backend: Backend, now: float) -> None:
        """Here it is answered. Called by the queue too."""
        backend.begin(now)
        self.backend = backend
        idle = backend.idle
        if idle:
            self._send(idle.pop())
            return
        self._state = CONNECTING
        self.since = self._worker.now
        self._connect_since = self._connect_since or time.monotonic()
        self._attempt = self._worker.connect(backend, self)

    def connected(self, connection: ReplicaSide) -> None:
        self._attempt = None
        self._send(connection)

    def unconnected(self, backend: Backend, why: str) -> None:
        """Nothing was sent: another replica may answer, or the same one later."""
        self._attempt = None
        self._give_back(backend)
        self._worker.tell_trouble(backend, why)
        limit = self.served.spec.timeouts.connect_s
        if limit and time.monotonic() - self._connect_since >= limit:
            self._reply(refusal(502, f"No replica of {self.served.name} can be reached: {why}.", "unreachable"))
            return
        other = self.served.pick(self.affinity, time.monotonic())
        if other is not None and other.avoid_until <= time.monotonic():
            self.start(other, time.monotonic())
        else:
            self._worker.loop.call_later(_RETRY_S, self._again, self.request)

    def _again(self, request: Request) -> None:
        if self._state == CONNECTING and self.request is request and self.backend is None:
            self._state = COLLECTING
            self._dispatch()

    def _give_back(self, backend: Backend) -> None:
        self.backend = None
        self._worker.ended_on(backend, time.monotonic())

    # --- to the replica ---

    def _send(self, connection: ReplicaSide) -> None:
        request = self.request
        where = (request.host, self.prefix)
        if self._block_for != where:
            self._block_for = where
            self._block = self._worker.block(self.peer, self._proto, request.host or b"", self.prefix)
        set_before, head = request.passed_on
        if set_before is not self._block or request.expects or request.credentials:
            credentials = [line for _, _, line in self._credentials]
            head = rewriting.request_head(
                request, self._target, self._block, credentials, kept_expectation=not self.has_continued
            )
            if not credentials:
                request.passed_on = self._block, head
        self._state = ACTIVE
        self.connection = connection
        self._tries += 1
        self.touched = self._worker.now
        pending = self._pending
        if not pending:
            connection.begin(self, head)
            return
        self._paced, self._measured = self._worker.now, 0
        connection.begin(self, b"".join([head, *pending]))
        if not self.body_done or self._pending_size > _MAX_REPLAY or request.method not in _REPEATABLE:
            self._forget_pending()
        self._resume()

    def _take_more(self, data: bytes, at: int = 0) -> None:
        """More of a body."""
        if self._unread:  # it was read although it is behind
            self._unread, self._unread_at = self._unread[self._unread_at :] + data, 0
            self.transport.pause_reading()
            return
        try:
            if self._state == ACTIVE and self.connection is not None:
                data = self._own_part(data, at)
                if self._pending:  # kept for a repetition that is no longer possible
                    self._forget_pending()
                self.connection.transport.write(data)
                limit = self.served.spec.body_limit
                if limit and self._body_bytes > limit:
                    self._fail(refusal(413, f"Service {self.served.name} takes at most {limit} bytes.", "too_large"))
                return
            self._queue_body(data, at)
        except BodyError as error:
            self._fail(refusal(400, f"the request's body: {error}", "bad_body"))
            return
        if self._state == COLLECTING:
            self._collect()
        else:
            self._hold_back()

    def _queue_body(self, data: bytes, at: int = 0) -> None:
        """Keeps what is of the body until there is a replica, and what comes behind it. Raises BodyError."""
        if self.body_done:
            self._buffer += data
            return
        plain = self._plain
        before = len(plain) if plain is not None else 0
        data = self._own_part(data, at)
        self._pending.append(data)
        size = len(data) + (len(plain) - before if plain is not None else 0)
        self._pending_size += size
        self._worker.held_bytes += size

    def _forget_pending(self) -> None:
        self._worker.held_bytes -= self._pending_size
        self._pending.clear()
        self._pending_size = 0

    def _own_part(self, data: bytes, at: int) -> bytes:
        """What of these bytes is the body's, from `at` on, as far as it is looked through now; what is behind the body
        is the next request's. Raises BodyError."""
        size = len(data)
        if self._body is not None:
            own = self._body.take(data, self._plain, at, AT_ONCE)
            self.body_done = self._body.done
            self._body_bytes = self._body.payload
        else:
            own = min(size, self._left)
            self._left -= own
            self._body_bytes += own
            self.body_done = not self._left
        self._measured += own - at
        if own == size:
            return data[at:] if at else data
        if self.body_done:
            self._buffer += data[own:]
        else:
            self._unread, self._unread_at = data, own
            self._wait_for_turn()
        return data[at:own]

    def _hold_back(self) -> None:
        """A client is not read further than there is use for it."""
        if self._is_ahead():
            self.transport.pause_reading()

    def _is_ahead(self) -> bool:
        return len(self._buffer) + (self._pending_size if self._state != COLLECTING else 0) > _AHEAD

    def replica_is_slow(self, is_slow: bool) -> None:
        self._is_slow = is_slow
        if is_slow:
            self.transport.pause_reading()
        else:
            self._resume()

    # --- from the replica ---

    def began(self, status: int) -> bool:
        """The head of the answer is there. Returns whether the connection is to end with this answer."""
        self.status = status
        self.has_begun = True
        if self._pending:
            self._forget_pending()
        assert self.backend is not None
        self.backend.tally.began(time.monotonic() - self.started)
        return self.request.close or not self.body_done or self._worker.is_draining

    def answered(self) -> None:
        """The answer is whole, or what followed a tunnel's end."""
        if self._state == TUNNEL:
            self._say_goodbye("The replica has ended.")
        self.connection = None
        if self._state == TUNNEL or self.status == 0:
            self._release(self.status or 502)
            self._close()
            return
        self._release(self.status)
        self._next()

    def answered_whole(self, status: int) -> None:
        """Ends a request whose answer came in one piece and whose connection to the replica stays."""
        backend = self.backend
        assert backend is not None
        now = time.monotonic()
        self.connection = self.backend = None
        if self._pending:
            self._forget_pending()
        if self._key is not None:
            self._key.end()
            self._key = None
        backend.tally.whole(status, now - self.started)
        backend.tally.bytes_in += self._body_bytes
        self._worker.ended_on(backend, now)
        self._state = HEAD
        self.since = self._taken_since = self._worker.now
        self._untaken = _UNKNOWN
        if self._is_slow or self._buffer:
            self._go_on()

    def begin_tunnel(self, data: bytes) -> None:
        self.began(101)
        self._state = TUNNEL
        self.transport.write(data)
        if self._buffer and self.connection is not None:
            self.connection.transport.write(bytes(self._buffer))
            self._buffer.clear()
        self.transport.resume_reading()

    def end_tunnel(self, why: str) -> None:
        """If it is one. The client is told, where the protocol has words for it."""
        if self._state == TUNNEL:
            self._say_goodbye(why)
            self._drop_connection()
            self._release(self.status)
            self._close()

    def _say_goodbye(self, why: str) -> None:
        """Between two frames of a WebSocket whose server has not said it."""
        frames = self.connection.frames if self.connection is not None else None
        if frames is not None and frames.is_between:
            self.transport.write(websocket.goodbye(websocket.GOING_AWAY, why))

    def broken(self, connection: ReplicaSide, *, began: bool, heard: bool) -> None:
        """The replica's connection ended before its answer did."""
        backend = connection.backend
        self.connection = None
        if began:
            self._worker.tell_trouble(backend, "it broke off its answer", is_down=False)
            self._release(502)
            self._close()  # what is missing tells the client
        elif not heard and self._may_repeat():
            if not connection.was_used:
                self._worker.tell_trouble(backend, "it closed the connection without an answer")
            self._give_back(backend)
            self._state = COLLECTING
            self._dispatch()
        else:
            self._worker.tell_trouble(backend, "it closed the connection without an answer", is_down=False)
            self._reply(refusal(502, f"The replica of {self.served.name} ended without an answer.", "broken"))

    def _may_repeat(self) -> bool:
        return (
            self.request.method in _REPEATABLE
            and not self.request.upgrade
            and self._tries < _MAX_TRIES
            and (bool(self._pending) if self.request.has_body else True)
            and self.body_done
        )

    def misanswered(self, connection: ReplicaSide, why: str) -> None:
        """What the replica sent is no answer."""
        self._worker.tell_trouble(connection.backend, why, is_down=False)
        self._fail(refusal(502, f"Service {self.served.name}: {why}.", "bad_answer"))

    def left_behind(self) -> None:
        """Its replica is gone from the table: what can be repeated elsewhere is not left to wait for it."""
        if self._state == ACTIVE and not self.has_begun and self._may_repeat() and self.backend is not None:
            backend = self.backend
            self._drop_connection()
            self._give_back(backend)
            self._state = COLLECTING
            self._dispatch()

    def unwanted(self) -> None:
        """It waits for a service that is no more."""
        self.served.leave(self, time.monotonic())
        self._reply(self._unknown())

    # --- the end of a request ---

    def _fail(self, reply: Reply) -> None:
        """Ends a request that may be on its way: with this answer, unless another has begun."""
        if self.has_begun:
            self._drop_connection()
            self._release(reply.status)
            self.abort()
        else:
            self._reply(reply)

    def _reply(self, reply: Reply) -> None:
        """Answers without a replica."""
        self._drop_connection()
        if self._is_counted:
            self.served.refused += 1
        closing = self.close_after or not self.body_done or self._worker.is_draining
        self.transport.write(reply.to_bytes(closing=closing, with_body=self.request.method != b"HEAD"))
        self._release(reply.status)
        self._forget_pending()
        if not self.body_done:
            self._linger()
        else:
            self.close_after |= closing
            self._next()

    def _drop_connection(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None
        if self.connection is not None:
            connection, self.connection = self.connection, None
            connection.close()

    def _release(self, status: int) -> None:
        """Counts what became of it, and lets the next one in."""
        now = time.monotonic()
        if self._key is not None:
            self._key.end()
            self._key = None
        backend, self.backend = self.backend, None
        if backend is not None:
            backend.tally.ended(status, now - self.started)
            backend.tally.bytes_in += self._body_bytes
            self._worker.ended_on(backend, now)
        elif self._is_counted:
            self.served.tally.ended(status, now - self.started)
            self._worker.is_busy = True

    def _next(self) -> None:
        """The connection is free for the next request."""
        if self.close_after:
            if self.body_done:
                self._close()
            else:
                self._linger()
            return
        self._state = HEAD
        self.since = self._taken_since = self._worker.now
        self._untaken = _UNKNOWN
        if self._is_slow or self._buffer:
            self._go_on()

    def _go_on(self) -> None:
        self._is_slow = False
        self.transport.resume_reading()
        if self._buffer:
            self._worker.loop.call_soon(self._take_buffered)

    def _take_buffered(self) -> None:
        """Requests that came behind the one that was answered."""
        if self._state == HEAD and self._buffer:
            data = bytes(self._buffer)
            self._buffer.clear()
            self._take_head(data)

    def _close(self) -> None:
        """When all that was written is taken."""
        self._state = LINGERING
        self.since = self._worker.now
        self._begin_taking()
        self.transport.close()

    def _linger(self) -> None:
        """Said what was to be said. A client that still sends would lose that if it were cut off at once."""
        self._state = LINGERING
        self._unread = b""
        self._begin_taking()
        self.since, self._measured = self._worker.now, 0
        self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def abort(self) -> None:
        self._state = CLOSED if self._state == CLOSED else LINGERING
        self.transport.abort()

    # --- looked at twice a second ---

    @property
    def is_unused(self) -> bool:
        """No request is in work: it may be closed for another."""
        return self._state == HEAD

    def turn_away(self) -> None:
        """There are too many connections, all of them in use."""
        text = "The router has as many connections as it may have, or as one address or user may have."
        self.transport.write(refusal(503, text, "too_many_connections", retry_after_s=1).to_bytes(closing=True))
        self._close()

    def drain(self) -> None:
        """The worker ends: nothing new begins here."""
        self.close_after = True
        if self._state == HEAD and not self._buffer:
            self._close()

    def look(self, now: float) -> None:
        """Ends what has taken too long."""
        settings = self._worker.settings
        state = self._state
        if state == HEAD:
            limit = settings.head_s if self._buffer or not hasattr(self, "request") else settings.keep_alive_s
            if self.transport.get_write_buffer_size():
                self._is_taking(now)
            elif now - self.since > limit:
                self._end_unused()
        elif state == LINGERING:
            if self.transport.get_write_buffer_size():
                self._is_taking(now)
            elif now - self.since > _LINGER_S:
                self.transport.abort()
        elif state == WAITING:
            self._look_at_waiting(now)
        elif state == CONNECTING:
            pass  # each attempt has its own limit
        elif state != CLOSED:
            self._look_at_active(now)

    def _end_unused(self) -> None:
        if self._buffer:
            self._refuse_head(HeadError(408, "the request's head did not come in time"))
        else:
            self._close()

    def _look_at_waiting(self, now: float) -> None:
        timeouts = self.served.spec.timeouts
        is_ready = self.served.is_ready
        limit = timeouts.queue_s if is_ready else timeouts.wake_s
        if _is_gone(self.transport):
            self.transport.abort()
        elif limit and now - self.since > limit:
            self.served.leave(self, time.monotonic())
            what = "was not answered in time: all replicas are busy" if is_ready else "has no replica ready in time"
            text = f"Service {self.served.name} {what}."
            self._reply(refusal(503, text, "queue_timeout", retry_after_s=5))

    def _look_at_active(self, now: float) -> None:
        if self.is_full and not self._is_taking(now):
            return
        may_wait = self.request.expects and not self._body_bytes  # for the replica's 100 Continue
        if not self.body_done and not self._is_slow and not may_wait and not self._is_sending(now):
            return
        if self._state == COLLECTING:
            return
        timeouts = self.served.spec.timeouts
        if timeouts.total_s and time.monotonic() - self.started > timeouts.total_s and self._state != TUNNEL:
            self._time_is_over("it took too long", "total_timeout")
        elif not self.has_begun:
            if self._is_slow and _is_gone(self.transport):  # it is not read, and nobody else would tell
                self._cut_off()
            elif self._is_slow and timeouts.idle_s and now - self.touched > timeouts.idle_s:
                self._time_is_over("the replica takes no more of the body", "idle_timeout")
            elif not (self.body_done or may_wait) or not timeouts.first_byte_s:
                return
            elif now - self.touched > timeouts.first_byte_s:
                self._time_is_over("no answer began in time", "first_byte_timeout")
        elif timeouts.idle_s and now - self.touched > timeouts.idle_s and not self.is_full:
            self._time_is_over("the replica sends no more", "idle_timeout")

    def _time_is_over(self, why: str, code: str) -> None:
        self._fail(refusal(504, f"Service {self.served.name}: {why}.", code))

    def _is_sending(self, now: float) -> bool:
        """Whether enough of its body comes; else its request is over, and it is told so where no answer has begun."""
        settings = self._worker.settings
        if now - self._paced <= settings.pace_s:
            return True
        enough = self._measured >= settings.pace_bytes
        self._paced, self._measured = now, 0
        if enough or self.has_begun:
            return enough or self._cut_off()
        self._reply(refusal(408, "the request's body did not come in time", "body_timeout"))
        return False

    def _is_taking(self, now: float) -> bool:
        """Whether enough of its answer goes; else it is cut off. Asked while nothing is added to that."""
        settings = self._worker.settings
        if now - self._taken_since <= settings.pace_s:
            return True
        untaken = self.transport.get_write_buffer_size()
        enough = untaken <= self._untaken - settings.pace_bytes
        self._taken_since, self._untaken = now, untaken
        return enough or self._cut_off()

    def _cut_off(self) -> bool:
        self._drop_connection()
        if COLLECTING <= self._state <= TUNNEL:
            self._release(408)
        self.abort()
        return False

    def _begin_taking(self) -> None:
        self._taken_since, self._untaken = self._worker.now, self.transport.get_write_buffer_size()


def _is_gone(transport: asyncio.Transport) -> bool:
    """Whether the client has closed: it may not have been read for a while, and so nobody would be told."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is None:
        return False
    try:
        (state,) = struct.unpack_from("B", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))
    except OSError:
        return True
    return bool(state != _TCP_ESTABLISHED)
