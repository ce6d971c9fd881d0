"""A job that stops for a while, or must not: what it keeps, what others may use meanwhile, and when it can go on.

The handlers are called by `apply` only. A suspended job keeps its memory and its GRES, because its processes and what
they have on GPUs stay where they are; its CPUs are free. Invariant: a job goes on only where all of its CPUs are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model.jobs import Job, Running, Starting, Suspended
from bireme.core.model.resources import Allocation
from bireme.core.placement.numbers import bits_of, up_to
from bireme.core.placement.occupancy import Occupancy
from bireme.core.state.state import State


def job_suspended(state: State, event: e.JobSuspended, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    phase = job.phase
    assert isinstance(phase, Running)
    state.occupancy.release(job.held)
    job.phase = Suspended(
        phase.allocation,
        phase.started_at,
        phase.suspended_s,
        at,
        phase.warned,
        for_job=event.for_job,
        waits_for_cpus=event.for_job is not None,
    )
    state.occupancy.hold(job.held)
    return (c.SuspendJob(job.id, job.generation, phase.allocation.node_names),)


def job_guarded(state: State, event: e.JobGuarded, at: float) -> Sequence[c.Command]:
    state.jobs[event.job_id].guarded_by = event.by
    return ()


def job_resumed(state: State, event: e.JobResumed, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    phase = job.phase
    assert isinstance(phase, Suspended)
    state.occupancy.release(job.held)
    job.phase = Running(phase.allocation, phase.started_at, suspended_until(phase, at), phase.warned)
    state.occupancy.hold(job.held)
    return (c.ResumeJob(job.id, job.generation, phase.allocation.node_names),)


def job_to_be_resumed(state: State, event: e.JobToBeResumed, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    assert isinstance(job.phase, Suspended)
    job.phase = replace(job.phase, waits_for_cpus=True)
    return ()


def on_lent_cpus(state: State, allocation: Allocation) -> bool:
    """Whether some of its CPUs are those of a suspended job that is to go on."""
    taken = {share.node: set(share.cpu_ids) for share in allocation.shares}
    lenders = (job.phase for job in state.holding.values() if isinstance(job.phase, Suspended))
    return any(
        not taken.get(share.node, set()).isdisjoint(share.cpu_ids)
        for phase in lenders
        if phase.waits_for_cpus
        for share in phase.allocation.shares
    )


def suspended_until(phase: Starting | Running | Suspended, at: float) -> float:
    """Seconds that a run has been suspended in all, until then."""
    if isinstance(phase, Suspended):
        return phase.suspended_s + (at - phase.since)
    return phase.suspended_s if isinstance(phase, Running) else 0.0


def cpus_are_free(occupancy: Occupancy, job: Job) -> bool:
    """Whether a suspended job can go on. CPUs that left the configuration are nobody's."""
    assert job.allocation is not None
    for share in job.allocation.shares:
        position = occupancy.index.get(share.node)
        if position is None:
            continue
        room = occupancy.rooms[position]
        if room.whole_node_job is not None or (job.allocation.whole_nodes and room.jobs):
            return False
        if bits_of(share.cpu_ids) & ~room.cpus & up_to(occupancy.nodes[position].cpus):
            return False
    return True
