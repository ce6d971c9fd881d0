"""What variables need to know of the cluster, worked out once: topology addresses, GPU variables, memory defaults.

Built when the configuration changes, then handed to every call, so that a job costs microseconds.
Invariant: has an entry for every node of the configuration it was built from.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig, Topology

CUDA = "CUDA_VISIBLE_DEVICES"
ROCR = "ROCR_VISIBLE_DEVICES"
ONEAPI = "ZE_AFFINITY_MASK"
OPENCL = "GPU_DEVICE_ORDINAL"
GPU_VARIABLES = (CUDA, OPENCL, ROCR, ONEAPI)
"""All variables that tell a program which GPUs are its own."""

_OF_FLAG = {"nvidia_gpu_env": CUDA, "amd_gpu_env": ROCR, "intel_gpu_env": ONEAPI, "opencl_env": OPENCL}
_OF_AUTODETECT = {"nvml": CUDA, "nvidia": CUDA, "rsmi": ROCR, "oneapi": ONEAPI}
_AMD_TYPE = re.compile(r"(?:amd|instinct|radeon|gfx\d|mi\d{2,3})", re.IGNORECASE)

GresFlags = Callable[[str, str], tuple[str, ...]]
"""(node, GRES name) -> the flags gres.conf sets for it."""


def _no_flags(_node: str, _name: str) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    name: str
    source: str = ""
    topology: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Node -> (SLURM_TOPOLOGY_ADDR, SLURM_TOPOLOGY_ADDR_PATTERN)."""
    gpu_variables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Node -> the variables that name a job's GPUs there."""
    gpu_names: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Node -> number of a GPU there -> what CUDA calls it, where that is not the same number."""
    mps_parts: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Node -> GPU -> how many parts MPS makes of it, where it does."""
    threads: Mapping[str, int] = field(default_factory=dict)
    """Node -> threads of each core, where cores are given out as a whole."""
    default_memory: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    """Partition -> (MiB a CPU, MiB a node) of jobs that ask for no memory."""


def cluster_facts(
    config: ClusterConfig, gres_flags: GresFlags = _no_flags, autodetect: Callable[[str], str] | None = None
) -> ClusterFacts:
    """`gres_flags` and `autodetect` are `GresFile.flags_on` and `.autodetect_on`, where there is a gres.conf."""
    return ClusterFacts(
        name=config.name,
        source=config.source,
        topology=_topology_addresses(config.topology, config.nodes),
        gpu_variables={
            node.name: _gpu_variables(node, gres_flags(node.name, "gpu"), autodetect(node.name) if autodetect else "")
            for node in config.nodes
        },
        gpu_names={node.name: names for node in config.nodes if (names := _gpu_names(node))},
        mps_parts={
            node.name: dict(part for pool in node.gres if pool.name == "mps" for part in pool.parts)
            for node in config.nodes
            if node.gres_count("mps")
        },
        threads={node.name: node.threads_per_core for node in config.nodes if config.settings.select_by_core},
        default_memory={partition.name: _default_memory(partition, config) for partition in config.partitions},
    )


def _topology_addresses(topology: Topology, nodes: tuple[NodeConfig, ...]) -> dict[str, tuple[str, str]]:
    """`spine.leaf1.n1` and `switch.switch.node`; just the node where nothing is above it."""
    parent = {child: switch.name for switch in topology.switches for child in switch.switches}
    above: dict[str, tuple[str, ...]] = {}
    for switch in topology.switches:
        path = [switch.name]
        while path[0] in parent and len(path) <= len(topology.switches):
            path.insert(0, parent[path[0]])
        above.update(dict.fromkeys(switch.nodes, tuple(path)))
    above.update({node: (block.name,) for block in topology.blocks for node in block.nodes})
    word = "block" if topology.blocks else "switch"
    return {
        node.name: (
            ".".join((*above.get(node.name, ()), node.name)),
            ".".join((*(word for _ in above.get(node.name, ())), "node")),
        )
        for node in nodes
    }


def _gpu_variables(node: NodeConfig, flags: tuple[str, ...], autodetect: str) -> tuple[str, ...]:
    """As gres.conf's flags say; else what AutoDetect means; else all of them, as Slurm does.

    But for AMD types: the ROCm runtime applies ROCR_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES one after the other, so
    that both together hide devices.
    """
    if "no_gpu_env" in flags:
        return ()
    chosen = tuple(variable for flag, variable in _OF_FLAG.items() if flag in flags)
    if chosen:
        return chosen
    if autodetect in _OF_AUTODETECT:
        return (_OF_AUTODETECT[autodetect],)
    types = [pool.type for pool in node.gres if pool.name == "gpu"]
    if types and all(type_ and _AMD_TYPE.match(type_) for type_ in types):
        return (ROCR,)
    return GPU_VARIABLES


def _default_memory(partition: PartitionConfig, config: ClusterConfig) -> tuple[int | None, int | None]:
    """The partition's default before the cluster's; a default per node takes the place of one per CPU."""
    if partition.default_memory_per_cpu_mib or partition.default_memory_per_node_mib:
        return partition.default_memory_per_cpu_mib, partition.default_memory_per_node_mib
    return config.settings.default_memory_per_cpu_mib, config.settings.default_memory_per_node_mib


_NVIDIA_FILE = re.compile(r"nvidia([0-9]+)")


def _gpu_names(node: NodeConfig) -> dict[int, str]:
    """A MIG instance by its UUID; another GPU by the number of its file: types of a node may be parts of one GPU."""
    names: dict[int, str] = {}
    for device in (device for pool in node.gres if pool.name == "gpu" for device in pool.devices):
        file = _NVIDIA_FILE.fullmatch(posixpath.basename((device.file or "").partition(",")[0]))
        name = device.uuid if (device.uuid or "").startswith("MIG-") else file[1] if file else None
        if name and name != str(device.index):
            names[device.index] = name
    return names
