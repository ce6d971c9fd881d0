"""A service: a job script that stays up. What was asked for (`ServiceSpec`, frozen), and what is of it now (`Service`).

A replica of a service is a job like any other (`JobSpec.replica` says whose it is); here stands only what a job is not:
revisions, how many there are to be, whether a replica answers, and who may send it requests.
Who changes a `Service`: only the handlers of `core/services`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from bireme.core.model.jobs import JobSpec, Owner
from bireme.core.model.resources import ExitStatus
from bireme.core.model.serving.probes import Health as Health
from bireme.core.model.serving.probes import Probes
from bireme.core.model.serving.scaling import Scaling


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of replicas, or per cent of those wanted (`--surge 25%`)."""

    number: int
    percent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Updating:
    """How a new revision takes the place of the old one."""

    surge: Amount = Amount(1)
    """So many more replicas than wanted while both are there (rounded up)."""
    unavailable: Amount = Amount(0)
    """So many fewer ready ones than wanted (rounded down)."""
    ready_within_s: float = 2400.0
    """A revision that makes no progress for so long is given up, and the one before it comes back."""
    canary_percent: int | None = None
    """This part of the requests goes to the new revision until somebody promotes it or rolls it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How requests reach the replicas: what the router is told of the service."""

    max_concurrency: int | None = None
    """Requests that one replica has at once; the others wait."""
    queue_limit: int = 1000
    queue_timeout_s: float = 600.0
    """A request waits so long for a replica, also for the first one of a service that has none."""
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 600.0
    idle_timeout_s: float = 300.0
    total_timeout_s: float | None = None
    affinity_header: str = ""
    affinity_cookie: str = ""
    models: tuple[str, ...] = ()
    """Names, besides its own, by which `/v1/...` finds it."""
    hosts: tuple[str, ...] = ()
    body_limit: int | None = None
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """One revision of a service, as it was asked for."""

    name: str
    job: JobSpec
    """What each replica is, but for what is its own (`JobSpec.replica`)."""
    probes: Probes = field(default_factory=Probes)
    scaling: Scaling = field(default_factory=Scaling)
    updating: Updating = Updating()
    routing: Routing = Routing()
    drain_s: float = 60.0
    """Requests in flight have so long when a replica is to go."""


class RevisionLife(StrEnum):
    """The phases of a revision."""

    ROLLING = "rolling"
    """Its replicas take the place of those before."""
    CANARY = "canary"
    """It has a part of the requests, until somebody decides."""
    SERVING = "serving"
    RETIRED = "retired"
    """Another took its place. It can come back."""
    FAILED = "failed"
    """It did not get ready in time, or was rolled back by hand."""


ROLLED_BACK = "rolled it back"
"""How the reason of a revision ends that somebody gave up by hand."""


@dataclass(frozen=True, slots=True)
class BackOff:
    """Some of a revision's replicas are not made before a time: theirs before crashed, or were refused."""

    since: float
    until: float
    level: int
    """How many times in a row: the wait doubles with each."""
    held: int
    """So many replicas are held back; what is wanted beyond them is made."""
    why: str


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision: what it asks for, who made it, and what became of it."""

    number: int
    spec: ServiceSpec
    by: str
    at: float
    phase: RevisionLife
    progressed_at: float
    """When it was made or chosen, a replica of it began to run beside no other, or became ready for the first time."""
    settled_at: float | None = None
    """When it last had all its replicas, and the service to itself; None: never."""
    backed_off: BackOff | None = None
    why: str = ""
    """Of one that failed."""
    key: str = ""
    """Who made it may send it again under this key: it is made once."""
    one_by_one: bool = False
    """There was no room for one more: while it is rolled out, one replica fewer is there than is wanted."""
    from_nothing: bool = False
    """When it was asked for, there was no replica of the revision that serves: none is made beside its own."""


class ReplicaLife(StrEnum):
    """The phases of a replica, beside those of its job."""

    ORDERED = "ordered"
    """It has no job yet: the engine's own queue was asked for one."""
    LIVING = "living"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica: a job, and what a job does not know of itself."""

    number: int
    """Never used twice in a service."""
    revision: int
    job_id: int
    """0: a queue of the engine's own has not said yet under which number it has it."""
    port: int
    made_at: float
    health: Health = Health.LOADING
    since: float = 0.0
    """From when on its health is this."""
    why: str = ""
    """What the probe that failed last said."""
    address: str = ""
    """Where it answers, beside its port; empty: it has not yet."""
    ready_at: float | None = None
    """When it first was ready."""
    draining_since: float | None = None
    """It is to get no new requests; it is ended when those it has are answered, or its time is over."""
    drained_for: str = ""
    """Why."""
    withdrawn_at: float | None = None
    """From when on it gets none, as whoever routes has said. Before that it is not ended: it may be all that serves."""
    ending: bool = False
    """Of one in the engine's own queue: that it end was ordered."""

    @property
    def phase(self) -> ReplicaLife:
        if self.draining_since is not None:
            return ReplicaLife.DRAINING
        return ReplicaLife.LIVING if self.job_id else ReplicaLife.ORDERED


@dataclass(frozen=True, slots=True)
class Crash:
    """A replica's end that nobody asked for: what the next ones are held back for."""

    replica: int
    revision: int
    at: float
    status: ExitStatus
    why: str = ""
    """In words: its state, or what its probe said."""
    job_id: int = 0
    """Of its job, whose output says more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceKey:
    """A key of a service: who has it may send requests. Only its hash is kept."""

    id: str
    digest: str
    """SHA-256, hexadecimal."""
    note: str = ""
    requests_per_minute: int | None = None
    max_concurrency: int | None = None
    made_by: str = ""
    made_at: float = 0.0


class ServiceLife(StrEnum):
    """The phases of a service."""

    UP = "up"
    STOPPING = "stopping"
    """Its replicas drain and end; then it is gone."""


@dataclass(slots=True)
class Service:
    """A service as it is now."""

    name: str
    owner: Owner
    group_names: tuple[str, ...]
    """Of its owner, when it was made: partitions may ask (AllowGroups)."""
    made_at: float
    phase: ServiceLife = ServiceLife.UP
    revisions: dict[int, Revision] = field(default_factory=dict)
    """By number; the oldest are forgotten."""
    current: int = 0
    """The revision that serves; 0: none has yet."""
    replicas: dict[int, Replica] = field(default_factory=dict)
    next_replica: int = 1
    wanted: int = 0
    """So many replicas it is to have, by its autoscaler or by hand."""
    wanted_why: str = ""
    fixed: bool = False
    """Somebody said how many (`bireme service scale`): the autoscaler does not change it until a new revision."""
    crashes: tuple[Crash, ...] = ()
    """Of late, oldest first."""
    keys: dict[str, ServiceKey] = field(default_factory=dict)
    elsewhere: bool = False
    """Its replicas are jobs in the engine's own queue, which is asked for each (`SubmitReplica`)."""

    def in_phase(self, phase: RevisionLife) -> Revision | None:
        """The revision in this phase, of those that only one can be in at a time."""
        return next((each for each in self.revisions.values() if each.phase is phase), None)

    @property
    def serving(self) -> Revision | None:
        """The revision that served last; None: none has settled yet."""
        return self.revisions.get(self.current)

    @property
    def target(self) -> Revision:
        """The revision that it is to have: the one that is rolled out, else the one that serves."""
        target = self.in_phase(RevisionLife.ROLLING) or self.serving
        assert target is not None, f"service {self.name} has no revision"
        return target
