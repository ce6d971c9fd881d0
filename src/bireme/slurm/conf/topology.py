"""topology.conf: switches (topology/tree) or blocks (topology/block) over the nodes of slurm.conf.

Called by `loading`. Without TopologyPlugin the file decides what it is; with a flat plugin it is not used.
Invariant: every switch but the roots has one parent, every node at most one leaf or block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bireme.core.model.cluster import Block, Switch, Topology
from bireme.slurm.conf.diagnostics import Findings, Place
from bireme.slurm.conf.keys import BLOCK_KEYS, SWITCH_KEYS
from bireme.slurm.conf.lines import Line
from bireme.slurm.conf.nodes import expand_names
from bireme.slurm.conf.records import report_unknown_keys
from bireme.slurm.conf.values import names, positive, read_value
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.hostlist import compress, expand

FLAT = "topology/flat"
TREE = "topology/tree"
BLOCK = "topology/block"
_SAME_AS_FLAT = frozenset({"topology/none", "topology/default", "topology/flat", ""})


def read_topology(
    plugin: str | None, lines: Iterable[Line], node_names: Collection[str], findings: Findings
) -> Topology:
    """`plugin` is slurm.conf's TopologyPlugin, None when it has none."""
    lines = list(lines)
    if plugin is None:
        plugin = BLOCK if any(line.get("BlockName") for line in lines) else TREE if lines else FLAT
    if plugin.lower() in _SAME_AS_FLAT:
        return Topology(FLAT)
    if not lines:
        findings.warn(
            Place("topology.conf"), f"TopologyPlugin={plugin} needs a topology.conf; all nodes are taken as equal"
        )
        return Topology(FLAT)
    if plugin.lower() == BLOCK:
        return _read_blocks(lines, node_names, findings)
    return _read_tree(lines, node_names, findings)


def _read_tree(lines: list[Line], node_names: Collection[str], findings: Findings) -> Topology:
    switches: dict[str, Switch] = {}
    places: dict[str, Place] = {}
    for line in lines:
        report_unknown_keys(line, SWITCH_KEYS, findings, " of a SwitchName line")
        for switch in _switches_of(line, findings):
            if switch.name in switches:
                findings.error(line.place, f"switch {switch.name} is already defined at {places[switch.name]}")
                continue
            switches[switch.name] = switch
            places[switch.name] = line.place
    _check_children(switches, places, findings)
    _check_nodes(((s.name, s.nodes) for s in switches.values()), places, node_names, "switch", findings)
    return Topology(TREE, tuple(switches.values()))


def _switches_of(line: Line, findings: Findings) -> list[Switch]:
    named = expand_names(line, "SwitchName", findings)
    nodes = tuple(expand_names(line, "Nodes", findings))
    children = tuple(_child_switches(line, findings))
    if not named:
        findings.error(line.place, "a line of topology.conf starts with SwitchName= (or BlockName= for topology/block)")
    elif bool(nodes) == bool(children):
        findings.error(line.place, f"switch {named[0]} needs either Nodes= (a leaf) or Switches=")
    speed = read_value(line, "LinkSpeed", positive, 1, findings)
    return [Switch(name, children, nodes, speed) for name in named]


def _child_switches(line: Line, findings: Findings) -> list[str]:
    """A switch's children, also split at colons, which people write: `leaf1:leaf2`."""
    text = line.get("Switches") or ""
    try:
        return [name for part in text.split(":") if part for name in expand(part)]
    except SlurmSyntaxError as error:
        findings.error(line.place, f"Switches={text}: {error}")
        return []


def _check_children(switches: dict[str, Switch], places: dict[str, Place], findings: Findings) -> None:
    parents: dict[str, str] = {}
    for switch in switches.values():
        for child in switch.switches:
            if child not in switches:
                findings.error(places[switch.name], f"switch {switch.name} names switch {child}, which is not defined")
            elif parents.setdefault(child, switch.name) != switch.name:
                findings.error(
                    places[switch.name], f"switch {child} is under both {parents[child]} and {switch.name}; keep one"
                )
    for name in switches:
        above = name
        for _ in switches:
            above = parents.get(above, "")
        if above:
            findings.error(places[name], f"switch {name} is above itself; a tree has a root")
            return


def _read_blocks(lines: list[Line], node_names: Collection[str], findings: Findings) -> Topology:
    blocks: dict[str, Block] = {}
    places: dict[str, Place] = {}
    sizes: tuple[int, ...] = ()
    for line in lines:
        report_unknown_keys(line, BLOCK_KEYS, findings, " of a BlockName line")
        sizes = read_value(line, "BlockSizes", _sizes, sizes, findings)
        name = line.get("BlockName")
        if not name:
            continue
        if name in blocks:
            findings.error(line.place, f"block {name} is already defined at {places[name]}")
        places[name] = line.place
        blocks[name] = Block(name, tuple(expand_names(line, "Nodes", findings)))
    _check_nodes(((b.name, b.nodes) for b in blocks.values()), places, node_names, "block", findings)
    return Topology(BLOCK, blocks=tuple(blocks.values()), block_sizes=sizes)


def _sizes(text: str) -> tuple[int, ...]:
    """The base block, then aggregates of two, four, eight ... of them."""
    sizes = tuple(positive(size) for size in names(text))
    for size in sizes[1:]:
        times, rest = divmod(size, sizes[0])
        if rest or times & (times - 1):
            raise SlurmSyntaxError(f"{size} is not {sizes[0]} times a power of two")
    return sizes


def _check_nodes(
    groups: Iterable[tuple[str, tuple[str, ...]]],
    places: dict[str, Place],
    node_names: Collection[str],
    word: str,
    findings: Findings,
) -> None:
    known = set(node_names)
    holder: dict[str, str] = {}
    for group, nodes in groups:
        unknown = [node for node in nodes if node not in known]
        if unknown:
            findings.error(
                places[group], f"{word} {group} names {compress(unknown)}, which no NodeName line of slurm.conf defines"
            )
        for node in nodes:
            if holder.setdefault(node, group) != group:
                findings.error(places[group], f"node {node} is under both {holder[node]} and {group}; keep one")
    missing = [node for node in node_names if node not in holder]
    if missing and places:
        place = Place(next(iter(places.values())).file)
        findings.warn(place, f"no {word} holds {compress(missing)}; jobs cannot span them and the others")
