"""Nodes, partitions and sinfo's groups as `scontrol show node|partition --json` and `sinfo --json` write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bireme.slurm.formats.sinfo_fields import cpu_counts, group_nodes, node_counts
from bireme.slurm.formats.values import Context, Record, tres_text
from bireme.slurm.json_shapes.envelope import Shape, stamp, triple

_PLAIN = Context(now=0, stamp=str)
_GROUPED_BY = {"PARTITION", "STATE", "GRES", "AVAIL_FEATURES", "REASON"}


def _features(node: Record) -> list[str]:
    value = node.get("features") or []
    return value.split(",") if isinstance(value, str) else list(value)


def node_shape(node: Record) -> Shape:
    allocated = int(node.get("cpus_allocated") or 0)
    return {
        "architecture": node.get("arch") or "",
        "address": node.get("address") or "",
        "hostname": node.get("hostname") or node["name"],
        "name": node["name"],
        "port": node.get("port") or 0,
        "boards": node.get("boards") or 1,
        "boot_time": stamp(node.get("boot_time")),
        "slurmd_start_time": stamp(node.get("up_since")),
        "last_busy": stamp(node.get("last_busy")),
        "cpus": node.get("cpus"),
        "effective_cpus": node.get("cpus"),
        "sockets": node.get("sockets") or 1,
        "cores": node.get("cores_per_socket") or 1,
        "threads": node.get("threads_per_core") or 1,
        "cpu_load": int((node.get("cpu_load") or 0) * 100),
        "alloc_cpus": allocated,
        "alloc_idle_cpus": int(node.get("cpus") or 0) - allocated,
        "real_memory": node.get("memory_mib"),
        "alloc_memory": node.get("memory_allocated_mib") or 0,
        "free_mem": triple(node.get("memory_free_mib")),
        "temporary_disk": node.get("tmp_disk_mib") or 0,
        "weight": node.get("weight") or 1,
        "features": _features(node),
        "active_features": _features(node),
        "gres": node.get("gres") or "",
        "gres_drained": "N/A",
        "gres_used": node.get("gres_used") or "",
        "state": [node.get("state") or "UNKNOWN", *(node.get("flags") or ())],
        "next_state_after_reboot": [],
        "reason": node.get("reason") or "",
        "reason_changed_at": stamp(node.get("reason_time")),
        "reason_set_by_user": node.get("reason_user") or "",
        "partitions": list(node.get("partitions") or ()),
        "operating_system": node.get("os") or "",
        "version": node.get("version") or "",
        "tres": tres_text(node.get("tres"), _PLAIN),
        "tres_used": tres_text(node.get("tres_allocated"), _PLAIN),
        "tres_weighted": float(allocated),
        "comment": "",
        "extra": "",
        "owner": "",
        "mcs_label": "",
        "reservation": "",
        "burstbuffer_network_address": "",
        "cluster_name": "",
    }


def partition_shape(partition: Record) -> Shape:
    def joined(key: str) -> str:
        return ",".join(partition.get(key) or ())

    def minutes(key: str) -> int | None:
        return None if partition.get(key) is None else partition[key] // 60

    return {
        "name": partition["name"],
        "nodes": {
            "allowed_allocation": joined("alloc_nodes"),
            "configured": partition.get("node_list") or "",
            "total": partition.get("total_nodes") or len(partition.get("nodes") or ()),
        },
        "accounts": {"allowed": joined("allow_accounts"), "deny": joined("deny_accounts")},
        "groups": {"allowed": joined("allow_groups")},
        "qos": {"allowed": joined("allow_qos"), "deny": joined("deny_qos"), "assigned": partition.get("qos") or ""},
        "alternate": "",
        "cluster": "",
        "cpus": {"task_binding": 0, "total": partition.get("total_cpus") or 0},
        "defaults": {
            "memory_per_cpu": partition.get("default_memory_per_cpu_mib") or 0,
            "partition_memory_per_cpu": triple(partition.get("default_memory_per_cpu_mib")),
            "partition_memory_per_node": triple(partition.get("default_memory_per_node_mib")),
            "time": triple(minutes("default_time_s")),
            "job": "",
        },
        "grace_time": partition.get("grace_time_s") or 0,
        "maximums": {
            "cpus_per_node": triple(partition.get("max_cpus_per_node"), infinite=True),
            "memory_per_cpu": partition.get("max_memory_per_cpu_mib") or 0,
            "nodes": triple(partition.get("max_nodes"), infinite=True),
            "time": triple(minutes("max_time_s"), infinite=True),
            "over_time_limit": triple(minutes("over_time_limit_s")),
            "oversubscribe": {"jobs": 1, "flags": []},
        },
        "minimums": {"nodes": partition.get("min_nodes") or 0},
        "node_sets": "",
        "partition": {"state": [partition.get("state") or "UP"]},
        "priority": {
            "job_factor": partition.get("priority_job_factor", 1),
            "tier": partition.get("priority_tier", 1),
        },
        "select_type": [],
        "suspend_time": triple(None),
        "timeouts": {"resume": triple(None), "suspend": triple(None)},
        "tres": {"billing_weights": "", "configured": tres_text(partition.get("tres"), _PLAIN)},
    }


def sinfo_shape(partitions: Sequence[Record], nodes: Sequence[Record]) -> list[Shape]:
    """One object for nodes of a partition that are alike, as sinfo's lines are."""
    shown = {node["name"]: node for node in nodes}
    groups = group_nodes(
        partitions,
        lambda partition: [shown[name] for name in partition.get("nodes") or () if name in shown],
        _GROUPED_BY,
    )
    return [_group_shape(group.partition, group.nodes) for group in groups]


def _span(nodes: Sequence[Record], key: str) -> dict[str, Any]:
    values = [node.get(key) or 0 for node in nodes] or [0]
    return {"minimum": min(values), "maximum": max(values)}


def _counted(counts: tuple[int, int, int, int]) -> dict[str, int]:
    return dict(zip(("allocated", "idle", "other", "total"), counts))


def _group_shape(partition: Record, nodes: Sequence[Record]) -> Shape:
    first: Record = nodes[0] if nodes else {}
    free: list[float] = [node["memory_free_mib"] for node in nodes if node.get("memory_free_mib") is not None]
    load = [int((node.get("cpu_load") or 0) * 100) for node in nodes] or [0]
    states = [first.get("state") or "UNKNOWN", *(first.get("flags") or ())] if nodes else []
    return {
        "cluster": "",
        "comment": "",
        "extra": "",
        "port": first.get("port") or 0,
        "node": {"state": states},
        "nodes": {
            **_counted(node_counts(nodes)),
            "nodes": [node["name"] for node in nodes],
            "hostnames": [node.get("hostname") or node["name"] for node in nodes],
            "addresses": [node.get("address") or node["name"] for node in nodes],
        },
        "cpus": {
            **_counted(cpu_counts(nodes)),
            **_span(nodes, "cpus"),
            "load": {"minimum": triple(min(load)), "maximum": triple(max(load))},
            "per_node": {"max": triple(partition.get("max_cpus_per_node"), infinite=True)},
        },
        "sockets": _span(nodes, "sockets"),
        "cores": _span(nodes, "cores_per_socket"),
        "threads": _span(nodes, "threads_per_core"),
        "disk": _span(nodes, "tmp_disk_mib"),
        "memory": {
            **_span(nodes, "memory_mib"),
            "free": {"minimum": triple(min(free) if free else None), "maximum": triple(max(free) if free else None)},
            "allocated": sum(node.get("memory_allocated_mib") or 0 for node in nodes),
        },
        "weight": _span(nodes, "weight"),
        "features": {"total": ",".join(_features(first)), "active": ",".join(_features(first))},
        "gres": {"total": first.get("gres") or "", "used": first.get("gres_used") or ""},
        "reason": {
            "description": first.get("reason") or "",
            "time": stamp(first.get("reason_time")),
            "user": first.get("reason_user") or "",
        },
        "reservation": "",
        "partition": partition_shape(partition),
    }
