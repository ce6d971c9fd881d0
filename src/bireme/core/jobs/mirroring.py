"""Sightings become events: the state follows a queue that another scheduler keeps.

`intake` calls this for observations of an engine that places by itself. Nothing is decided here: a job is what its
queue says it is. Only where a sighting contradicts the mirror (two jobs on one CPU, since the other scheduler lets
nodes be shared, or since it was looked at in the middle of a change) is it fitted in: its counts stay, its numbers of
CPUs and devices are others. Invariant: what is mirrored can always be held, and a sighting seen twice changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from bireme.core.jobs.keys import remember
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model.jobs import ArrayTask, ArrayWaiting, Ending, Finished, Job, JobSpec, Pending, Phase, Suspended
from bireme.core.model.nodes import Health, Node
from bireme.core.model.resources import Allocation
from bireme.core.model.sightings import UNSEEN_FIELDS, NodeCondition, Sighting, Standing
from bireme.core.placement.fitting import fitted_share
from bireme.core.placement.occupancy import NodeRoom
from bireme.core.state.state import State, Verdict


def mirrored(state: State, seen: Sighting, now: float) -> list[e.Event]:
    """What a sighting changes: one event or none."""
    known = state.jobs.get(seen.job_id)
    if known is None:
        over = isinstance(seen.phase, Finished) and now - seen.phase.ended_at >= state.config.settings.min_job_age_s
        return [] if over else [e.JobMirrored(seen.job_id, _fitted(state, None, seen))]
    if not known.mirrored:  # a job of this daemon's own that has the same number: not what was meant
        return []
    seen = _fitted(state, known, _with_accounts(known, replace(seen, spec=_with_unseen(known, seen))))
    return [] if mirrored_job(known, seen) == known else [e.JobMirrored(seen.job_id, seen)]


def is_history(state: State, seen: Sighting, now: float) -> bool:
    """Ended so long ago that only the history needs to know."""
    return seen.job_id not in state.jobs and isinstance(seen.phase, Finished) and not mirrored(state, seen, now)


def missing_from(state: State, listed: frozenset[int] | None) -> list[Job]:
    """Jobs that have not ended as far as the mirror knows, and that the queue does not list any more."""
    if listed is None:
        return []
    alive = (*state.pending.values(), *state.holding.values())
    return [job for job in alive if job.mirrored and job.id not in listed]


def take_standings(state: State, standings: Iterable[Standing]) -> None:
    """The latest word on who waits for what. Ephemeral, as the planner's verdicts are."""
    for standing in standings:
        job = state.pending.get(standing.job_id)
        if job is not None and job.mirrored:
            job.priority = standing.priority
            state.verdicts[job.id] = Verdict(standing.reasons, standing.expected_start)


def node_events(state: State, seen: NodeCondition, at: float) -> list[e.Event]:
    """What has changed about a node, said with the events that a node's life has."""
    node = state.nodes.get(seen.node)
    if node is None:
        return []
    events = _health_events(node, Health(seen.health), seen, at)
    note = node.note.text if node.note else ""
    if node.drained != seen.drained or note != seen.note:
        events.append(e.NodeUpdated(node.name, seen.note_by_uid, drained=seen.drained, note=seen.note))
    return events


def _health_events(node: Node, health: Health, seen: NodeCondition, at: float) -> list[e.Event]:
    if health is node.health:
        return [e.NodeRegistered(node.name, at, seen.version)] if seen.version != node.agent else []
    if health is Health.LOST and node.health is not Health.DOWN:
        return [e.NodeLost(node.name, seen.note or "does not answer")]
    if health is Health.DOWN:
        return [e.NodeUpdated(node.name, seen.note_by_uid, health=Health.DOWN)]
    back = [e.NodeUpdated(node.name, seen.note_by_uid, health=Health.UP)] if node.health is Health.DOWN else []
    return [*back, e.NodeRegistered(node.name, at, seen.version)] if health is Health.UP else [*back]


# -- applying --------------------------------------------------------------------------------------------------------


def job_mirrored(state: State, event: e.JobMirrored, at: float) -> Sequence[c.Command]:
    """From any phase to any other: the one handler of events that the other scheduler's jobs have."""
    seen, known = event.seen, state.jobs.get(event.job_id)
    if known is not None:
        _leave_indexes(state, known)
    job = state.jobs[seen.job_id] = mirrored_job(known, seen)
    state.index_members(job)
    if isinstance(job.phase, Pending):
        state.pending[job.id] = job
    else:
        state.verdicts.pop(job.id, None)
        if isinstance(job.phase, Finished):
            state.finished[job.id] = job
        else:
            state.holding[job.id] = job
            state.occupancy.hold(job.held)
    state.next_job_id = max(state.next_job_id, job.id + 1)
    if seen.key:
        remember(state, seen.key, job.id)
    return ()


def _leave_indexes(state: State, job: Job) -> None:
    if job.id in state.holding:
        state.occupancy.release(job.held)
    for index in (state.holding, state.pending, state.finished):
        index.pop(job.id, None)


def mirrored_job(known: Job | None, seen: Sighting) -> Job:
    """The job as it is now, made anew; what `Job` has beyond a sighting is kept."""
    return Job(
        id=seen.job_id,
        spec=seen.spec,
        submitted_at=seen.submitted_at,
        phase=seen.phase,
        generation=seen.restarts + (not isinstance(seen.phase, Pending)),
        restarts=seen.restarts,
        priority=known.priority if known else 0,
        array=_array_of(seen),
        het_job_id=seen.het_job_id,
        next_step=max((step.id + 1 for step in seen.steps), default=0),
        steps={step.id: replace(step) for step in seen.steps},
        usage=seen.usage,
        batch_status=seen.batch_status,
        batch_usage=seen.batch_usage,
        eligible_at=seen.eligible_at,
        worst_step_status=seen.worst_step_status,
        mirrored=True,
    )


def _array_of(seen: Sighting) -> ArrayWaiting | ArrayTask | None:
    if seen.task is not None or not seen.waiting:
        return seen.task
    return ArrayWaiting(deque(seen.waiting), seen.spec.array.throttle if seen.spec.array else None)


# -- fitting in ------------------------------------------------------------------------------------------------------


def _with_unseen(known: Job, seen: Sighting) -> JobSpec:
    """A queue does not show the script or the environment: what was once known of them stays."""
    kept = {name: getattr(known.spec, name) for name in UNSEEN_FIELDS if getattr(known.spec, name)}
    return replace(seen.spec, **kept)


def _with_accounts(known: Job, seen: Sighting) -> Sighting:
    """What the steps of a run used is told once, by the database: the queue's silence does not take it back."""
    if seen.steps or not known.steps or known.restarts != seen.restarts or not isinstance(seen.phase, Finished):
        return seen
    return replace(
        seen,
        steps=tuple(known.steps.values()),
        usage=known.usage,
        batch_usage=known.batch_usage,
        batch_status=known.batch_status,
        worst_step_status=known.worst_step_status,
    )


def _fitted(state: State, known: Job | None, seen: Sighting) -> Sighting:
    """The sighting with an allocation that the mirror can hold."""
    phase = seen.phase
    if isinstance(phase, Pending) or phase.allocation is None:
        return seen
    before = known.allocation if known is not None else None
    allocation = phase.allocation
    holds = known is not None and known.id in state.holding
    goes_on = known is not None and isinstance(known.phase, Suspended) and not isinstance(phase, Suspended)
    keeps = (holds and not goes_on) or isinstance(phase, Finished)  # what it gave back others may have by now
    if before is not None and keeps and _same_run(phase, before, allocation):
        allocation = before
    elif not isinstance(phase, Finished):
        free = _free_without(state, known if holds else None)
        allocation = replace(
            allocation, shares=tuple(fitted_share(share, free(share.node)) for share in allocation.shares)
        )
    return replace(seen, phase=replace(phase, allocation=allocation))


def _same_run(phase: Phase, before: Allocation, after: Allocation) -> bool:
    """Whether both allocations are of one run: when it ends, what it held is told with less detail than before."""
    over = isinstance(phase, Ending | Finished)
    same_nodes = before.generation == after.generation and before.node_names == after.node_names
    return (over and same_nodes) or _same_size(before, after)


def _same_size(before: Allocation, after: Allocation) -> bool:
    """Nothing but the numbers of CPUs and devices may differ: those that the mirror chose stay."""

    def sizes(allocation: Allocation) -> list[object]:
        gres = [tuple((each.name, each.type, each.count) for each in share.gres) for share in allocation.shares]
        counts = [(share.node, share.cpus, share.memory_mib, share.tasks) for share in allocation.shares]
        return [allocation.generation, allocation.partition, allocation.whole_nodes, counts, gres]

    return sizes(before) == sizes(after)


Rooms = Callable[[str], NodeRoom | None]


def _free_without(state: State, job: Job | None) -> Rooms:
    """What is free on a node when the job gives back what it holds; None for a node that is not known."""
    occupancy = state.occupancy
    if job is not None:
        occupancy = occupancy.draft()
        occupancy.release(job.held)
    return lambda node: occupancy.room(node) if node in occupancy.index else None
