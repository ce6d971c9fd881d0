"""What submissions and people's orders do to a job's place in the queue: its first priority, and `scontrol top`.

Called by `submission` and `requests`. How a priority is made up, and what it follows, is `core/priority`; when all of
them are made again is the kernel's. Invariant: `top` changes who of one group goes first, never what the group gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bireme.core.model import events as e
from bireme.core.model.jobs import Job, Pending
from bireme.core.model.queue_numbers import LARGEST_NICE, LARGEST_PRIORITY
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.priority.multifactor import HIGHEST, LOWEST
from bireme.core.priority.order import priority_of
from bireme.core.state.state import State

FIRST_PRIORITY = 4_294_901_760
"""Slurm's priority/basic: the first job gets this, each later one less."""
USER_TOP = "enable_user_top"
"""The word of SchedulerParameters that lets users reorder their own jobs."""


def first_priority(state: State, job: Job, earlier: int, now: float) -> int:
    """The priority of a job about to be submitted; `earlier` of the same submission come before it."""
    if job.spec.priority is not None:
        return max(LOWEST, job.spec.priority)
    if state.config.settings.priority.multifactor:
        return priority_of(state, job, now)
    return max(LOWEST, FIRST_PRIORITY - state.submissions - earlier - job.spec.nice)


def top(state: State, caller: Caller, jobs: Sequence[Job]) -> list[e.Event]:
    """`scontrol top`: these jobs take the highest priorities among the jobs of their user, account, partition and QOS.

    What they gain the others lose, all alike, by their nice values.
    """
    if not caller.admin and USER_TOP not in state.config.words("SchedulerParameters"):
        raise Refusal(Why.ACCESS_DENIED, f"users may do this with SchedulerParameters={USER_TOP}")
    for job in jobs:
        _check_can_move(caller, job)
    if not jobs:
        return []
    group = [job for job in state.pending.values() if _same_group(job, jobs[0])]
    moved = list(dict.fromkeys(job.id for job in jobs if _same_group(job, jobs[0])))
    ranked = sorted((job.priority for job in group), reverse=True)
    gains = {job_id: priority - state.jobs[job_id].priority for job_id, priority in zip(moved, ranked)}
    others = [job for job in group if job.id not in gains]
    owed = sum(gains.values())
    for left, job in zip(range(len(others), 0, -1), others):
        gains[job.id] = -int(owed / left)
        owed += gains[job.id]
    return [_moved(state.jobs[job_id], gain) for job_id, gain in gains.items() if gain]


def _check_can_move(caller: Caller, job: Job) -> None:
    if not caller.may_change(job.spec.owner.uid):
        raise Refusal(Why.ACCESS_DENIED)
    if not isinstance(job.phase, Pending):
        raise Refusal(Why.JOB_NOT_PENDING)
    if job.phase.held_by is not None:
        raise Refusal(Why.JOB_HELD)
    if len(job.spec.partitions) > 1:
        raise Refusal(Why.PARTITION_CONFIG_UNAVAILABLE, "only jobs of a single partition can be moved")


def _same_group(job: Job, other: Job) -> bool:
    """Held jobs have no place in the queue, those of another scheduler none in ours."""
    return (
        isinstance(job.phase, Pending)
        and not job.mirrored
        and job.phase.held_by is None
        and job.spec.partitions == other.spec.partitions
        and job.spec.owner.uid == other.spec.owner.uid
        and job.spec.account == other.spec.account
        and job.spec.qos == other.spec.qos
    )


def _moved(job: Job, gain: int) -> e.JobUpdated:
    priority = min(HIGHEST, max(LOWEST, job.priority + gain))
    if job.spec.priority is not None:
        priority = min(LARGEST_PRIORITY, priority)
        return e.JobUpdated(job.id, replace(job.spec, priority=priority), priority)
    nice = max(-LARGEST_NICE, min(LARGEST_NICE, job.spec.nice - gain))
    return e.JobUpdated(job.id, replace(job.spec, nice=nice), priority)
