"""Nodes, partitions and sinfo's groups as `scontrol show node|partition --json` and `sinfo --json` of 26.05 have them.

Invariant: every key is there for every record; what Bireme does not measure has the value that Slurm gives then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bireme.slurm.formats.node_states import state_code
from bireme.slurm.formats.show.cluster import billing_weights, job_defaults
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
        "burstbuffer_network_address": "",
        "boards": node.get("boards") or 1,
        "boot_time": stamp(node.get("boot_time")),
        "tls_cert_last_renewal": stamp(None),
        "cert_flags": [],
        "cluster_name": "",
        "cores": node.get("cores_per_socket") or 1,
        "specialized_cores": 0,
        "cpu_binding": 0,
        "cpu_load": _load(node),
        "free_mem": triple(node.get("memory_free_mib")),
        "cpus": node.get("cpus"),
        "effective_cpus": node.get("cpus"),
        "specialized_cpus": "",
        "energy": _NO_ENERGY,
        "extra": "",
        "features": _features(node),
        "active_features": _features(node),
        "gpu_spec": "",
        "gres": node.get("gres") or "",
        "gres_drained": node.get("gres_drained") or "N/A",
        "gres_used": _gres_used(node),
        "instance_id": "",
        "instance_type": "",
        "last_busy": stamp(node.get("last_busy")),
        "mcs_label": "",
        "specialized_memory": 0,
        "name": node["name"],
        "next_state_after_reboot": ["INVALID"],
        "address": node.get("address") or "",
        "hostname": node.get("hostname") or node["name"],
        "state": _states(node),
        "operating_system": node.get("os") or "",
        "owner": "",
        "partitions": list(node.get("partitions") or ()),
        "port": node.get("port") or 0,
        "real_memory": node.get("memory_mib"),
        "res_cores_per_gpu": 0,
        "comment": "",
        "reason": node.get("reason") or "",
        "reason_changed_at": stamp(node.get("reason_time")),
        "reason_set_by_user": node.get("reason_user") or "",
        "resume_after": stamp(None),
        "reservation": "",
        "suspend_time": triple(None, infinite=True),
        "alloc_memory": node.get("memory_allocated_mib") or 0,
        "alloc_cpus": allocated,
        "alloc_idle_cpus": int(node.get("cpus") or 0) - allocated,
        "tres_used": tres_text(node.get("tres_allocated"), _PLAIN),
        "slurmd_start_time": stamp(node.get("up_since")),
        "sockets": node.get("sockets") or 1,
        "threads": node.get("threads_per_core") or 1,
        "temporary_disk": node.get("tmp_disk_mib") or 0,
        "weight": node.get("weight") or 1,
        "topology": "",
        "tres": tres_text(node.get("tres"), _PLAIN),
        "version": node.get("version") or "",
    }


_NO_ENERGY = {
    "average_watts": 0,
    "base_consumed_energy": 0,
    "consumed_energy": 0,
    "current_watts": triple(0),
    "previous_consumed_energy": 0,
    "last_collected": 0,
}
"""Energy is not measured."""


def _load(node: Record) -> int:
    """In hundredths."""
    return int((node.get("cpu_load") or 0) * 100)


def _gres_used(node: Record) -> str:
    """Of a node without any, nothing; the text of `scontrol show node` counts the cluster's other kinds."""
    return str(node.get("gres_used") or "") if node.get("gres") else ""


def _states(node: Record) -> list[str]:
    return [node.get("state") or "UNKNOWN", *(node.get("flags") or ())]


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
        "cpus": {"task_binding": [], "total": partition.get("total_cpus") or 0},
        "defaults": {
            **_memory(partition, "default"),
            "time": triple(minutes("default_time_s")),
            "job": job_defaults(partition),
        },
        "flags": [flag for flag, key in _PARTITION_FLAGS.items() if partition.get(key)],
        "grace_time": partition.get("grace_time_s") or 0,
        "maximums": {
            **_memory(partition, "max"),
            "cpus_per_node": triple(partition.get("max_cpus_per_node"), infinite=True),
            "cpus_per_socket": triple(None, infinite=True),
            "nodes": triple(partition.get("max_nodes"), infinite=True),
            "time": triple(minutes("max_time_s"), infinite=True),
            "over_time_limit": triple(minutes("over_time_limit_s")),
            "shares": _shared_by(partition),
            "oversubscribe": {"jobs": _shared_by(partition), "flags": ["force"] if _is_forced(partition) else []},
        },
        "minimums": {"nodes": partition.get("min_nodes") or 0},
        "node_sets": "",
        "partition": {
            "exclusive": "USER" if partition.get("exclusive_user") else "NO",
            "oversubscribe": str(partition.get("over_subscribe") or "NO"),
            "state": [partition.get("state") or "UP"],
        },
        "preempt_mode": [partition.get("preempt_mode") or "CLUSTER_GLOBAL"],
        "priority": {
            "job_factor": partition.get("priority_job_factor", 1),
            "tier": partition.get("priority_tier", 1),
        },
        "select_type": ["NONE"],
        "suspend_time": triple(None),
        "timeouts": {"resume": triple(None), "suspend": triple(None)},
        "topology": "",
        "tres": {"billing_weights": billing_weights(partition), "configured": tres_text(partition.get("tres"), _PLAIN)},
    }


_PARTITION_FLAGS = {
    "DEFAULT": "default",
    "HIDDEN": "hidden",
    "NO_ROOT": "disable_root_jobs",
    "ROOT_ONLY": "root_only",
    "REQ_RESV": "req_resv",
    "LLN": "lln",
}


def _memory(partition: Record, which: str) -> Shape:
    """`which`: default or max. Slurm keeps one number: it is that of a node unless it was given for a CPU."""
    per_cpu = partition.get(f"{which}_memory_per_cpu_mib")
    per_node = partition.get(f"{which}_memory_per_node_mib")
    return {
        "memory_per_cpu": per_cpu or 0,
        "partition_memory_per_cpu": triple(per_cpu),
        "partition_memory_per_node": triple(None if per_cpu else per_node or 0),
    }


def _is_forced(partition: Record) -> bool:
    return str(partition.get("over_subscribe") or "").startswith("FORCE")


def _shared_by(partition: Record) -> int:
    """How many jobs may have a CPU at once: the 4 of FORCE:4 or YES:4; 0 where it is not shared."""
    _, _, jobs = str(partition.get("over_subscribe") or "").partition(":")
    return int(jobs) if jobs.isdigit() else 0


def sinfo_shape(partitions: Sequence[Record], nodes: Sequence[Record]) -> list[Shape]:
    """One object for nodes of a partition that are alike, in the order of sinfo's lines."""
    shown = {node["name"]: node for node in nodes}
    groups = group_nodes(
        partitions,
        lambda partition: [shown[name] for name in partition.get("nodes") or () if name in shown],
        _GROUPED_BY,
    )
    groups.sort(key=lambda group: (group.order, -state_code(group.first) if group.nodes else 0))
    return [_group_shape(group.partition, group.nodes) for group in groups]


def _span(nodes: Sequence[Record], key: str) -> dict[str, Any]:
    values = [node.get(key) or 0 for node in nodes] or [0]
    return {"minimum": min(values), "maximum": max(values)}


def _counted(counts: tuple[int, int, int, int]) -> dict[str, int]:
    return dict(zip(("allocated", "idle", "other", "total"), counts))


def _group_shape(partition: Record, nodes: Sequence[Record]) -> Shape:
    """Host names and addresses are listed only by a sinfo that was asked for those columns: --json asks for none."""
    first: Record = nodes[0] if nodes else {}
    free: list[float] = [node["memory_free_mib"] for node in nodes if node.get("memory_free_mib") is not None]
    load = [_load(node) for node in nodes] or [0]
    return {
        "port": first.get("port") or 0,
        "node": {"state": _states(first) if nodes else []},
        "nodes": {
            **_counted(node_counts(nodes)),
            "hostnames": [],
            "addresses": [],
            "nodes": [node["name"] for node in nodes],
        },
        "cpus": {
            **_counted(cpu_counts(nodes)),
            **_span(nodes, "cpus"),
            "load": {"minimum": min(load), "maximum": max(load)},
            "per_node": {"max": triple(partition.get("max_cpus_per_node"), infinite=True)},
        },
        "sockets": _span(nodes, "sockets"),
        "cores": _span(nodes, "cores_per_socket"),
        "threads": _span(nodes, "threads_per_core"),
        "disk": _span(nodes, "tmp_disk_mib"),
        "memory": {
            **_span(nodes, "memory_mib"),
            "free": {"minimum": triple(min(free) if free else None), "maximum": triple(max(free) if free else None)},
            "allocated": first.get("memory_allocated_mib") or 0,
        },
        "weight": _span(nodes, "weight"),
        "features": {"total": ",".join(_features(first)), "active": ",".join(_features(first))},
        "gres": {"total": first.get("gres") or "", "used": _gres_used(first)},
        "cluster": "",
        "comment": "",
        "extra": "",
        "reason": {"description": first.get("reason") or "", "time": int(first.get("reason_time") or 0)},
        "reservation": "",
        "reason_set_by_user": first.get("reason_user") or "",
        "resource_spec": {"cpus": "", "memory": 0},
        "partition": partition_shape(partition),
    }
