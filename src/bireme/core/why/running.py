"""Why a job runs where it does: its partition, how tight its place in the network is, since when and until when."""

from __future__ import annotations

from collections.abc import Callable

from bireme.core.idle.shelves import NOTICES
from bireme.core.idle.wording import notice_text
from bireme.core.jobs.due import time_limit_s
from bireme.core.model.jobs import Ending, Finished, Job, Pending, Phase, Starting, Suspended
from bireme.core.model.reasons import ReasonKind
from bireme.core.state.state import State
from bireme.core.why.answers import Running
from bireme.core.why.waiting import sent_back


def explain_running(state: State, job: Job, sees: Callable[[Job], bool] = lambda _: True) -> Running:
    """Explains a job that holds resources: where it is, since when and until when. `sees`: whether who asks may know of
    another job."""
    phase = job.phase
    assert not isinstance(phase, Pending | Finished)
    allocation = phase.allocation
    started = phase.since if isinstance(phase, Starting) else phase.started_at
    if started is None:
        assert isinstance(phase, Ending)
        started = phase.since  # it is ending before it ever ran
    limit = time_limit_s(state, job)
    suspended_s = 0.0 if isinstance(phase, Starting) else phase.suspended_s
    eligible = job.eligible_at if job.eligible_at is not None else job.submitted_at
    leaves, fewest = _leaves(state, allocation.node_names)
    return Running(
        allocation.partition,
        allocation.node_names,
        tuple(allocation.tres().items()),
        allocation.whole_nodes,
        job.submitted_at,
        started,
        max(0.0, started - eligible),
        None if limit is None else started + limit + suspended_s,
        leaves,
        fewest,
        state.fabric.segment_max is not None,
        tuple(other.label for other in state.jobs.values() if _gave_way(other, job.id) and sees(other)),
        sent_back(job),
        job.checkpointed_at,
        job.checkpoint,
        *_suspended(state, phase, sees),
        notice_text(notice) if (notice := NOTICES.of(state).get(job.id)) is not None else "",
    )


def _suspended(state: State, phase: Phase, sees: Callable[[Job], bool]) -> tuple[float | None, str]:
    if not isinstance(phase, Suspended):
        return None, ""
    other = state.jobs.get(phase.for_job or 0)
    if other is not None and not sees(other):
        return phase.since, "another"
    return phase.since, other.label if other is not None else str(phase.for_job or "")


def _gave_way(job: Job, to: int) -> bool:
    if isinstance(job.phase, Suspended):
        return job.phase.for_job == to
    why = job.phase.outcome.reason if isinstance(job.phase, Ending | Finished) else job.sent_back_for
    return why is not None and why.kind is ReasonKind.PREEMPTED and why.fact("by") == to


def _leaves(state: State, nodes: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """(leaves that it touches, how few it could touch); nothing where the network is flat."""
    fabric, index = state.fabric, state.occupancy.table.index
    if fabric.flat:
        return (), 0
    leaf = fabric.levels[0]
    groups = sorted({int(leaf.group_of[index[node]]) for node in nodes if node in index})
    return tuple(leaf.names[group] for group in groups), fabric.fewest_leaves(len(nodes))
