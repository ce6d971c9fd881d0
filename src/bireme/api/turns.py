"""Whose turn it is on the loop: users take turns, however much each of them asks for.

A request waits here before it begins, and again between two slices of a long one. At each turn of the loop a user goes
on once at most: who asks for the first time at once, those who wait one after another, users in a circle. So who asks
once waits for one slice of each other user, and not for the thousand requests that one of them has sent. `Slots` does
the same for work in threads. Not here: how many connections a user may have (`crowd.py`).

Invariants: who asks for little does not wait while nobody else of theirs does; no user goes on twice while another
waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable

_WINDOW_S = 0.02
_FEW_TURNS = 8
"""What an ordinary request or two take within a window."""
_PASSING = 3


class Circle:
    """Those who wait, by user: `next` takes one of the user whose turn it is."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, deque[asyncio.Future[None]]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, uid: int) -> bool:
        return uid in self._waiting

    def join(self, uid: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(uid, deque()).append(future)
        return future

    def next(self, among: Callable[[int], bool] = lambda uid: True) -> tuple[int, asyncio.Future[None]] | None:
        """The next user among these, and their first who still waits; None: nobody does."""
        for uid in list(filter(among, self._waiting)):
            queue = self._waiting.pop(uid)
            while queue:
                future = queue.popleft()
                if not future.done():
                    if queue:
                        self._waiting[uid] = queue  # behind the others
                    return uid, future
        return None


class Turns:
    """Each user once in a turn of the loop, and of those who wait one.

    A request is several turns of the loop before it begins: taken, let in, read. While others are there, who has had
    many turns lately waits for some of the loop's to pass before the next: so a newcomer's steps are not each behind
    a slice of work.
    """

    def __init__(self) -> None:
        self._circle = Circle()
        self._went_on: set[int] = set()
        """Users, in this turn of the loop."""
        self._passing = 0
        """Turns of the loop that are yet to pass before somebody who waits goes on."""
        self._ticking = False
        self._lately: dict[int, int] = {}
        """By user: turns in this window and, each half as much as the one after it, those before."""
        self._window_until = 0.0

    def seen(self, uid: int) -> None:
        """This user has come, and will want a turn."""
        self._note(uid, 1)

    async def mine(self, uid: int) -> None:
        """Returns when it is this user's turn."""
        self._note(uid, 1)
        waits = uid in self._went_on or uid in self._circle or not self.is_light(uid)
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._next)
        if waits:
            await self._circle.join(uid)
        else:
            self._went_on.add(uid)

    def _note(self, uid: int, turns: int) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._window_until:
            self._window_until = now + _WINDOW_S
            self._lately = {user: count // 2 for user, count in self._lately.items() if count > 1}
        self._lately[uid] = self._lately.get(uid, 0) + turns

    def is_light(self, uid: int) -> bool:
        """Or there is nobody else."""
        return len(self._lately) <= 1 or self._lately.get(uid, 0) <= _FEW_TURNS

    def _next(self) -> None:
        """At each turn of the loop while somebody goes on."""
        self._went_on.clear()
        self._passing = max(0, self._passing - 1)
        waited = self._circle.next(self.is_light) if self._passing else self._circle.next()
        if waited is not None:
            uid, future = waited
            future.set_result(None)
            self._went_on.add(uid)
            self._passing = self._passing if self.is_light(uid) else _PASSING
        self._ticking = bool(self._circle) or waited is not None
        if self._ticking:
            asyncio.get_running_loop().call_soon(self._next)


class Slots:
    """So many at a time, and of one user so many; who finds none free waits in the circle."""

    def __init__(self, slots: int, each: int) -> None:
        assert 0 < each <= slots
        self._free, self._each = slots, each
        self._held: dict[int, int] = {}
        self._waiting: OrderedDict[int, deque[asyncio.Future[None]]] = OrderedDict()

    @contextlib.asynccontextmanager
    async def held_by(self, uid: int) -> AsyncIterator[None]:
        if not self._free or self._held.get(uid, 0) >= self._each or uid in self._waiting:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(uid, deque()).append(future)
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():  # it was given a slot at the same moment
                    self._give_back(uid)
                raise
        else:
            self._take(uid)
        try:
            yield
        finally:
            self._give_back(uid)

    def _take(self, uid: int) -> None:
        self._free -= 1
        self._held[uid] = self._held.get(uid, 0) + 1

    def _give_back(self, uid: int) -> None:
        self._free += 1
        self._held[uid] -= 1
        if not self._held[uid]:
            del self._held[uid]
        self._give()

    def _give(self) -> None:
        """To the next users in the circle who have not as many as one may have."""
        for uid in list(self._waiting):
            if not self._free:
                return
            queue = self._waiting.pop(uid)
            while queue and queue[0].done():
                queue.popleft()
            if queue and self._held.get(uid, 0) < self._each:
                self._take(uid)
                queue.popleft().set_result(None)
            if queue:
                self._waiting[uid] = queue
