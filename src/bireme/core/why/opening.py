"""When the gates of a waiting job open at the latest: with the jobs that it depends on, or with tasks of its array.

Asked by `bireme why` about a job that stands behind a gate. Every job is taken to run until its time limit, and one
that waits to start in its slot. How those jobs end is not foretold: an `afterok` may yet become impossible. Nor is what
happens behind the gate. Invariant: None whenever one of the gates has no such time (a hold, a job without a limit).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from bireme.core.jobs.due import gone_by
from bireme.core.jobs.gates import Met, began_at, condition_met, namesakes, throttle_of
from bireme.core.limits.relief import Relief
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
)
from bireme.core.model.reasons import Reason, ReasonKind
from bireme.core.state.state import State

Times = list[tuple[float, int]]
"""When, and with which job."""


def opening(state: State, job: Job, gates: Iterable[Reason], now: float) -> Relief | None:
    found: Times = []
    for gate in gates:
        match gate.kind:
            case ReasonKind.DEPENDENCY:
                found += _dependencies(state, job, now)
            case ReasonKind.JOB_ARRAY_TASK_LIMIT:
                found += _tasks(state, job, now)
            case ReasonKind.BEGIN_TIME:
                found.append((float(gate.fact("at") or inf), job.id))
            case _:
                return None
    if not found or max(found)[0] == inf:
        return None
    by = (other for _, other in sorted(found) if other != job.id)
    return Relief(max(now, max(found)[0]), tuple(dict.fromkeys(by)))


def _dependencies(state: State, job: Job, now: float) -> Times:
    wanted = job.spec.dependencies
    unmet = [item for item in wanted.items if condition_met(state, job, item, now) is Met.NOT_YET]
    times = [_met_with(state, job, item, now) for item in unmet]
    return min(times, key=max) if wanted.any_suffices else [each for several in times for each in several]


def _met_with(state: State, job: Job, item: Dependency, now: float) -> Times:
    """What must have happened for this one; the latest last."""
    if item.kind is DependencyKind.SINGLETON:
        return sorted((_over_by(state, other, now), other.id) for other in namesakes(state, job))
    if item.kind is DependencyKind.AFTER_CORR and item.job_id in state.arrays:
        return [(inf, item.job_id)]  # each task waits for another
    target = state.jobs.get(item.job_id)
    if item.task_id is not None:
        target = state.array_task(item.job_id, item.task_id)
    elif item.job_id in state.arrays:
        when = _begun_by if item.kind is DependencyKind.AFTER else _over_by
        return sorted((when(state, task, now), task.id) for task in state.array_records(item.job_id))
    if target is None:
        return [(inf, item.job_id)]
    if item.kind is DependencyKind.AFTER:
        return [(_begun_by(state, target, now) + item.delay_s, target.id)]
    return [(_over_by(state, target, now), target.id)]


def _tasks(state: State, job: Job, now: float) -> Times:
    """Those of the running tasks of its array that must end before another may start."""
    tasks = [task for task in state.array_records(job.array_job_id or 0) if task.id in state.holding]
    surplus = len(tasks) - (throttle_of(job) or len(tasks)) + 1
    return sorted((_over_by(state, task, now), task.id) for task in tasks)[:surplus]


def _begun_by(state: State, job: Job, now: float) -> float:
    phase = job.phase
    if not isinstance(phase, Pending):
        return began_at(phase) or now
    verdict = state.verdicts.get(job.id)
    if isinstance(job.array, ArrayWaiting) or verdict is None or verdict.expected_start is None:
        return inf  # of many waiting tasks only the next has a slot
    return verdict.expected_start


def _over_by(state: State, job: Job, now: float) -> float:
    match job.phase:
        case Finished(ended_at=ended_at):
            return ended_at
        case Ending():
            return now
        case Pending() | Starting():
            return gone_by(state, job, _begun_by(state, job, now))
        case Running(started_at=started_at, suspended_s=suspended_s):
            return gone_by(state, job, started_at + suspended_s)
    return inf  # it stands still
