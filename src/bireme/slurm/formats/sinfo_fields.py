"""sinfo's fields, over groups of nodes of one partition that a line shows together.

sinfo prints one line for all nodes that look the same in the asked columns, so a field has two more sides than one of
squeue's: what must be equal (`partition_key`, `node_key`), and how several values become one text (`8+`, `0.1-0.4`).
Invariant: a node is counted once in a group, whatever number of partitions it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bireme.slurm.formats import node_states
from bireme.slurm.formats.fields import Field, FieldTable, Text
from bireme.slurm.formats.values import NULL, Context, Record, short_duration
from bireme.slurm.hostlist import compress_sorted

_Part = Callable[[Record], str]
_Node = Callable[[Record], Any]


class NodeGroup:
    """The nodes of one line, and the first partition they were met in."""

    __slots__ = ("_names", "nodes", "order", "partition")

    def __init__(self, partition: Record, order: int = 0) -> None:
        self.partition = partition
        self.order = order
        self.nodes: list[Record] = []
        self._names: set[str] = set()

    def add(self, node: Record) -> None:
        if node["name"] not in self._names:
            self._names.add(node["name"])
            self.nodes.append(node)

    @property
    def first(self) -> Record:
        return self.nodes[0]


def _partition(value: _Part) -> Text:
    return lambda group, _: value(group.partition)


def _same(value: _Node, missing: str = "n/a") -> Text:
    """A value that is equal on all nodes of a group, because it is part of what makes the group."""

    def text(group: NodeGroup, context: Context) -> str:
        return str(value(group.first)) if group.nodes else missing

    return text


def _least(key: str) -> Text:
    """`8`, or `8+` where some nodes have more."""

    def text(group: NodeGroup, _: Context) -> str:
        return least(group.nodes, key)

    return text


def least(nodes: Sequence[Record], key: str) -> str:
    values = [int(node.get(key) or 0) for node in nodes] or [0]
    return f"{min(values)}+" if min(values) != max(values) else str(values[0])


def _span(key: str, form: Callable[[float], str]) -> Text:
    """`0.09`, or `0.09-0.20`."""

    def text(group: NodeGroup, _: Context) -> str:
        values = [node[key] for node in group.nodes if node.get(key) is not None]
        if not values:
            return "N/A"
        low, high = form(min(values)), form(max(values))
        return low if low == high else f"{low}-{high}"

    return text


def _names(key: str) -> Text:
    def text(group: NodeGroup, _: Context) -> str:
        return compress_sorted({str(node.get(key) or node["name"]) for node in group.nodes})

    return text


def _partition_state(partition: Record) -> str:
    return {"INACTIVE": "inact"}.get(str(partition.get("state")), str(partition.get("state") or "UP").lower())


def _limit(key: str, missing: str) -> _Part:
    return lambda partition: missing if partition.get(key) is None else short_duration(partition[key])


def _job_size(partition: Record) -> str:
    low, high = max(1, partition.get("min_nodes") or 1), partition.get("max_nodes")
    return str(low) if low == high else f"{low}-{'infinite' if high is None else high}"


def _listed(key: str) -> _Part:
    return lambda partition: "all" if partition.get(key) is None else ",".join(partition[key])


def _starred(partition: Record) -> str:
    return f"{partition['name']}*" if partition.get("default") else str(partition["name"])


def node_counts(nodes: Iterable[Record]) -> tuple[int, int, int, int]:
    """Allocated, idle, other, total."""
    allocated = idle = other = 0
    for node in nodes:
        if node_states.is_busy(node):  # one that drains too: its jobs run on
            allocated += 1
        elif "DRAIN" in node_states.flags_of(node):
            other += 1
        elif node.get("state") == "IDLE":
            idle += 1
        else:
            other += 1
    return allocated, idle, other, allocated + idle + other


def cpu_counts(nodes: Iterable[Record]) -> tuple[int, int, int, int]:
    allocated = idle = other = 0
    for node in nodes:
        used = int(node.get("cpus_allocated") or 0)
        rest = int(node.get("cpus") or 0) - used
        allocated += used
        if "DRAIN" in node_states.flags_of(node) or node.get("state") == "DOWN":
            other += rest
        else:
            idle += rest
    return allocated, idle, other, allocated + idle + other


def _slashed(counts: Callable[[Iterable[Record]], tuple[int, ...]], take: int = 4) -> Text:
    return lambda group, _: "/".join(map(str, counts(group.nodes)[:take]))


def _reason(node: Record) -> str:
    return str(node.get("reason") or "none") if node_states.is_out(node) or node.get("reason") else "none"


def _reason_time(group: NodeGroup, context: Context) -> str:
    at = group.first.get("reason_time") if group.nodes else None
    return "Unknown" if at is None or not group.first.get("reason") else context.stamp(at)


def _reason_user(node: Record) -> str:
    return str(node.get("reason_user") or node.get("reason_uid") or "Unknown") if node.get("reason") else "Unknown"


def _reason_user_long(node: Record) -> str:
    if not node.get("reason"):
        return "Unknown"
    return f"{_reason_user(node)}({node.get('reason_uid') or 0})"


def _features(node: Record) -> str:
    features = node.get("features")
    return (features if isinstance(features, str) else ",".join(features or ())) or NULL


def _gres(key: str) -> _Node:
    return lambda node: node.get(key) or NULL


def _shape(group: NodeGroup, _: Context) -> str:
    return ":".join(least(group.nodes, key) for key in ("sockets", "cores_per_socket", "threads_per_core"))


def _cpu_load(value: float) -> str:
    return f"{value:.2f}"


def _state_key(group: NodeGroup, _: Context) -> int:
    return node_states.state_code(group.first) if group.nodes else -1


def _number(key: str) -> Callable[[NodeGroup, Context], int]:
    return lambda group, _: min((int(node.get(key) or 0) for node in group.nodes), default=0)


PARTITION_KEYS: dict[str, _Part] = {
    "AVAIL": _partition_state,
    "GROUPS": _listed("allow_groups"),
    "OVERSUBSCRIBE": lambda partition: str(partition.get("over_subscribe") or "NO"),
    "TIMELIMIT": _limit("max_time_s", "infinite"),
    "DEFAULTTIME": _limit("default_time_s", "n/a"),
    "JOB_SIZE": _job_size,
    "PRIO_TIER": lambda partition: str(partition.get("priority_tier", 1)),
    "PRIO_JOB_FACTOR": lambda partition: str(partition.get("priority_job_factor", 1)),
    "PREEMPT_MODE": lambda partition: str(partition.get("preempt_mode") or "OFF"),
    "ROOT": lambda partition: "yes" if partition.get("root_only") else "no",
    "ALLOCNODES": _listed("alloc_nodes"),
    "MAX_CPUS_PER_NODE": lambda partition: str(partition.get("max_cpus_per_node") or "UNLIMITED"),
    "PARTITION": lambda partition: str(partition["name"]),
}
"""By header: the value of a partition that decides whether two partitions may share a line."""

NODE_KEYS: dict[str, _Node] = {
    "ACTIVE_FEATURES": _features,
    "AVAIL_FEATURES": _features,
    "GRES": _gres("gres"),
    "GRES_USED": _gres("gres_used"),
    "REASON": _reason,
    "TIMESTAMP": lambda node: node.get("reason_time") if node.get("reason") else None,
    "USER": _reason_user_long,
    "STATE": node_states.long_state,
    "STATECOMPLETE": node_states.complete_state,
    "VERSION": lambda node: str(node.get("version") or ""),
    "ALLOCMEM": lambda node: int(node.get("memory_allocated_mib") or 0),
    "EXTRA": lambda node: node.get("extra") or NULL,
    "COMMENT": lambda node: node.get("comment") or NULL,
}
"""By header: what nodes of one line must have in common."""

EXACT_KEYS: dict[str, tuple[str, ...]] = {
    "CPUS": ("cpus",),
    "SOCKETS": ("sockets",),
    "CORES": ("cores_per_socket",),
    "THREADS": ("threads_per_core",),
    "S:C:T": ("sockets", "cores_per_socket", "threads_per_core"),
    "TMP_DISK": ("tmp_disk_mib",),
    "MEMORY": ("memory_mib",),
    "WEIGHT": ("weight",),
    "CPU_LOAD": ("cpu_load",),
    "FREE_MEM": ("memory_free_mib",),
}
"""By header: what they must have in common with --exact."""


def _p(letter: str, name: str, header: str, *names: str) -> Field:
    return Field(letter, (name, *names), header, (), _partition(PARTITION_KEYS[header]))


def _n(letter: str, name: str, header: str) -> Field:
    return Field(letter, (name,), header, (), _same(NODE_KEYS[header]))


SINFO_FIELDS = FieldTable("node", (
    _p("a", "available", "AVAIL"),
    Field("A", ("nodeai",), "NODES(A/I)", (), _slashed(node_counts, 2)),
    _n("b", "features_act", "ACTIVE_FEATURES"),
    _p("B", "maxcpuspernode", "MAX_CPUS_PER_NODE"),
    Field("c", ("cpus",), "CPUS", (), _least("cpus"), _number("cpus")),
    Field("C", ("cpusstate",), "CPUS(A/I/O/T)", (), _slashed(cpu_counts)),
    Field("d", ("disk",), "TMP_DISK", (), _least("tmp_disk_mib"), _number("tmp_disk_mib")),
    Field("D", ("nodes",), "NODES", (), lambda group, _: str(len(group.nodes)), lambda group, _: len(group.nodes)),
    Field("e", ("freemem",), "FREE_MEM", (), _span("memory_free_mib", lambda value: str(int(value)))),
    Field("E", ("reason",), "REASON", (), _same(_reason, "none")),
    _n("f", "features", "AVAIL_FEATURES"),
    Field("F", ("nodeaiot",), "NODES(A/I/O/T)", (), _slashed(node_counts)),
    _p("g", "groups", "GROUPS"),
    _n("G", "gres", "GRES"),
    _p("h", "oversubscribe", "OVERSUBSCRIBE"),
    Field("H", ("timestamp",), "TIMESTAMP", (), _reason_time,
          lambda group, _: (group.first.get("reason_time") or 0) if group.nodes else 0),
    _p("I", "priorityjobfactor", "PRIO_JOB_FACTOR"),
    _p("l", "time", "TIMELIMIT"),
    _p("L", "defaulttime", "DEFAULTTIME"),
    Field("m", ("memory",), "MEMORY", (), _least("memory_mib"), _number("memory_mib")),
    _p("M", "preemptmode", "PREEMPT_MODE"),
    Field("n", ("nodehost",), "HOSTNAMES", (), _names("hostname")),
    Field("N", ("nodelist",), "NODELIST", (), _names("name")),
    Field("o", ("nodeaddr",), "NODE_ADDR", (), _names("address")),
    Field("O", ("cpusload",), "CPU_LOAD", (), _span("cpu_load", _cpu_load)),
    _p("p", "prioritytier", "PRIO_TIER", "priority"),
    Field("P", ("partition",), "PARTITION", (), _partition(_starred)),
    _p("r", "root", "ROOT"),
    Field("R", ("partitionname",), "PARTITION", (), _partition(lambda partition: str(partition["name"]))),
    _p("s", "size", "JOB_SIZE"),
    _p("S", "allocnodes", "ALLOCNODES"),
    Field("t", ("statecompact",), "STATE", (), _same(node_states.compact_node_state), _state_key),
    Field("T", ("statelong",), "STATE", (), _same(node_states.long_state), _state_key),
    Field("u", ("user",), "USER", (), _same(_reason_user, "Unknown")),
    Field("U", ("userlong",), "USER", (), _same(_reason_user_long, "Unknown")),
    _n("v", "version", "VERSION"),
    Field("V", ("cluster",), "CLUSTER", (), lambda _group, _context: "N/A"),
    Field("w", ("weight",), "WEIGHT", (), _least("weight"), _number("weight")),
    Field("X", ("sockets",), "SOCKETS", (), _least("sockets"), _number("sockets")),
    Field("Y", ("cores",), "CORES", (), _least("cores_per_socket"), _number("cores_per_socket")),
    Field("Z", ("threads",), "THREADS", (), _least("threads_per_core"), _number("threads_per_core")),
    Field("z", ("socketcorethread",), "S:C:T", (), _shape),
    Field("", ("allocmem",), "ALLOCMEM", (), _same(NODE_KEYS["ALLOCMEM"], "0")),
    _n("", "comment", "COMMENT"),
    _n("", "extra", "EXTRA"),
    _n("", "gresused", "GRES_USED"),
    Field("", ("port",), "PORT", (), _least("port")),
    Field("", ("statecomplete",), "STATECOMPLETE", (),
          _same(lambda node: node_states.complete_state(node).lower())),
))  # fmt: skip


def group_nodes(
    partitions: Sequence[Record], members: Callable[[Record], Sequence[Record]], headers: set[str], *,
    exact: bool = False, each_node: bool = False,
) -> list[NodeGroup]:  # fmt: skip
    """The lines of a listing: nodes that agree in every asked column, partition by partition.

    `members` gives a partition's nodes, filtered; `each_node` is --Node: a line for every node of every partition.
    """
    of_partition = [key for header, key in PARTITION_KEYS.items() if header in headers]
    of_node = [key for header, key in NODE_KEYS.items() if header in headers]
    exactly = [key for header, keys in EXACT_KEYS.items() if exact and header in headers for key in keys]
    groups: dict[tuple[Any, ...], NodeGroup] = {}
    for order, partition in enumerate(partitions):
        outer = tuple(key(partition) for key in of_partition)
        nodes = members(partition)
        if not nodes and not each_node and "PARTITION" in headers:
            groups.setdefault((outer, None), NodeGroup(partition, order))
        for node in nodes:
            inner = (*(key(node) for key in of_node), *(node.get(key) for key in exactly))
            name = f"{node['name']} {partition['name']}" if each_node else ""
            groups.setdefault((outer, inner, name), NodeGroup(partition, order)).add(node)
    return list(groups.values())


DEFAULT_FORMAT = "%#P %.5a %.10l %.6D %.6t %N"
SUMMARY_FORMAT = "%#P %.5a %.10l %.16F %N"
LONG_FORMAT = "%#P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
NODE_FORMAT = "%#N %.6D %.#P %6t"
LONG_NODE_FORMAT = "%#N %.6D %.#P %.11T %4c %.8z %.6m %.8d %.6w %.8f %20E"
REASONS_FORMAT = "%20E %9u %19H %N"
LONG_REASONS_FORMAT = "%20E %12U %19H %6t %N"
DEFAULT_SORT = "#P,-t"
NODE_SORT = "N"
