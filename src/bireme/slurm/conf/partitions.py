"""PartitionName lines to `PartitionConfig`s, checked against the nodes.

Called by `loading` once nodes and node sets are known.
Invariant: at most one partition is the default; partitions name only nodes that exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bireme.core.model.cluster import PartitionConfig, PartitionState
from bireme.slurm.conf.accounting import billing_weights
from bireme.slurm.conf.diagnostics import Findings, Place
from bireme.slurm.conf.lines import Line
from bireme.slurm.conf.nodes import expand_names
from bireme.slurm.conf.stands import PARTITION_NOT_APPLIED
from bireme.slurm.conf.values import (
    limit,
    mebibytes_limit,
    minutes_as_s,
    names,
    names_or_all,
    positive,
    read_value,
    whole,
    yes_no,
)
from bireme.slurm.errors import SlurmSyntaxError

EVERY_NODE = "ALL"
_HAVE_FIELDS = frozenset({"AllocNodes", "ExclusiveUser", "OverSubscribe"})
_ONLY_SHOWN = {key.lower(): key for key in PARTITION_NOT_APPLIED if key not in _HAVE_FIELDS}
_SHARING_WORDS = frozenset({"NO", "YES", "FORCE", "EXCLUSIVE"})
_JOBS_A_CPU = 4
"""Of OverSubscribe=FORCE or YES without a number."""
_PREEMPT_WORDS = frozenset({"OFF", "CANCEL", "REQUEUE", "SUSPEND", "GANG"})


def read_partitions(
    lines: Iterable[Line],
    node_names: Sequence[str] | None,
    node_sets: Mapping[str, tuple[str, ...]],
    findings: Findings,
    preempt_mode: str = "",
) -> tuple[PartitionConfig, ...]:
    """`node_names`: None if nobody knows them yet: partitions then name what they like.

    `preempt_mode`: the cluster's PreemptMode.
    """
    partitions: dict[str, tuple[PartitionConfig, Place]] = {}
    order = {name: index for index, name in enumerate(node_names or ())}
    for line in lines:
        nodes = _named(line, findings) if node_names is None else _nodes_of(line, order, node_sets, findings)
        partition = _partition(line, nodes, findings)
        for name in names(line.get("PartitionName") or ""):
            if name in partitions:
                findings.error(line.place, f"partition {name} is already defined at {partitions[name][1]}")
                continue
            partitions[name] = replace(partition, name=name), line.place
            _refuse_time_slices(partitions[name][0], preempt_mode, line.place, findings)
    _refuse_second_default(partitions.values(), findings)
    return tuple(partition for partition, _ in partitions.values())


def _refuse_second_default(partitions: Iterable[tuple[PartitionConfig, Place]], findings: Findings) -> None:
    defaults = [(partition.name, place) for partition, place in partitions if partition.default]
    for name, place in defaults[1:]:
        findings.error(
            place, f"partition {name} is a second default; {defaults[0][0]} at {defaults[0][1]} is the default already"
        )


def _named(line: Line, findings: Findings) -> tuple[str, ...]:
    return tuple(EVERY_NODE if name.upper() == EVERY_NODE else name for name in expand_names(line, "Nodes", findings))


def _nodes_of(
    line: Line, order: Mapping[str, int], node_sets: Mapping[str, tuple[str, ...]], findings: Findings
) -> tuple[str, ...]:
    """The partition's nodes in the order of the file, node sets and ALL resolved."""
    chosen: set[str] = set()
    for name in expand_names(line, "Nodes", findings):
        if name.upper() == EVERY_NODE:
            chosen.update(order)
        elif name in node_sets:
            chosen.update(node_sets[name])
        elif name in order:
            chosen.add(name)
        else:
            partition = line.get("PartitionName")
            findings.error(line.place, f"partition {partition} names node {name}, which no NodeName line defines")
    return tuple(sorted((name for name in chosen if name in order), key=order.__getitem__))


def _partition(line: Line, nodes: tuple[str, ...], findings: Findings) -> PartitionConfig:
    def flag(key: str) -> bool:
        return read_value(line, key, yes_no, False, findings)

    def size(key: str) -> int | None:
        return read_value(line, key, mebibytes_limit, None, findings)

    max_time_s = read_value(line, "MaxTime", minutes_as_s, None, findings)
    tier, factor = _priorities(line, findings)
    return PartitionConfig(
        name="",
        nodes=nodes,
        default=flag("Default"),
        state=read_value(line, "State", _state, PartitionState.UP, findings),
        max_time_s=max_time_s,
        default_time_s=_default_time(line, max_time_s, findings),
        max_nodes=read_value(line, "MaxNodes", limit, None, findings),
        min_nodes=read_value(line, "MinNodes", whole, 0, findings),
        priority_tier=tier,
        priority_job_factor=factor,
        over_subscribe=read_value(line, "OverSubscribe", _sharing, "NO", findings, "Shared"),
        exclusive_user=flag("ExclusiveUser"),
        hidden=flag("Hidden"),
        root_only=flag("RootOnly"),
        disable_root_jobs=flag("DisableRootJobs"),
        lln=flag("LLN"),
        req_resv=flag("ReqResv"),
        default_memory_per_cpu_mib=size("DefMemPerCPU"),
        default_memory_per_node_mib=size("DefMemPerNode"),
        default_memory_per_gpu_mib=size("DefMemPerGPU"),
        max_memory_per_cpu_mib=size("MaxMemPerCPU"),
        max_memory_per_node_mib=size("MaxMemPerNode"),
        default_cpus_per_gpu=read_value(line, "DefCpuPerGPU", positive, None, findings),
        max_cpus_per_node=read_value(line, "MaxCPUsPerNode", limit, None, findings),
        max_cpus_per_user=read_value(line, "MaxCPUsPerUser", limit, None, findings),
        allow_accounts=read_value(line, "AllowAccounts", names_or_all, None, findings),
        deny_accounts=read_value(line, "DenyAccounts", names, (), findings),
        allow_groups=read_value(line, "AllowGroups", names_or_all, None, findings),
        allow_qos=read_value(line, "AllowQos", names_or_all, None, findings),
        deny_qos=read_value(line, "DenyQos", names, (), findings),
        alloc_nodes=_alloc_nodes(line, findings),
        preempt_mode=read_value(line, "PreemptMode", _preempt_mode, None, findings),
        grace_time_s=read_value(line, "GraceTime", _seconds, 0, findings),
        over_time_limit_s=read_value(line, "OverTimeLimit", minutes_as_s, None, findings),
        qos=line.get("QOS") or "",
        tres_billing_weights=read_value(line, "TRESBillingWeights", billing_weights, (), findings),
        extra={_ONLY_SHOWN[key.lower()]: value for key, value in line.pairs if key.lower() in _ONLY_SHOWN},
    )


def _priorities(line: Line, findings: Findings) -> tuple[int, int]:
    """(tier, job factor). `Priority` is the old word for both."""
    both = read_value(line, "Priority", whole, 1, findings)
    return (
        read_value(line, "PriorityTier", whole, both, findings),
        read_value(line, "PriorityJobFactor", whole, both, findings),
    )


def _default_time(line: Line, max_time_s: int | None, findings: Findings) -> int | None:
    default_time_s = read_value(line, "DefaultTime", minutes_as_s, None, findings)
    if line.get("DefaultTime") is None or max_time_s is None:
        return default_time_s
    if default_time_s is None or default_time_s > max_time_s:
        findings.error(
            line.place,
            f"DefaultTime={line.get('DefaultTime')} is longer than MaxTime={line.get('MaxTime')}; shorten it",
        )
        return max_time_s
    return default_time_s


def _alloc_nodes(line: Line, findings: Findings) -> tuple[str, ...] | None:
    text = line.get("AllocNodes")
    if text is None or text.upper() == "ALL":
        return None
    return tuple(expand_names(line, "AllocNodes", findings))


def _state(text: str) -> PartitionState:
    try:
        return PartitionState(text.upper())
    except ValueError as error:
        raise SlurmSyntaxError("a partition is UP, DOWN, DRAIN or INACTIVE") from error


def _sharing(text: str) -> str:
    word, colon, jobs = text.upper().partition(":")
    if word not in _SHARING_WORDS or (colon and not jobs.isdigit()):
        raise SlurmSyntaxError("one of NO, YES[:jobs], FORCE[:jobs], EXCLUSIVE")
    return text.upper()


def _preempt_mode(text: str) -> str:
    words = {word.strip() for word in text.upper().split(",")}
    if not words <= _PREEMPT_WORDS or len(words - {"GANG"}) > 1:
        raise SlurmSyntaxError("one of OFF, CANCEL, REQUEUE and SUSPEND, and GANG")
    return ",".join(sorted(words))


def _refuse_time_slices(partition: PartitionConfig, preempt_mode: str, place: Place, findings: Findings) -> None:
    """GANG where several jobs may share a CPU: they would run in turns, which is not done here."""
    word, _, jobs = partition.over_subscribe.partition(":")
    shared = word in ("YES", "FORCE") and int(jobs or _JOBS_A_CPU) > 1
    if shared and "GANG" in (partition.preempt_mode or preempt_mode).upper().split(","):
        findings.error(
            place,
            f"partition {partition.name}: OverSubscribe={partition.over_subscribe} with PreemptMode=GANG asks for"
            f" time slices, and jobs are not run in turns here; write OverSubscribe={word}:1",
        )


def _seconds(text: str) -> int:
    """GraceTime: plain seconds, or a time as for MaxTime with a colon in it."""
    if text.isdigit():
        return int(text)
    return minutes_as_s(text) or 0
