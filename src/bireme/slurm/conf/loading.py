"""A cluster from its configuration files: slurm.conf with gres.conf, topology.conf and cgroup.conf beside it.

The one entrance of this package. Pure: `read` gives a file's text. Called by the daemon at start and on
`scontrol reconfigure`, and by `bireme explain`. Invariant: either a consistent cluster with warnings, or a
`ConfigurationError` that lists every mistake with file and line; never a half-read cluster.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from bireme.core.model.cluster import ClusterConfig, NodeConfig, Topology
from bireme.slurm.conf import keys
from bireme.slurm.conf.diagnostics import ConfigurationError, Diagnostic, Findings, Place
from bireme.slurm.conf.gres import GresFile, add_gres, read_gres_file
from bireme.slurm.conf.lines import Line, Read, read_lines
from bireme.slurm.conf.nodes import apply_down_nodes, read_node_sets, read_nodes
from bireme.slurm.conf.parameters import check_words
from bireme.slurm.conf.partitions import read_partitions
from bireme.slurm.conf.records import sort_records
from bireme.slurm.conf.settings import RawSettings, read_raw_settings, typed_settings
from bireme.slurm.conf.stands import (
    CGROUP_NOT_APPLIED,
    NODE_NOT_APPLIED,
    NOT_APPLIED,
    PARTITION_NOT_APPLIED,
    UNREAD_FILES,
    warn_of_unapplied,
    warn_of_unapplied_lines,
    warn_of_unapplied_on,
)
from bireme.slurm.conf.topology import read_topology

DEFAULT_CLUSTER_NAME = "linux"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What the files say. `cluster` is all the core needs; the rest is for the engine and for people."""

    cluster: ClusterConfig
    warnings: tuple[Diagnostic, ...] = ()
    cgroup: Mapping[str, str] = field(default_factory=dict)
    """cgroup.conf, in Slurm's spelling."""
    gres: GresFile = field(default_factory=GresFile)
    """gres.conf as read: AutoDetect and flags of each node."""


def load_configuration(path: str, read: Read) -> Configuration:
    """Reads `path` (a slurm.conf) and its neighbours. `read` raises FileNotFoundError for a file that is not there."""
    configuration, findings = _read_files(path, read, ("gres.conf", "topology.conf", "cgroup.conf"))
    unread = _unread_files(posixpath.dirname(path), read)
    configuration = replace(configuration, warnings=(*configuration.warnings, *unread))
    if not configuration.cluster.nodes:
        findings.error(Place(path), "no NodeName line defines a node; add at least one")
    findings.raise_errors()
    return configuration


def _unread_files(folder: str, read: Read) -> list[Diagnostic]:
    found = []
    for name in UNREAD_FILES:
        with suppress(OSError):
            if read(posixpath.join(folder, name)).strip():
                found.append(Diagnostic(Place(posixpath.join(folder, name)), "this file is not read by Bireme"))
    return found


def load_rules(path: str, read: Read) -> Configuration:
    """Reads slurm.conf for a cluster that knows its own nodes: NodeName lines, gres.conf and topology.conf are not
    needed.

    Partitions keep the names of nodes as they are written, `ALL` among them, whether or not such nodes exist.
    """
    configuration, findings = _read_files(path, read, ("cgroup.conf",), nodes_elsewhere=True)
    findings.raise_errors()
    return configuration


def _read_files(
    path: str, read: Read, beside: Sequence[str], *, nodes_elsewhere: bool = False
) -> tuple[Configuration, Findings]:
    findings = Findings()
    try:
        lines = read_lines(path, read, findings)
    except OSError as error:
        raise ConfigurationError([Diagnostic(Place(path), f"cannot be read: {error.strerror or error}")]) from error
    folder = posixpath.dirname(path)
    neighbours = {name: _optional_lines(posixpath.join(folder, name), read, findings) for name in beside}
    return _build(path, lines, neighbours, findings, nodes_elsewhere), findings


def parse_configuration(texts: Mapping[str, str], path: str = "slurm.conf") -> Configuration:
    """Reads a configuration from texts by file name: for tests and for tools that hold the files in memory."""

    def read(name: str) -> str:
        if name not in texts:
            raise FileNotFoundError(2, "No such file or directory", name)
        return texts[name]

    return load_configuration(path, read)


def _optional_lines(path: str, read: Read, findings: Findings) -> list[Line]:
    try:
        return read_lines(path, read, findings)
    except FileNotFoundError:
        return []
    except OSError as error:
        findings.error(Place(path), f"cannot be read: {error.strerror or error}")
        return []


def _build(
    path: str,
    lines: list[Line],
    neighbours: Mapping[str, list[Line]],
    findings: Findings,
    nodes_elsewhere: bool,
) -> Configuration:
    records = sort_records(lines, findings)
    raw = read_raw_settings(records.settings, findings)
    settings = typed_settings(raw, findings)
    warn_of_unapplied(raw.values, raw.places, NOT_APPLIED, findings)
    check_words(raw.values, raw.places, findings)
    warn_of_unapplied_on(records.nodes, NODE_NOT_APPLIED, findings)
    warn_of_unapplied_on(records.partitions, PARTITION_NOT_APPLIED, findings)
    warn_of_unapplied_lines([*records.frontends, *records.power_actions], findings)
    node_lines = read_nodes(records.nodes, findings)
    apply_down_nodes(records.down_nodes, node_lines, findings)
    node_sets = read_node_sets(records.node_sets, node_lines, findings)
    gres = read_gres_file(neighbours.get("gres.conf", []), node_lines, findings)
    nodes: tuple[NodeConfig, ...] = add_gres(node_lines, gres, settings.gres_types, findings)
    preempt_mode = raw.values.get("PreemptMode", "")
    cluster = ClusterConfig(
        name=raw.values.get("ClusterName", DEFAULT_CLUSTER_NAME).lower(),
        nodes=nodes,
        partitions=read_partitions(
            records.partitions, None if nodes_elsewhere else tuple(node_lines), node_sets, findings, preempt_mode
        ),
        topology=Topology()
        if nodes_elsewhere
        else read_topology(raw.values.get("TopologyPlugin"), neighbours["topology.conf"], tuple(node_lines), findings),
        settings=settings,
        raw=raw.values,
        source=path,
    )
    cgroup = _cgroup_settings(neighbours["cgroup.conf"], findings)
    return Configuration(cluster=cluster, warnings=tuple(findings.warnings), cgroup=cgroup, gres=gres)


def _cgroup_settings(lines: list[Line], findings: Findings) -> dict[str, str]:
    spelling = {key.lower(): key for key in keys.CGROUP_KEYS}
    raw = RawSettings()
    for line in lines:
        for written, value in line.pairs:
            key = spelling.get(written.lower())
            if key is None:
                findings.unknown_key(line.place, written, keys.CGROUP_KEYS, " of cgroup.conf")
            else:
                raw.add(key, value, line.place, findings)
    warn_of_unapplied(raw.values, raw.places, CGROUP_NOT_APPLIED, findings)
    return raw.values
