"""A job: what was asked for (`JobSpec`, frozen) and where it is in its life (`Job.phase`).

Each phase is a frozen dataclass that holds exactly what is true in it. The state a user sees is derived from it
(`core/jobs/states.py`), never stored beside it. Who changes a `Job`: only `core/lifecycle/apply.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bireme.core.model.copying import copied
from bireme.core.model.field_rules import FieldRule, Giver, Until, carried, planned, ruled, rules_of
from bireme.core.model.hashing import HashedOnce
from bireme.core.model.healing.checkpoints import Checkpoint
from bireme.core.model.healing.restarts import Try
from bireme.core.model.node_rules import NodeRules
from bireme.core.model.reasons import Reason
from bireme.core.model.resources import NO_USAGE, SUCCESS, Allocation, ExitStatus, GresRequest, Usage
from bireme.core.model.serving.probes import ReplicaOf
from bireme.core.model.steps import Step


class JobKind(StrEnum):
    BATCH = "batch"
    INTERACTIVE = "interactive"  # salloc, or srun outside a job: the caller holds it and says when it ends
    PODS = "pods"  # somebody else's pods: Bireme says where they go, their makers what they do


class DependencyKind(StrEnum):
    AFTER = "after"
    AFTER_ANY = "afterany"
    AFTER_OK = "afterok"
    AFTER_NOT_OK = "afternotok"
    AFTER_CORR = "aftercorr"
    SINGLETON = "singleton"


@dataclass(frozen=True, slots=True)
class Dependency:
    """One condition on another job. `task_id` None with an array job means the whole array."""

    kind: DependencyKind
    job_id: int = 0
    task_id: int | None = None
    delay_s: int = 0


@dataclass(frozen=True, slots=True)
class Dependencies:
    """All of them (`,`) or any one of them (`?`)."""

    items: tuple[Dependency, ...] = ()
    any_suffices: bool = False


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The task ids of an array, ascending, and how many may run at once (None: no throttle)."""

    task_ids: tuple[int, ...]
    throttle: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class WarningSignal:
    """`--signal=[R][B:]SIG@seconds`: sent that long before the time limit."""

    number: int
    before_end_s: int = 60
    batch_only: bool = False
    with_reservation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequest(HashedOnce):
    """What a job asks to hold. None means not asked: defaults are applied by the rules, as Slurm applies them."""

    nodes_min: int = 1
    nodes_max: int | None = None
    nodes_given: bool = False
    ntasks: int | None = None
    ntasks_per_node: int | None = None
    ntasks_per_socket: int | None = None
    ntasks_per_core: int | None = None
    ntasks_per_gpu: int | None = None
    cpus_per_task: int | None = None
    cpus_per_gpu: int | None = None
    cpus_min: int | None = None
    """In all, whatever the tasks need: NumCPUs of `scontrol update`."""
    min_cpus_per_node: int | None = None
    sockets_per_node: int | None = None
    cores_per_socket: int | None = None
    threads_per_core: int | None = None
    memory_per_node_mib: int | None = None
    memory_per_cpu_mib: int | None = None
    memory_per_gpu_mib: int | None = None
    tmp_disk_mib: int = 0
    gres_per_node: tuple[GresRequest, ...] = ()
    """--gres and --gpus-per-node."""
    gres_per_job: tuple[GresRequest, ...] = ()
    """--gpus."""
    gres_per_task: tuple[GresRequest, ...] = ()
    """--gpus-per-task and --tres-per-task."""
    gres_per_socket: tuple[GresRequest, ...] = ()
    exclusive: bool = False
    oversubscribe: bool = False
    overcommit: bool = False
    contiguous: bool = False
    constraint: str = ""
    prefer: str = ""
    nodelist: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """Nodes of a start that is healed: the next one has them again where it can, and others beside them."""
    switches: int | None = None
    switches_wait_s: int | None = None
    segment: int | None = None
    licenses: str = ""
    hint: str = ""
    distribution: str = ""
    spread: bool = False
    use_min_nodes: bool = False
    gres_flags: tuple[str, ...] = ()
    core_spec: int | None = None
    thread_spec: int | None = None
    node_rules: NodeRules | None = None
    """Of pods: which nodes they may use, by labels and taints."""

    __hash__ = HashedOnce.hash_once


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose job it is: taken from the connection's credentials, never from the request's own words."""

    uid: int
    gid: int
    user: str
    group: str = ""
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """Pods that somebody else made, which are one job: a gang, or a single pod."""

    key: str
    """Of the gang or pod, as the engine knows it: never used twice."""
    namespace: str
    pods: tuple[str, ...]
    """Names, in the order of their ranks."""
    kind: str = "Pod"
    """What made them: Pod, PodGroup, Job, PyTorchJob ..."""
    uids: tuple[str, ...] = ()
    """Of the same pods: another pod may come under a name. Empty in journals of before they were kept."""

    @property
    def gang(self) -> str:
        """The key without the number of the try."""
        return self.key.partition("#")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What the user asked for, after Slurm's precedence, before any decision. Changed only by `scontrol update`.

    Each field says its rule (`field_rules`): who may give it, until when it may change, whether the planner reads it.
    """

    kind: JobKind = planned(JobKind.BATCH)
    name: str = planned("bireme", until=Until.ENDS)
    owner: Owner = field(metadata=ruled(FieldRule(giver=Giver.NOBODY, planned=True)))
    account: str = planned("")
    qos: str = planned("")
    """Empty: the association's default, known once it is submitted."""
    wckey: str = carried("", until=Until.ENDS)
    partitions: tuple[str, ...] = planned(())
    """Empty: the cluster's default partition."""
    resources: ResourceRequest = planned(ResourceRequest())
    time_limit_s: int | None = planned(None, until=Until.ENDS)
    time_limit_given: bool = planned(False)
    """With time_limit_s None: True is UNLIMITED, False is 'not asked' (the partition's default)."""
    time_min_s: int | None = planned(None)
    begin_at: float | None = planned(None)
    deadline_at: float | None = planned(None)
    dependencies: Dependencies = planned(Dependencies())
    kill_on_invalid_dependency: bool | None = planned(None, unseen=True)
    array: ArraySpec | None = planned(None, until=Until.ENDS)
    """Only its throttle changes."""
    het_component: int | None = planned(None, giver=Giver.NOBODY)
    """0 for the leader, 1... for the others of a heterogeneous job; None for an ordinary job."""
    hold: bool = planned(False)
    nice: int = planned(0, giver=Giver.LOWERING, until=Until.ENDS)
    priority: int | None = planned(None, giver=Giver.PASSED_OVER, until=Until.ENDS)
    """Set by an operator, and then fixed; None: computed."""
    site_factor: int = planned(0, giver=Giver.OPERATOR, until=Until.ENDS)
    """Set by an operator: added to the computed priority."""
    reservation: str = planned("")
    requeue: bool | None = planned(None, until=Until.ENDS)
    """None: the cluster's JobRequeue."""
    requeue_asked: bool = carried(False, giver=Giver.NOBODY, unseen=True)
    """Its owner has said --requeue: it is not the cluster's default alone."""
    expedite_requeue: bool = planned(False)
    """--requeue=expedite: requeued, it stands before all others."""
    kill_on_node_fail: bool = planned(True)
    heal: str = carried("", until=Until.ENDS, unseen=True)
    """`restart`: it is started again after a failure that is not its own fault; `off`: never by Bireme; empty: as the
    rules say (`core/faults/restarts`)."""
    checkpoint_path: str = carried("", until=Until.ENDS)
    """Where it leaves its checkpoints: a file, a folder or a pattern, with the words of an output's name (`%j`). Empty:
    its working directory is looked through for layouts that are known."""
    warning: WarningSignal | None = carried(None, unseen=True)
    work_dir: str = carried("/")
    submit_dir: str = carried("", unseen=True)
    """Where the submitter was; differs from work_dir with --chdir."""
    umask: int = carried(0o022, unseen=True)
    process_nice: int = carried(0)
    """Of the process that submitted it: its own processes are told."""
    std_in: str = carried("/dev/null")
    std_out: str = carried("")
    """A filename pattern; empty is Slurm's default (`slurm-%j.out`, `slurm-%A_%a.out`)."""
    std_err: str = carried("")
    """Empty: the same file as std_out."""
    open_append: bool | None = carried(None, unseen=True)
    """--open-mode: None is the cluster's JobFileAppend (truncate)."""
    script: str = carried("", unseen=True)
    """Blob id of the batch script's text."""
    environment: str = carried("", unseen=True)
    """Blob id of the environment to run with (JSON object)."""
    command: str = carried("", unseen=True)
    """Path of the script or command, as shown by `scontrol show job`."""
    argv: tuple[str, ...] = carried((), unseen=True)
    """The script's own arguments."""
    submit_line: str = carried("", unseen=True)
    submit_host: str = carried("", unseen=True)
    comment: str = carried("", until=Until.FORGOTTEN)
    admin_comment: str = carried("", giver=Giver.OPERATOR, until=Until.FORGOTTEN)
    mail_type: tuple[str, ...] = carried((), until=Until.ENDS, unseen=True)
    mail_user: str = carried("", until=Until.ENDS, unseen=True)
    container_image: str = carried("")
    """--container-image (Pyxis): an image by its name in a registry, or a path."""
    container_bundle: str = carried("")
    """--container: the folder of an OCI bundle."""
    container_mounts: str = carried("", unseen=True)
    container_workdir: str = carried("", unseen=True)
    container_name: str = carried("", unseen=True)
    container_save: str = carried("", unseen=True)
    container_env: str = carried("", unseen=True)
    container_mount_home: bool | None = carried(None, unseen=True)
    """Of these and the next None is the cluster's default (`containers.*`)."""
    container_remap_root: bool | None = carried(None, unseen=True)
    container_entrypoint: bool | None = carried(None, unseen=True)
    container_writable: bool | None = carried(None, unseen=True)
    export: str = carried("ALL", unseen=True)
    get_user_env: bool = carried(False, unseen=True)
    step_defaults: tuple[tuple[str, str], ...] = carried((), unseen=True)
    """Options that only change what `srun` inside does, as (variable, value): SLURM_DISTRIBUTION and the like."""
    held_open: bool = carried(False, unseen=True)
    """Whoever asked for it stays connected, and it ends when nobody does: srun, and salloc with a shell."""
    ignored: tuple[str, ...] = carried(())
    """Options accepted but not applied yet."""
    workload: Workload | None = carried(None, giver=Giver.NOBODY)
    """With JobKind.PODS: whose place this is."""
    replica: ReplicaOf | None = planned(None, giver=Giver.NOBODY, unseen=True)
    """It is a replica of a service, and this one."""

    def revised(self, **fields: Any) -> JobSpec:
        """With these fields; itself where it has them already, so that jobs that ask the same share one object."""
        changed = any(getattr(self, name) != value for name, value in fields.items())
        return copied(self, fields) if changed else self


RULES = rules_of(JobSpec)
"""The rule of each field of a specification."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: Slurm's state word, its exit status, and why."""

    state: str
    status: ExitStatus = SUCCESS
    reason: Reason | None = None
    by_uid: int | None = None


@dataclass(frozen=True, slots=True)
class Pending:
    since: float
    eligible_at: float | None = None
    """When it first could have run: not held, begin time reached, dependencies met. None: not yet."""
    held_by: str | None = None
    """None, "user" or "admin"."""
    reasons: tuple[Reason, ...] = ()
    expected_start: float | None = None
    accrues: bool = True
    """Its age counts; False: a limit on how many jobs may grow older is reached."""
    accrues_since: float | None = None
    """From when on; None: from eligible_at."""
    not_before: float | None = None
    """Back-off after a refused launch, or the end of a requeue's cleaning."""
    expedited: bool = False
    """It was requeued, and stands before all others (--requeue=expedite)."""

    @property
    def free_to_go(self) -> bool:
        """No gate is known to hold it."""
        return self.eligible_at is not None and self.held_by is None and self.not_before is None


@dataclass(frozen=True, slots=True)
class Starting:
    """Resources are held and the launch was commanded, not confirmed. Users see CONFIGURING."""

    allocation: Allocation
    since: float


@dataclass(frozen=True, slots=True)
class Running:
    allocation: Allocation
    started_at: float
    suspended_s: float = 0.0
    """Time spent suspended, which does not count against the limit."""
    warned: bool = False


@dataclass(frozen=True, slots=True)
class Suspended:
    """The job's processes are stopped. It keeps its memory and GRES; its CPUs may be used by others meanwhile."""

    allocation: Allocation
    started_at: float
    suspended_s: float
    since: float
    warned: bool = False
    for_job: int | None = None
    """The preemptor that it made way for."""
    waits_for_cpus: bool = False
    """It goes on as soon as its CPUs are free: preempted, or to be resumed. False: an operator has suspended it."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The outcome is known; processes are being ended and nodes cleared. Users see COMPLETING."""

    allocation: Allocation
    started_at: float | None
    since: float
    outcome: Outcome
    requeue: bool = False
    hold: bool = False
    suspended_s: float = 0.0
    ended_at: float | None = None
    """When the last process was gone; a batch script's own end."""
    was_suspended: bool = False
    """It was ended while suspended: it has no CPUs to give back."""
    given_up: tuple[str, ...] = ()
    """Nodes that do not answer and are not waited for."""
    awaits_verdict: bool = False
    """Why it ended is looked into: until then it is not over, whatever engines say."""
    not_before: float | None = None
    """Queued again, it waits until then."""


@dataclass(frozen=True, slots=True)
class Finished:
    outcome: Outcome
    ended_at: float
    started_at: float | None = None
    allocation: Allocation | None = None
    suspended_s: float = 0.0


Phase = Pending | Starting | Running | Suspended | Ending | Finished
HOLDING = (Starting, Running, Suspended, Ending)
"""The phases in which a job holds resources."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run of a job in MLflow, or why it has none. The server gives it its id, which so is a fact of the journal."""

    server: str
    """The tracking address, as the setting names it."""
    experiment_id: str = ""
    run_id: str = ""
    """Empty: there is none yet."""
    missed: str = ""
    """Why the latest start that was to be told of a run was not; empty: it was."""


@dataclass(slots=True)
class ArrayWaiting:
    """The part of an array that has not started: one record for all of its waiting tasks."""

    waiting: deque[int]
    throttle: int | None = None
    array_job_id: int | None = None
    """Of some that were cancelled together, whose tasks they were; None: the record is the array's own."""


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """A task that left its array's record and has a life of its own."""

    array_job_id: int
    task_id: int
    task_count: int = 0
    task_min: int = 0
    task_max: int = 0
    task_step: int = 1


@dataclass(slots=True)
class Job:
    id: int
    spec: JobSpec
    submitted_at: float
    phase: Phase
    generation: int = 0
    """Counts starts; commands and observations carry it."""
    restarts: int = 0
    """Counts requeues: SLURM_RESTART_COUNT."""
    priority: int = 0
    """As of the latest pass: derived, except with priority/basic, where the submission set it."""
    array: ArrayWaiting | ArrayTask | None = None
    het_job_id: int | None = None
    next_step: int = 0
    steps: dict[int, Step] = field(default_factory=dict)
    """Steps of the current generation, by step number."""
    usage: Usage = NO_USAGE
    """Of the batch script and the steps that ended, in this generation."""
    batch_status: ExitStatus | None = None
    batch_usage: Usage = NO_USAGE
    """Of the batch script alone."""
    batch_ended_at: float | None = None
    eligible_at: float | None = None
    """When it could first have run, kept once it no longer waits (`Pending` has its own)."""
    worst_step_status: ExitStatus = SUCCESS
    """sacct's DerivedExitCode."""
    launch_failures: int = 0
    last_restart_at: float | None = None
    guarded_by: str = ""
    """A rule outside that keeps it from being ended for others: a disruption budget of Kubernetes."""
    sent_back_for: Reason | None = None
    """Why its latest start came to nothing, or it was queued again; None: nobody knows, or it never was."""
    checkpointed_at: float | None = None
    """Until when its work of this generation is saved: as it said itself, or as its newest checkpoint shows."""
    checkpoint: Checkpoint | None = None
    """The newest whole one that was found, of whichever generation: where it goes on when it is started again."""
    tries: tuple[Try, ...] = ()
    """Its latest starts that failed and were looked into, the oldest first."""
    tracked: TrackedRun | None = None
    """Its run in an experiment tracker, over all its starts; None: nobody asked for one."""
    held_on_return: str | None = None
    """Who held it while it had resources, or when it was cancelled, "user" or "admin": queued again it is held."""
    mirrored: bool = False
    """It stands in another scheduler's queue: that one decides, and only `JobMirrored` changes it here."""

    @property
    def is_waiting_array(self) -> bool:
        return isinstance(self.array, ArrayWaiting)

    @property
    def is_pods(self) -> bool:
        """Somebody else's pods: nothing of it is started by Bireme."""
        return self.spec.kind is JobKind.PODS

    @property
    def runs_script(self) -> bool:
        """Of a heterogeneous job only the leader does; the other components are held for its steps."""
        return self.spec.kind is JobKind.BATCH and self.het_job_id in (None, self.id)

    @property
    def array_job_id(self) -> int | None:
        if isinstance(self.array, ArrayWaiting):
            return self.array.array_job_id or self.id
        return self.array.array_job_id if self.array else None

    @property
    def task_id(self) -> int | None:
        return self.array.task_id if isinstance(self.array, ArrayTask) else None

    @property
    def task_ids(self) -> Sequence[int]:
        """Which tasks of its array the record is about; none where it is no array's."""
        if isinstance(self.array, ArrayWaiting):
            return self.array.waiting
        return () if self.array is None else (self.array.task_id,)

    @property
    def allocation(self) -> Allocation | None:
        return None if isinstance(self.phase, Pending) else self.phase.allocation

    @property
    def held(self) -> Allocation:
        """What of its allocation is in use: all of it, but for the CPUs of a job that is suspended."""
        phase = self.phase
        assert isinstance(phase, HOLDING)
        stopped = isinstance(phase, Suspended) or (isinstance(phase, Ending) and phase.was_suspended)
        return phase.allocation.without_cpus() if stopped else phase.allocation

    @property
    def label(self) -> str:
        """The id people type: `42`, `42_7` for an array task, `42+1` for a component of a heterogeneous job."""
        if self.het_job_id is not None:
            return f"{self.het_job_id}+{self.spec.het_component}"
        task = self.task_id
        return str(self.id) if task is None else f"{self.array_job_id}_{task}"
