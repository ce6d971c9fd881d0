"""A job step: one `srun` inside an allocation, laid out over nodes and tasks.

Invariant: the task ids of a step's nodes together are 0..ntasks-1, each once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from bireme.core.model.distribution import DEFAULT_DISTRIBUTION, Distribution
from bireme.core.model.resources import NO_USAGE, ExitStatus, GresRequest, GresShare, Usage

BATCH_STEP = -5
EXTERN_STEP = -4
INTERACTIVE_STEP = -6
"""Slurm's special steps, as negative numbers here; `step_label` gives their names."""


def step_label(step_id: int) -> str:
    return {BATCH_STEP: "batch", EXTERN_STEP: "extern", INTERACTIVE_STEP: "interactive"}.get(step_id, str(step_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class HetStep:
    """The whole of a step that lies in a heterogeneous job, and where this component's part of it begins.

    Each component has a step of its own, all under one number; tasks and nodes are counted on through them.
    """

    leader: int
    """The job that the tasks are told they are in."""
    first_task: int
    first_node: int
    nodes: tuple[str, ...]
    """Of the whole step, in the order of the components."""
    node_of_task: tuple[int, ...]
    """For each task of the whole step, the place of its node in `nodes`."""
    held: tuple[tuple[str, int], ...]
    """The nodes of all components that the step lies in, with the CPUs held there."""

    @property
    def tasks_per_node(self) -> list[int]:
        return [self.node_of_task.count(place) for place in range(len(self.nodes))]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """What one srun asks for inside a job. None means not asked: inherited from the job by the rules."""

    name: str = ""
    argv: tuple[str, ...] = ()
    nodes_min: int | None = None
    nodes_max: int | None = None
    ntasks: int | None = None
    ntasks_per_node: int | None = None
    cpus_per_task: int | None = None
    memory_per_node_mib: int | None = None
    memory_per_cpu_mib: int | None = None
    memory_per_gpu_mib: int | None = None
    gres_per_node: tuple[GresRequest, ...] | None = None
    """None: all the job has on each node. Empty tuple: none (`--gres=none`)."""
    gres_per_task: tuple[GresRequest, ...] = ()
    gres_per_step: tuple[GresRequest, ...] = ()
    gres_per_socket: tuple[GresRequest, ...] = ()
    ntasks_per_gpu: int | None = None
    cpus_per_gpu: int | None = None
    nodelist: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    relative: int | None = None
    distribution: Distribution = DEFAULT_DISTRIBUTION
    arbitrary_hosts: tuple[str, ...] = ()
    exact: bool = False
    exclusive: bool = False
    overlap: bool = False
    overcommit: bool = False
    immediate_s: int | None = None
    time_limit_s: int | None = None
    kill_on_bad_exit: bool = False
    wait_s: int | None = None
    std_in: str = ""
    """Empty: forwarded by srun to all (or `stdin_task`). A path or pattern: opened by the agent."""
    std_out: str = ""
    """Empty: forwarded to srun. A pattern with %t, %n or %N: opened by the agent, one file each. "none": discarded."""
    std_err: str = ""
    open_append: bool = False
    label: bool = False
    unbuffered: bool = False
    pty: bool = False
    mpi: str = "none"
    cpu_bind: str = ""
    gpu_bind: str = ""
    mem_bind: str = ""
    multi_prog: str = ""
    """Text of the --multi-prog file, already read by srun."""
    work_dir: str = ""
    umask: int | None = None
    process_nice: int = 0
    """Of the srun that started it."""
    task_prolog: str = ""
    task_epilog: str = ""
    io_key: str = ""
    """Secret chosen by srun: whoever shows it may attach to the step's streams."""
    environment: str = ""
    """Blob id of the environment of the tasks (JSON object)."""
    container_image: str = ""
    container_bundle: str = ""
    container_mounts: str = ""
    container_workdir: str = ""
    container_name: str = ""
    container_save: str = ""
    container_env: str = ""
    container_mount_home: bool | None = None
    """Of these and the next None is the cluster's default."""
    container_remap_root: bool | None = None
    container_entrypoint: bool | None = None
    container_writable: bool | None = None
    interactive: bool = False
    """salloc's own shell inside the allocation."""
    submit_line: str = ""
    het: HetStep | None = None
    """Made when the step is laid out; nobody asks for it."""


@dataclass(frozen=True, slots=True)
class StepNode:
    """A step's part on one node. `task_gres`: per local task, the device indices bound to it (--gpus-per-task)."""

    node: str
    task_ids: tuple[int, ...]
    cpus: int
    memory_mib: int = 0
    cpu_ids: tuple[int, ...] = ()
    gres: tuple[GresShare, ...] = ()
    task_gres: tuple[tuple[int, ...], ...] = ()


class StepState(StrEnum):
    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    ENDED = "ENDED"


@dataclass(slots=True)
class Step:
    job_id: int
    id: int
    spec: StepSpec
    nodes: tuple[StepNode, ...]
    created_at: float
    state: StepState = StepState.STARTING
    started_at: float | None = None
    ended_at: float | None = None
    outcome: str = ""
    """Slurm's state word once it ended: COMPLETED, FAILED, CANCELLED, OUT_OF_MEMORY, TIMEOUT, NODE_FAIL."""
    status: ExitStatus = field(default_factory=ExitStatus)
    usage: Usage = NO_USAGE
    ended_nodes: frozenset[str] = frozenset()
    cancelled_by: int | None = None

    @property
    def ntasks(self) -> int:
        return sum(len(node.task_ids) for node in self.nodes)

    @property
    def label(self) -> str:
        return step_label(self.id)

    @property
    def first_task(self) -> int:
        """Where its tasks begin in the whole of a step over several components."""
        return self.spec.het.first_task if self.spec.het else 0

    @property
    def first_node(self) -> int:
        return self.spec.het.first_node if self.spec.het else 0
