"""What keeps a waiting job from being considered at all, before resources: holds, times, dependencies, throttles.

Each gate returns a Reason or None; `closed_gates` returns all that are closed, never only the first. Pure reading:
who calls it decides (the planner skips the job, `due` marks it eligible or cancels it).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from math import inf

from bireme.core.jobs.states import held
from bireme.core.model.cluster import PartitionState
from bireme.core.model.jobs import (
    ArrayWaiting,
    Dependency,
    DependencyKind,
    Ending,
    Finished,
    Job,
    Pending,
    Running,
    Starting,
    Suspended,
)
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.reservations.reserving import reservation_gate
from bireme.core.state.state import State


def closed_gates(state: State, job: Job, now: float) -> tuple[Reason, ...]:
    """Every reason other than resources and queue order for which this pending job may not start now."""
    phase = job.phase
    assert isinstance(phase, Pending)
    if phase.free_to_go and not _has_gates(job):
        return ()
    gates = (
        _hold(phase),
        *_times(job, now),
        _dependency(state, job, now),
        _throttle(state, job),
        reservation_gate(state, job, now),
    )
    return tuple(filter(None, gates))


def _has_gates(job: Job) -> bool:
    """Whether its specification has anything that could keep it out, open or closed: most jobs have nothing."""
    spec = job.spec
    return spec.begin_at is not None or bool(spec.dependencies.items) or job.array is not None or bool(spec.reservation)


_SAID_WHILE_HELD = (
    ReasonKind.REQUEUED_HELD,
    ReasonKind.SPECIAL_EXIT,
    ReasonKind.RESERVATION_DELETED,
    ReasonKind.SYSTEM_FAILURE,
)


def _hold(phase: Pending) -> Reason | None:
    if phase.held_by is None:
        return None
    for why in phase.reasons:
        if why.kind is ReasonKind.LAUNCH_FAILED:
            return Reason(ReasonKind.LAUNCH_FAILED_HELD, why.facts)
        if why.kind in _SAID_WHILE_HELD:
            return why
    return held(phase.held_by)


def _times(job: Job, now: float) -> list[Reason]:
    assert isinstance(job.phase, Pending)
    closed = []
    if job.spec.begin_at is not None and job.spec.begin_at > now:
        closed.append(reason(ReasonKind.BEGIN_TIME, at=job.spec.begin_at))
    if job.phase.not_before is not None and job.phase.not_before > now:
        refused = next((r for r in job.phase.reasons if r.kind is ReasonKind.LAUNCH_FAILED), None)
        closed.append(refused or reason(ReasonKind.BEGIN_TIME, at=job.phase.not_before))
    return closed


def _throttle(state: State, job: Job) -> Reason | None:
    room = throttle_room(state, job)
    return None if room is None or room > 0 else throttled(state, job)


def throttle_of(job: Job) -> int | None:
    """How many tasks of its array may run at once. A task that was requeued has a record of its own and counts too."""
    if isinstance(job.array, ArrayWaiting):
        return job.array.throttle
    return job.spec.array.throttle if job.array is not None and job.spec.array is not None else None


def throttle_room(state: State, job: Job) -> int | None:
    """How many more tasks of its array may start; None: no throttle."""
    limit = throttle_of(job)
    if limit is None or job.array_job_id is None:
        return None
    return max(0, limit - state.running_tasks(job.array_job_id))


def throttled(state: State, job: Job) -> Reason:
    running = state.running_tasks(job.array_job_id or 0)
    return reason(ReasonKind.JOB_ARRAY_TASK_LIMIT, limit=throttle_of(job) or 0, running=running)


def partition_gate(state: State, name: str) -> Reason | None:
    """A partition that starts nothing now."""
    partition = state.partitions.get(name)
    if partition is None:
        return reason(ReasonKind.PARTITION_DOWN, partition=name)
    if partition.state is PartitionState.INACTIVE:
        return reason(ReasonKind.PARTITION_INACTIVE, partition=name)
    if partition.state is PartitionState.DOWN:
        return reason(ReasonKind.PARTITION_DOWN, partition=name)
    return None


# -- dependencies ----------------------------------------------------------------------------------------------------


class Met(Enum):
    YES = "yes"
    NOT_YET = "not yet"
    NEVER = "never"


MET_FOR_GOOD = frozenset(DependencyKind) - {DependencyKind.SINGLETON, DependencyKind.AFTER_CORR}
"""The others are asked anew: singleton as long as jobs of its name come, aftercorr for every task."""


def dependency_met(state: State, job: Job, now: float) -> Met:
    """All of a job's dependencies together (or any one of them, with `?`)."""
    wanted = job.spec.dependencies
    if not wanted.items:
        return Met.YES
    answers = [condition_met(state, job, item, now) for item in wanted.items]
    if wanted.any_suffices:
        if Met.YES in answers:
            return Met.YES
        return Met.NOT_YET if Met.NOT_YET in answers else Met.NEVER
    if Met.NEVER in answers:
        return Met.NEVER
    return Met.NOT_YET if Met.NOT_YET in answers else Met.YES


def _dependency(state: State, job: Job, now: float) -> Reason | None:
    """Once met they stay met, as in Slurm: a job that others wait for may be requeued. Only singleton looks again."""
    phase = job.phase
    was_met = isinstance(phase, Pending) and phase.eligible_at is not None
    if was_met and all(item.kind in MET_FOR_GOOD for item in job.spec.dependencies.items):
        return None
    met = dependency_met(state, job, now)
    if met is Met.YES:
        return None
    kind = ReasonKind.DEPENDENCY_NEVER_SATISFIED if met is Met.NEVER else ReasonKind.DEPENDENCY
    waiting_for = [
        f"{item.kind}:{item.job_id}" if item.job_id else str(item.kind)
        for item in job.spec.dependencies.items
        if condition_met(state, job, item, now) is not Met.YES
    ]
    return reason(kind, on=",".join(waiting_for))


def condition_met(state: State, job: Job, item: Dependency, now: float) -> Met:
    if item.kind is DependencyKind.SINGLETON:
        return Met.NOT_YET if any(namesakes(state, job)) else Met.YES
    if item.kind is DependencyKind.AFTER_CORR:
        return _corresponding_met(state, job, item)
    if item.task_id is None and item.job_id in state.arrays:
        return _array_met(state, item, now)
    target = state.jobs.get(item.job_id)
    if item.task_id is not None and item.job_id in state.arrays:
        target = state.array_task(item.job_id, item.task_id)
        if target is None:
            return _tally_met(state, item)
    if target is None:
        return Met.YES  # ended long ago and forgotten, as Slurm treats it
    return _job_met(target, item, now)


def _job_met(target: Job, item: Dependency, now: float) -> Met:
    phase = target.phase
    if item.kind is DependencyKind.AFTER:
        if isinstance(phase, Pending):
            return Met.NOT_YET
        started = began_at(phase)
        return Met.YES if started is None or started + item.delay_s <= now else Met.NOT_YET
    if not isinstance(phase, Finished):
        return Met.NOT_YET
    if item.kind is DependencyKind.AFTER_ANY:
        return Met.YES
    good = phase.outcome.state == "COMPLETED"
    return Met.YES if good == (item.kind is DependencyKind.AFTER_OK) else Met.NEVER


def began_at(phase: Starting | Running | Suspended | Ending | Finished) -> float | None:
    if isinstance(phase, Starting):
        return phase.since
    if isinstance(phase, Finished):
        return phase.started_at or phase.ended_at
    return phase.started_at


def _array_met(state: State, item: Dependency, now: float) -> Met:
    tally = state.arrays[item.job_id]
    if item.kind is DependencyKind.AFTER:
        begun = tally.all_begun and max(tally.begun.values(), default=-inf) + item.delay_s <= now
        return Met.YES if begun else Met.NOT_YET
    if item.kind is DependencyKind.AFTER_OK and tally.failed:
        return Met.NEVER
    if not tally.all_ended:
        return Met.NOT_YET
    if item.kind is DependencyKind.AFTER_NOT_OK:
        return Met.YES if tally.failed else Met.NEVER
    return Met.YES


def _tally_met(state: State, item: Dependency) -> Met:
    """One task of an array whose record is still in the array's, or already forgotten."""
    tally = state.arrays[item.job_id]
    if item.task_id in tally.succeeded:
        return Met.NEVER if item.kind is DependencyKind.AFTER_NOT_OK else Met.YES
    if item.task_id in tally.failed:
        return Met.NEVER if item.kind is DependencyKind.AFTER_OK else Met.YES
    return Met.NOT_YET


def _corresponding_met(state: State, job: Job, item: Dependency) -> Met:
    """aftercorr: task i waits for task i. Without arrays on both sides it is afterok."""
    tally = state.arrays.get(item.job_id)
    task_id = job.array.waiting[0] if isinstance(job.array, ArrayWaiting) else job.task_id
    if tally is None or task_id is None:
        target = state.jobs.get(item.job_id)
        if target is None:
            return Met.YES
        return _job_met(target, Dependency(DependencyKind.AFTER_OK, item.job_id), 0.0)
    if isinstance(job.array, ArrayWaiting):
        ready = any(task in tally.succeeded for task in job.array.waiting)
        lost = all(task in tally.failed for task in job.array.waiting)
        return Met.YES if ready else Met.NEVER if lost else Met.NOT_YET
    return Met.YES if task_id in tally.succeeded else Met.NEVER if task_id in tally.failed else Met.NOT_YET


def startable_tasks(state: State, job: Job) -> list[int]:
    """Which waiting tasks of an array may start as far as dependencies go (aftercorr lets some go before others)."""
    assert isinstance(job.array, ArrayWaiting)
    waiting = list(job.array.waiting)
    for item in job.spec.dependencies.items:
        tally = state.arrays.get(item.job_id)
        if item.kind is DependencyKind.AFTER_CORR and tally is not None:
            waiting = [task for task in waiting if task in tally.succeeded]
    return waiting


def namesakes(state: State, job: Job) -> Iterator[Job]:
    """singleton: jobs of the same user and name that hold resources, and earlier ones that wait.

    A later one that runs counts too: a job that was requeued finds it there. (Slurm's manual promises that only one
    runs at any time; Slurm 22.05 forgets the condition once it was met, and runs both.) The tasks of one array and the
    components of one heterogeneous job do not wait for each other; under 22.05 the latter do, for ever.
    """
    mine = _submission(job)

    def same(other: Job) -> bool:
        return (
            other.spec.name == job.spec.name
            and other.spec.owner.uid == job.spec.owner.uid
            and _submission(other) != mine
        )

    yield from (other for other in state.holding.values() if same(other))
    yield from (other for other in state.pending.values() if _submission(other) < mine and same(other))


def _submission(job: Job) -> int:
    """The id that was answered when the job came: its array's, its heterogeneous job's or its own."""
    return job.array_job_id or job.het_job_id or job.id
