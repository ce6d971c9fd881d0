"""The door of the API: takes connections off the kernel's queue at once, and lets their users in by turns.

The kernel keeps who knocks in one row: a thousand connections of one user stand before the next user's one. To take one
off that row costs a tenth of serving it; so all are taken, sorted by user, and of each user one is let in at a turn of
the loop. Not here: how many a user may have inside (`crowd.py`).

Invariants: at a turn of the loop at most one connection of a user is let in; no more than `most` wait, and of one user
no more than half of them: who comes then is told to come again. When all places are taken, the first connection of
another user takes one of whoever has the most; where everybody has one (one person may have thousands of uids), none.
"""

from __future__ import annotations

import _socket
import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable

from bireme.api.serving.peers import uid_of
from bireme.api.serving.turns import Circle

log = logging.getLogger(__name__)

_TAKEN_A_TURN = 24
"""A fifth of a millisecond; few enough that those inside do not notice who knocks and runs away."""
_USERS_A_TURN = 4
_TURNS_OF_MANY = 4
"""Who asks for much is let in at one turn of the loop in so many."""
_BACK_OFF_S = 0.2
_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Door:
    """Open from `open` until `close`. `let_in` serves a connection, `refusal` is what one hears that cannot wait."""

    def __init__(
        self,
        let_in: Callable[[socket.socket, int], None],
        refusal: bytes,
        most: int,
        is_light: Callable[[int], bool] = lambda uid: True,
        seen: Callable[[int, int], None] = lambda uid, turns: None,
    ) -> None:
        """`is_light`: whether a user asks for little at present (`turns.py`); others are let in more rarely.

        `seen` is told of everybody who knocks, also of who has left again, and what of turns that is worth.
        """
        self._let_in = let_in
        self._refusal = refusal
        self._most = most
        self._is_light = is_light
        self._seen = seen
        self._turn = 0
        self._waiting = Circle[socket.socket]()
        self._came: set[int] = set()
        """Users of whom one was let in at this turn of the loop."""
        self._ticking = False
        self._listener: socket.socket | None = None

    def open(self, listener: socket.socket) -> None:
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._take)

    def move(self, listener: socket.socket) -> None:
        """Who knocked at the old one and was not taken yet has to knock again."""
        self._leave()
        self.open(listener)

    def _leave(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        self._leave()
        for sock in self._waiting.clear():
            sock.close()

    def _take(self) -> None:
        assert self._listener is not None
        for _ in range(_TAKEN_A_TURN):
            try:
                taken, _ = self._listener._accept()  # type: ignore[attr-defined]
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_RESOURCES:
                    raise
                self._back_off(error)
                return
            sock = _socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, taken)
            if _has_left(sock):
                self._seen(uid_of(sock), 1)
                sock.close()
            else:
                self._sort(_whole(sock))

    def _back_off(self, error: OSError) -> None:
        """The kernel goes on saying that somebody knocks: that is not listened to for a while."""
        assert self._listener is not None
        log.warning("no connection can be taken: %s", error.strerror)
        loop, listener = asyncio.get_running_loop(), self._listener
        loop.remove_reader(listener)
        loop.call_later(_BACK_OFF_S, lambda: self.open(listener) if self._listener is listener else None)

    def _sort(self, sock: socket.socket) -> None:
        uid = uid_of(sock)
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._next)
        waits = self._waiting.count_of(uid)
        if not waits and uid not in self._came and self._is_light(uid):
            self._came.add(uid)
            self._seen(uid, 0)
            self._let_in(sock, uid)
            return
        self._seen(uid, 1)
        if waits and (waits >= self._most // 2 or len(self._waiting) >= self._most):
            self._turn_away(sock)
        elif len(self._waiting) < self._most or self._make_room():
            self._waiting.join(uid, sock)
        else:
            self._turn_away(sock)

    def _make_room(self) -> bool:
        """The newest of whoever has the most is turned away, unless they all have one."""
        newest = self._waiting.newest_of_most()
        if newest is None:
            return False
        self._turn_away(newest)
        return True

    def _turn_away(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock:
            sock.send(self._refusal)

    def _next(self) -> None:
        """At each turn of the loop while somebody comes."""
        self._came.clear()
        self._ticking = bool(self._waiting)
        self._turn = (self._turn + 1) % _TURNS_OF_MANY
        for _ in range(_USERS_A_TURN):
            coming = self._waiting.next(self._may_come)
            if coming is None:
                break
            uid, sock = coming
            self._came.add(uid)
            self._let_in(sock, uid)
        if self._ticking:
            asyncio.get_running_loop().call_soon(self._next)

    def _may_come(self, uid: int) -> bool:
        """At this turn of the loop: each once, and who asks for much at few of them."""
        return uid not in self._came and (not self._turn or self._is_light(uid))


def _whole(sock: _socket.socket) -> socket.socket:
    """The same connection as the class that everybody else works with: it costs as much to make as to take off the
    kernel's row, and so is not made for those who have left."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, sock.detach())
    made.setblocking(False)
    return made


def _has_left(sock: _socket.socket) -> bool:
    """Whether the other side has closed it without a word: who only knocks takes nobody's place."""
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
