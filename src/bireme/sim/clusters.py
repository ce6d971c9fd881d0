"""Clusters for the simulator: a slurm.conf with its neighbours, the openb node list, one line, or one made to fit.

    128x8:h100 leaf=16          128 nodes with 8 H100 each, 16 under each leaf switch
    4x8:h100+16x4:a100 mem=1T   two kinds of nodes
    240x1                       without a GPU type: nodes and CPUs
    fit enough=0.9              as large as the workload needs nine tenths of the time; each partition has its own nodes

All become what slurm.conf becomes: keys are read by `slurm/conf`, so that a policy can change them.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig, Settings, Switch, Topology
from bireme.core.model.resources import Device, GresPool
from bireme.sim.workloads.trace import TraceJob
from bireme.slurm.conf.diagnostics import Findings, Place
from bireme.slurm.conf.keys import GLOBAL_KEYS
from bireme.slurm.conf.loading import load_configuration
from bireme.slurm.conf.settings import RawSettings, typed_settings
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.sizes import parse_memory

_GROUP = re.compile(r"(?P<nodes>[1-9][0-9]*)x(?P<each>[1-9][0-9]*)(?::(?P<type>[A-Za-z0-9_.-]+))?")
_OPENB = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
CPUS_PER_GPU = 16
PARTITION = "main"
FIT_ENOUGH = 0.9
FIT_GPUS = 8
PARTS_OF_GPU = 1000
"""openb's pods ask for thousandths of a GPU: shards."""
BASE_KEYS = {
    "SelectTypeParameters": "CR_CPU",
    "MaxJobCount": "100000000",
    "MaxArraySize": "4000001",
}
"""Of a cluster that has no slurm.conf: CPUs and GPUs count, memory does not."""


class BadClusterError(ValueError):
    """A cluster cannot be made of what was given; the text says what would do."""


def read_cluster(text: str, jobs: Sequence[TraceJob] = ()) -> ClusterConfig:
    """Reads a cluster from a file, or from one line. Raises BadClusterError, ConfigurationError or OSError."""
    if os.path.exists(text):
        with open(text, encoding="utf-8", errors="surrogateescape") as file:
            heading = file.readline().strip().lower().split(",")
        if set(_OPENB) <= set(heading):
            return openb_cluster(text)
        return unlimited(load_configuration(text, _read).cluster)
    if text == "fit" or text.startswith("fit "):
        return fitted_cluster(jobs, _words(text.split()[1:], ("enough", "gpus")))
    if "/" in text or text.endswith(".conf"):
        raise BadClusterError(f"there is no file {text}")
    return spec_cluster(text)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def unlimited(config: ClusterConfig) -> ClusterConfig:
    """A replay holds more jobs than MaxJobCount lets a real cluster hold at once."""
    return replace(config, settings=replace(config.settings, max_job_count=10**8))


# -- one line --------------------------------------------------------------------------------------------------------


def spec_cluster(text: str) -> ClusterConfig:
    """`NODESxGPUS:TYPE[+...] [leaf=N] [cpus=N] [mem=SIZE]`; without a type NODESxCPUS."""
    first, *rest = text.split() or [""]
    words = _words(rest, ("leaf", "cpus", "mem", "cores"))
    nodes = spec_nodes(first, words, prefix="n")
    names = tuple(node.name for node in nodes)
    keys = dict(BASE_KEYS)
    if "mem" in words:
        keys["SelectTypeParameters"] = "CR_CPU_Memory"
    config = ClusterConfig(
        name="simulated",
        nodes=nodes,
        partitions=(PartitionConfig(name=PARTITION, nodes=names, default=True),),
        topology=_leaves(names, _whole(words, "leaf", 0)),
    )
    return with_keys(config, keys)


def spec_nodes(text: str, words: Mapping[str, str], prefix: str, first: int = 1) -> tuple[NodeConfig, ...]:
    nodes: list[NodeConfig] = []
    for group in text.split("+"):
        match = _GROUP.fullmatch(group)
        if match is None:
            raise BadClusterError(f"{group!r} is not NODESxGPUS:TYPE (128x8:h100) or NODESxCPUS (240x1), nor a file")
        gpus = int(match["each"]) if match["type"] else 0
        cpus = _whole(words, "cpus", gpus * CPUS_PER_GPU or int(match["each"]))
        memory = _memory(words["mem"]) if "mem" in words else 1
        for _ in range(int(match["nodes"])):
            name = f"{prefix}{first + len(nodes)}"
            nodes.append(_node(name, cpus, memory, gpus, (match["type"] or "").lower()))
    return tuple(nodes)


def _node(name: str, cpus: int, memory_mib: int, gpus: int, model: str, parts: int = 0) -> NodeConfig:
    gres: tuple[GresPool, ...] = ()
    if gpus:
        gres = (GresPool("gpu", model, gpus, tuple(Device(index, model) for index in range(gpus))),)
    if parts:
        gres += (GresPool("shard", model, gpus * parts, (), tuple((gpu, parts) for gpu in range(gpus))),)
    return NodeConfig(name=name, cpus=cpus, cores_per_socket=cpus, memory_mib=memory_mib, gres=gres)


def _words(words: Iterable[str], known: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in known or not equals:
            raise BadClusterError(f"{word!r}: after the nodes come {', '.join(f'{each}=' for each in known)}")
        found[name] = value
    return found


def _whole(words: Mapping[str, str], name: str, default: int) -> int:
    text = words.get(name, str(default))
    if not text.isdigit():
        raise BadClusterError(f"{name}={text}: not a whole number")
    return int(text)


def _memory(text: str) -> int:
    try:
        return parse_memory(text)
    except SlurmSyntaxError as error:
        raise BadClusterError(str(error)) from error


def _leaves(names: Sequence[str], size: int) -> Topology:
    if not size:
        return Topology()
    leaves = [
        Switch(f"leaf{number + 1}", nodes=tuple(names[begin : begin + size]))
        for number, begin in enumerate(range(0, len(names), size))
    ]
    spine = Switch("spine", switches=tuple(leaf.name for leaf in leaves))
    return Topology("topology/tree", (*leaves, spine))


# -- files -----------------------------------------------------------------------------------------------------------


def openb_cluster(path: str) -> ClusterConfig:
    """Nodes of the openb list; every GPU can be given out in thousandths (as shards)."""
    nodes: list[NodeConfig] = []
    with open(path, encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                cpus, memory, gpus = (int(row[name]) for name in ("cpu_milli", "memory_mib", "gpu"))
                nodes.append(_node(row["sn"], cpus // 1000, memory, gpus, row["model"].lower(), PARTS_OF_GPU))
            except (TypeError, ValueError, AttributeError):
                raise BadClusterError(f"{path}:{number}: a node is sn,cpu_milli,memory_mib,gpu,model") from None
    names = tuple(node.name for node in nodes)
    config = ClusterConfig(
        name="openb", nodes=tuple(nodes), partitions=(PartitionConfig(name=PARTITION, nodes=names, default=True),)
    )
    return with_keys(config, BASE_KEYS | {"SelectTypeParameters": "CR_CPU_Memory", "GresTypes": "gpu,shard"})


# -- made to fit -----------------------------------------------------------------------------------------------------


def fitted_cluster(jobs: Sequence[TraceJob], words: Mapping[str, str]) -> ClusterConfig:
    """Every partition of the workload gets nodes of its own: enough for that part of the time, if every job ran as soon
    as it came, and at least enough for its largest job."""
    if not jobs:
        raise BadClusterError("a cluster can only be made to fit a workload that is known")
    enough, each = _part(words.get("enough", str(FIT_ENOUGH))), _whole(words, "gpus", FIT_GPUS)
    on_gpus = any(job.gpus for job in jobs)
    members: dict[str, list[TraceJob]] = {}
    for job in jobs:
        members.setdefault(job.partition or PARTITION, []).append(job)
    nodes: list[NodeConfig] = []
    partitions: list[PartitionConfig] = []
    for name, own in members.items():
        sizes = np.array([job.gpus if on_gpus else job.cpus or 1 for job in own], dtype=np.float64)
        wanted = _wanted(own, sizes, enough, until=jobs[-1].submit)
        count = max(1, ceil(wanted / each), ceil(float(sizes.max()) / each))
        spec = f"{count}x{each}" + (":gpu" if on_gpus else "")
        added = spec_nodes(spec, {}, prefix=f"{name}-" if len(members) > 1 else "n")
        nodes.extend(added)
        partitions.append(PartitionConfig(name=name, nodes=tuple(node.name for node in added), default=not partitions))
    return with_keys(ClusterConfig(name="fitted", nodes=tuple(nodes), partitions=tuple(partitions)), BASE_KEYS)


def _wanted(jobs: Sequence[TraceJob], sizes: NDArray[np.float64], enough: float, until: float) -> float:
    """What is enough for this part of the time between the first of these jobs and the end of the workload."""
    begins = np.array([job.submit for job in jobs])
    ends = begins + np.array([job.run_s for job in jobs])
    at = np.concatenate((begins, ends))
    order = np.argsort(at, kind="stable")
    levels = np.cumsum(np.concatenate((sizes, -sizes))[order])
    at = np.minimum(at[order], max(until, float(begins[-1]) + 1.0))
    lasting = np.diff(at)
    ranked = np.argsort(levels[:-1], kind="stable")
    passed = np.cumsum(lasting[ranked]) / lasting.sum()
    return float(levels[:-1][ranked][np.searchsorted(passed, enough)])


def _part(text: str) -> float:
    try:
        part = float(text)
    except ValueError:
        part = 0.0
    if not 0.0 < part < 1.0:
        raise BadClusterError(f"enough={text}: the part of the time for which it is enough, like 0.9")
    return part


# -- keys ------------------------------------------------------------------------------------------------------------


def with_keys(config: ClusterConfig, keys: Mapping[str, str], source: str = "--set") -> ClusterConfig:
    """The cluster with these keys of slurm.conf; only what they change is changed. Raises ConfigurationError."""
    before = _settings(config.raw, source)
    raw = {**config.raw, **_spelled(keys, source)}
    after = _settings(raw, source)
    changed = {
        each.name: getattr(after, each.name)
        for each in fields(Settings)
        if not config.raw or getattr(after, each.name) != getattr(before, each.name)
    }
    return replace(config, raw=raw, settings=replace(config.settings, **changed))


def _spelled(keys: Mapping[str, str], source: str) -> dict[str, str]:
    spelling = {key.lower(): key for key in GLOBAL_KEYS}
    findings = Findings()
    for key in keys:
        if key.lower() not in spelling:
            findings.unknown_key(Place(source), key, GLOBAL_KEYS)
    findings.raise_errors()
    return {spelling[key.lower()]: value for key, value in keys.items()}


def _settings(raw: Mapping[str, str], source: str) -> Settings:
    findings = Findings()
    known = RawSettings()
    for key, value in raw.items():
        known.add(key, value, Place(source), findings)
    settings = typed_settings(known, findings)
    findings.raise_errors()
    return settings
