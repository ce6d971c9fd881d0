"""Kubernetes nodes in Bireme's words: what they have, how they are wired, and whether jobs may go there. Pure.

The engine calls this for every node that changed. GPUs are only counted here: which ones a pod gets is the kubelet's
choice, and inside the pod they are numbered from 0. Topology comes from labels, the ones that the clouds and NVIDIA's
topograph write, or those that the settings name.

Invariant: the same nodes give the same cluster, in whatever order they were heard of.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

from bireme.core.model.cluster import NodeConfig, Switch, Topology
from bireme.core.model.node_rules import Taint
from bireme.core.model.resources import Device, GresPool

Object = Mapping[str, Any]

MIB = 1024 * 1024

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe")
MIG_PREFIX = "nvidia.com/mig-"
_MAKERS = {"nvidia.com/": "nvml", "amd.com/": "rsmi", "gpu.intel.com/": "oneapi"}
"""By how the name of a resource begins: what finds such GPUs, in gres.conf's words."""
RESOURCE_LABEL = "bireme.dev/gpu-resource"
"""In the node's description: the one GPU resource that it offers. Nodes that offer several have none."""

TYPE_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "gpu.intel.com/product",
    "cloud.google.com/gke-accelerator",
)

TOPOLOGY_LABELS = (
    (
        "network.topology.nvidia.com/accelerator",
        "network.topology.nvidia.com/leaf",
        "network.topology.nvidia.com/spine",
        "network.topology.nvidia.com/core",
    ),
    (
        "topology.k8s.aws/network-node-layer-3",
        "topology.k8s.aws/network-node-layer-2",
        "topology.k8s.aws/network-node-layer-1",
    ),
    ("cloud.google.com/gce-topology-subblock", "cloud.google.com/gce-topology-block"),
    ("topology.kubernetes.io/zone",),
)
"""Families of labels, each from the switch next to the node upwards. The first family that a node carries is used."""

_RATHER_NOT = "PreferNoSchedule"
_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkKMGTP]?i?)")


def quantity(text: str | int | float) -> Decimal:
    """A Kubernetes quantity: 500m, 16, 32Gi, 1e3. Raises ValueError."""
    return _quantity(str(text))


@lru_cache(maxsize=4096)
def _quantity(text: str) -> Decimal:
    """Everybody asks for the same few amounts, again and again."""
    found = _QUANTITY.fullmatch(text)
    if found is None or found[2] not in _SUFFIXES:
        raise ValueError(f"{text!r} is not a quantity")
    try:
        return Decimal(found[1]) * _SUFFIXES[found[2]]
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a quantity") from None


@dataclass(frozen=True, slots=True)
class Amounts:
    """CPUs, memory and GPUs, as a node offers them or a pod asks for them. GPUs by Bireme's (name, type)."""

    milli_cpus: int = 0
    memory_mib: int = 0
    gpus: tuple[tuple[str, int], ...] = ()
    """(resource name, how many)."""


NO_AMOUNTS = Amounts()


def amounts(resources: Mapping[str, Any], *, round_up: bool) -> Amounts:
    """What a mapping of resource names says. What is asked for is rounded up, what is offered is rounded down."""
    cpus = quantity(resources.get("cpu", 0)) * 1000
    memory = quantity(resources.get("memory", 0)) / MIB
    gpus = {name: int(quantity(count)) for name, count in resources.items() if is_gpu(name)}
    return Amounts(
        _whole(cpus, round_up), _whole(memory, round_up), tuple(sorted((n, c) for n, c in gpus.items() if c > 0))
    )


def _whole(value: Decimal, round_up: bool) -> int:
    floor = int(value)
    return floor + 1 if round_up and value > floor else floor


def is_gpu(resource: str) -> bool:
    return resource in GPU_RESOURCES or resource.startswith(MIG_PREFIX)


def autodetect(offered: Amounts) -> str:
    """What gres.conf would say of a node that offers this: its jobs' variables are those of that maker's GPUs.

    Empty where there are GPUs of several makers, or none.
    """
    found = {word for name, _ in offered.gpus for begins, word in _MAKERS.items() if name.startswith(begins)}
    return found.pop() if len(found) == 1 else ""


def face(node: Object) -> dict[str, Any]:
    """All of a node that matters to Bireme: what it says beside that may change without anybody looking again."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    ready: Object = next((one for one in status.get("conditions") or () if one["type"] == "Ready"), {})
    return {
        "uid": metadata.get("uid"),
        "labels": metadata.get("labels"),
        "closed": (spec.get("unschedulable"), spec.get("taints")),
        "offers": status.get("allocatable"),
        "ready": (ready.get("status"), "" if ready.get("status") == "True" else ready.get("message")),
        "address": status.get("addresses"),
        "version": (status.get("nodeInfo") or {}).get("kubeletVersion"),
    }


def node_config(
    node: Object,
    label_keys: Set[str] = frozenset(),
    reserved: Amounts = NO_AMOUNTS,
    tolerated: Set[str] = frozenset(),
) -> NodeConfig:
    """A node's resources as `allocatable` has them: what the kubelet keeps for itself is not Bireme's to give.

    `reserved`: what pods take that come with the node.

    `label_keys`: the labels that some pod's rules ask about; the others would only be carried along. `tolerated`: keys
    of taints that do not count.
    """
    metadata, status = node["metadata"], node.get("status", {})
    labels = metadata.get("labels") or {}
    offered = amounts(status.get("allocatable") or {}, round_up=False)
    cpus = max((offered.milli_cpus - reserved.milli_cpus) // 1000, 1)
    return NodeConfig(
        name=metadata["name"],
        hostname=labels.get("kubernetes.io/hostname", metadata["name"]),
        address=_address(status),
        cpus=cpus,
        sockets=1,
        cores_per_socket=cpus,
        memory_mib=max(offered.memory_mib - reserved.memory_mib, 1),
        weight=1 + _reluctance(node, tolerated),
        features=_features(labels),
        gres=_pools(offered.gpus, labels),
        labels=_asked_labels(labels, label_keys, offered.gpus),
        taints=taints(node),
    )


def _asked_labels(
    labels: Mapping[str, str], keys: Set[str], gpus: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, str], ...]:
    chosen = {key: value for key, value in labels.items() if key in keys}
    if len(gpus) == 1:
        chosen[RESOURCE_LABEL] = gpus[0][0]
    return tuple(sorted(chosen.items()))


def is_shunned(node: Object, tolerated: Set[str]) -> bool:
    """Whether it is to be used last."""
    return _reluctance(node, tolerated) > 0


def _reluctance(node: Object, tolerated: Set[str]) -> int:
    return sum(taint.get("effect") == _RATHER_NOT for taint in _taints_but(node, tolerated))


def _taints_but(node: Object, tolerated: Set[str]) -> list[Object]:
    return [taint for taint in (node.get("spec") or {}).get("taints") or () if taint["key"] not in tolerated]


FENCED_TAINT = "bireme.dev/fenced"
"""Of nodes that Bireme has fenced: it knows that itself, and sooner."""


def taints(node: Object) -> tuple[Taint, ...]:
    """Taints of a node that keep pods away; a cordon is said by `readiness`, and is one of them too."""
    found = (node.get("spec") or {}).get("taints") or ()
    return tuple(
        Taint(one["key"], one.get("value", ""), one["effect"])
        for one in found
        if one["effect"] in ("NoSchedule", "NoExecute")
        and not one["key"].startswith("node.kubernetes.io/")
        and one["key"] != FENCED_TAINT
    )


def _address(status: Object) -> str:
    addresses = {each["type"]: each["address"] for each in status.get("addresses") or ()}
    return str(addresses.get("InternalIP", ""))


def _features(labels: Mapping[str, str]) -> tuple[str, ...]:
    """What `--constraint` can ask for: architecture, instance type, zone, and labels under FEATURE_PREFIX."""
    named = ("kubernetes.io/arch", "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone")
    found = {labels[name] for name in named if labels.get(name)}
    prefix = "feature.bireme.dev/"
    found |= {
        name.removeprefix(prefix) for name, value in labels.items() if name.startswith(prefix) and value != "false"
    }
    return tuple(sorted(found))


def _pools(gpus: Iterable[tuple[str, int]], labels: Mapping[str, str]) -> tuple[GresPool, ...]:
    pools, first = [], 0
    for resource, count in gpus:
        type_ = gres_type(resource, labels)
        pools.append(GresPool("gpu", type_, count, tuple(Device(index) for index in range(first, first + count))))
        first += count
    return tuple(pools)


def gres_type(resource: str, labels: Mapping[str, str]) -> str | None:
    """Slurm's name of the type: `nvidia_h100_80gb_hbm3` of the product label, `1g.10gb` of a MIG resource."""
    if resource.startswith(MIG_PREFIX):
        return resource.removeprefix(MIG_PREFIX)
    product = next((labels[name] for name in TYPE_LABELS if labels.get(name)), "")
    return re.sub(r"[^a-z0-9.]+", "_", product.lower()).strip("_") or None


# --- whether jobs may go there ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Readiness:
    """`up`: its kubelet answers and can run pods. `closed`: why no new job may go there; empty if it may."""

    up: bool
    why_down: str = ""
    closed: str = ""


def readiness(node: Object, tolerated: Iterable[str] = ()) -> Readiness:
    """Cordoned or tainted nodes take no new jobs; the taints that jobs are told to tolerate do not count."""
    conditions = {each["type"]: each for each in node.get("status", {}).get("conditions") or ()}
    ready = conditions.get("Ready", {})
    if ready.get("status") != "True":
        return Readiness(False, why_down=ready.get("message") or "the kubelet has not reported that the node is ready")
    spec = node.get("spec", {})
    if spec.get("unschedulable"):
        return Readiness(True, closed="cordoned")
    for taint in spec.get("taints") or ():
        if taint.get("effect") in ("NoSchedule", "NoExecute") and taint["key"] not in {FENCED_TAINT, *tolerated}:
            return Readiness(True, closed=f"tainted {taint['key']}:{taint['effect']}")
    return Readiness(True)


# --- topology -----------------------------------------------------------------------------------------------


_TOP = "cluster-network"


def topology(nodes: Iterable[Object], keys: Sequence[str] = ()) -> Topology:
    """A tree of switches from labels: `keys` from the leaf upwards, else the first family that any node carries.

    A level that some of the labelled nodes lack is left out; nodes without any of the labels are on no switch, as nodes
    that topology.conf does not name. Labels that name no common top do not say that there is none: one is added, else
    no gang could be larger than what hangs under one of the highest switches.
    """
    labelled = {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in nodes}
    families = (tuple(keys),) if keys else TOPOLOGY_LABELS
    family = next((each for each in families if any(_carries(labels, each) for labels in labelled.values())), ())
    wired = {name: labels for name, labels in sorted(labelled.items()) if _carries(labels, family)}
    levels = [key for key in family if all(labels.get(key) for labels in wired.values())]
    if not levels:
        return Topology()
    leaves: dict[Path, list[str]] = {}
    above: dict[Path, set[Path]] = {}
    for name, labels in wired.items():
        path = tuple(labels[key] for key in levels)
        leaves.setdefault(path, []).append(name)
        for depth in range(1, len(path)):
            above.setdefault(path[depth:], set()).add(path[depth - 1 :])
    names = _switch_names([*leaves, *above])
    switches = [Switch(names[leaf], nodes=tuple(members)) for leaf, members in leaves.items()]
    switches += [
        Switch(names[upper], switches=tuple(names[each] for each in sorted(lower))) for upper, lower in above.items()
    ]
    tops = sorted(names[path] for path in names if len(path) == 1)
    if len(tops) > 1:
        switches.append(Switch(_TOP, switches=tuple(tops)))
    return Topology("topology/tree", tuple(sorted(switches, key=lambda switch: switch.name)))


Path = tuple[str, ...]
"""A switch and those above it: labels name a leaf only within its spine."""


def _carries(labels: Mapping[str, str], family: Sequence[str]) -> bool:
    return any(labels.get(key) for key in family)


def _switch_names(paths: Sequence[Path]) -> dict[Path, str]:
    """The label's own value where no other switch has it, else with the switches above it."""
    alike = Counter(path[0] for path in paths)
    return {path: path[0] if alike[path[0]] == 1 else ".".join(reversed(path)) for path in paths}
