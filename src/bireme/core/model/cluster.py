"""A cluster as configured: nodes, partitions, topology and the settings that change behaviour.

Built by `slurm/conf` from slurm.conf and its neighbours, by discovery when there are no files, or by tests.
Invariant: every partition names only nodes of the cluster, and exactly one partition is the default or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bireme.core.model.node_rules import Taint
from bireme.core.model.policy import DEFAULT_POLICY, Policy
from bireme.core.model.resources import GresPool

INFINITE: None = None
"""A limit that is not there is None everywhere in the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    name: str
    cpus: int
    memory_mib: int = 1
    hostname: str = ""
    address: str = ""
    port: int = 0
    boards: int = 1
    sockets: int = 1
    cores_per_socket: int = 1
    threads_per_core: int = 1
    tmp_disk_mib: int = 0
    weight: int = 1
    features: tuple[str, ...] = ()
    gres: tuple[GresPool, ...] = ()
    initial_state: str = "UNKNOWN"
    reason: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    """Those that some job's node rules ask about; only Kubernetes nodes have any."""
    taints: tuple[Taint, ...] = ()

    def gres_count(self, name: str, type_: str | None = None) -> int:
        return sum(p.count for p in self.gres if p.name == name and (type_ is None or p.type == type_))


class PartitionState(StrEnum):
    UP = "UP"
    DOWN = "DOWN"  # accepts jobs, starts none
    DRAIN = "DRAIN"  # starts what is queued, accepts none
    INACTIVE = "INACTIVE"  # neither


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionConfig:
    name: str
    nodes: tuple[str, ...]
    default: bool = False
    state: PartitionState = PartitionState.UP
    max_time_s: int | None = None
    default_time_s: int | None = None
    max_nodes: int | None = None
    min_nodes: int = 1
    priority_tier: int = 1
    priority_job_factor: int = 1
    over_subscribe: str = "NO"
    exclusive_user: bool = False
    hidden: bool = False
    root_only: bool = False
    disable_root_jobs: bool = False
    lln: bool = False
    default_memory_per_cpu_mib: int | None = None
    default_memory_per_node_mib: int | None = None
    default_memory_per_gpu_mib: int | None = None
    default_cpus_per_gpu: int | None = None
    max_memory_per_cpu_mib: int | None = None
    max_memory_per_node_mib: int | None = None
    max_cpus_per_node: int | None = None
    max_cpus_per_user: int | None = None
    """Of all of a user's jobs in the partition together."""
    allow_accounts: tuple[str, ...] | None = None
    deny_accounts: tuple[str, ...] = ()
    allow_groups: tuple[str, ...] | None = None
    allow_qos: tuple[str, ...] | None = None
    deny_qos: tuple[str, ...] = ()
    alloc_nodes: tuple[str, ...] | None = None
    preempt_mode: str | None = None
    grace_time_s: int = 0
    over_time_limit_s: int | None = None
    req_resv: bool = False
    qos: str = ""
    tres_billing_weights: tuple[tuple[str, float], ...] = ()
    """What one unit of a TRES costs a second (memory: a MiB); empty: a CPU costs 1, nothing else costs."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Keys that were understood but are not applied yet, as written."""
    cluster: str = ""
    """Of which cluster it is, when that is not the one that has the configuration's name."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch of topology/tree. A leaf has nodes; any other has switches."""

    name: str
    switches: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    link_speed: int = 1


@dataclass(frozen=True, slots=True)
class Block:
    """A block of topology/block."""

    name: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    plugin: str = "topology/flat"
    switches: tuple[Switch, ...] = ()
    blocks: tuple[Block, ...] = ()
    block_sizes: tuple[int, ...] = ()

    @property
    def leaves(self) -> dict[str, tuple[str, ...]]:
        """By name, the nodes right under each switch, or in each block."""
        switches = {each.name: each.nodes for each in self.switches if each.nodes}
        return switches | {each.name: each.nodes for each in self.blocks}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrioritySettings:
    """The Priority* keys that `core/priority` reads; those about usage stand in `Settings` itself."""

    multifactor: bool = False
    """PriorityType: priority/multifactor, or priority/basic (first come, first served)."""
    calc_period_s: int = 5 * 60
    max_age_s: int | None = 7 * 86_400
    """None: no age is the oldest, and the age factor stays 0."""
    favor_small: bool = False
    weight_age: int = 0
    weight_assoc: int = 0
    weight_fair_share: int = 0
    weight_job_size: int = 0
    weight_partition: int = 0
    weight_qos: int = 0
    weight_tres: tuple[tuple[str, float], ...] = ()
    """By TRES name as in `accounts.TresMap`, in its order; may be negative."""
    parameters: str = ""
    site_factor_plugin: str = ""
    site_factor_parameters: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """slurm.conf keys that change behaviour, typed, with Slurm's defaults. The rest stays in ClusterConfig.raw."""

    kill_wait_s: int = 30
    min_job_age_s: int = 300
    max_array_size: int = 1001
    max_job_count: int = 10_000
    max_tasks_per_node: int = 512
    max_script_bytes: int = 4 * 1024 * 1024
    first_job_id: int = 1
    max_job_id: int = 67_043_328
    job_requeue: bool = True
    requeue_exit: tuple[int, ...] = ()
    requeue_exit_hold: tuple[int, ...] = ()
    max_batch_requeue: int = 5
    over_time_limit_s: int | None = 0
    kill_on_bad_exit: bool = False
    prolog: tuple[str, ...] = ()
    epilog: tuple[str, ...] = ()
    task_prolog: str = ""
    task_epilog: str = ""
    prolog_flags: tuple[str, ...] = ()
    prolog_epilog_timeout_s: int | None = None
    return_to_service: int = 0
    select_by_core: bool = True
    """SelectTypeParameters: CR_Core* (whole cores) or CR_CPU* (single CPUs)."""
    memory_is_consumable: bool = True
    """CR_*_Memory: jobs may not together ask for more memory than a node has."""
    unasked_memory_is_whole: bool = True
    """A job that names no memory holds all of its node's, as in Slurm; False: none."""
    default_memory_per_cpu_mib: int | None = None
    default_memory_per_node_mib: int | None = None
    default_memory_per_gpu_mib: int | None = None
    default_cpus_per_gpu: int | None = None
    max_memory_per_cpu_mib: int | None = None
    max_memory_per_node_mib: int | None = None
    enforce_part_limits: str = "NO"
    account_gather_frequency_s: int = 30
    batch_start_timeout_s: int = 10
    slurmd_timeout_s: int = 300
    unkillable_step_timeout_s: int = 60
    unkillable_step_program: str = ""
    inactive_limit_s: int = 0
    resv_over_run_s: int | None = 0
    """ResvOverRun: how long jobs may go on after their reservation has ended; None: as long as they like."""
    gres_types: tuple[str, ...] = ()
    licenses: str = ""
    policy: Policy = DEFAULT_POLICY
    """SchedulerType and SchedulerParameters."""
    accounting_enforce: tuple[str, ...] = ()
    """AccountingStorageEnforce, and what its words imply: associations limits qos safe wckeys nojobs nosteps."""
    priority_decay_half_life_s: int | None = 7 * 86_400
    """None: usage does not decay."""
    priority_usage_reset_period: str = "NONE"
    """NONE, NOW, DAILY, WEEKLY, MONTHLY, QUARTERLY or YEARLY."""
    priority_flags: tuple[str, ...] = ()
    fair_share_dampening_factor: int = 1
    """Classic fair share only."""
    priority: PrioritySettings = PrioritySettings()
    service_qos: str = "service"
    """The QOS of services that name none; empty: their owners' own. It is made when the first service is."""
    service_ports: tuple[int, int] = (30_000, 32_767)
    """Services' replicas listen at these, each at one of its own in the whole cluster. Below what systems give out by
    themselves, above what jobs choose for their own rendezvous by habit (29500, or 20000 and the job's number)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    name: str = "bireme"
    nodes: tuple[NodeConfig, ...] = ()
    partitions: tuple[PartitionConfig, ...] = ()
    topology: Topology = Topology()
    settings: Settings = Settings()
    raw: Mapping[str, str] = field(default_factory=dict)
    """slurm.conf's global keys as written (canonical spelling -> value), for `scontrol show config`."""
    source: str = ""
    """The slurm.conf it came from; empty when discovered."""

    def words(self, key: str) -> list[str]:
        """Of a global key whose value is a list of words, in small letters."""
        return self.raw.get(key, "").lower().split(",")

    def default_partition(self) -> PartitionConfig | None:
        return next((partition for partition in self.partitions if partition.default), None)
