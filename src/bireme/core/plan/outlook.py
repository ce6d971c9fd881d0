"""What a pass leaves for the next ones: the calendar with its slots, so that small changes need no new look at all.

A full pass tests the queue from its head and books slots; that costs as much as the queue is long. When a job ends or
a new one comes, the slots still stand: the next pass only asks whether the jobs that were tested, and the new ones, can
start now. To a new outlook (`work.look_anew`) all are new ones. The kernel keeps the outlook, tells it what happened
(`note`), and makes a new one when it is too old or something happened that it cannot follow (a node went, a limit
changed): `note` then says that it is void.

A waiting job is in one of these, or in none (a gate holds it that an event opens, or it starts):

| where | who puts it there | who takes it out |
|---|---|---|
| `fresh` | `look_anew`: all; `note`: who comes, is released or held, followers of who went | the next pass |
| `waiting` | a look that found only room missing (`Pass.remember`) | a pass when something that it can use came free |
| `again` | a look that found anything else missing: a limit, a throttle, a back-off | looked at in every round |
| `left` | a pass that ended early (`enough`, `starts_max`) | the next pass, in order |
| a line of `blocked` | a pass that found its line blocked before it | `planner._go_on`, when the blocker is gone |

`freed` holds nodes, not jobs: whoever of `waiting` can use them is looked at. `owed` says that `again` was passed over.

Invariant: an outlook that is not void knows the planned end of every job that holds resources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bireme.core.calendar.booking import Booking
from bireme.core.calendar.calendar import Calendar
from bireme.core.jobs.due import gone_by
from bireme.core.jobs.placing import schedulable_nodes
from bireme.core.jobs.suspending import on_lent_cpus
from bireme.core.model import events as e
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import Job
from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.placement.ranking import Ranking
from bireme.core.placement.search import Search
from bireme.core.placement.table import BoolArray
from bireme.core.plan.hope import Waiting
from bireme.core.plan.queue import Entry, Line
from bireme.core.plan.stands import UNTOUCHED
from bireme.core.state.state import State

Whose = int | str | tuple[int, str] | tuple[str, int]
"""Slots of a user, in a partition, of an association (user, account), of a user in a partition."""


@dataclass(slots=True)
class Answers:
    """What was found out about requests and holds until a node, a partition or the configuration changes."""

    searches: dict[tuple[object, ...], Search] = field(default_factory=dict)
    fit_empty: dict[tuple[object, ...], bool] = field(default_factory=dict)
    away: dict[str, str] = field(default_factory=dict)
    """Partition -> its nodes that nobody may use now, by name."""
    fenced: dict[str, str] = field(default_factory=dict)
    """Partition -> which GPUs of its nodes are out of service, and why."""
    ranking: Ranking | None = None
    """Which of several places is the better one."""
    _usable: dict[str, tuple[PartitionConfig, BoolArray]] = field(default_factory=dict)

    def usable_nodes(self, state: State, partition: PartitionConfig) -> BoolArray:
        """The partition's nodes that are up and not drained. To read only."""
        known = self._usable.get(partition.name)
        if known is None or known[0] is not partition:
            known = self._usable[partition.name] = (partition, schedulable_nodes(state, partition))
        return known[1]


@dataclass(slots=True)
class Outlook:
    made_at: float
    calendar: Calendar
    ends: dict[int, tuple[float, Allocation]] = field(default_factory=dict)
    """job -> (planned end, allocation), as the calendar was told."""
    answers: Answers = field(default_factory=Answers)
    bookings: dict[int, list[Booking]] = field(default_factory=dict)
    """job -> its slots, earliest first (an array has several)."""
    promises: Mapping[int, Sequence[Booking]] = field(default_factory=dict)
    """Slots that jobs had before it was made: the first pass keeps them where it finds no earlier ones."""
    resumptions: dict[int, Booking] = field(default_factory=dict)
    """When suspended jobs take back what they lent: in the calendar."""
    waiting: Waiting = field(default_factory=Waiting)
    """Jobs that were looked at and wait for room: looked at again when something that they can use comes free."""
    again: set[int] = field(default_factory=set)
    """Jobs that were looked at and wait for something else: looked at in every round of passes."""
    kept_out: set[int] = field(default_factory=set)
    """Of these, jobs behind a gate that time or another's end opens."""
    again_at: float = 0.0
    """When these were last looked at."""
    owed: bool = False
    """Something has changed since then, and the passes were busy with what earlier ones had left."""
    fresh: set[int] = field(default_factory=set)
    """Jobs that came into the queue since."""
    followers: dict[int, set[int]] = field(default_factory=dict)
    """job (or array) -> jobs that depend on it: its end may make it certain that they never start."""
    left: list[Entry] = field(default_factory=list)
    """What the latest pass did not reach, in order."""
    blocked: dict[str, Line] = field(default_factory=dict)
    """Lines in which some job that was looked at has no slot: nobody behind it may start before it has."""
    heads: dict[str, int] = field(default_factory=dict)
    """Line -> the job that was the first in it to wait for resources, as the latest pass that looked saw it."""
    unblocked: bool = False
    """A job that blocked a line is gone, or held: those behind it may go on."""
    passed_over: set[tuple[int, str]] = field(default_factory=set)
    """(job, partition) of jobs with several partitions that stand behind such a one in this partition."""
    freed: set[int] = field(default_factory=set)
    """Positions of nodes where something came free since the latest pass."""
    changes: int = 0
    """Jobs that ended, came or went since it was made: slots may be found earlier."""
    booked: int = 0
    booked_by: Counter[Whose] = field(default_factory=Counter)
    """How many slots there are, and whose: policy limits them."""
    suspended: bool = True
    """Some job waits for CPUs to go on, or might."""
    reordered: bool = False
    """The priorities have changed since it was made."""
    last_booked: Entry | None = None
    """The last of the queue that has a slot."""

    @property
    def tested(self) -> int:
        """How many waiting jobs were looked at."""
        return len(self.waiting) + len(self.again)

    def note(self, state: State, event: e.Event, at: float) -> bool:
        """Follows an event that was applied. False: it cannot, the outlook is void."""
        if type(event) in UNTOUCHED:
            return True
        match event:
            case e.JobSubmitted() | e.JobBecameEligible() | e.JobReleased() | e.JobRequeued():
                self.fresh.add(event.job_id)
                self.changes += 1
            case e.JobAllocated():
                self.ends[event.job_id] = (gone_by(state, state.jobs[event.job_id], at), event.allocation)
                if self.suspended and on_lent_cpus(state, event.allocation):
                    return False  # who lent them goes on later than the calendar knows, and slots count on that
            case e.JobEnded() | e.JobLaunchFailed():
                planned = self.ends.pop(event.job_id, None)
                if planned is None:
                    return False
                self.calendar.withdraw(*planned)
                self._free(state, planned[1].shares)
                self._tell_followers(state, event.job_id)
                self.changes += 1
                if event.job_id in state.pending:
                    self.fresh.add(event.job_id)
            case e.JobEnding():
                planned = self.ends.get(event.job_id)
                if planned is not None and event.outcome.state != "PREEMPTED":  # who ends it knows when it is gone
                    self.expect(event.job_id, at + 1.0, planned[1])
            case e.JobCancelled():
                self._leave_queue(state, event.job_id)
                self._tell_followers(state, event.job_id)
            case e.JobHeld():
                self._leave_queue(state, event.job_id)
                self.fresh.add(event.job_id)  # its verdict is to say so
            case _:
                return False
        return True

    def _leave_queue(self, state: State, job_id: int) -> None:
        """Takes a job out that may not start: nobody waits for it; its slots (its gang's, of a component) are free."""
        job = state.jobs.get(job_id)
        gang = state.het_members.get(job.het_job_id, ()) if job is not None and job.het_job_id is not None else ()
        for member in {job_id, *gang}:
            self.give_up(state, self.forget(member))
        self.waiting.remove(job_id)
        self.again.discard(job_id)
        self.unblocked = self.unblocked or any(line.blocker == job_id for line in self.blocked.values())
        self.changes += 1

    def follow(self, job: Job) -> None:
        for dependency in job.spec.dependencies.items:
            if dependency.job_id:
                self.followers.setdefault(dependency.job_id, set()).add(job.id)

    def _tell_followers(self, state: State, job_id: int) -> None:
        job = state.jobs.get(job_id)
        for known_as in {job_id, *((job.array_job_id,) if job is not None and job.array_job_id is not None else ())}:
            self.fresh |= self.followers.pop(known_as, set())

    def _free(self, state: State, shares: Iterable[NodeShare]) -> None:
        index = state.occupancy.index
        self.freed.update(index[share.node] for share in shares if share.node in index)

    def give_up(self, state: State, bookings: Iterable[Booking]) -> None:
        """Slots that are not needed any more, and not in the calendar."""
        for booking in bookings:
            self._free(state, booking.shares)

    def expect(self, job_id: int, end: float, allocation: Allocation) -> None:
        """The job's resources come back then, and not when they were expected before."""
        if job_id in self.ends:
            self.calendar.withdraw(*self.ends[job_id])
        self.ends[job_id] = (end, allocation)
        self.calendar.started(end, allocation)

    def forget(self, job_id: int) -> list[Booking]:
        """Takes a job's slots out of the calendar."""
        bookings = self.bookings.pop(job_id, [])
        for booking in bookings:
            self.calendar.unbook(booking)
            self._count(booking, -1)
        return bookings

    def restore(self, job_id: int, bookings: Iterable[Booking]) -> None:
        kept = list(bookings)
        if kept:
            self.bookings[job_id] = kept
            for booking in kept:
                self.calendar.book(booking)
                self._count(booking, 1)

    def _count(self, booking: Booking, sign: int) -> None:
        self.booked += sign
        uid, partition = booking.uid, booking.partition
        for whose in (uid, partition, (uid, booking.account), (partition, uid)):
            self.booked_by[whose] += sign
