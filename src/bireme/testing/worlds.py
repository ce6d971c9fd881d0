"""Clusters and jobs in one line each: `"2x8+4x8:h100"`, `cpus=4, gpus="h100:2", after="afterok:first"`.

Text and keywords in, the core's own types out. Used by scenarios, properties and anyone's own tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from bireme.core.model.cluster import Block, ClusterConfig, NodeConfig, PartitionConfig, Settings, Switch, Topology
from bireme.core.model.jobs import JobSpec, Owner, ResourceRequest
from bireme.core.model.resources import Device, GresPool
from bireme.core.model.serving.probes import Probes
from bireme.core.model.serving.scaling import Scaling
from bireme.core.model.serving.services import Amount, Routing, ServiceSpec, Updating
from bireme.slurm.arrays import parse_array
from bireme.slurm.dependencies import parse_dependencies
from bireme.slurm.gres import parse_gpus, parse_gres
from bireme.slurm.hostlist import expand
from bireme.slurm.signals import parse_warning_signal

_GROUP = re.compile(r"(?P<nodes>[0-9]+)x(?P<each>[0-9]+)(?::(?P<type>[a-z0-9_.]+))?")
_RESOURCE_FIELDS = {field.name for field in fields(ResourceRequest)}
_SPEC_FIELDS = {field.name for field in fields(JobSpec)}
_PARTS = ("shard", "mps")
_WORDS = ("features", "one_sharing", *_PARTS)
"""Options of a node that are not fields of NodeConfig."""
_LABEL = re.compile(r"[a-z][a-z0-9]*")
_DEPENDENCY_WORDS = frozenset({"after", "afterany", "afterok", "afternotok", "aftercorr", "singleton"})


def build_cluster(
    text: str,
    partitions: Mapping[str, Mapping[str, Any]] | None = None,
    settings: Settings | None = None,
    raw: Mapping[str, str] | None = None,
    leaves: Sequence[str] = (),
    blocks: Sequence[str] = (),
    block_sizes: Sequence[int] = (),
    **node_options: Any,
) -> ClusterConfig:
    """`4x8`: nodes n1 to n4 with 8 CPUs each. `4x8:h100`: and an H100 for each CPU. Groups are joined by `+`.

    The first partition is the default one; without any there is `main` with all nodes. Memory counts only if
    `memory_mib` is said. `leaves`: the nodes of each leaf switch, under one spine. `blocks`: the nodes of each block.
    `shard=4`: every GPU can be given out in four parts (`mps` likewise); with `one_sharing=("mps",)` of one
    GPU of the node at a time.
    """
    nodes: list[NodeConfig] = []
    for group in text.split("+"):
        match = _GROUP.fullmatch(group)
        assert match is not None, f"a cluster is NODESxCPUS[:GPUTYPE]+..., not {text!r}"
        for _ in range(int(match["nodes"])):
            nodes.append(_node(f"n{len(nodes) + 1}", int(match["each"]), match["type"], node_options))
    everything = tuple(node.name for node in nodes)
    named = partitions or {"main": {}}
    return ClusterConfig(
        nodes=tuple(nodes),
        partitions=tuple(
            _partition(name, dict(options), everything, default=position == 0)
            for position, (name, options) in enumerate(named.items())
        ),
        settings=settings or Settings(memory_is_consumable="memory_mib" in node_options),
        raw=dict(raw or {}),
        topology=_tree(leaves) if leaves else _blocks(blocks, block_sizes) if blocks else Topology(),
    )


def _tree(leaves: Sequence[str]) -> Topology:
    switches = [Switch(f"leaf{number}", nodes=tuple(expand(nodes))) for number, nodes in enumerate(leaves, start=1)]
    spine = Switch("spine", switches=tuple(switch.name for switch in switches))
    return Topology("topology/tree", (*switches, spine))


def _blocks(blocks: Sequence[str], sizes: Sequence[int]) -> Topology:
    named = tuple(Block(f"block{number}", tuple(expand(nodes))) for number, nodes in enumerate(blocks, start=1))
    return Topology("topology/block", blocks=named, block_sizes=tuple(sizes))


def _node(name: str, cpus: int, gpu_type: str | None, options: Mapping[str, Any]) -> NodeConfig:
    threads = options.get("threads_per_core", 1)
    gres: tuple[GresPool, ...] = ()
    if gpu_type:
        gres = (GresPool("gpu", gpu_type, cpus, tuple(Device(index, gpu_type) for index in range(cpus))),)
        for kind in _PARTS:
            if each := options.get(kind):
                parts = tuple((gpu, each) for gpu in range(cpus))
                single = kind in options.get("one_sharing", ())
                gres += (GresPool(kind, gpu_type, cpus * each, (), parts, single),)
    features = options.get("features", {})
    return NodeConfig(
        name=name,
        cpus=cpus,
        cores_per_socket=cpus // threads,
        gres=gres,
        features=tuple(features.get(name, ())),
        **{key: value for key, value in options.items() if key not in _WORDS},
    )


def _partition(name: str, options: dict[str, Any], everything: tuple[str, ...], default: bool) -> PartitionConfig:
    nodes = options.pop("nodes", None)
    members = everything if nodes is None else tuple(expand(nodes))
    return PartitionConfig(name=name, nodes=members, default=default, **options)


def build_spec(
    label: str, options: Mapping[str, Any], owner: Owner, id_of: Callable[[str], int] | None = None
) -> JobSpec:
    """A batch job. Fields of JobSpec and ResourceRequest by their names, and the short words below."""
    given = dict(options)
    resources: dict[str, Any] = {}
    spec: dict[str, Any] = {"name": label, "owner": owner, "script": "script"}
    for name in list(given):
        if name in SHORT_WORDS:
            for field, value in SHORT_WORDS[name](given.pop(name)).items():
                (resources if field in _RESOURCE_FIELDS else spec)[field] = value
    if "after" in given:
        spec["dependencies"] = parse_dependencies(_with_ids(given.pop("after"), id_of))
    for name, value in given.items():
        assert name in _RESOURCE_FIELDS | _SPEC_FIELDS, f"no field or short word {name!r}"
        (resources if name in _RESOURCE_FIELDS else spec)[name] = value
    return JobSpec(resources=ResourceRequest(**resources), **spec)


def build_service(name: str, replicas: str, options: Mapping[str, Any], owner: Owner) -> ServiceSpec:
    """`replicas`: `2`, or `0-4`. Fields of Updating, Probes, Routing, Scaling and ServiceSpec by their names; amounts
    as `1` or `25%`; `canary=10`. All others are words of `build_spec`."""
    given = dict(options)
    least, _, most = replicas.partition("-")
    parts: dict[str, dict[str, Any]] = {"scaling": {"replicas_min": int(least), "replicas_max": int(most or least)}}
    if "canary" in given:
        given["canary_percent"] = given.pop("canary")
    for part, cls in (("scaling", Scaling), ("updating", Updating), ("probes", Probes), ("routing", Routing)):
        known = [field.name for field in fields(cls) if field.name in given]
        parts.setdefault(part, {}).update({field: _amount(given.pop(field)) for field in known})
    drain = {"drain_s": given.pop("drain_s")} if "drain_s" in given else {}
    return ServiceSpec(
        name=name,
        job=build_spec(name, given, owner),
        scaling=Scaling(**parts["scaling"]),
        updating=Updating(**parts["updating"]),
        probes=Probes(**parts["probes"]),
        routing=Routing(**parts["routing"]),
        **drain,
    )


def _amount(value: Any) -> Any:
    """`"25%"` and `"1"` are amounts of replicas; anything else is what it is."""
    if isinstance(value, str) and value.rstrip("%").isdigit():
        return Amount(int(value.rstrip("%")), value.endswith("%"))
    return value


SHORT_WORDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "array": lambda text: {"array": parse_array(text)},
    "cpus": lambda count: {"cpus_per_task": count},
    "gres": lambda text: {"gres_per_node": parse_gres(text)},
    "gpus": lambda text: {"gres_per_job": parse_gpus(str(text))},
    "gpus_per_node": lambda text: {"gres_per_node": parse_gpus(str(text))},
    "gpus_per_task": lambda text: {"gres_per_task": parse_gpus(str(text))},
    "mem": lambda mib: {"memory_per_node_mib": mib},
    "mem_per_cpu": lambda mib: {"memory_per_cpu_mib": mib},
    "nodes": lambda count: {"nodes_min": count, "nodes_max": count, "nodes_given": True},
    "partition": lambda text: {"partitions": tuple(text.split(","))},
    "tasks": lambda count: {"ntasks": count},
    "time_s": lambda seconds: {"time_limit_s": seconds, "time_limit_given": True},
    "signal": lambda text: {"warning": parse_warning_signal(text)},
    "on": lambda text: {"nodelist": tuple(expand(text))},
    "not_on": lambda text: {"exclude": tuple(expand(text))},
}
"""Words that scenarios use instead of the model's longer names."""


def _with_ids(text: str, id_of: Callable[[str], int] | None) -> str:
    """`afterok:first` with the id of the job called first; numbers stay."""

    def known(match: re.Match[str]) -> str:
        word = match[0]
        return word if word in _DEPENDENCY_WORDS or id_of is None else str(id_of(word))

    return _LABEL.sub(known, text)
