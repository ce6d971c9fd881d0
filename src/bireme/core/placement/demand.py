"""What a request needs of nodes, with every default applied: the step between "as asked" and "where".

`resolve` follows Slurm's order of defaults (job, partition, cluster). It knows nothing of what is free.
Invariant: a Demand has at least one node, one task and one CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from bireme.core.model.cluster import PartitionConfig, Settings
from bireme.core.model.jobs import JobSpec, ResourceRequest
from bireme.core.model.node_rules import NodeRules
from bireme.core.model.resources import GresRequest, add_gres_tres
from bireme.core.placement.features import Constraint, parse_constraint


@dataclass(frozen=True, slots=True)
class Demand:
    nodes_min: int
    nodes_max: int | None
    ntasks: int
    ntasks_follow_nodes: bool
    """No number of tasks was asked for: more nodes are more tasks."""
    tasks_per_node: int | None
    """Exactly so many on each node (the last may have fewer), or None: as they fit."""
    tasks_per_socket: int | None
    tasks_per_core: int | None
    sockets_min: int
    cores_per_socket_min: int
    cpus_per_task: int
    cpus_per_node_min: int
    cpus_per_gpu: int | None
    memory_per_node_mib: int | None
    memory_per_cpu_mib: int | None
    memory_per_gpu_mib: int | None
    whole_memory: bool
    """No amount was asked or configured: Slurm gives the node's whole memory."""
    gres_per_node: tuple[GresRequest, ...]
    gres_per_job: tuple[GresRequest, ...]
    gres_per_task: tuple[GresRequest, ...]
    gres_per_socket: tuple[GresRequest, ...]
    """Of one GRES name only one of these four says something: they are one number in several words."""
    tasks_per_gpu: int | None
    whole_nodes: bool
    overcommit: bool
    threads_per_core: int | None
    fewest_nodes: bool
    """Of a range of nodes the smallest number that does."""
    spread: bool
    """As many nodes as it may have, and as many tasks on each (--spread-job)."""
    contiguous: bool
    """Nodes next to each other in the configuration's order."""
    segment: int | None
    """So many nodes at a time in one block; only a block topology knows segments."""
    features: Constraint
    preferred: Constraint
    """Tried first, instead of `features`."""
    nodelist: tuple[str, ...]
    exclude: tuple[str, ...]
    kept: tuple[str, ...]
    """Taken first, where it can have them."""
    node_rules: NodeRules | None
    tmp_disk_mib: int

    @property
    def nodes_wanted(self) -> int:
        """How many nodes it takes at least, tasks considered."""
        if self.tasks_per_node:
            return max(self.nodes_min, ceil(self.ntasks / self.tasks_per_node), len(self.nodelist))
        return max(self.nodes_min, len(self.nodelist))

    @property
    def threads_used(self) -> int | None:
        """Threads of a core that tasks may stand on; None: all. A core is held as a whole all the same."""
        limits = [limit for limit in (self.threads_per_core, self._threads_of_tasks()) if limit]
        return min(limits, default=None)

    def _threads_of_tasks(self) -> int | None:
        return self.tasks_per_core * self.cpus_per_task if self.tasks_per_core else None

    def on_nodes(self, count: int) -> Demand:
        """This demand on exactly `count` nodes."""
        ntasks = count * (self.tasks_per_node or 1) if self.ntasks_follow_nodes else self.ntasks
        return replace(self, nodes_min=count, nodes_max=count, ntasks=ntasks)

    @property
    def nodes_most(self) -> int:
        """As many nodes as a range (`-N2-4`) lets it take, where more than it needs are free."""
        most = self.nodes_max or self.nodes_wanted
        if self.gres_per_job or self.nodelist or self.fewest_nodes or self.segment or self.features.counts():
            return self.nodes_wanted
        if self.spread and self.nodes_max is None:
            most = self.ntasks
        return most if self.ntasks_follow_nodes else min(most, self.ntasks)


_Known = tuple[PartitionConfig, Settings, Demand]
_known: dict[tuple[ResourceRequest, int, int], _Known] = {}
"""Answers given, by the identity of what they were given for (and which is kept with them)."""
_KNOWN_AT_MOST = 4_096


def resolve(spec: JobSpec, partition: PartitionConfig, settings: Settings) -> Demand:
    """Many jobs ask the same of the same partition, and are asked about at every turn: answers are kept."""
    key = (spec.resources, id(partition), id(settings))
    known = _known.get(key)
    if known is None:
        if len(_known) >= _KNOWN_AT_MOST:
            _known.clear()
        known = _known[key] = (partition, settings, _resolved(spec.resources, partition, settings))
    return known[2]


def _resolved(asked: ResourceRequest, partition: PartitionConfig, settings: Settings) -> Demand:
    per_node, per_cpu, per_gpu = _memory(asked, partition, settings)
    memory_max = partition.max_memory_per_cpu_mib or settings.max_memory_per_cpu_mib
    times = ceil(per_cpu / memory_max) if per_cpu and memory_max else 1  # more memory than a CPU may have: more CPUs
    cpus_for_memory = ceil(per_node / memory_max) if per_node and memory_max else 1
    nodes_min = max(1, asked.nodes_min, partition.min_nodes if not asked.nodes_given else 1)
    features = parse_constraint(asked.constraint)
    nodes_min = max(nodes_min, features.nodes_counted)
    gres = _counted_once(asked)
    ntasks = _ntasks(asked, nodes_min)
    nodes = _nodes_for_tasks(asked, nodes_min, ntasks)
    return Demand(
        nodes_min=nodes,
        nodes_max=asked.nodes_max,
        ntasks=ntasks,
        ntasks_follow_nodes=asked.ntasks is None and not (asked.ntasks_per_gpu or asked.gres_per_task),
        tasks_per_node=asked.ntasks_per_node or _tasks_by_sockets(asked),
        tasks_per_socket=asked.ntasks_per_socket,
        tasks_per_core=asked.ntasks_per_core,
        sockets_min=asked.sockets_per_node or 1,
        cores_per_socket_min=asked.cores_per_socket or 1,
        cpus_per_task=_cpus_per_task(asked) * times,
        cpus_per_node_min=max(asked.min_cpus_per_node or 1, cpus_for_memory, _each_of(asked.cpus_min, nodes)),
        cpus_per_gpu=asked.cpus_per_gpu or _default_cpus_per_gpu(asked, partition, settings),
        memory_per_node_mib=per_node,
        memory_per_cpu_mib=ceil(per_cpu / times) if per_cpu else per_cpu,
        memory_per_gpu_mib=per_gpu,
        whole_memory=(
            settings.memory_is_consumable
            and settings.unasked_memory_is_whole
            and per_node is None
            and per_cpu is None
            and per_gpu is None
        ),
        gres_per_node=gres[0],
        gres_per_task=gres[1],
        gres_per_job=gres[2],
        gres_per_socket=gres[3],
        tasks_per_gpu=asked.ntasks_per_gpu,
        whole_nodes=asked.exclusive or partition.over_subscribe.upper().startswith("EXCLUSIVE"),
        overcommit=asked.overcommit,
        threads_per_core=_threads_per_core(asked),
        fewest_nodes=asked.use_min_nodes,
        spread=asked.spread,
        contiguous=asked.contiguous,
        segment=asked.segment,
        features=features,
        preferred=parse_constraint(asked.prefer),
        nodelist=tuple(dict.fromkeys(asked.nodelist)),  # `-m arbitrary` names a node once for each task
        exclude=asked.exclude,
        kept=asked.kept,
        node_rules=asked.node_rules,
        tmp_disk_mib=asked.tmp_disk_mib,
    )


_Gres = tuple[GresRequest, ...]


def _counted_once(asked: ResourceRequest) -> tuple[_Gres, _Gres, _Gres, _Gres]:
    """(per node, per task, per job, per socket), each GRES name in the first of them that names it.

    `--gpus=2 --gpus-per-task=1 -n2` asks for two GPUs and says so twice. What is said of nodes, or of sockets whose
    number on a node is said, holds for every node; what is said of the job follows from the number of nodes or tasks
    that was derived of it.
    """
    known: set[str] = set()
    counted: list[_Gres] = []
    by_sockets = _by_sockets(asked)
    for requests in (asked.gres_per_node, by_sockets, asked.gres_per_task, asked.gres_per_job, asked.gres_per_socket):
        counted.append(tuple(one for one in requests if one.name not in known))
        known.update(one.name for one in requests if one.count)
    per_node, by_sockets, per_task, per_job, per_socket = counted
    return (*per_node, *by_sockets), per_task, per_job, per_socket


def _by_sockets(asked: ResourceRequest) -> _Gres:
    """What --gpus-per-socket makes of each node; nothing where no number of sockets was asked for."""
    sockets = asked.sockets_per_node
    return tuple(replace(one, count=one.count * sockets) for one in asked.gres_per_socket) if sockets else ()


def _tasks_by_sockets(asked: ResourceRequest) -> int | None:
    """As many tasks on each node as the GPUs of its sockets suffice for; None where not both are asked for."""
    on_node, per_task = count_of(_by_sockets(asked), "gpu"), count_of(asked.gres_per_task, "gpu")
    return max(1, on_node // per_task) if on_node and per_task and not asked.gres_per_node else None


def _ntasks(asked: ResourceRequest, nodes: int) -> int:
    if asked.ntasks is not None:
        return max(1, asked.ntasks)
    if asked.ntasks_per_node:
        return nodes * asked.ntasks_per_node
    if asked.ntasks_per_gpu:
        gpus = count_of(asked.gres_per_job, "gpu") or nodes * count_of(asked.gres_per_node, "gpu")
        return max(1, gpus * asked.ntasks_per_gpu)
    if asked.gres_per_task and asked.gres_per_job:
        return max(1, count_of(asked.gres_per_job, "gpu") // max(1, count_of(asked.gres_per_task, "gpu")))
    return nodes


def _nodes_for_tasks(asked: ResourceRequest, nodes_min: int, ntasks: int) -> int:
    """`-N4 -n2` runs on two nodes, as Slurm warns and does; `--ntasks-per-node` with `-n` sets how many it takes."""
    if asked.ntasks_per_node and asked.ntasks is not None:
        return max(min(nodes_min, ntasks), ceil(ntasks / asked.ntasks_per_node))
    return min(nodes_min, ntasks) if asked.ntasks is not None else nodes_min


def _cpus_per_task(asked: ResourceRequest) -> int:
    per_task = asked.cpus_per_task or 1
    if asked.ntasks_per_core and not asked.cpus_per_task:
        return 1
    return max(1, per_task)


def _each_of(cpus: int | None, nodes: int) -> int:
    """A number of CPUs for the whole job, as the least that each of its nodes gives."""
    return ceil(cpus / nodes) if cpus else 1


def _threads_per_core(asked: ResourceRequest) -> int | None:
    if asked.hint == "nomultithread":
        return 1
    return asked.threads_per_core


def _default_cpus_per_gpu(asked: ResourceRequest, partition: PartitionConfig, settings: Settings) -> int | None:
    if asked.cpus_per_task is not None:
        return None
    return partition.default_cpus_per_gpu or settings.default_cpus_per_gpu


def _memory(
    asked: ResourceRequest, partition: PartitionConfig, settings: Settings
) -> tuple[int | None, int | None, int | None]:
    """(per node, per CPU, per GPU): exactly one of them, or none where memory is neither asked nor configured."""
    given = (asked.memory_per_node_mib, asked.memory_per_cpu_mib, asked.memory_per_gpu_mib)
    if any(value is not None for value in given):
        return given
    wants_gpus = asked.gres_per_node or asked.gres_per_job or asked.gres_per_task or asked.gres_per_socket
    for level in (partition, settings):
        if wants_gpus and level.default_memory_per_gpu_mib:
            return None, None, level.default_memory_per_gpu_mib
        if level.default_memory_per_cpu_mib:
            return None, level.default_memory_per_cpu_mib, None
        if level.default_memory_per_node_mib:
            return level.default_memory_per_node_mib, None, None
    return None, None, None


def count_of(requests: tuple[GresRequest, ...], name: str) -> int:
    return sum(request.count for request in requests if request.name == name)


def requested_tres(demand: Demand) -> dict[str, int]:
    """What the request adds up to before it is placed: sacct's ReqTRES."""
    nodes = demand.nodes_wanted
    totals = {
        "cpu": max(demand.ntasks * demand.cpus_per_task, nodes * demand.cpus_per_node_min),
        "node": nodes,
    }
    memory = _requested_memory(demand, nodes, totals["cpu"])
    if memory:
        totals["mem"] = memory
    for requests, times in (
        (demand.gres_per_node, nodes),
        (demand.gres_per_job, 1),
        (demand.gres_per_task, demand.ntasks),
        (demand.gres_per_socket, nodes),
    ):
        for gres in requests:
            add_gres_tres(totals, gres.name, gres.type, gres.count * times)
    return totals


def _requested_memory(demand: Demand, nodes: int, cpus: int) -> int:
    if demand.memory_per_node_mib:
        return demand.memory_per_node_mib * nodes
    if demand.memory_per_cpu_mib:
        return demand.memory_per_cpu_mib * cpus
    if demand.memory_per_gpu_mib:
        gpus = count_of(demand.gres_per_job, "gpu") + nodes * count_of(demand.gres_per_node, "gpu")
        gpus += demand.ntasks * count_of(demand.gres_per_task, "gpu")
        return demand.memory_per_gpu_mib * gpus
    return 0
