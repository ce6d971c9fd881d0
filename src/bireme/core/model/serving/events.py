"""Facts about services, their revisions and replicas. They are events of the journal like all others (`model/events`).

A replica's job has events of its own; what is told here is what a job does not know of itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard, get_args

from bireme.core.model.jobs import Owner
from bireme.core.model.serving.probes import Health
from bireme.core.model.serving.services import BackOff, Crash, ServiceKey, ServiceSpec


@dataclass(frozen=True, slots=True)
class ServiceDeployed:
    """A revision was made, and with its first one the service."""

    name: str
    number: int
    spec: ServiceSpec
    owner: Owner
    group_names: tuple[str, ...]
    by: str
    elsewhere: bool = False
    """Its replicas go into the engine's own queue."""
    key: str = ""
    """By which a request that is sent twice is known again."""


@dataclass(frozen=True, slots=True)
class ServiceScaled:
    """From now on it is to have so many replicas. `fixed`: somebody said so, and the autoscaler lets it be."""

    name: str
    wanted: int
    why: str
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class ServiceStopping:
    """A service is being stopped: its replicas are drained and ended; then it is gone."""

    name: str
    by: str


@dataclass(frozen=True, slots=True)
class ServiceRemoved:
    name: str


@dataclass(frozen=True, slots=True)
class ServiceKeyAdded:
    name: str
    key: ServiceKey


@dataclass(frozen=True, slots=True)
class ServiceKeyRevoked:
    name: str
    key_id: str
    by: str


@dataclass(frozen=True, slots=True)
class RevisionChosen:
    """Somebody decided for it: a canary is promoted, or an earlier one comes back. It is rolled out from now on."""

    name: str
    number: int
    by: str


@dataclass(frozen=True, slots=True)
class RevisionShifted:
    """Somebody gave the canary another part of the requests."""

    name: str
    number: int
    percent: int
    by: str


@dataclass(frozen=True, slots=True)
class RevisionSettled:
    """All its replicas are ready, and no other revision has any: it is the one that serves."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class RevisionRetired:
    """The revision serves no more: another took its place."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class RevisionFailed:
    """A revision is given up, and the one that served before is rolled out again."""

    name: str
    number: int
    why: str


@dataclass(frozen=True, slots=True)
class RevisionBackedOff:
    """Some of its replicas are not made before a time."""

    name: str
    number: int
    back_off: BackOff


@dataclass(frozen=True, slots=True)
class ReplicaAdded:
    """A replica came, its job submitted with this event; `job_id` 0: the engine's own queue is asked for one."""

    name: str
    replica: int
    revision: int
    job_id: int
    port: int


@dataclass(frozen=True, slots=True)
class ReplicaQueued:
    """The engine's own queue has it, under this number."""

    name: str
    replica: int
    job_id: int


@dataclass(frozen=True, slots=True)
class ReplicaHealthChanged:
    """A replica's probes say something else than before."""

    name: str
    replica: int
    health: Health
    why: str = ""
    address: str = ""
    """Where it answers; empty: it has not yet."""


@dataclass(frozen=True, slots=True)
class ReplicaDraining:
    """A replica is to get no new requests. What ends it is its job's business, when those it has are answered."""

    name: str
    replica: int
    why: str
    room_for: int = 0
    """The revision whose replica is to have its room, where there is none for one more; 0: it goes for no such."""


@dataclass(frozen=True, slots=True)
class ReplicaWithdrawn:
    """Whoever routes goes by a table in which it gets no new requests, or nobody routes: it may be ended."""

    name: str
    replica: int


@dataclass(frozen=True, slots=True)
class ReplicaEnding:
    """A replica's job in the engine's own queue is to be ended there. (Of our own jobs, `JobEnding` says it.)"""

    name: str
    replica: int


@dataclass(frozen=True, slots=True)
class ReplicaGone:
    """A replica is gone, its job over. `crash`: nobody had asked for that."""

    name: str
    replica: int
    crash: Crash | None = None
    why: str = ""
    """In words, also of one that did not crash."""


ServiceEvent = (
    ServiceDeployed
    | ServiceScaled
    | ServiceStopping
    | ServiceRemoved
    | ServiceKeyAdded
    | ServiceKeyRevoked
    | RevisionChosen
    | RevisionShifted
    | RevisionSettled
    | RevisionRetired
    | RevisionFailed
    | RevisionBackedOff
    | ReplicaAdded
    | ReplicaQueued
    | ReplicaHealthChanged
    | ReplicaDraining
    | ReplicaWithdrawn
    | ReplicaEnding
    | ReplicaGone
)

SERVICE_EVENTS: tuple[type[ServiceEvent], ...] = get_args(ServiceEvent)
"""All of them, for whoever takes one stand on every event of services."""
_KINDS = frozenset(SERVICE_EVENTS)


def is_of_service(event: object) -> TypeGuard[ServiceEvent]:
    """Whether an event is one of these. Asked of every event that is committed: quicker than asking for the union."""
    return type(event) in _KINDS
