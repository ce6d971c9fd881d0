"""Lines of one kind, with the `DEFAULT` lines before them applied.

slurm.conf describes nodes, partitions, node sets and down nodes one line each; `NodeName=DEFAULT` changes what
follows. Called by `loading`; the readers of nodes and partitions see complete lines.
Invariant: no record is named DEFAULT.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bireme.slurm.conf import keys
from bireme.slurm.conf.diagnostics import Findings
from bireme.slurm.conf.lines import Line


@dataclass(frozen=True, slots=True)
class Records:
    """slurm.conf sorted by kind of line. `settings` has one pair a line."""

    settings: list[Line] = field(default_factory=list)
    nodes: list[Line] = field(default_factory=list)
    partitions: list[Line] = field(default_factory=list)
    down_nodes: list[Line] = field(default_factory=list)
    node_sets: list[Line] = field(default_factory=list)
    frontends: list[Line] = field(default_factory=list)


def sort_records(lines: Iterable[Line], findings: Findings) -> Records:
    records = Records()
    kinds = {
        "nodename": (records.nodes, keys.NODE_KEYS, " of a NodeName line"),
        "partitionname": (records.partitions, keys.PARTITION_KEYS, " of a PartitionName line"),
        "downnodes": (records.down_nodes, keys.DOWN_NODES_KEYS, " of a DownNodes line"),
        "nodeset": (records.node_sets, keys.NODE_SET_KEYS, " of a NodeSet line"),
        "frontendname": (records.frontends, keys.FRONTEND_KEYS, " of a FrontendName line"),
    }
    defaults: dict[str, tuple[tuple[str, str], ...]] = {}
    for line in lines:
        kind = next((key.lower() for key, _ in line.pairs if key.lower() in kinds), None)
        if kind is None:
            records.settings.extend(Line((pair,), line.place) for pair in line.pairs)
            continue
        into, known, where = kinds[kind]
        report_unknown_keys(line, known, findings, where)
        if (line.get(kind) or "").upper() == "DEFAULT":
            defaults[kind] = defaults.get(kind, ()) + tuple(pair for pair in line.pairs if pair[0].lower() != kind)
        else:
            into.append(Line(_without_overridden(defaults.get(kind, ()), line.pairs), line.place))
    return records


def report_unknown_keys(line: Line, known: frozenset[str], findings: Findings, where: str = "") -> None:
    lower = {key.lower() for key in known}
    for key, _ in line.pairs:
        if key.lower() not in lower:
            findings.unknown_key(line.place, key, known, where)


_ONE_THING = (
    frozenset({"cpus", "procs"}),
    frozenset({"sockets", "socketsperboard"}),
    frozenset({"feature", "features"}),
    frozenset({"oversubscribe", "shared"}),
    frozenset({"corespeccount", "cpuspeclist"}),
)
"""Two names for one thing: writing either takes back a default for the other."""


def _without_overridden(
    defaults: tuple[tuple[str, str], ...], own: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    given = {key.lower() for key, _ in own}
    for group in _ONE_THING:
        if given & group:
            given |= group
    return tuple(pair for pair in defaults if pair[0].lower() not in given) + own
