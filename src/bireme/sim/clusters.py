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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig, Switch, Topology
from bireme.sim.workloads.trace import TraceJob
from bireme.slurm.conf.altered import BadClusterError, spec_node, spec_nodes, whole_number, with_keys
from bireme.slurm.conf.loading import load_configuration

_OPENB = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
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
        topology=_leaves(names, whole_number(words, "leaf", 0)),
    )
    return with_keys(config, keys)


def _words(words: Iterable[str], known: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in known or not equals:
            raise BadClusterError(f"{word!r}: after the nodes come {', '.join(f'{each}=' for each in known)}")
        found[name] = value
    return found


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
                nodes.append(spec_node(row["sn"], cpus // 1000, memory, gpus, row["model"].lower(), PARTS_OF_GPU))
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
    enough, each = _part(words.get("enough", str(FIT_ENOUGH))), whole_number(words, "gpus", FIT_GPUS)
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
