"""Which jobs time alone will move, and when: an index, so that nobody need look at every job to know what is due.

The job's kind notes the jobs that an event changed; `core/jobs/due.py` works out their times when it is next asked and
keeps them here, in a heap whose outdated entries are dropped when they come up. Derived: after a snapshot is read all
jobs are noted.
Invariant: once the noted jobs are worked out, the heap has the earliest time to come of every job that has one, and
`overdue` every job one of whose times is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush


@dataclass(slots=True)
class Timetable:
    changed: set[int] = field(default_factory=set)
    """Jobs whose times must be worked out again."""
    all_changed: bool = True
    lost: tuple[str, ...] | None = None
    """Nodes that do not answer; None: to be looked up."""
    overdue: set[int] = field(default_factory=set)
    dependent: set[int] = field(default_factory=set)
    """Waiting jobs that name others they wait for."""
    held_back: set[int] = field(default_factory=set)
    """Waiting jobs whose age does not count, by a limit."""
    _first: dict[int, float] = field(default_factory=dict)
    """job -> the time of it that is in the heap and still counts."""
    _heap: list[tuple[float, int]] = field(default_factory=list)

    def clear(self) -> None:
        for index in (self.changed, self.overdue, self.dependent, self.held_back, self._first, self._heap):
            index.clear()
        self.all_changed = False

    def forget(self, job_id: int) -> None:
        self._first.pop(job_id, None)
        self.overdue.discard(job_id)
        self.dependent.discard(job_id)
        self.held_back.discard(job_id)

    def expect(self, job_id: int, at: float) -> None:
        """Notes the next time to come of a job."""
        if self._first.get(job_id) != at:
            self._first[job_id] = at
            heappush(self._heap, (at, job_id))

    def passed(self, now: float) -> Iterator[int]:
        """Takes out the jobs whose times are over; they are overdue from now on."""
        while self._heap and self._heap[0][0] <= now:
            at, job_id = heappop(self._heap)
            if self._first.get(job_id) == at:
                del self._first[job_id]
                self.overdue.add(job_id)
                yield job_id

    def next_at(self) -> float | None:
        while self._heap and self._first.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None
