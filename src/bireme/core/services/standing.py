"""A replica together with its job: what the rules of `reconciling` judge by. Reads the state, changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from bireme.core.jobs.due import limit_reached_at
from bireme.core.model.jobs import Ending, Finished, Job, Pending, Running, Starting, Suspended
from bireme.core.model.reasons import Reason, ReasonKind
from bireme.core.model.serving.probes import PORT_TAKEN
from bireme.core.model.serving.services import Health, Replica, Service
from bireme.core.state.state import State

LEAST_LEAD_S = 60.0
"""A successor has at least so long to get ready."""


class Stand(Enum):
    """Where a replica's job is."""

    ORDERED = "ordered"
    """In no queue yet."""
    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    """Suspended: it is there, and answers nobody."""
    ENDING = "ending"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Seen:
    """A replica, and what its job says of it."""

    replica: Replica
    stand: Stand
    job: Job | None
    waits_for: tuple[Reason, ...] = ()
    """Of one that waits: what the latest pass of the planner said. Empty: none has looked at it."""
    room_is_made: bool = False
    """Of one that waits: others are being ended for it."""
    succeeded_from: float | None = None
    """Its time limit nears: from then on another is to take its place before it ends."""
    unwritten: str = ""
    """What is known of it and could not be written, which is that it takes no requests; empty: nothing."""

    @property
    def number(self) -> int:
        return self.replica.number

    @property
    def lives(self) -> bool:
        """Whether the replica serves, or is to serve."""
        return self.replica.draining_since is None and self.stand not in (Stand.ENDING, Stand.OVER)

    @property
    def ready(self) -> bool:
        is_well = self.stand is Stand.RUNNING and self.replica.health is Health.READY
        return self.lives and is_well and not self.unwritten

    @property
    def node(self) -> str:
        """Where it can be reached; empty: nowhere yet."""
        allocation = self.job.allocation if self.job is not None else None
        return allocation.first_node if allocation is not None else ""

    @property
    def waits_since(self) -> float:
        phase = self.job.phase if self.job is not None else None
        return phase.since if isinstance(phase, Pending) else self.replica.made_at

    @property
    def cannot_start(self) -> str:
        """Why its job, which waits, will not start as it is; empty: it may."""
        phase = self.job.phase if self.job is not None else None
        if self.job is None or not isinstance(phase, Pending) or not self.job.launch_failures:
            return ""
        why = str(self.job.sent_back_for.fact("why") or "") if self.job.sent_back_for is not None else ""
        return why if phase.held_by is not None or PORT_TAKEN in why else ""


def standing(state: State, service: Service) -> list[Seen]:
    """All its replicas, in the order of their numbers."""
    return [_seen(state, service, replica) for _, replica in sorted(service.replicas.items())]


def _seen(state: State, service: Service, replica: Replica) -> Seen:
    if not replica.job_id:
        return Seen(replica, Stand.ORDERED, None)
    job = state.jobs.get(replica.job_id)
    if job is None:  # over for so long that it is forgotten; a queue elsewhere shows a job before it says its number
        return Seen(replica, Stand.OVER, None)
    stand, verdict = _stand(job), state.verdicts.get(job.id)
    if stand is not Stand.WAITING or verdict is None:
        succeeded_from = _succeeded_from(state, service, replica, job)
        unwritten = state.serving.unwritten.get(job.id, "")
        return Seen(replica, stand, job, succeeded_from=succeeded_from, unwritten=unwritten)
    return Seen(replica, stand, job, verdict.reasons, _room_is_made(state, job))


def _room_is_made(state: State, job: Job) -> bool:
    phases = (other.phase for other in state.holding.values())
    reasons = (phase.outcome.reason for phase in phases if isinstance(phase, Ending))
    return any(why is not None and why.kind is ReasonKind.PREEMPTED and why.fact("by") == job.id for why in reasons)


def _succeeded_from(state: State, service: Service, replica: Replica, job: Job) -> float | None:
    """The time from which another is to take its place: so long before its limit that one which takes twice as long to
    get ready is there, and it can drain; but not
    before half of its time is over."""
    phase = job.phase
    if not isinstance(phase, Running) or replica.ready_at is None or replica.revision not in service.revisions:
        return None
    ends_at = limit_reached_at(state, job, phase)
    if ends_at is None:
        return None
    took_s = max(0.0, replica.ready_at - phase.started_at)
    lead_s = service.revisions[replica.revision].spec.drain_s + max(LEAST_LEAD_S, 2 * took_s)
    return ends_at - min(lead_s, (ends_at - phase.started_at) / 2)


def _stand(job: Job) -> Stand:
    match job.phase:
        case Pending():
            return Stand.WAITING
        case Starting():
            return Stand.STARTING
        case Running():
            return Stand.RUNNING
        case Suspended():
            return Stand.STOPPED
        case Ending():
            return Stand.ENDING
        case Finished():
            return Stand.OVER
        case _:
            assert_never(job.phase)
