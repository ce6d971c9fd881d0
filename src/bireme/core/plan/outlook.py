"""What a pass leaves for the next ones: the calendar with its slots, so that small changes need no new look at all.

A full pass tests the queue from its head and books slots; that costs as much as the queue is long. When a job ends or
a new one comes, the slots still stand: `plan_again` (planner.py) only asks whether the jobs that were tested, and the
new ones, can start now. The kernel keeps the outlook, tells it what happened (`note`), and makes a full pass when it is
too old or something happened that it cannot follow (a node went, a limit changed): `note` then says that it is void.

Invariant: an outlook that is not void knows the planned end of every job that holds resources.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bireme.core.calendar.calendar import Booking, Calendar
from bireme.core.lifecycle.due import gone_by
from bireme.core.lifecycle.state import State
from bireme.core.model import events as e
from bireme.core.model.resources import Allocation

HARMLESS = (
    e.ArrayTaskSplit,
    e.JobStarted,
    e.BatchExited,
    e.JobEnding,
    e.JobSignalled,
    e.StepCreated,
    e.StepStarted,
    e.StepEnding,
    e.StepNodeEnded,
    e.JobForgotten,
    e.JobHeld,
)
"""Events that change neither what is free, nor what is promised, nor who may start."""


@dataclass(slots=True)
class Outlook:
    made_at: float
    calendar: Calendar
    ends: dict[int, tuple[float, Allocation]] = field(default_factory=dict)
    """job -> (planned end, allocation), as the calendar was told."""
    bookings: dict[int, list[Booking]] = field(default_factory=dict)
    """job -> its slots, earliest first (an array has several)."""
    tested: list[int] = field(default_factory=list)
    """Jobs that were looked at and wait for resources, in the order of the queue."""
    fresh: set[int] = field(default_factory=set)
    """Jobs that came into the queue since."""
    blocked: set[str] = field(default_factory=set)
    """Partitions in which some tested job has no slot: nobody behind it may start before the next full pass."""

    def note(self, state: State, event: e.Event, at: float) -> bool:
        """Follows an event that was applied. False: it cannot, the outlook is void."""
        match event:
            case e.JobSubmitted() | e.JobBecameEligible() | e.JobReleased() | e.JobRequeued():
                self.fresh.add(event.job_id)
            case e.JobAllocated():
                self.ends[event.job_id] = (gone_by(state, state.jobs[event.job_id], at), event.allocation)
            case e.JobEnded() | e.JobLaunchFailed():
                planned = self.ends.pop(event.job_id, None)
                if planned is None:
                    return False
                self.calendar.withdraw(*planned)
                if event.job_id in state.pending:
                    self.fresh.add(event.job_id)
            case e.JobCancelled():
                self.forget(event.job_id)
            case _:
                return isinstance(event, HARMLESS)
        return True

    def forget(self, job_id: int) -> list[Booking]:
        """Takes a job's slots out of the calendar."""
        bookings = self.bookings.pop(job_id, [])
        for booking in bookings:
            self.calendar.unbook(booking)
        return bookings

    def restore(self, job_id: int, bookings: Iterable[Booking]) -> None:
        kept = list(bookings)
        if kept:
            self.bookings[job_id] = kept
            for booking in kept:
                self.calendar.book(booking)
