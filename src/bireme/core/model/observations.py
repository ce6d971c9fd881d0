"""What an engine reports. Late, twice or out of order: `core/lifecycle/intake.py` makes events of it.

Only whether a node answers, and what the probes of a replica say, is told in the order in which it happened: an engine
has one voice about that.

Every observation about a job carries the generation it is about, so that a report on an old start is recognised.
"""

from __future__ import annotations

from dataclasses import dataclass

from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.finding.findings import Place, Quote, Trouble
from bireme.core.model.healing.checkpoints import Checkpoint
from bireme.core.model.resources import NO_USAGE, ExitStatus, NodeShare, TaskEnd, Usage
from bireme.core.model.serving.probes import Health
from bireme.core.model.sightings import NodeCondition, Sighting, Standing


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """The cluster as the engine finds it, from an engine whose cluster is described elsewhere than in slurm.conf."""

    config: ClusterConfig
    at: float


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job in the queue of an engine that places by itself. `past`: a run that is over, for the history alone."""

    seen: Sighting
    at: float
    past: bool = False


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """Another scheduler's queue was looked at. `listed`: every job in it, reported or not; None: only some were looked
    at."""

    listed: frozenset[int] | None
    standings: tuple[Standing, ...]
    at: float


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node of a cluster that another scheduler looks after."""

    seen: NodeCondition
    at: float


@dataclass(frozen=True, slots=True)
class NodeAnswered:
    """A node's agent is there. `holds` is every (job, generation) it still knows of."""

    node: str
    agent: str
    holds: tuple[tuple[int, int], ...]
    at: float
    past: tuple[tuple[int, int], ...] = ()
    """Starts that it was told to forget and still remembers: the state must have heard of them."""
    asks_replicas: bool = True
    """Whether its agent asks the replicas of services whether they are well; one of an earlier release does not."""


@dataclass(frozen=True, slots=True)
class NodeSilent:
    node: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class NodeClosed:
    """Whoever looks after the node lets no new jobs onto it (`why`), or does (`why` is empty). May be said twice."""

    node: str
    why: str
    at: float


@dataclass(frozen=True, slots=True)
class OthersSeen:
    """What runs on a node beside this daemon's jobs: all of it together, as counts (zeros: nothing any more)."""

    share: NodeShare
    at: float


@dataclass(frozen=True, slots=True)
class GuardSeen:
    """A rule outside (`by` names it) keeps the job from being ended for others; empty: none does any more."""

    job_id: int
    generation: int
    by: str
    at: float


@dataclass(frozen=True, slots=True)
class JobLaunched:
    """All nodes are prepared and the batch script runs (for an interactive job: all nodes are prepared)."""

    job_id: int
    generation: int
    at: float


@dataclass(frozen=True, slots=True)
class JobRefused:
    """The gang could not be started, and nothing of it is left but where it says so. `permanent`: it never can be."""

    job_id: int
    generation: int
    reason: str
    at: float
    permanent: bool = False
    prolog_failed_on: tuple[str, ...] = ()
    """Nodes whose prolog failed: they are drained."""
    uncleared_on: tuple[str, ...] = ()
    """Nodes that did not answer: something may be left there until JobCleared follows."""
    passing: bool = False
    """Somebody else's rule stands in the way (a quota): it is tried again, later each time, and never held."""
    fatal: bool = False
    """What it needs is lost for good: the job has failed. An earlier order to start it may have been obeyed."""
    short_on: tuple[str, ...] = ()
    """Nodes that lack something to start anything with (processes, descriptors, room): they are drained."""


@dataclass(frozen=True, slots=True)
class BatchFinished:
    """The batch script ended. `cleared`: nothing else of the job is left anywhere, no TerminateJob is needed."""

    job_id: int
    generation: int
    status: ExitStatus
    at: float
    usage: Usage = NO_USAGE
    cleared: bool = False
    note: str = ""
    """Why the script could not even begin."""
    ordered: bool = False
    """It was ended on order."""
    label: str = ""
    """Of an array's task: `42_7`, for a daemon that lost which task the job was."""


@dataclass(frozen=True, slots=True)
class JobCleared:
    """Nothing of this generation is left on its nodes (answer to TerminateJob, also when there never was)."""

    job_id: int
    generation: int
    at: float
    epilog_failed_on: tuple[str, ...] = ()
    uncleared_on: tuple[str, ...] = ()
    """But for these, which were given up and do not answer: another JobCleared follows when they do."""


@dataclass(frozen=True, slots=True)
class JobVanished:
    """A node no longer has this job, and cannot say how it ended (its agent died): honest NODE_FAIL."""

    job_id: int
    generation: int
    node: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class JobUnkillable:
    """Something of this start is left on a node that SIGKILL does not end. What it is follows in `why`."""

    job_id: int
    generation: int
    node: str
    why: str
    at: float


@dataclass(frozen=True, slots=True)
class StepBegan:
    job_id: int
    generation: int
    step_id: int
    at: float


@dataclass(frozen=True, slots=True)
class StepNodeFinished:
    job_id: int
    generation: int
    step_id: int
    node: str
    status: ExitStatus
    usage: Usage
    at: float
    failed: tuple[TaskEnd, ...] = ()
    """Tasks that did not end well, in the order of time: the first some dozens."""


@dataclass(frozen=True, slots=True)
class ReplicaProbed:
    """What the probes of a service's replica say from now on. Said when it changes; may be said twice."""

    job_id: int
    generation: int
    health: Health
    why: str
    at: float
    address: str = ""
    """Where requests reach it, without its port; empty: nobody knows yet."""


@dataclass(frozen=True, slots=True)
class ReplicaWithdrawn:
    """A replica that is drained gets no new requests from now on: said by whoever routes them, or where nobody does."""

    service: str
    replica: int
    at: float


@dataclass(frozen=True, slots=True)
class ReplicaDrained:
    """A replica that is drained has answered all its requests: said by whoever routes them."""

    service: str
    replica: int
    at: float


@dataclass(frozen=True, slots=True)
class ReplicaSubmitted:
    """What an engine's own queue said to SubmitReplica: the job's number, or why it does not take it."""

    service: str
    replica: int
    at: float
    job_id: int = 0
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlenessSeen:
    """How a job's GPUs have been used, by what was measured until this moment: said again and again, by whoever keeps
    what was measured. No sample: since when they are idle, by which rule."""

    job_id: int
    generation: int
    at: float
    """The newest figure."""
    fresh_s: float
    """Older than so, it is not of this moment any more."""
    below_percent: float
    of: str
    """"all" GPUs or "any", as the rule that it was found by says."""
    since: float | None = None
    """Idle without a break from then on; None: used, or not known (`why`)."""
    why: str = ""
    gpus: int = 0
    gpus_idle: int = 0
    percent: float = 0.0
    measure: str = ""
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """The newest whole checkpoint that a process of its owner's has found for a job; None: the one that was known is
    there no more, and no other."""

    job_id: int
    generation: int
    checkpoint: Checkpoint | None
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InquestHeld:
    """Why a start ended, as far as it could be found out (`core/diagnosis`). `cause`: empty where nobody could look."""

    job_id: int
    generation: int
    at: float
    cause: str = ""
    title: str = ""
    summary: str = ""
    who: str = ""
    confidence: str = "none"
    is_hardware: bool = False
    node: str = ""
    """The one that the evidence names."""
    advice: str = ""
    """What to do, as a sentence."""
    quotes: tuple[Quote, ...] = ()


@dataclass(frozen=True, slots=True)
class TroubleSeen:
    """A detector sees that something is wrong: said as long as it does."""

    trouble: Trouble
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleGone:
    """A detector does not see any more what it saw, or never did: said where it has looked, not where it could not."""

    detector: str
    place: Place
    at: float
    why: str
    mended: bool = False
    """A check has passed: also what lasts by itself is over."""


Observation = (
    ClusterSeen
    | JobSeen
    | QueueSeen
    | NodeSeen
    | NodeAnswered
    | NodeSilent
    | NodeClosed
    | OthersSeen
    | GuardSeen
    | JobLaunched
    | JobRefused
    | BatchFinished
    | JobCleared
    | JobVanished
    | JobUnkillable
    | StepBegan
    | StepNodeFinished
    | ReplicaProbed
    | ReplicaWithdrawn
    | ReplicaDrained
    | ReplicaSubmitted
    | IdlenessSeen
    | CheckpointSeen
    | InquestHeld
    | TroubleSeen
    | TroubleGone
)
