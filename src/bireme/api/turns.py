"""Whose turn it is on the loop: users take turns, however much each of them asks for.

A request waits here before it begins, and again between two slices of a long one; at each turn of the loop one of them
goes on. Users are asked in a circle, so that who asks once waits for one slice of each other user, and not for the
thousand requests that one of them has sent. `Slots` does the same for work in threads. Not here: how many connections a
user may have (`crowd.py`).

Invariants: with nobody else there, nobody waits; no user goes on twice while another waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator


class Circle:
    """Those who wait, by user: `next` takes one of the user whose turn it is."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, deque[asyncio.Future[None]]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def join(self, uid: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(uid, deque()).append(future)
        return future

    def next(self) -> asyncio.Future[None] | None:
        """The first who still waits, of the next user; None: nobody does."""
        while self._waiting:
            uid, queue = self._waiting.popitem(last=False)
            future = queue.popleft()
            if queue:
                self._waiting[uid] = queue  # behind the others
            if not future.done():
                return future
        return None


class Turns:
    """One goes on at each turn of the loop."""

    def __init__(self) -> None:
        self._circle = Circle()
        self._taken = False

    async def mine(self, uid: int) -> None:
        """Returns when it is this user's turn: at once, if nobody else took this turn of the loop."""
        if not self._taken:
            self._take()
            return
        await self._circle.join(uid)

    def _take(self) -> None:
        self._taken = True
        asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        future = self._circle.next()
        if future is None:
            self._taken = False
            return
        future.set_result(None)
        asyncio.get_running_loop().call_soon(self._give)


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
