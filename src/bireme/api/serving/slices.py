"""Long work on the loop, cut into slices of time: others have their turn in between.

What is looked at or made of tens of thousands of jobs would hold everybody else for seconds in one go. Used by the
routes that list, and by the answers that go out in pieces (`answers.py`).

Invariant: nobody goes on for longer than `SLICE_S` and one item, however many or expensive the items are.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from starlette.requests import Request

from bireme.api.serving.peers import SCOPE_KEY
from bireme.api.serving.turns import Turns
from bireme.core.model.jobs import ArrayWaiting, Job

SLICE_S = 0.000_25
"""How long one goes on before others have their turn: an ordinary request takes a handful of turns of the loop."""
_MOST = 512
"""Items between two looks at the clock."""

Item = TypeVar("Item")


class Slicer(Generic[Item]):
    """Goes through the items, as many at a time as `SLICE_S` allows."""

    def __init__(self, items: Sequence[Item], begin: int = 0) -> None:
        self._items = items
        self._count = 1
        self.next = begin

    def __bool__(self) -> bool:
        """Whether there are more."""
        return self.next < len(self._items)

    def slice(self) -> Iterator[Sequence[Item]]:
        """Some, and some more, until the time is up."""
        began = time.perf_counter()
        until = began + SLICE_S
        while self and began < until:
            part = self._items[self.next : self.next + self._count]
            self.next += len(part)
            yield part
            ended = time.perf_counter()
            if ended - began < SLICE_S / 8:
                self._count = min(2 * self._count, _MOST)
            elif ended - began > SLICE_S / 2:
                self._count = max(self._count // 2, 1)
            began = ended


async def slices_of(turns: Turns, request: Request, items: Sequence[Item]) -> AsyncIterator[Sequence[Item]]:
    """The items, some at a time, for one slice in each turn of the caller's. A request begins within a turn."""
    slicer = Slicer(items)
    while True:
        for part in slicer.slice():
            yield part
        if not slicer:
            return
        await turns.mine(request.scope[SCOPE_KEY].uid)


def as_of_now(jobs: Iterable[Job]) -> list[Job]:
    """The jobs, where arrays keep the waiting tasks that they have now.

    A task that starts while the list is made leaves its array's record, for one that is not in the list: it would be in
    neither.
    """
    return [
        replace(job, array=replace(job.array, waiting=job.array.waiting.copy()))
        if isinstance(job.array, ArrayWaiting)
        else job
        for job in jobs
    ]
