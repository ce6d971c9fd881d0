"""What a pass decides, each with its reasons, and how a decision becomes events.

The planner returns these; `accept` checks one against the newest state (it may have moved on while the plan was made)
and turns it into the events to journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from bireme.core.jobs.components import with_companions
from bireme.core.jobs.requests import split_events
from bireme.core.jobs.suspending import cpus_are_free
from bireme.core.model import events as e
from bireme.core.model.jobs import ArrayWaiting, Job, Outcome, Pending, Running, Suspended
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.placement.numbers import bits_of
from bireme.core.plan.outlook import Outlook
from bireme.core.state.state import State, Verdict


class Start(NamedTuple):
    """Give the job these shares and start it. `task_id`: one waiting task of an array."""

    job_id: int
    partition: str
    shares: tuple[NodeShare, ...]
    whole_nodes: bool
    task_id: int | None = None
    time_limit_s: int | None = None
    """Shorter than it asked for, as --time-min allows; None: as asked."""


@dataclass(frozen=True, slots=True)
class StartGang:
    """The components of a heterogeneous job: all of them or none."""

    starts: tuple[Start, ...]


@dataclass(frozen=True, slots=True)
class Victim:
    job_id: int
    requeue: bool = False
    grace_s: int = 0
    suspend: bool = False
    """It is not ended: it stops, keeps its memory and GRES, and goes on when its CPUs are free again."""
    lost_s: int = 0
    """So much of what it did is not saved: why it was chosen among equals."""


@dataclass(frozen=True, slots=True)
class Preempt:
    """End or suspend these jobs so that `for_job` can start when they are gone."""

    for_job: int
    victims: tuple[Victim, ...]


@dataclass(frozen=True, slots=True)
class Resume:
    """A suspended job's CPUs are free again: it goes on."""

    job_id: int


Decision = Start | StartGang | Preempt | Resume


@lru_cache(maxsize=4096)
def without_a_slot(reasons: tuple[Reason, ...]) -> Verdict:
    """The verdict of jobs for which no slot was found: one object for all that wait for the same."""
    return Verdict(reasons)


BEHIND = without_a_slot((reason(ReasonKind.PRIORITY),))
"""Of all jobs that only wait for those before them."""


@dataclass(frozen=True, slots=True)
class Plan:
    starts: tuple[Decision, ...]
    judged: dict[int, Verdict]
    """What blocks each job that was looked at and does not start."""
    behind: Sequence[int]
    """Jobs that only wait for those before them: most of a long queue, for whom nothing more is said than that."""
    outlook: Outlook
    """What the next passes may go on from."""

    @property
    def verdicts(self) -> dict[int, Verdict]:
        """Verdicts of the jobs that were judged, and of those that stand behind them."""
        return {**dict.fromkeys(self.behind, BEHIND), **self.judged}


def accept(state: State, decision: Decision) -> list[e.Event]:
    """Events of a decision, or none if the state has moved on and it no longer holds."""
    if isinstance(decision, Preempt):
        return _preempt_events(state, decision)
    if isinstance(decision, Resume):
        job = state.jobs.get(decision.job_id)
        good = job is not None and isinstance(job.phase, Suspended) and cpus_are_free(state.occupancy, job)
        return [e.JobResumed(job.id, job.generation)] if job is not None and good else []
    starts = decision.starts if isinstance(decision, StartGang) else (decision,)
    jobs = [state.jobs.get(start.job_id) for start in starts]
    if not all(job and _still_good(state, job, start) for job, start in zip(jobs, starts)):
        return []
    events: list[e.Event] = []
    for job, start in zip(jobs, starts):
        assert job is not None
        events.extend(_start_events(state, job, start))
    return events


def _preempt_events(state: State, decision: Preempt) -> list[e.Event]:
    events: list[e.Event] = []
    for victim in decision.victims:
        job = state.jobs.get(victim.job_id)
        if job is None or job.mirrored or not isinstance(job.phase, Running):
            continue
        if victim.suspend:
            events.append(e.JobSuspended(job.id, job.generation, decision.for_job))
        else:
            why = reason(ReasonKind.PREEMPTED, by=decision.for_job, lost_s=victim.lost_s)
            outcome = Outcome("PREEMPTED", reason=why)
            grace_s = victim.grace_s + state.config.settings.kill_wait_s
            events.append(e.JobEnding(job.id, job.generation, outcome, victim.requeue, grace_s=grace_s))
    return with_companions(state, events)


def _start_events(state: State, job: Job, start: Start) -> list[e.Event]:
    shorter = [] if start.time_limit_s is None else [replace(job.spec, time_limit_s=start.time_limit_s)]
    if start.task_id is None:
        updates = [e.JobUpdated(job.id, spec, job.priority) for spec in shorter]
        return [*updates, e.JobAllocated(job.id, _allocation(job.id, job.generation, start))]
    split, new_id = split_events(state, job, start.task_id)
    updates = [e.JobUpdated(new_id, spec, job.priority) for spec in shorter]
    before = job.generation if new_id == job.id else 0  # the last task has its array's record
    return [*split, *updates, e.JobAllocated(new_id, _allocation(new_id, before, start))]


def _allocation(job_id: int, generation: int, start: Start) -> Allocation:
    return Allocation(job_id, generation + 1, start.partition, start.shares, start.whole_nodes)


def _still_good(state: State, job: Job, start: Start) -> bool:
    if job.mirrored or not isinstance(job.phase, Pending) or job.phase.held_by is not None:
        return False
    if start.task_id is not None and not (isinstance(job.array, ArrayWaiting) and start.task_id in job.array.waiting):
        return False
    return all(_still_free(state, share) for share in start.shares)


def _still_free(state: State, share: NodeShare) -> bool:
    node = state.nodes.get(share.node)
    if node is None or not node.schedulable:
        return False
    room = state.occupancy.room(share.node)
    if room.whole_node_job is not None or bits_of(share.cpu_ids) & ~room.cpus:
        return False
    if state.config.settings.memory_is_consumable and share.memory_mib > room.memory_mib:
        return False
    table = state.occupancy.table
    configured = table.parts[state.occupancy.index[share.node]]
    for gres in share.gres:
        key, single = (gres.name, gres.type), gres.name in table.fractions.single
        left = room.parts_left(key, configured.get(key, {}), single) if gres.parts else {}
        if any(count > left.get(gpu, 0) for gpu, count in gres.parts):
            return False
    return all(
        not bits_of(gres.indices) & ~room.devices.get((gres.name, gres.type), 0)
        if gres.indices
        else room.counts.get((gres.name, gres.type), 0) >= gres.count
        for gres in share.gres
        if not gres.parts
    )
