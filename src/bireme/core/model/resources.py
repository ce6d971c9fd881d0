"""Quantities and who holds them: GRES, devices, a job's share of a node, an allocation.

Resources are integers (MiB, whole CPUs, device indices). Nothing here knows how a request is written (`slurm/`)
or where it fits (`core/placement`). Invariant: a `GresShare` that names device indices names `count` of them; one
that names parts of GPUs names `count` parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class GresRequest:
    """A request for so many of a generic resource, of any type when `type` is None: `gpu:h100:8`."""

    name: str
    type: str | None
    count: int

    @property
    def kind(self) -> str:
        """`gpu:h100`, or `gpu` where any will do."""
        return f"{self.name}:{self.type}" if self.type else self.name


@dataclass(frozen=True, slots=True)
class Device:
    """One physical (or configured) device of a node. `index` counts per GRES name on its node, as Slurm does."""

    index: int
    type: str | None = None
    file: str | None = None
    uuid: str | None = None
    cores: tuple[int, ...] = ()
    links: tuple[int, ...] = ()
    numa_node: int | None = None
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class GresPool:
    """All of one GRES name and type on one node. `devices` is empty for a GRES that is only counted."""

    name: str
    type: str | None
    count: int
    devices: tuple[Device, ...] = ()
    parts: tuple[tuple[int, int], ...] = ()
    """Of a GRES that is parts of GPUs (shard, mps): (GPU number, how many parts it has)."""
    one_sharing: bool = False
    """Only one GPU of the node is given out in such parts at a time (gres.conf's flag; the default of mps)."""


@dataclass(frozen=True, slots=True)
class GresShare:
    """What a job or step holds of one GRES name and type on one node."""

    name: str
    type: str | None
    count: int
    indices: tuple[int, ...] = ()
    parts: tuple[tuple[int, int], ...] = ()
    """Of a GRES that is parts of GPUs: (GPU number, how many of its parts)."""


def gpus_seen(shares: Iterable[GresShare]) -> tuple[int, ...]:
    """Numbers of the GPUs that these shares hold, whole or in parts."""
    whole = {index for share in shares if share.name == "gpu" for index in share.indices}
    return tuple(sorted(whole.union(gpu for share in shares for gpu, _ in share.parts)))


@dataclass(frozen=True, slots=True)
class NodeShare:
    """What a job holds on one node. `tasks` is how many of its tasks the batch variables promise there."""

    node: str
    cpus: int
    memory_mib: int
    cpu_ids: tuple[int, ...] = ()
    gres: tuple[GresShare, ...] = ()
    tasks: int = 1

    def gres_count(self, name: str) -> int:
        return sum(share.count for share in self.gres if share.name == name)

    def gres_indices(self, name: str) -> tuple[int, ...]:
        return tuple(sorted(index for share in self.gres if share.name == name for index in share.indices))

    def gpus_seen(self) -> tuple[int, ...]:
        """GPUs that the job may open: its own, and those of which it holds parts."""
        return gpus_seen(self.gres)

    @property
    def runs(self) -> bool:
        """False: what a suspended job keeps. Nothing of it runs there, so it is in nobody's way."""
        return self.cpus > 0


@dataclass(frozen=True, slots=True)
class Allocation:
    """job × nodes × devices × generation. A job that is started again gets a new generation."""

    job_id: int
    generation: int
    partition: str
    shares: tuple[NodeShare, ...]
    whole_nodes: bool = False

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(share.node for share in self.shares)

    @property
    def first_node(self) -> str:
        return self.shares[0].node

    @property
    def cpus(self) -> int:
        return sum(share.cpus for share in self.shares)

    def share_on(self, node: str) -> NodeShare:
        for share in self.shares:
            if share.node == node:
                return share
        raise KeyError(f"job {self.job_id} holds nothing on node {node}")

    def without_cpus(self) -> Allocation:
        """What a suspended job keeps: its processes stay in memory, its GPUs' memory stays full, its CPUs are idle."""
        kept = tuple(replace(share, cpus=0, cpu_ids=()) for share in self.shares)
        return replace(self, shares=kept, whole_nodes=False)

    def only_cpus(self) -> Allocation:
        """What a job gives up while it is suspended."""
        return replace(self, shares=tuple(replace(share, memory_mib=0, gres=()) for share in self.shares))

    def tres(self) -> dict[str, int]:
        """Trackable resources, by Slurm's names: cpu, mem (MiB), node, gres/NAME and gres/NAME:TYPE."""
        totals = {
            "cpu": self.cpus,
            "mem": sum(share.memory_mib for share in self.shares),
            "node": len(self.shares),
        }
        for share in self.shares:
            for gres in share.gres:
                add_gres_tres(totals, gres.name, gres.type, gres.count)
        return totals


def add_gres_tres(totals: dict[str, int], name: str, type_: str | None, count: int) -> None:
    """Adds a GRES count under `gres/NAME` and, when typed, under `gres/NAME:TYPE` too."""
    totals[f"gres/{name}"] = totals.get(f"gres/{name}", 0) + count
    if type_ is not None:
        totals[f"gres/{name}:{type_}"] = totals.get(f"gres/{name}:{type_}", 0) + count


@dataclass(frozen=True, slots=True)
class Usage:
    """What processes consumed. CPU times add up over tasks; peaks are the largest seen in one task."""

    user_cpu_s: float = 0.0
    system_cpu_s: float = 0.0
    max_rss_kib: int = 0
    max_rss_node: str = ""
    max_rss_task: int = 0
    max_vmsize_kib: int = 0
    max_disk_read_bytes: int = 0
    max_disk_write_bytes: int = 0
    min_cpu_s: float = 0.0
    min_cpu_node: str = ""
    min_cpu_task: int = 0
    total_rss_kib: int = 0
    tasks: int = 0

    @property
    def cpu_s(self) -> float:
        return self.user_cpu_s + self.system_cpu_s


NO_USAGE = Usage()


def merge_usage(parts: Iterable[Usage]) -> Usage:
    """One usage for several tasks or steps: times add up, peaks are kept with the node and task they came from."""
    parts = list(parts)
    if not parts:
        return NO_USAGE
    peak = max(parts, key=lambda usage: usage.max_rss_kib)
    slowest = min(parts, key=lambda usage: usage.min_cpu_s)
    return Usage(
        user_cpu_s=sum(usage.user_cpu_s for usage in parts),
        system_cpu_s=sum(usage.system_cpu_s for usage in parts),
        max_rss_kib=peak.max_rss_kib,
        max_rss_node=peak.max_rss_node,
        max_rss_task=peak.max_rss_task,
        max_vmsize_kib=max(usage.max_vmsize_kib for usage in parts),
        max_disk_read_bytes=max(usage.max_disk_read_bytes for usage in parts),
        max_disk_write_bytes=max(usage.max_disk_write_bytes for usage in parts),
        min_cpu_s=slowest.min_cpu_s,
        min_cpu_node=slowest.min_cpu_node,
        min_cpu_task=slowest.min_cpu_task,
        total_rss_kib=sum(usage.total_rss_kib for usage in parts),
        tasks=sum(usage.tasks for usage in parts),
    )


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended, in Slurm's `N:S` form: exit code and, if a signal ended it, its number."""

    code: int = 0
    signal: int = 0
    out_of_memory: bool = False

    @property
    def ok(self) -> bool:
        return self.code == 0 and self.signal == 0 and not self.out_of_memory

    def __str__(self) -> str:
        return f"{self.code}:{self.signal}"


SUCCESS = ExitStatus()


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How and when one task of a step ended."""

    task: int
    status: ExitStatus
    at: float
