"""A partition as a record, and the cluster's configuration as one."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from bireme.core.accounts.charging import MAX_TRES
from bireme.core.model.cluster import PartitionConfig, Settings
from bireme.core.state.state import State
from bireme.slurm.hostlist import compress
from bireme.slurm.records.nodes import node_tres
from bireme.slurm.records.values import with_billing

PARTITION_FIELDS = tuple(field.name for field in fields(PartitionConfig))
SETTING_FIELDS = tuple(field.name for field in fields(Settings))


def partition_record(state: State, partition: PartitionConfig) -> dict[str, Any]:
    nodes = [state.nodes[name].config for name in partition.nodes if name in state.nodes]
    tres: dict[str, int] = {}
    for node in nodes:
        for name, count in node_tres(node).items():
            tres[name] = tres.get(name, 0) + count
    flags = state.config.settings.priority_flags
    return {
        **{name: _plain(getattr(partition, name)) for name in PARTITION_FIELDS},
        "cluster": partition.cluster or state.config.name,
        "total_nodes": len(nodes),
        "total_cpus": sum(node.cpus for node in nodes),
        "node_list": compress(partition.nodes),
        "tres": with_billing({**tres, "node": len(nodes)}, partition.tres_billing_weights, MAX_TRES in flags),
    }


def cluster_names(state: State) -> list[str]:
    """The cluster, and those beside it whose partitions are known."""
    others = (partition.cluster for partition in state.partitions.values() if partition.cluster)
    return list(dict.fromkeys((state.config.name, *others)))


def config_record(state: State) -> dict[str, Any]:
    config = state.config
    return {
        "cluster": config.name,
        "source": config.source,
        "raw": dict(config.raw),
        "settings": {name: _plain(getattr(config.settings, name)) for name in SETTING_FIELDS},
        "topology": config.topology.plugin,
        "node_count": len(state.nodes),
        "partitions": list(state.partitions),
        "next_job_id": state.next_job_id,
    }


def _plain(value: Any) -> Any:
    """Tuples as lists, mappings and settings of a kind as dicts, enums as their words: what JSON has."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, str):
        return str(value)
    return dict(value) if hasattr(value, "items") else value
