"""Services, revisions and replicas as kinds: the events that each has for its own, and what all three follow.

What becomes of services is decided for all of them in one place (`acting.settle`), by the service's kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bireme.core.jobs.intake import held_job
from bireme.core.kinds.kind import Follower, Kind
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.idling.events import IDLE_EVENTS
from bireme.core.model.jobs import Finished, Pending
from bireme.core.model.serving.services import Health, Replica, Service
from bireme.core.services import acting, applying
from bireme.core.services.replica_jobs import end_command, submit_command
from bireme.core.services.tables import REPLICA, REVISION, SERVICE
from bireme.core.state.state import State

# -- what happens to replicas' jobs ----------------------------------------------------------------------------------


def _replica_of(state: State, job_id: int) -> tuple[Service, Replica] | None:
    found = state.serving.jobs.get(job_id)
    if found is None:
        return None
    service = state.services[found[0]]
    return service, service.replicas[found[1]]


def _job_changed(state: State, event: Any, at: float) -> None:
    found = state.serving.jobs.get(event.job_id)
    if found is not None:
        state.serving.changed.add(found[0])


def _job_started(state: State, event: e.JobStarted, at: float) -> None:
    """The time that a revision has to get ready does not count while all its replicas wait for room."""
    found = _replica_of(state, event.job_id)
    if found is None:
        return
    service, replica = found
    revision = service.revisions[replica.revision]
    others = (each.job_id for each in service.replicas.values() if each.revision == revision.number)
    alone = not any(job_id != event.job_id and job_id in state.holding for job_id in others)
    if alone and revision.backed_off is None:
        service.revisions[revision.number] = replace(revision, progressed_at=at)


def _job_back_in_queue(state: State, event: e.JobEnded | e.JobLaunchFailed, at: float) -> None:
    """A replica whose job waits once more (it was requeued) has to start once more."""
    found, job = _replica_of(state, event.job_id), state.jobs.get(event.job_id)
    if found is not None and job is not None and isinstance(job.phase, Pending):
        service, replica = found
        service.replicas[replica.number] = replace(replica, health=Health.LOADING, since=at, why="", address="")


def _service_changed(state: State, event: Any, at: float) -> None:
    state.serving.changed.add(event.name)


_FOLLOWS_JOBS: dict[type[e.Event], tuple[Follower, ...]] = {
    e.JobAllocated: (_job_changed,),
    e.JobStarted: (_job_started, _job_changed),
    e.JobLaunchFailed: (_job_back_in_queue, _job_changed),
    e.JobEnding: (_job_changed,),
    e.JobEnded: (_job_back_in_queue, _job_changed),
    e.JobCancelled: (_job_changed,),
    e.JobRequeued: (_job_changed,),
    e.JobHeld: (_job_changed,),
    e.JobReleased: (_job_changed,),
    e.JobSuspended: (_job_changed,),
    e.JobResumed: (_job_changed,),
    e.JobForgotten: (_job_changed,),
    e.JobMirrored: (_job_changed,),
}

JOB_EVENTS = frozenset(_FOLLOWS_JOBS)
"""Events of a replica's job by which its service may be another."""

# -- what is reported ------------------------------------------------------------------------------------------------


def _probed(state: State, seen: o.ReplicaProbed, now: float) -> list[e.Event]:
    """Of the start that there is now; who was dead stays so."""
    found = _replica_of(state, seen.job_id)
    if found is None or held_job(state, seen) is None:
        return []
    service, replica = found
    said = (seen.health, seen.why, seen.address or replica.address)
    if replica.health is Health.DEAD or (replica.health, replica.why, replica.address) == said:
        return []
    return [e.ReplicaHealthChanged(service.name, replica.number, *said)]


def _withdrawn(state: State, seen: o.ReplicaWithdrawn, now: float) -> list[e.Event]:
    """Once is enough: it may be said again, by a router that was started again."""
    found = _draining(state, seen)
    if found is None or found[1].withdrawn_at is not None:
        return []
    return [e.ReplicaWithdrawn(seen.service, seen.replica)]


def _drained(state: State, seen: o.ReplicaDrained, now: float) -> list[e.Event]:
    found = _draining(state, seen)
    return [] if found is None else list(acting.ended(state, found[0], seen.replica))


def _draining(state: State, seen: o.ReplicaWithdrawn | o.ReplicaDrained) -> tuple[Service, Replica] | None:
    """Whom a router speaks of; None: it is gone, or does not drain."""
    service = state.services.get(seen.service)
    replica = service.replicas.get(seen.replica) if service is not None else None
    if service is None or replica is None or replica.draining_since is None:
        return None
    return service, replica


def _submitted(state: State, seen: o.ReplicaSubmitted, now: float) -> list[e.Event]:
    """The first answer counts: a command may be repeated, and so may what is said to it."""
    service = state.services.get(seen.service)
    replica = service.replicas.get(seen.replica) if service is not None else None
    if service is None or replica is None or replica.job_id:
        return []
    if seen.job_id:
        return [e.ReplicaQueued(service.name, replica.number, seen.job_id)]
    gone = e.ReplicaGone(service.name, replica.number, why=f"it could not be submitted: {seen.refused}")
    return [acting.refused(service, replica.revision, seen.refused, now), gone]


def _outstanding(state: State) -> Iterator[c.Command]:
    """What the engine's own queue was asked for, and has not answered."""
    for service in state.services.values():
        for replica in service.replicas.values() if service.elsewhere else ():
            if not replica.job_id:
                yield submit_command(state, service, replica)
            elif replica.ending and not _is_over(state, replica):
                yield end_command(service, replica)


def _is_over(state: State, replica: Replica) -> bool:
    job = state.jobs.get(replica.job_id)
    return job is None or isinstance(job.phase, Finished)


# -- the kinds -------------------------------------------------------------------------------------------------------

_OF_SERVICES: tuple[type[e.Event], ...] = (
    e.ServiceDeployed,
    e.ServiceScaled,
    e.ServiceStopping,
    e.ServiceRemoved,
    e.ServiceKeyAdded,
    e.ServiceKeyRevoked,
)
_OF_REVISIONS: tuple[type[e.Event], ...] = (
    e.RevisionChosen,
    e.RevisionShifted,
    e.RevisionSettled,
    e.RevisionRetired,
    e.RevisionFailed,
    e.RevisionBackedOff,
)
_OF_REPLICAS: tuple[type[e.Event], ...] = (
    e.ReplicaAdded,
    e.ReplicaQueued,
    e.ReplicaHealthChanged,
    e.ReplicaDraining,
    e.ReplicaWithdrawn,
    e.ReplicaEnding,
    e.ReplicaGone,
)
_OF_OTHERS: tuple[type[e.Event], ...] = (
    e.JobSubmitted,
    e.ArrayTaskSplit,
    e.ArrayPartSplit,
    e.JobBecameEligible,
    e.JobAccrualChanged,
    e.BatchExited,
    e.JobUpdated,
    e.JobToBeResumed,
    e.JobGuarded,
    e.JobCheckpointed,
    e.JobTracked,
    e.JobSignalled,
    *e.STEP_EVENTS,
    *e.NODE_EVENTS,
    *e.LOSS_EVENTS,
    e.PartitionUpdated,
    *e.ACCOUNT_EVENTS,
    *e.RESERVATION_EVENTS,
    e.ClusterConfigured,
    *IDLE_EVENTS,
    *e.FAULT_EVENTS,
)
"""Events that mean nothing to any of the three."""


SERVICES = Kind(
    life=SERVICE,
    applies={
        e.ServiceDeployed: applying.service_deployed,
        e.ServiceScaled: applying.service_scaled,
        e.ServiceStopping: applying.service_stopping,
        e.ServiceRemoved: applying.service_removed,
        e.ServiceKeyAdded: applying.key_added,
        e.ServiceKeyRevoked: applying.key_revoked,
    },
    follows=_FOLLOWS_JOBS | dict.fromkeys((*_OF_SERVICES, *_OF_REVISIONS, *_OF_REPLICAS), (_service_changed,)),
    settles=acting.settle,
    times=acting.times,
    outstanding=_outstanding,
    passes_over=frozenset(_OF_OTHERS),
)
REVISIONS = Kind(
    life=REVISION,
    applies={
        e.RevisionChosen: applying.revision_chosen,
        e.RevisionShifted: applying.revision_shifted,
        e.RevisionSettled: applying.revision_settled,
        e.RevisionRetired: applying.revision_retired,
        e.RevisionFailed: applying.revision_failed,
        e.RevisionBackedOff: applying.revision_backed_off,
    },
    passes_over=frozenset(
        (*_OF_OTHERS, *_FOLLOWS_JOBS, *_OF_SERVICES, *_OF_REPLICAS),
    )
    - {e.ServiceDeployed, e.ReplicaAdded},
)
REPLICAS = Kind(
    life=REPLICA,
    applies={
        e.ReplicaAdded: applying.replica_added,
        e.ReplicaQueued: applying.replica_queued,
        e.ReplicaHealthChanged: applying.replica_health_changed,
        e.ReplicaDraining: applying.replica_draining,
        e.ReplicaWithdrawn: applying.replica_withdrawn,
        e.ReplicaEnding: applying.replica_ending,
        e.ReplicaGone: applying.replica_gone,
    },
    interprets={
        o.ReplicaProbed: _probed,
        o.ReplicaWithdrawn: _withdrawn,
        o.ReplicaDrained: _drained,
        o.ReplicaSubmitted: _submitted,
    },
    passes_over=frozenset((*_OF_OTHERS, *_FOLLOWS_JOBS, *_OF_SERVICES, *_OF_REVISIONS)),
)
