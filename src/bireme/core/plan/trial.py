"""What if: jobs that ask for something else, or are not submitted yet, planned in a copy of the queue; and all of it.

`bireme why` checks each of its suggestions like this, and `sbatch --test-only` gets its answer from here. The pass is
the planner's own, over the jobs that stand before the ones in question: what stands behind them cannot change what
they get. `POST /v1/whatif` has the whole queue planned (`foresee`), once as it is and once for another cluster, with
room for more slots than the planner keeps between two passes. Nothing of the state is changed.
Invariant: an unchanged job gets what the next full pass would give it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bireme.core.calendar.booking import Booking
from bireme.core.model.jobs import Job
from bireme.core.model.reasons import Reason
from bireme.core.model.resources import NodeShare
from bireme.core.plan.decisions import Plan, Preempt, Resume, Start, StartGang
from bireme.core.plan.planner import plan
from bireme.core.plan.queue import entries_of
from bireme.core.plan.snapshot import Snapshot
from bireme.core.priority.order import rank
from bireme.core.state.state import State, Verdict

EVERY_START = 1_000_000
SLOTS = 2_000
"""Of the whole queue so many jobs get a slot: what stands further behind is told to wait without a time."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What the first of the jobs would get."""

    start: float | None
    """Now, when its slot begins, or None: nothing is promised."""
    starts_now: bool
    partition: str
    shares: tuple[NodeShare, ...]
    """What it would be given; in a slot without CPU and device numbers."""
    bookings: tuple[Booking, ...]
    """Its slots; an array may have several."""
    verdict: Verdict | None
    plan: Plan

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(share.node for share in self.shares)

    def victims(self, job_id: int) -> tuple[int, ...]:
        """Jobs that the pass ends so that this one can start."""
        ended = (each for each in self.plan.starts if isinstance(each, Preempt) and each.for_job == job_id)
        return tuple(victim.job_id for decision in ended for victim in decision.victims)


def try_jobs(state: State, jobs: Sequence[Job], now: float) -> Trial:
    """Plans the queue with these jobs (one, or all components of a heterogeneous one) as they are given here."""
    copy = _with_jobs(state, jobs, now)
    policy = replace(copy.config.settings.policy, starts_max=EVERY_START)
    passed = plan(Snapshot(copy, policy, now))
    first = jobs[0]
    start = _start_of(passed, first.id)
    if start is not None:
        return Trial(now, True, start.partition, start.shares, (), None, passed)
    verdict = passed.verdicts.get(first.id)
    bookings = passed.outlook.bookings.get(first.id)
    if not bookings:
        return Trial(None, False, next(iter(first.spec.partitions), ""), (), (), verdict, passed)
    slot = bookings[0]
    partition = _partition_of(copy, first, slot.shares)
    return Trial(slot.begin, False, partition, slot.shares, tuple(bookings), verdict, passed)


def _with_jobs(state: State, jobs: Sequence[Job], now: float) -> State:
    """A copy that shares everything but the queue, which ends with these jobs."""
    own = {job.id: job for job in jobs}
    copy = replace(
        state,
        jobs={**state.jobs, **own},
        pending={**state.pending, **own},
        array_members=dict(state.array_members),
        array_tasks=dict(state.array_tasks),
        het_members=dict(state.het_members),
        partition_priorities=dict(state.partition_priorities),
    )
    for job in jobs:
        copy.index_members(job)
        if state.jobs.get(job.id) is not job:
            rank(copy, job, now)
    queue = entries_of(copy, copy.pending.values())
    last = max((number for number, entry in enumerate(queue) if entry.job_id in own), default=-1)
    before = {entry.job_id: copy.pending[entry.job_id] for entry in queue[: last + 1]}
    for leader in [job.id for job in before.values() if job.het_job_id == job.id]:
        members = copy.het_members[leader]
        before.update({member: copy.pending[member] for member in members if member in copy.pending})
    copy.pending = before
    return copy


def _start_of(passed: Plan, job_id: int) -> Start | None:
    for decision in passed.starts:
        if isinstance(decision, Preempt | Resume):
            continue
        for start in decision.starts if isinstance(decision, StartGang) else (decision,):
            if start.job_id == job_id:
                return start
    return None


def _partition_of(state: State, job: Job, shares: Sequence[NodeShare]) -> str:
    nodes = {share.node for share in shares}
    known = (state.partitions[name] for name in job.spec.partitions if name in state.partitions)
    return next((each.name for each in known if nodes <= set(each.nodes)), "")


# -- the whole queue -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Foreseen:
    """When each waiting job starts, now or in a slot, by its record; of an array its next task."""

    starts: Mapping[int, float]
    reasons: Mapping[int, tuple[Reason, ...]]
    """Of those without a start."""


def foresee(state: State, now: float) -> Foreseen:
    """The whole queue as one pass sees it, if all jobs run for as long as they may."""
    policy = state.config.settings.policy
    wide = replace(policy, starts_max=EVERY_START, bookings_max=max(policy.bookings_max, SLOTS))
    passed = plan(Snapshot(state, wide, now))
    starts = {job_id: slots[0].begin for job_id, slots in passed.outlook.bookings.items() if slots}
    for decision in passed.starts:
        if isinstance(decision, Preempt):
            starts.setdefault(decision.for_job, now)  # as soon as its victims have ended
        elif not isinstance(decision, Resume):
            for start in decision.starts if isinstance(decision, StartGang) else (decision,):
                starts[start.job_id] = now
    waiting, verdicts = state.pending, passed.verdicts
    without = {each: verdicts[each].reasons for each in waiting if each not in starts and each in verdicts}
    return Foreseen({each: at for each, at in starts.items() if each in waiting}, without)
