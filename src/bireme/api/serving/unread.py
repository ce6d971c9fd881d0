"""Long answers that nobody has read yet: sent as they are read, and counted for each user and in all.

A kernel's socket holds 200 KB; what a client does not read beyond that stays in the daemon's memory. So an answer goes
out in pieces, the next when there is room for it, and what is left of it counts as its user's until the last piece is
gone. Around every route (`api/app.py`); what commands say is counted here too (`api/errands.py`).

Invariant: who has `MOST_EACH` bytes unread, or anything at all while everybody together has `MOST`, is given no further
long answer before some of it is read. Who has nothing unread is always answered.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bireme.api.serving.peers import SCOPE_KEY, TRANSPORT_KEY, WITHIN_KEY, hang_up, is_gone
from bireme.api.serving.protocol import refusal_content
from bireme.api.serving.socket_transport import SocketTransport
from bireme.api.serving.turns import Turns
from bireme.held_by_user import HeldByUser

SHORT = 128 * 1024
"""An answer, or a piece of one, of so many bytes is sent as it is."""
MOST_EACH = 32 << 20
MOST = 256 << 20
_PIECE_BYTES = 64 * 1024
UNREFUSED_KEY = "bireme.unrefused"
"""In the scope of a request whose answer must not be replaced by a refusal: something was done for it."""
_TOO_MUCH_UNREAD = (429, "Too many large answers at once", "you have not read those before it: read them one by one")


class Unread:
    """Counts the bytes of answers that their users have not read yet. An answer that many read is kept once: it counts
    once for each of them, and once in all."""

    def __init__(self) -> None:
        self._readers: Counter[tuple[int, int]] = Counter()
        """By user and answer (its identity: it is kept while it counts)."""
        self._senders: Counter[int] = Counter()
        self._bytes = HeldByUser()
        """What all of their answers have together; `total`, which counts an answer once, may be less than theirs."""
        self.total = 0

    def is_full(self, uid: int) -> bool:
        own = self._bytes.of(uid)
        return own >= MOST_EACH or (own > 0 and self.total >= MOST)

    @contextlib.contextmanager
    def held(self, uid: int, answer: bytes) -> Iterator[None]:
        """While it is being sent to this user."""
        read, size = (uid, id(answer)), len(answer)
        self._bytes.add(uid, 0 if self._readers[read] else size)
        self.total += 0 if self._senders[id(answer)] else size
        self._readers[read] += 1
        self._senders[id(answer)] += 1
        try:
            yield
        finally:
            self._readers[read] -= 1
            self._senders[id(answer)] -= 1
            if not self._readers[read]:
                del self._readers[read]
                self._bytes.add(uid, -size)
            if not self._senders[id(answer)]:
                del self._senders[id(answer)]
                self.total -= size


class AsItIsRead:
    """An ASGI application whose long answers go out as they are read."""

    def __init__(self, app: ASGIApp, turns: Turns, unread: Unread) -> None:
        self._app, self._turns, self._unread = app, turns, unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope.get(WITHIN_KEY):
            send = _Sending(scope, send, self._turns, self._unread).take
        await self._app(scope, receive, send)


class _Sending:
    """One answer on its way."""

    def __init__(self, scope: Scope, send: Send, turns: Turns, unread: Unread) -> None:
        self._scope, self._send = scope, send
        self._turns, self._unread = turns, unread
        self._uid: int = scope[SCOPE_KEY].uid
        self._start: Message | None = None
        """It goes with the first piece: until then the answer may be another."""
        self._refused = False

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif not self._refused:
            await self._body(message)

    async def _body(self, message: Message) -> None:
        body: bytes = message.get("body", b"")
        if len(body) > SHORT and self._start is not None and self._is_too_much():
            await self._refuse()
            return
        start, self._start = self._start, None
        if len(body) <= SHORT:
            await self._at_once(start, message)
            return
        if start is not None:
            await self._send(start)
        with self._unread.held(self._uid, body):
            await self._in_pieces(body, more=message.get("more_body", False))

    async def _at_once(self, start: Message | None, message: Message) -> None:
        """A head and a short body in one piece."""
        if start is None:
            await self._send(message)
            return
        transport = self._scope.get(TRANSPORT_KEY)
        if isinstance(transport, SocketTransport):
            transport.gather()
        try:
            await self._send(start)
            await self._send(message)
        finally:
            if isinstance(transport, SocketTransport):
                transport.let_go()

    def _is_too_much(self) -> bool:
        return self._unread.is_full(self._uid) and not self._scope.get(UNREFUSED_KEY)

    async def _refuse(self) -> None:
        self._refused = True
        status, headers, body = refusal_content(*_TOO_MUCH_UNREAD)
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _in_pieces(self, body: bytes, *, more: bool) -> None:
        """Each waits until there is room for it, and for its user's turn."""
        for begin in range(0, len(body), _PIECE_BYTES):
            if is_gone(self._scope):
                await hang_up(self._scope)
                return
            end = begin + _PIECE_BYTES
            await self._send(
                {"type": "http.response.body", "body": body[begin:end], "more_body": more or end < len(body)}
            )
            await self._turns.mine(self._uid)
