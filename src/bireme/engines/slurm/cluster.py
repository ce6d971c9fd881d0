"""The cluster as Slurm describes it: its own words, written down as a slurm.conf and read by the one reader of those.

`scontrol show config|partition|topology` have said the same in the same form for many versions; nodes come as JSON.
What the reader does not know is left out, so that a newer Slurm's keys are no mistake. Pure: no IO.
Invariant: either a consistent cluster, or ConfigurationError; never a half-read one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.nodes import Health
from bireme.core.model.sightings import NodeCondition
from bireme.engines.slurm.values import Json, look, number, text, words
from bireme.slurm.conf.diagnostics import ConfigurationError
from bireme.slurm.conf.loading import parse_configuration

SETTINGS = (
    "ClusterName", "KillWait", "MinJobAge", "MaxArraySize", "MaxJobCount", "FirstJobId", "MaxJobId", "JobRequeue",
    "RequeueExit", "RequeueExitHold", "OverTimeLimit", "DefMemPerCPU", "DefMemPerNode", "MaxMemPerCPU", "MaxMemPerNode",
    "SelectType", "SelectTypeParameters", "SchedulerType", "SchedulerParameters", "PreemptType", "PreemptMode",
    "PriorityType", "PriorityDecayHalfLife", "PriorityCalcPeriod", "PriorityFavorSmall", "PriorityMaxAge",
    "PriorityWeightAge", "PriorityWeightAssoc", "PriorityWeightFairShare", "PriorityWeightJobSize",
    "PriorityWeightPartition", "PriorityWeightQOS", "PriorityWeightTRES", "PriorityFlags", "GresTypes", "Licenses",
    "ResvOverRun", "SlurmdTimeout", "TopologyPlugin", "DependencyParameters",
)  # fmt: skip
"""Keys of `scontrol show config` that change what is said of a job. Slurm itself obeys all of them."""
PARTITION_KEYS = (
    "PartitionName", "AllowGroups", "AllowAccounts", "AllowQos", "DenyAccounts", "DenyQos", "Default", "QoS",
    "DefaultTime", "DisableRootJobs", "ExclusiveUser", "GraceTime", "Hidden", "MaxNodes", "MaxTime", "MinNodes", "LLN",
    "MaxCPUsPerNode", "Nodes", "PriorityJobFactor", "PriorityTier", "RootOnly", "ReqResv", "OverSubscribe",
    "OverTimeLimit", "PreemptMode", "State", "DefMemPerNode", "MaxMemPerNode", "DefMemPerCPU", "MaxMemPerCPU",
    "TRESBillingWeights",
)  # fmt: skip
_ESSENTIAL_PARTITION_KEYS = ("PartitionName", "Nodes", "Default", "MaxTime", "PriorityTier", "State")
_CHANGES_BY_ITSELF = ("NEXT_JOB_ID", "BOOT_TIME", "HASH_VAL")
_NOTHING = frozenset({"", "(null)", "(null type)", "N/A", "NONE", "UNLIMITED", "INFINITE", "None"})
_UNIT = re.compile(r"^(\d+) (?:sec|min|usec|percent|nodes/min)$")
_PAIR = re.compile(r"(\w+)=(\S*)")
_GRES = re.compile(r"([^:,()]+)(?::([^:,()]+))?:(\d+)(?:\([^)]*\))?")


@dataclass(frozen=True, slots=True)
class Described:
    """What was asked of Slurm, as it answered."""

    config: str
    """scontrol show config"""
    partitions: str
    """scontrol -o show partition"""
    topology: str
    """scontrol show topology; empty where it has none"""
    nodes: Sequence[Json]


def read_cluster(described: Described) -> ClusterConfig:
    """Raises ConfigurationError when even the essentials cannot be read."""
    said = dict(_settings(described.config))
    nodes = [_node_line(node) for node in described.nodes]
    gres = [line for node in described.nodes for line in _gres_lines(node)]
    topology = [line for line in map(_topology_line, described.topology.splitlines()) if line]
    partitions = [dict(_PAIR.findall(line)) for line in described.partitions.splitlines() if "PartitionName=" in line]
    attempts: tuple[tuple[dict[str, str], tuple[str, ...], list[str]], ...] = (
        (_chosen(said, SETTINGS), PARTITION_KEYS, topology),
        (_chosen(said, ("ClusterName", "SelectType", "SelectTypeParameters", "GresTypes")), PARTITION_KEYS, []),
        (_chosen(said, ("ClusterName", "GresTypes")), _ESSENTIAL_PARTITION_KEYS, []),
    )
    problem: ConfigurationError | None = None
    for settings, partition_keys, switches in attempts:
        lines = [*(f"{key}={value}" for key, value in settings.items()), *nodes]
        lines += [_written(_chosen(each, partition_keys)) for each in partitions]
        texts = {"slurm.conf": lines, "gres.conf": gres, "topology.conf": switches}
        try:
            read = parse_configuration({name: "\n".join(each) + "\n" for name, each in texts.items()})
        except ConfigurationError as error:
            problem = problem or error
            continue
        return replace(read.cluster, raw=said, source=f"Slurm {said.get('SLURM_VERSION', '')}".strip())
    assert problem is not None, "there was at least one attempt"
    raise problem


def _settings(written: str) -> Iterator[tuple[str, str]]:
    """`KillWait                = 30 sec`."""
    for line in written.splitlines():
        key, equals, value = line.partition("=")
        value = value.strip()
        key = key.strip()
        if equals and value not in _NOTHING and " " not in key and key not in _CHANGES_BY_ITSELF:
            number_ = _UNIT.match(value)
            yield key, number_[1] if number_ else value


def _chosen(said: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    return {key: said[key] for key in keys if said.get(key, "") not in _NOTHING}


def _written(pairs: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in pairs.items())


def _node_line(node: Json) -> str:
    pairs = {
        "NodeName": text(node.get("name")),
        "NodeHostname": text(node.get("hostname")),
        "NodeAddr": text(node.get("address")),
        "Port": str(number(node.get("port")) or ""),
        "CPUs": str(number(node.get("cpus")) or 1),
        "Boards": str(number(node.get("boards")) or 1),
        "Sockets": str(number(node.get("sockets")) or 1),
        "CoresPerSocket": str(number(node.get("cores")) or 1),
        "ThreadsPerCore": str(number(node.get("threads")) or 1),
        "RealMemory": str(number(node.get("real_memory")) or 1),
        "TmpDisk": str(number(node.get("temporary_disk")) or 0),
        "Weight": str(number(node.get("weight")) or 1),
        "Features": text(node.get("features")),
        "Gres": ",".join(f"{name}:{kind}:{many}" if kind else f"{name}:{many}" for name, kind, many in _gres(node)),
    }
    return _written({key: value for key, value in pairs.items() if value})


def _gres(node: Json) -> list[tuple[str, str, int]]:
    """(name, type, count) of `gpu:a100:4(S:0-1),nic:1`."""
    found = _GRES.findall(text(node.get("gres")))
    return [(name, kind, int(many)) for name, kind, many in found if int(many)]


def _gres_lines(node: Json) -> Iterator[str]:
    """GPUs have numbers, by which jobs are told apart; their files are the nodes' own affair."""
    first = 0
    for name, kind, many in _gres(node):
        if name == "gpu":
            type_ = f" Type={kind}" if kind else ""
            yield f"NodeName={text(node.get('name'))} Name=gpu{type_} File=/dev/nvidia[{first}-{first + many - 1}]"
            first += many


def _topology_line(line: str) -> str:
    """A switch above others is told with all nodes below it too: the file wants one or the other."""
    pairs = dict(_PAIR.findall(line))
    if "SwitchName" in pairs:
        keys = ("SwitchName", "Switches") if "Switches" in pairs else ("SwitchName", "Nodes")
        return _written(_chosen(pairs, keys))
    return _written(_chosen(pairs, ("BlockName", "Nodes"))) if "BlockName" in pairs else ""


def condition(node: Json) -> NodeCondition:
    """Whether a node answers and takes jobs. 22.05 has the state in one field and its flags in another."""
    states = set(words(node.get("state")) + words(node.get("state_flags")))
    silent = bool(states & {"NOT_RESPONDING", "NO_RESPOND", "UNKNOWN", "FUTURE"})
    down = bool(states & {"DOWN", "FAIL", "ERROR"})
    health = Health.LOST if silent else Health.DOWN if down else Health.UP
    drained = any(state.startswith("DRAIN") for state in states)
    return NodeCondition(
        node=text(node.get("name")),
        health=health.value,
        drained=drained,
        note=text(node.get("reason")),
        version=text(look(node, "node version")),
    )
