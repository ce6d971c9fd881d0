"""Whose turn it is on the loop: users take turns, however much each of them asks for.

A request waits here before it begins, and again between two slices of a long one. At each turn of the loop a user goes
on once at most: who asks for the first time at once, those who wait one after another, users in a circle. So who asks
once waits for one slice of each other user, and not for the thousand requests that one of them has sent. The same goes
for what is read from connections and written to them, and `Slots` does it for work in threads. Not here: how many
connections a user may have (`crowd.py`).

Invariants: who asks for little does not wait while nobody else of theirs does; no user goes on twice while another
waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

_WINDOW_S = 0.02
_FEW_TURNS = 8
"""What an ordinary request or two take within a window."""
_LIGHT_PART = 0.75
"""Of what the one who had the most had: who had less is light beside them."""
FEW = 4
"""Who has no more requests under way, or connections, does not wait for their beginning, however many there were."""
_PASSING = 3
"""Turns of the loop between two in which somebody goes on who has had many."""


T = TypeVar("T")
Future = asyncio.Future[None]


class Circle(Generic[T]):
    """What waits, by user, users in a circle: `next` takes the first of the user whose turn it is.

    Requests and connections wait here, and what is to be read or written for somebody.
    """

    def __init__(self, still: Callable[[T], bool] = lambda waiting: True) -> None:
        """`still`: whether it has not been given up meanwhile; what has been is passed over."""
        self._waiting: OrderedDict[int, deque[T]] = OrderedDict()
        self._still = still
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, uid: int) -> bool:
        return uid in self._waiting

    def users(self) -> list[int]:
        """Users of whom something waits, the next first; may be asked from any thread."""
        return list(self._waiting)

    def count_of(self, uid: int) -> int:
        return len(self._waiting.get(uid, ()))

    def join(self, uid: int, waiting: T) -> None:
        self._waiting.setdefault(uid, deque()).append(waiting)
        self._count += 1

    def next(self, among: Callable[[int], bool] = lambda uid: True) -> tuple[int, T] | None:
        """The next user among these, and what of theirs came first; None: nothing of theirs waits."""
        while (uid := next(filter(among, self._waiting), None)) is not None:
            queue = self._waiting.pop(uid)
            while queue:
                waiting = queue.popleft()
                self._count -= 1
                if self._still(waiting):
                    if queue:
                        self._waiting[uid] = queue  # behind the others
                    return uid, waiting
        return None

    def newest_of_most(self) -> T | None:
        """Takes out what came last of whoever has the most; None where nobody has more than one."""
        longest = max(self._waiting.values(), key=len)
        if len(longest) <= 1:
            return None
        self._count -= 1
        return longest.pop()

    def clear(self) -> list[T]:
        """Takes out all."""
        all_waiting = [waiting for queue in self._waiting.values() for waiting in queue]
        self._waiting.clear()
        self._count = 0
        return all_waiting


def _still_waits(future: Future) -> bool:
    return not future.done()


class Turns:
    """Each user once in a turn of the loop, and of those who wait one.

    A request is several turns of the loop before it begins: taken, let in, read. While others are there, who has had
    many turns lately waits for some of the loop's to pass before the next: so a newcomer's steps are not each behind
    a slice of work.
    """

    def __init__(self) -> None:
        self._circle = Circle[Future](_still_waits)
        self._went_on: set[int] = set()
        """Users, in this turn of the loop."""
        self._passing = 0
        """Turns of the loop that are yet to pass before somebody who waits goes on."""
        self._ticking = False
        self._lately: dict[int, int] = {}
        """By user: turns in this window and, each half as much as the one after it, those before."""
        self._most = 0
        """What one user had of them."""
        self._window_until = 0.0
        self._under_way: dict[int, int] = {}
        """Requests, by user."""
        self._put_off = Circle[Callable[[], None]]()
        """What was to be read or written."""
        self._acted: set[int] = set()
        """Users for whom something was read or written in this turn of the loop."""

    def seen(self, uid: int, turns: int = 0) -> None:
        """This user has come, and will want a turn; or has cost others some already."""
        self._note(uid, turns)

    async def begin(self, uid: int) -> None:
        """Returns when it is this user's turn to begin a request; `end` is to be called whatever comes of it."""
        under_way = self._under_way[uid] = self._under_way.get(uid, 0) + 1
        await self.mine(uid, hurries=under_way <= FEW)

    def end(self, uid: int) -> None:
        """A request of this user's is over, or given up before it began."""
        self._under_way[uid] -= 1
        if not self._under_way[uid]:
            del self._under_way[uid]

    async def mine(self, uid: int, *, hurries: bool = False) -> None:
        """Returns when it is this user's turn. Who hurries has it before those who have asked for much."""
        self._note(uid, 1)
        waits = uid in self._went_on or uid in self._circle or not (hurries or self.is_light(uid))
        self._tick()
        if waits:
            future: Future = asyncio.get_running_loop().create_future()
            self._circle.join(uid, future)
            await future
        else:
            self._went_on.add(uid)

    def puts_off(self, uid: int, act: Callable[[], None]) -> bool:
        """Whether a connection of this user is to be read or written later: `act` is then called, in its turn.

        Else it is done at once. A thousand connections of one user may be ready in one turn of the loop.
        """
        self._tick()
        if uid not in self._acted and uid not in self._put_off:
            self._acted.add(uid)
            return False
        self._note(uid, 1)
        if self.is_light(uid):
            return False
        self._put_off.join(uid, act)
        return True

    def _tick(self) -> None:
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._next)

    def _note(self, uid: int, turns: int) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._window_until:
            self._window_until = now + _WINDOW_S
            self._lately = {user: count // 2 for user, count in self._lately.items() if count > 1}
            self._most //= 2
        had = self._lately[uid] = self._lately.get(uid, 0) + turns
        self._most = max(self._most, had)

    def is_light(self, uid: int) -> bool:
        """Whether a user asks for little, or there is nobody else. Who asks one thing after another is light beside a
        crowd."""
        had = self._lately.get(uid, 0)
        return had <= _FEW_TURNS or had <= _LIGHT_PART * self._most or len(self._lately) <= 1

    def _next(self) -> None:
        """At each turn of the loop while somebody goes on."""
        self._went_on.clear()
        self._acted.clear()
        self._passing = max(0, self._passing - 1)
        waited = self._circle.next(self.is_light) if self._passing else self._circle.next()
        if waited is not None:
            uid, future = waited
            future.set_result(None)
            self._went_on.add(uid)
            self._passing = self._passing if self.is_light(uid) else _PASSING
        self._ticking = bool(self._circle) or bool(self._put_off) or waited is not None
        if self._ticking:
            asyncio.get_running_loop().call_soon(self._next)
        self._act()

    def _act(self) -> None:
        """One thing of what was put off."""
        put_off = self._put_off.next()
        if put_off is not None:
            uid, act = put_off
            self._acted.add(uid)
            act()


class Slots:
    """Slots for work: so many at a time, and of one user so many; who finds none free waits in the circle.

    The last `spare` of them are for users who have none: so two who fill what they may have do not stop the others.
    """

    def __init__(self, slots: int, each: int, spare: int = 0) -> None:
        assert 0 < each <= slots - spare
        self._free, self._each, self._spare = slots, each, spare
        self._held: dict[int, int] = {}
        self._waiting = Circle[Future](_still_waits)

    @contextlib.asynccontextmanager
    async def held_by(self, uid: int) -> AsyncIterator[None]:
        if not self._may_take(uid) or uid in self._waiting:
            future: Future = asyncio.get_running_loop().create_future()
            self._waiting.join(uid, future)
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

    def others_wait(self, uid: int) -> bool:
        """Whether somebody else has none because all are taken; may be asked from any thread."""
        return not self._free and any(waiting != uid for waiting in self._waiting.users())

    def _may_take(self, uid: int) -> bool:
        held = self._held.get(uid, 0)
        return self._free > (self._spare if held else 0) and held < self._each

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
        while self._free and (waited := self._waiting.next(self._may_take)) is not None:
            uid, future = waited
            self._take(uid)
            future.set_result(None)
