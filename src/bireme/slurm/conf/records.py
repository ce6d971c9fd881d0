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
    power_actions: list[Line] = field(default_factory=list)


KEYS_OF_LINES = {
    "nodename": (" of a NodeName line", keys.NODE_KEYS),
    "partitionname": (" of a PartitionName line", keys.PARTITION_KEYS),
    "downnodes": (" of a DownNodes line", keys.DOWN_NODES_KEYS),
    "nodeset": (" of a NodeSet line", keys.NODE_SET_KEYS),
    "frontendname": (" of a FrontendName line", keys.FRONTEND_KEYS),
    "poweraction": (" of a PowerAction line", keys.POWER_ACTION_KEYS),
}
"""By the key that a line begins with: where its keys stand, in words, and which they are."""


def sort_records(lines: Iterable[Line], findings: Findings) -> Records:
    records = Records()
    kinds = {
        "nodename": records.nodes,
        "partitionname": records.partitions,
        "downnodes": records.down_nodes,
        "nodeset": records.node_sets,
        "frontendname": records.frontends,
        "poweraction": records.power_actions,
    }
    defaults: dict[str, tuple[tuple[str, str], ...]] = {}
    for line in lines:
        kind = next((key.lower() for key, _ in line.pairs if key.lower() in kinds), None)
        if kind is None:
            _refuse_several(line, findings)
            records.settings.extend(Line((pair,), line.place) for pair in line.pairs)
            continue
        into, (where, known) = kinds[kind], KEYS_OF_LINES[kind]
        report_unknown_keys(line, known, findings, where)
        if (line.get(kind) or "").upper() == "DEFAULT":
            defaults[kind] = defaults.get(kind, ()) + tuple(pair for pair in line.pairs if pair[0].lower() != kind)
        else:
            into.append(Line(_without_overridden(defaults.get(kind, ()), line.pairs), line.place))
    return records


def _refuse_several(line: Line, findings: Findings) -> None:
    """Slurm reads one setting a line; what comes after it refuses the file there."""
    if len(line.pairs) > 1:
        (first, _), (second, value), *_ = line.pairs
        findings.error(line.place, f'Parse error at "{second}={value}": write it on a line of its own, after {first}=')


def report_unknown_keys(line: Line, known: frozenset[str], findings: Findings, where: str = "") -> None:
    lower = {key.lower() for key in known}
    for key, _ in line.pairs:
        if key.lower() not in lower:
            findings.unknown_key(line.place, key, known, where, ("", keys.GLOBAL_KEYS), *KEYS_OF_LINES.values())


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
