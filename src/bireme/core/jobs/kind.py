"""Jobs as a kind: the life of a job in one value, made of the functions of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bireme.core.jobs import due as job_due
from bireme.core.jobs.applying import APPLIES, finished_phase
from bireme.core.jobs.components import with_companions
from bireme.core.jobs.intake import INTERPRETS, REMARKS
from bireme.core.jobs.keys import KEYS
from bireme.core.jobs.table import JOB
from bireme.core.kinds.kind import Follower, Kind, RunOver
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model.idling.events import IDLE_EVENTS
from bireme.core.model.jobs import Ending, Finished, Job, Running, Starting, Suspended
from bireme.core.model.serving.events import SERVICE_EVENTS
from bireme.core.state.state import State

# -- whose times are others after an event (`core/state/timetable.py`) -----------------------------------------------


def _changed(state: State, event: Any, at: float) -> None:
    state.timetable.changed.add(event.job_id)


def _array_changed(state: State, event: e.ArrayTaskSplit | e.ArrayPartSplit, at: float) -> None:
    state.timetable.changed.add(event.array_job_id)


def _all_changed(state: State, event: e.Event, at: float) -> None:
    """Any job's times may be others: limits of partitions count."""
    state.timetable.all_changed = True


_FOLLOWS: dict[type[e.Event], tuple[Follower, ...]] = {
    **dict.fromkeys(JOB.things, (_changed,)),
    **dict.fromkeys((e.ArrayTaskSplit, e.ArrayPartSplit), (_changed, _array_changed)),
    **dict.fromkeys((e.ClusterConfigured, e.PartitionUpdated), (_all_changed,)),
}

# -- history ---------------------------------------------------------------------------------------------------------


def _ended(state: State, event: e.JobEnded, now: float) -> Iterator[RunOver]:
    """Said before the event is applied: a requeued job forgets the run that just ended."""
    job = state.jobs.get(event.job_id)
    if job is not None and isinstance(job.phase, Ending):
        yield RunOver(job, finished_phase(job.phase, event))


def _cancelled(state: State, event: e.JobCancelled, now: float) -> Iterator[RunOver]:
    job = state.jobs.get(event.job_id)
    if job is not None:
        yield RunOver(job, Finished(event.outcome, now))


def _mirrored(state: State, event: e.JobMirrored, now: float) -> Iterator[RunOver]:
    if isinstance(event.seen.phase, Finished):
        yield RunOver(state.jobs[event.job_id], event.seen.phase)


# -- commands that nothing has confirmed -----------------------------------------------------------------------------


def _outstanding(state: State) -> Iterator[c.Command]:
    return (command for job in state.holding.values() if not job.mirrored for command in _of_job(state, job))


def _of_job(state: State, job: Job) -> Iterator[c.Command]:
    phase = job.phase
    if isinstance(phase, Starting):
        yield c.LaunchJob(job, phase.allocation)
    elif isinstance(phase, Ending):
        grace_s = state.config.settings.kill_wait_s
        nodes = phase.allocation.node_names
        yield c.TerminateJob(job.id, job.generation, nodes, grace_s, given_up=phase.given_up)
    elif isinstance(phase, Suspended):
        yield c.SuspendJob(job.id, job.generation, phase.allocation.node_names)
    elif isinstance(phase, Running) and phase.suspended_s:
        yield c.ResumeJob(job.id, job.generation, phase.allocation.node_names)


def _always(event: e.Event) -> bool:
    return True


JOBS = Kind(
    life=JOB,
    applies=APPLIES,
    follows=_FOLLOWS,
    keeps=(KEYS,),
    interprets=INTERPRETS,
    remarks=REMARKS,
    widens=with_companions,
    decides=job_due.decide,
    concludes=job_due.conclude,
    entails={e.ClusterConfigured: job_due.departures},
    times=job_due.times,
    idle_times=job_due.idle_times,
    chronicles={e.JobEnded: _ended, e.JobCancelled: _cancelled},
    chronicles_after={e.JobMirrored: _mirrored},
    closes={e.JobEnded: _always, e.JobLaunchFailed: _always},
    outstanding=_outstanding,
    passes_over=frozenset(
        (
            *e.NODE_EVENTS,
            *e.LOSS_EVENTS,
            *e.ACCOUNT_EVENTS,
            *e.RESERVATION_EVENTS,
            *SERVICE_EVENTS,
            *IDLE_EVENTS,
            *e.FAULT_EVENTS,
        )
    ),
)
