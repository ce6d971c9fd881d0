"""A cluster as it would be: with more nodes, other keys of slurm.conf, nodes or switches taken out.

What `bireme whatif` plays in a simulator (`sim/whatif`) and `POST /v1/whatif` plans beside the daemon's loop is said in
these words; `sim/clusters` makes whole clusters with them. Pure. Invariant: what is not named stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig, Settings, Switch, Topology
from bireme.core.model.resources import Device, GresPool
from bireme.slurm.conf.diagnostics import Findings, Place
from bireme.slurm.conf.keys import GLOBAL_KEYS
from bireme.slurm.conf.settings import RawSettings, typed_settings
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.hostlist import expand
from bireme.slurm.sizes import parse_memory

NEW = "new"
"""What names of added nodes begin with."""
CPUS_PER_GPU = 16
MOST_NODES = 100_000
"""Of one group: what is typed wrong must not fill the memory."""
_GROUP = re.compile(r"(?P<nodes>[1-9][0-9]*)x(?P<each>[1-9][0-9]*)(?::(?P<type>[A-Za-z0-9_.-]+))?")


class BadClusterError(ValueError):
    """A cluster cannot be made of what was given; the text says what would do."""


class BadChangeError(ValueError):
    """The change cannot be made on this cluster; the text says what there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """What is to be otherwise."""

    add_nodes: tuple[str, ...] = ()
    """`8x8:h100`, `8x8:h100 partition=train`."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Of slurm.conf, by name."""
    drain: tuple[str, ...] = ()
    """Switches, or nodes as a hostlist."""


# -- nodes of a few words -------------------------------------------------------------------------------------------


def spec_nodes(text: str, words: Mapping[str, str], prefix: str, first: int = 1) -> tuple[NodeConfig, ...]:
    nodes: list[NodeConfig] = []
    for group in text.split("+"):
        match = _GROUP.fullmatch(group)
        if match is None:
            raise BadClusterError(f"{group!r} is not NODESxGPUS:TYPE (128x8:h100) or NODESxCPUS (240x1), nor a file")
        if int(match["nodes"][:10]) > MOST_NODES:
            raise BadClusterError(f"{group[:40]!r}: at most {MOST_NODES} nodes")
        gpus = int(match["each"]) if match["type"] else 0
        cpus = whole_number(words, "cpus", gpus * CPUS_PER_GPU or int(match["each"]))
        memory = _memory(words["mem"]) if "mem" in words else 1
        for _ in range(int(match["nodes"])):
            name = f"{prefix}{first + len(nodes)}"
            nodes.append(spec_node(name, cpus, memory, gpus, (match["type"] or "").lower()))
    return tuple(nodes)


def spec_node(name: str, cpus: int, memory_mib: int, gpus: int, model: str, parts: int = 0) -> NodeConfig:
    gres: tuple[GresPool, ...] = ()
    if gpus:
        gres = (GresPool("gpu", model, gpus, tuple(Device(index, model) for index in range(gpus))),)
    if parts:
        gres += (GresPool("shard", model, gpus * parts, (), tuple((gpu, parts) for gpu in range(gpus))),)
    return NodeConfig(name=name, cpus=cpus, cores_per_socket=cpus, memory_mib=memory_mib, gres=gres)


def whole_number(words: Mapping[str, str], name: str, default: int) -> int:
    text = words.get(name, str(default))
    if not text.isdigit():
        raise BadClusterError(f"{name}={text}: not a whole number")
    return int(text)


def _memory(text: str) -> int:
    try:
        return parse_memory(text)
    except SlurmSyntaxError as error:
        raise BadClusterError(str(error)) from error


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


# -- the altered cluster ---------------------------------------------------------------------------------------


def altered(config: ClusterConfig, alteration: Alteration) -> ClusterConfig:
    """The cluster with this done to it. Raises BadChangeError, BadClusterError or ConfigurationError."""
    for text in alteration.add_nodes:
        config = _with_nodes(config, text)
    return with_keys(config, alteration.keys) if alteration.keys else config


def _with_nodes(config: ClusterConfig, text: str) -> ClusterConfig:
    first, *words = text.split() or [""]
    options = dict(word.split("=", 1) for word in words if "=" in word)
    into = _partition(config, options.pop("partition", ""))
    known = sum(1 for node in config.nodes if node.name.startswith(NEW))
    nodes = spec_nodes(first, _like(config, into) | options, prefix=NEW, first=known + 1)
    names = tuple(node.name for node in nodes)
    partitions = tuple(
        replace(each, nodes=(*each.nodes, *names)) if each.name == into.name else each for each in config.partitions
    )
    return replace(
        config, nodes=(*config.nodes, *nodes), partitions=partitions, topology=_with_leaf(config.topology, names)
    )


def _partition(config: ClusterConfig, name: str) -> PartitionConfig:
    found = next((each for each in config.partitions if each.name == name), None)
    if name and found is None:
        raise BadChangeError(f"no partition {name!r}; there are {', '.join(each.name for each in config.partitions)}")
    chosen = found or config.default_partition() or next(iter(config.partitions), None)
    if chosen is None:
        raise BadChangeError("the cluster has no partition to add nodes to")
    return chosen


def _like(config: ClusterConfig, partition: PartitionConfig) -> dict[str, str]:
    """CPUs and memory of the nodes that are there already, where nothing else is said."""
    inside = set(partition.nodes)
    node = next((node for node in config.nodes if node.name in inside), None)
    return {} if node is None else {"cpus": str(node.cpus), "mem": f"{node.memory_mib}M"}


def _with_leaf(topology: Topology, names: tuple[str, ...]) -> Topology:
    """The new nodes under a leaf of their own, below the top switch."""
    if not topology.switches:
        return topology
    below = {child for switch in topology.switches for child in switch.switches}
    tops = [switch for switch in topology.switches if switch.name not in below and switch.switches]
    leaf = Switch(f"leaf-{names[0]}", nodes=names)
    switches = tuple(
        replace(switch, switches=(*switch.switches, leaf.name)) if tops and switch.name == tops[0].name else switch
        for switch in topology.switches
    )
    return replace(topology, switches=(leaf, *switches))


def drained_nodes(config: ClusterConfig, words: Sequence[str]) -> list[str]:
    """Nodes of the switches and hostlists. Raises BadChangeError."""
    switches = {switch.name: switch for switch in config.topology.switches}
    known = {node.name for node in config.nodes}
    names: list[str] = []
    for word in words:
        if word in switches:
            names.extend(_below(switches, word))
            continue
        try:
            found = expand(word)
        except SlurmSyntaxError as error:
            raise BadChangeError(f"--drain {word}: {error}") from error
        unknown = [name for name in found if name not in known]
        if unknown:
            there = f"; switches are {', '.join(switches)}" if switches else ""
            raise BadChangeError(f"--drain {word}: there is no node or switch {unknown[0]}{there}")
        names.extend(found)
    return list(dict.fromkeys(names))


def _below(switches: Mapping[str, Switch], name: str) -> list[str]:
    switch = switches[name]
    return [*switch.nodes, *(node for child in switch.switches for node in _below(switches, child))]
