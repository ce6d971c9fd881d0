"""What a real Slurm wrote, and the same as a newer one writes it (`modernised`), for the tests of the reader."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from bireme.core.model.cluster import ClusterConfig
from bireme.engines.slurm.cluster import Described, read_cluster

VERSIONS = ("22.05", "26.05")

_MAY_BE_UNSET = (
    "accrue_time", "array_job_id", "array_task_id", "array_max_tasks", "core_spec", "thread_spec", "cores_per_socket",
    "cpus_per_task", "deadline", "eligible_time", "end_time", "het_job_id", "het_job_offset", "max_cpus", "max_nodes",
    "tasks_per_core", "tasks_per_node", "tasks_per_socket", "cpus", "node_count", "tasks", "memory_per_node",
    "memory_per_cpu", "minimum_cpus_per_node", "minimum_tmp_disk_per_node", "pre_sus_time", "priority", "start_time",
    "submit_time", "suspend_time", "time_limit", "time_minimum",
)  # fmt: skip
_TIMES_AND_COUNTS_UNSET_AT_ZERO = ("het_job_id", "array_job_id", "deadline", "suspend_time")


def document(name: str, version: str = "22.05") -> Any:
    return json.loads(_sample(f"{name}.json", version))


def _sample(name: str, version: str) -> str:
    return (Path(__file__).parent / "samples" / version / name).read_text()


def cluster(version: str = "22.05") -> ClusterConfig:
    texts = (_sample("config.txt", version), _sample("partition.txt", version))
    return read_cluster(Described(*texts, "", document("nodes", version)["nodes"]))


def jobs(version: str = "22.05") -> dict[str, dict[str, Any]]:
    """By name; of an array the record of the waiting tasks, of a heterogeneous job the leader."""
    found: dict[str, dict[str, Any]] = {}
    for job in document("squeue", version)["jobs"]:
        if job["name"] not in found or job["array_task_string"]:
            found[job["name"]] = job
    return found


def modernised(job: dict[str, Any]) -> dict[str, Any]:
    """A job as Slurm 24.05 and later write it: the same facts in other forms and places."""
    new = dict(job)
    for name in _MAY_BE_UNSET:
        value = job[name]
        unset = value is None or (value == 0 and name in _TIMES_AND_COUNTS_UNSET_AT_ZERO)
        new[name] = {"set": not unset, "infinite": name == "time_limit" and unset, "number": value or 0}
    new["job_state"] = [job["job_state"]]
    new["nice"] = job["nice"] or 0
    for name in ("exit_code", "derived_exit_code"):
        new[name] = _status(job[name])
    new["shared"] = [job["shared"]] if job["shared"] else []
    for name in ("tres_per_node", "tres_per_job", "tres_per_task"):
        new[name] = job[name].replace("gres:", "gres/")
    told = job.get("job_resources")
    if told:
        allocation = [_node(place, node) for place, node in enumerate(told["allocated_nodes"])]
        new["job_resources"] = {"nodes": {"count": len(allocation), "list": told["nodes"], "allocation": allocation}}
    return new


def _status(raw: int) -> dict[str, Any]:
    signal = os.WTERMSIG(raw) if raw & 0x7F else 0
    number = {"set": bool(signal), "infinite": False, "number": signal}
    code = {"set": True, "infinite": False, "number": raw >> 8}
    return {"status": ["SIGNALED" if signal else "SUCCESS"], "return_code": code, "signal": {"id": number, "name": ""}}


def _node(place: int, node: dict[str, Any]) -> dict[str, Any]:
    sockets = [
        {
            "index": int(socket),
            "cores": [{"index": int(core), "status": [word.upper()]} for core, word in inside["cores"].items()],
        }
        for socket, inside in node["sockets"].items()
    ]
    memory = {"used": node["memory_used"], "allocated": node["memory_allocated"]}
    return {"index": place, "name": node["nodename"], "memory": memory, "sockets": sockets}
