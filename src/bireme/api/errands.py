"""Where commands run that the daemon answers: a few threads beside the loop, users in turn.

A command is written as one plain function that asks and prints; in a thread it may wait for its questions, which the
loop answers in the caller's turns like any request's (`api/routes/commands.py`). Two hundred people who watch the queue
ask for the same: it is printed once for all of them, as long as nothing has changed.

Invariants: nobody's command holds the loop: a thread gives way to it after one slice of time (`SLICE_S`). A command for
which nobody waits any more ends at its next step (`Stay`), and so does one that takes long while others have no thread:
it is sent back. Who is told what another was told asked in the same words, sees the same of what may be private, and
nothing had changed since it was begun.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from bireme.agent.system import memory
from bireme.api.answers import FRESH_S
from bireme.api.serving.slices import SLICE_S
from bireme.api.serving.turns import Slots
from bireme.commands import parcels
from bireme.commands.surroundings import NearError

THREADS, THREADS_EACH, SPARE_THREADS = 6, 2, 2
"""So many commands run at a time, and so many of one user; the last few are for users of whom none runs."""
LONG_S = 0.5
"""Who takes longer goes on elsewhere when others wait for a thread."""
MOST_COMPUTED_S = 4.0
"""Who computes for longer goes on elsewhere anyway: threads share one interpreter with the loop."""
SETTLE_S = 2.0
"""So long after the last command its memory is given back: each thread keeps all that it ever used."""
KEPT_BYTES = 32 << 20
"""Of what commands said, for others who ask for the same."""


class Told(NamedTuple):
    """What a command said. `personal`: it depends on who asks, beyond what may be private."""

    content: bytes
    personal: bool


class GoneError(Exception):
    """Nobody waits any more for what the command says."""


class Stay:
    """For whom a command runs here, and for how long it may."""

    def __init__(self, is_gone: Callable[[], bool], others_wait: Callable[[], bool] = lambda: False) -> None:
        self._gone = [is_gone]
        self._others_wait = others_wait
        self._began = time.monotonic()
        self._computed = 0.0

    def join(self, is_gone: Callable[[], bool]) -> None:
        """One more waits for it."""
        self._gone.append(is_gone)

    def is_over(self) -> bool:
        """Whether all of them are gone."""
        return all(is_gone() for is_gone in self._gone)

    def begin(self) -> None:
        """Begins to count the command's time, in its thread."""
        self._began, self._computed = time.monotonic(), time.thread_time()

    def go_on(self) -> None:
        """In the command's thread, between two steps of it. Raises GoneError, or NearError where it takes too long."""
        if self.is_over():
            raise GoneError
        if time.monotonic() - self._began > LONG_S and self._others_wait():
            raise NearError
        if time.thread_time() - self._computed > MOST_COMPUTED_S:
            raise NearError


Work = Callable[[Stay], Told]

SENT_BACK = Told(parcels.pack(parcels.NEAR, b""), personal=True)


@dataclass(frozen=True, slots=True)
class _Latest:
    """The latest answer to a question, which may be on its way."""

    version: Hashable
    begun_at: float
    uid: int
    stay: Stay
    told: asyncio.Task[Told]


class Errands:
    """`version` changes with whatever a command can show; `is_full`: who has not read what was said before.

    What such a user asks for is sent back: there is no end to what commands can say, and to who does not read it.
    """

    def __init__(self, version: Callable[[], Hashable], is_full: Callable[[int], bool] = lambda uid: False) -> None:
        self._version = version
        self._is_full = is_full
        self._slots = Slots(THREADS, THREADS_EACH, SPARE_THREADS)
        # Threads of their own: a question may need one of the others (`Context.in_thread`), which must not wait for it.
        self._threads = ThreadPoolExecutor(THREADS, "command")
        self._latest: dict[Hashable, _Latest] = {}
        """The oldest first."""
        self._settling: asyncio.TimerHandle | None = None
        sys.setswitchinterval(SLICE_S)

    async def run(self, uid: int, work: Work, is_gone: Callable[[], bool] = lambda: False) -> Told:
        """`is_gone`: whether who asked has left. Raises GoneError then."""
        return await self._run(uid, work, self._stay(uid, is_gone))

    async def look(self, question: Hashable, uid: int, work: Work, is_gone: Callable[[], bool] = lambda: False) -> Told:
        """Runs a command that changes nothing, once for all who put this question now."""
        loop = asyncio.get_running_loop()
        latest = self._latest.get(question)
        if latest is None or latest.version != self._version() or loop.time() - latest.begun_at > FRESH_S:
            stay = self._stay(uid, is_gone)
            latest = _Latest(self._version(), loop.time(), uid, stay, loop.create_task(self._run(uid, work, stay)))
            self._latest.pop(question, None)
            self._latest[question] = latest
            latest.told.add_done_callback(lambda _: self._forget_old())
            loop.call_later(2 * FRESH_S, self._forget, question, latest)
        else:
            latest.stay.join(is_gone)
        try:
            told = await asyncio.shield(latest.told)
        except GoneError:  # before this one came
            return await self.run(uid, work, is_gone)
        return told if latest.uid == uid or not told.personal else await self.run(uid, work, is_gone)

    def _stay(self, uid: int, is_gone: Callable[[], bool]) -> Stay:
        return Stay(is_gone, lambda: self._slots.others_wait(uid))

    async def _run(self, uid: int, work: Work, stay: Stay) -> Told:
        async with self._slots.held_by(uid):
            if stay.is_over():
                raise GoneError
            if self._is_full(uid):
                return SENT_BACK
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, work, stay)
            finally:
                self._settle()

    def _settle(self) -> None:
        """What commands used is given back to the machine a while after the last of them: not between two."""
        if self._settling is not None:
            self._settling.cancel()
        loop = asyncio.get_running_loop()
        self._settling = loop.call_later(SETTLE_S, loop.run_in_executor, self._threads, memory.give_back)

    def _forget_old(self) -> None:
        """No more is kept than `KEPT_BYTES`."""
        kept = 0
        for question, latest in reversed(list(self._latest.items())):
            if latest.told.done() and not latest.told.cancelled() and not latest.told.exception():
                kept += len(latest.told.result().content)
                if kept > KEPT_BYTES:
                    del self._latest[question]

    def _forget(self, question: Hashable, latest: _Latest) -> None:
        if self._latest.get(question) is latest:
            del self._latest[question]
