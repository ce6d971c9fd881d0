"""Facts of the journal, in the past tense. State is the fold of these (`core/lifecycle/apply.py`).

Every event is a frozen dataclass; the journal adds an id, a time and a cause (`Recorded`). Decisions are recorded
with everything they decided, so that a replay repeats them without deciding again. A new event needs a class here, a
handler in the kind that it belongs to, and the stand of every other kind (`core/lifecycle/registry.py`); the journal's
codec reads the types. Those of services stand in `model/serving/events.py`, those of idle GPUs in
`model/idling/events.py`, of findings and healings in `model/finding` and `model/healing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from bireme.core.model.accounts import Account, Association, Qos, User
from bireme.core.model.cluster import ClusterConfig, PartitionConfig
from bireme.core.model.finding.events import FINDING_EVENTS, FindingEvent
from bireme.core.model.finding.events import FindingChanged as FindingChanged
from bireme.core.model.finding.events import FindingClosed as FindingClosed
from bireme.core.model.finding.events import FindingDismissed as FindingDismissed
from bireme.core.model.finding.events import FindingOpened as FindingOpened
from bireme.core.model.healing.checkpoints import Checkpoint
from bireme.core.model.healing.events import HEALING_EVENTS, HealingEvent
from bireme.core.model.healing.events import HealingApproved as HealingApproved
from bireme.core.model.healing.events import HealingDone as HealingDone
from bireme.core.model.healing.events import HealingFailed as HealingFailed
from bireme.core.model.healing.events import HealingLapsed as HealingLapsed
from bireme.core.model.healing.events import HealingPolicySet as HealingPolicySet
from bireme.core.model.healing.events import HealingProposed as HealingProposed
from bireme.core.model.healing.events import HealingRefused as HealingRefused
from bireme.core.model.healing.events import HealingUndone as HealingUndone
from bireme.core.model.healing.fences import FENCE_EVENTS, FenceEvent
from bireme.core.model.healing.fences import FenceLifted as FenceLifted
from bireme.core.model.healing.fences import FenceRaised as FenceRaised
from bireme.core.model.healing.restarts import Verdict
from bireme.core.model.idling.events import IdleEvent
from bireme.core.model.idling.events import IdleMoveBegun as IdleMoveBegun
from bireme.core.model.idling.events import IdleNoticeGiven as IdleNoticeGiven
from bireme.core.model.idling.events import IdleNoticeWithdrawn as IdleNoticeWithdrawn
from bireme.core.model.idling.events import IdlePolicySet as IdlePolicySet
from bireme.core.model.jobs import JobSpec, Outcome, TrackedRun
from bireme.core.model.reasons import Reason
from bireme.core.model.reservations import Reservation
from bireme.core.model.resources import Allocation, ExitStatus, NodeShare, TaskEnd, Usage
from bireme.core.model.serving.events import ReplicaAdded as ReplicaAdded
from bireme.core.model.serving.events import ReplicaDraining as ReplicaDraining
from bireme.core.model.serving.events import ReplicaEnding as ReplicaEnding
from bireme.core.model.serving.events import ReplicaGone as ReplicaGone
from bireme.core.model.serving.events import ReplicaHealthChanged as ReplicaHealthChanged
from bireme.core.model.serving.events import ReplicaQueued as ReplicaQueued
from bireme.core.model.serving.events import ReplicaWithdrawn as ReplicaWithdrawn
from bireme.core.model.serving.events import RevisionBackedOff as RevisionBackedOff
from bireme.core.model.serving.events import RevisionChosen as RevisionChosen
from bireme.core.model.serving.events import RevisionFailed as RevisionFailed
from bireme.core.model.serving.events import RevisionRetired as RevisionRetired
from bireme.core.model.serving.events import RevisionSettled as RevisionSettled
from bireme.core.model.serving.events import RevisionShifted as RevisionShifted
from bireme.core.model.serving.events import ServiceDeployed as ServiceDeployed
from bireme.core.model.serving.events import ServiceEvent
from bireme.core.model.serving.events import ServiceKeyAdded as ServiceKeyAdded
from bireme.core.model.serving.events import ServiceKeyRevoked as ServiceKeyRevoked
from bireme.core.model.serving.events import ServiceRemoved as ServiceRemoved
from bireme.core.model.serving.events import ServiceScaled as ServiceScaled
from bireme.core.model.serving.events import ServiceStopping as ServiceStopping
from bireme.core.model.sightings import Sighting
from bireme.core.model.steps import StepNode, StepSpec


@dataclass(frozen=True, slots=True)
class ClusterConfigured:
    """The cluster as it is from now on: at the first start, and whenever the configuration changed."""

    config: ClusterConfig


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    job_id: int
    spec: JobSpec
    priority: int
    eligible_at: float | None
    reasons: tuple[Reason, ...]
    het_job_id: int | None = None
    idempotency_key: str = ""


@dataclass(frozen=True, slots=True)
class ArrayTaskSplit:
    """A task left its array's record, under its own id (the last one keeps the array's id)."""

    array_job_id: int
    task_id: int
    job_id: int


@dataclass(frozen=True, slots=True)
class ArrayPartSplit:
    """Waiting tasks left their array's record together, under one id: what happens next happens to all of them."""

    array_job_id: int
    job_id: int
    ranges: tuple[tuple[int, int, int], ...]
    """Their ids: (first, last, step)."""


@dataclass(frozen=True, slots=True)
class JobBecameEligible:
    job_id: int


@dataclass(frozen=True, slots=True)
class JobAccrualChanged:
    """From now on its age counts, or does not: so many jobs of its user, account or QOS may grow older at once."""

    job_id: int
    accrues: bool


@dataclass(frozen=True, slots=True)
class JobAllocated:
    """Resources are its own from now on; the launch is commanded."""

    job_id: int
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class JobStarted:
    job_id: int
    generation: int
    at: float


@dataclass(frozen=True, slots=True)
class JobLaunchFailed:
    """The engine could not start it: everything it held is taken back; it waits again, or is held after too many."""

    job_id: int
    generation: int
    reason: Reason
    hold: bool
    not_before: float | None = None


@dataclass(frozen=True, slots=True)
class BatchExited:
    """The batch script ended by itself or by a signal."""

    job_id: int
    generation: int
    status: ExitStatus
    usage: Usage
    at: float


@dataclass(frozen=True, slots=True)
class JobEnding:
    """The outcome is decided (exit, cancel, time limit, node loss, ...): what is left of the job is being ended."""

    job_id: int
    generation: int
    outcome: Outcome
    requeue: bool = False
    hold: bool = False
    kill_now: bool = False
    """No SIGTERM and KillWait first: nothing useful is left to ask."""
    grace_s: int | None = None
    """Time between SIGTERM and SIGKILL; None is KillWait."""
    given_up: tuple[str, ...] = ()
    """Nodes of it that have not answered for SlurmdTimeout: its end does not wait for them."""
    inquest: bool = False
    """Why it ended is looked into before it is over: it keeps what it holds until there is a verdict."""
    verdict: Verdict | None = None
    """What came of that."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """No process of it is left and its resources are free again: terminal, or back to waiting if it is requeued."""

    job_id: int
    generation: int
    at: float
    reasons: tuple[Reason, ...] = ()
    """Why it waits, if it is requeued."""
    not_before: float | None = None


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """A job that held nothing ended (cancelled, dependency never satisfied, deadline passed)."""

    job_id: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class JobRequeued:
    """A finished job goes back into the queue (`scontrol requeue` after its end)."""

    job_id: int
    hold: bool = False


@dataclass(frozen=True, slots=True)
class JobHeld:
    """A waiting job does not start until it is released. One that has resources goes on, and waits so when it is
    queued again."""

    job_id: int
    by: str
    """"user" or "admin"."""
    reason: Reason | None = None
    """Why, if it was not simply asked for."""


@dataclass(frozen=True, slots=True)
class JobReleased:
    job_id: int


@dataclass(frozen=True, slots=True)
class JobUpdated:
    """`scontrol update`: the whole specification as it is now."""

    job_id: int
    spec: JobSpec
    priority: int


@dataclass(frozen=True, slots=True)
class JobSuspended:
    job_id: int
    generation: int
    for_job: int | None = None
    """The job that it makes way for; None: an operator asked for it."""


@dataclass(frozen=True, slots=True)
class JobResumed:
    job_id: int
    generation: int


@dataclass(frozen=True, slots=True)
class JobToBeResumed:
    """An operator asked for it while others use its CPUs: it goes on when they are free."""

    job_id: int
    generation: int


@dataclass(frozen=True, slots=True)
class JobGuarded:
    """Somebody's rule keeps it from being ended for another job (`by` names it), or no longer does (empty)."""

    job_id: int
    generation: int
    by: str


@dataclass(frozen=True, slots=True)
class JobCheckpointed:
    """A job has saved its work: what it did until now, or until `checkpoint` was written, is not lost if it is started
    again. None: it says so itself (`bireme checkpoint`). `gone`: what it had saved is there no more."""

    job_id: int
    generation: int
    checkpoint: Checkpoint | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True)
class JobSignalled:
    """A signal was asked for: by a user, or the warning before the time limit (`warning`)."""

    job_id: int
    generation: int
    signal: int
    scope: str
    """"batch" (the script only), "steps" (all but the script), "all"."""
    warning: bool = False
    step_id: int | None = None


@dataclass(frozen=True, slots=True)
class JobTracked:
    """An experiment tracker has a run for the job, which all its starts from now on are told of; or has none yet."""

    job_id: int
    run: TrackedRun


@dataclass(frozen=True, slots=True)
class JobForgotten:
    """MinJobAge passed: it lives on in the history only."""

    job_id: int


@dataclass(frozen=True, slots=True)
class JobMirrored:
    """A job is like this from now on, as another scheduler's queue shows it."""

    job_id: int
    seen: Sighting


@dataclass(frozen=True, slots=True)
class StepCreated:
    job_id: int
    generation: int
    step_id: int
    spec: StepSpec
    nodes: tuple[StepNode, ...]


@dataclass(frozen=True, slots=True)
class StepStarted:
    job_id: int
    generation: int
    step_id: int
    at: float


@dataclass(frozen=True, slots=True)
class StepEnding:
    """The step is being ended before its tasks do so themselves: cancelled, timed out, or a task failed."""

    job_id: int
    generation: int
    step_id: int
    outcome: str
    signal: int = 9
    by_uid: int | None = None


@dataclass(frozen=True, slots=True)
class StepNodeEnded:
    """All tasks of a step on one node are gone."""

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
class NodeRegistered:
    node: str
    at: float
    agent: str = ""
    asks_replicas: bool = True


@dataclass(frozen=True, slots=True)
class NodeLost:
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class LeftoverFound:
    """Something of a start that is over is still on the node: what it holds there cannot be given to others yet."""

    node: str
    job_id: int
    generation: int


@dataclass(frozen=True, slots=True)
class LeftoverCleared:
    """Nothing of that start is left on any node, or only where it says so."""

    job_id: int
    generation: int
    still_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EventsLost:
    """Events that were on disk are gone, and an operator went on without them.

    `first` to `last` are their numbers; `last` before `first`: nobody knows whether there were any.
    """

    first: int
    last: int
    next_job_id: int = 1
    """No lower id is given out again."""
    starts: int = 1
    """At most so many starts of one job may be among them."""
    covered: bool = False
    """A snapshot says what came of them: only stories miss them."""
    note: str = ""
    whole_since: float | None = None
    """Nothing is lost of jobs that were submitted from then on, even where one has an id that had been given before."""


@dataclass(frozen=True, slots=True)
class LossSettled:
    """What was lost has been asked of the nodes: jobs start again."""

    unheard: tuple[str, ...] = ()
    """Nodes that did not answer in time."""


@dataclass(frozen=True, slots=True)
class OthersCounted:
    """What others than this daemon's jobs hold on a node, from now on. Counts only: which CPUs is nobody's business."""

    node: str
    share: NodeShare


@dataclass(frozen=True, slots=True)
class NodeClosed:
    """Whoever looks after the node lets no new jobs onto it (`why`), or does again (`why` is empty).

    Beside what operators say of it here: neither undoes the other.
    """

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class NodeUpdated:
    """An operator changed a node: None leaves a thing as it is."""

    node: str
    by_uid: int
    health: str | None = None
    drained: bool | None = None
    note: str | None = None
    weight: int | None = None
    features: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class PartitionUpdated:
    partition: PartitionConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountsChanged:
    """`sacctmgr` changed the account book: records put (new or replaced) and names or ids removed."""

    accounts: tuple[Account, ...] = ()
    users: tuple[User, ...] = ()
    qos: tuple[Qos, ...] = ()
    associations: tuple[Association, ...] = ()
    removed_accounts: tuple[str, ...] = ()
    removed_users: tuple[str, ...] = ()
    removed_qos: tuple[str, ...] = ()
    removed_associations: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReset:
    """Usage counts from zero again: all of it (PriorityUsageResetPeriod), or what an operator named (RawUsage=0)."""

    everything: bool = False
    associations: tuple[int, ...] = ()
    """With everything below them; the accounts above lose what these used."""
    qos: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReservationSet:
    """Made, changed, or moved to its next occurrence: the whole reservation as it is now."""

    reservation: Reservation


@dataclass(frozen=True, slots=True)
class ReservationRemoved:
    name: str


JobEvent = (
    JobSubmitted
    | ArrayTaskSplit
    | ArrayPartSplit
    | JobBecameEligible
    | JobAccrualChanged
    | JobAllocated
    | JobStarted
    | JobLaunchFailed
    | BatchExited
    | JobEnding
    | JobEnded
    | JobCancelled
    | JobRequeued
    | JobHeld
    | JobReleased
    | JobUpdated
    | JobSuspended
    | JobResumed
    | JobToBeResumed
    | JobGuarded
    | JobCheckpointed
    | JobSignalled
    | JobTracked
    | JobForgotten
    | JobMirrored
)
StepEvent = StepCreated | StepStarted | StepEnding | StepNodeEnded
NodeEvent = NodeRegistered | NodeLost | NodeClosed | NodeUpdated | LeftoverFound | LeftoverCleared | OthersCounted
AccountEvent = AccountsChanged | UsageReset
ReservationEvent = ReservationSet | ReservationRemoved
LossEvent = EventsLost | LossSettled
Event = (
    ClusterConfigured
    | PartitionUpdated
    | JobEvent
    | StepEvent
    | NodeEvent
    | AccountEvent
    | ReservationEvent
    | LossEvent
    | ServiceEvent
    | IdleEvent
    | FindingEvent
    | HealingEvent
    | FenceEvent
)

# Families of them, for whoever takes one stand on every one; those of single other modules are named there.
JOB_EVENTS: tuple[type[JobEvent], ...] = get_args(JobEvent)
STEP_EVENTS: tuple[type[StepEvent], ...] = get_args(StepEvent)
NODE_EVENTS: tuple[type[NodeEvent], ...] = get_args(NodeEvent)
ACCOUNT_EVENTS: tuple[type[AccountEvent], ...] = get_args(AccountEvent)
RESERVATION_EVENTS: tuple[type[ReservationEvent], ...] = get_args(ReservationEvent)
LOSS_EVENTS: tuple[type[LossEvent], ...] = get_args(LossEvent)
FAULT_EVENTS = (*FINDING_EVENTS, *HEALING_EVENTS, *FENCE_EVENTS)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event with its place in the journal. `cause`: who or what made it happen ("alice sbatch", "planner")."""

    seq: int
    at: float
    cause: str
    event: Event
