"""A JobRecord as `squeue --json` and `scontrol show job --json` of Slurm 26.05 write it.

What was asked for is written as its row says (`slurm/job_fields`), what comes of a job's life is here.
Invariant: every key is there for every record; what Bireme has no word for (flags of Slurm's inside, ids of its own)
has the value that says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bireme.slurm.formats import job_values as facts
from bireme.slurm.formats.identity import waiting_tasks
from bireme.slurm.formats.values import Context, Record, gres_text, tres_text
from bireme.slurm.id_ranges import id_ranges
from bireme.slurm.job_fields.row import Place
from bireme.slurm.job_fields.table import FIELDS
from bireme.slurm.json_shapes.by_form import Write, by_form, text_of, tres_of
from bireme.slurm.json_shapes.envelope import Shape, exit_shape, stamp, triple

NODE_FIELDS = ("name", "sockets", "cores_per_socket", "threads_per_core")
"""What is read of a node's record."""
_PLAIN = Context(now=0, stamp=str)
"""TRES texts do not depend on the clock."""


def latest_pass(jobs: Iterable[Record]) -> float:
    """When the queue was last gone through, as its jobs tell it."""
    return max((float(job.get("last_sched_time") or 0) for job in jobs), default=0.0)


def job_shape(job: Record, nodes: Mapping[str, Record]) -> Shape:
    """`nodes`: by name, to tell which cores of their sockets are the job's."""
    shape = {**_identity(job), **_standing(job), **_times(job), **_amounts(job), **_place(job, nodes), **_request(job)}
    for key, write in _TABLED:
        shape[key] = write(job)
    return shape


def _identity(job: Record) -> Shape:
    return {
        "job_id": job["job_id"],
        "array_job_id": triple(job.get("array_job_id") or 0),
        "array_task_id": triple(job.get("array_task_id")),
        "array_task_string": waiting_tasks(job, 0) if job.get("array_tasks") else "",
        "het_job_id": triple(job.get("het_job_id") or 0),
        "het_job_id_set": text_of(job, "het_job_id_set"),
        "het_job_offset": triple(job.get("het_offset") or 0),
        "user_id": job.get("user_id"),
        "user_name": text_of(job, "user_name"),
        "group_id": job.get("group_id"),
        "group_name": text_of(job, "group_name"),
        "association_id": 0,
        "cluster": text_of(job, "cluster"),
        "system_comment": text_of(job, "system_comment"),
        "step_id": {
            "sluid": "",
            "job_id": triple(job["job_id"]),
            "step_het_component": triple(None),
            "step_id": "entire",
        },
    }


def _standing(job: Record) -> Shape:
    states = [facts.base_state(job), job["state"]]
    return {
        "job_state": list(dict.fromkeys(states)),
        "state_reason": facts.reason_word(job),
        "state_description": "; ".join(_told(job)),
        "hold": bool(job.get("held_by")),
        "exit_code": exit_shape(job.get("exit_code"), job.get("exit_signal")),
        "derived_exit_code": exit_shape(job.get("derived_exit_code"), job.get("derived_exit_signal")),
        "restart_cnt": job.get("restarts") or 0,
        "checkpoint": job.get("checkpoint"),
        "reboot": False,
        "flags": [],
        "profile": ["NOT_SET"],
        "priority_by_partition": [],
        "preempt_time": stamp(job.get("preempt_time")),
        "preemptable_time": stamp(None),
    }


def _told(job: Record) -> list[str]:
    """What Slurm leaves empty: the reasons as sentences."""
    return [str(each.get("text", "")) for each in job.get("reasons") or () if each.get("kind") != "None"]


def _minutes(seconds: float | None) -> float | None:
    return None if seconds is None else int(seconds) // 60


def _times(job: Record) -> Shape:
    return {
        "submit_time": stamp(job.get("submit_time")),
        "eligible_time": stamp(job.get("eligible_time")),
        "accrue_time": stamp(job.get("accrue_time")),
        "start_time": stamp(facts.start_time(job)),
        "end_time": stamp(facts.end_time(job)),
        "suspend_time": stamp(job.get("suspend_time")),
        "pre_sus_time": stamp(None),
        "resize_time": stamp(None),
        "last_sched_evaluation": stamp(job.get("last_sched_time")),
        "delay_boot": triple(0),
    }


def _amounts(job: Record) -> Shape:
    return {
        "cpus": triple(job.get("num_cpus") or 1),
        "node_count": triple(facts.node_count(job)),
        "tasks_per_board": triple(0),
        "tasks_per_tres": triple(0),
        "threads_per_core": triple(None),
        "cores_per_socket": triple(None),
        "sockets_per_node": triple(None),
        "sockets_per_board": 0,
        "max_cpus": triple(0),
        "memory_per_tres": "" if (memory := _memory(job, "gpu")) is None else f"gres/gpu:{memory}",
        "minimum_cpus_per_node": triple(facts.min_cpus(job)),
        "billable_tres": _billable(job),
        "memory_update_delay": 0,
        "memory_update_margin": 0,
        "cpu_frequency_minimum": triple(None),
        "cpu_frequency_maximum": triple(None),
        "cpu_frequency_governor": triple(None),
        "tres_req_str": tres_text(job.get("tres_requested"), _PLAIN),
        "tres_alloc_str": tres_text(job.get("tres_allocated"), _PLAIN),
        "tres_bind": "",
        "tres_freq": "",
        "cpus_per_tres": tres_of(job.get("cpus_per_tres")),
    }


def _billable(job: Record) -> Shape:
    """Set once the job holds something."""
    allocated = job.get("tres_allocated") or {}
    return {"set": bool(allocated), "infinite": False, "number": float(allocated.get("billing") or 0)}


def _tres_per_task(job: Record) -> str:
    """`cpu=3,gres/gpu=1`: the CPUs of a task are among them where there are several."""
    cpus = int(job.get("cpus_per_task") or 1)
    gres = [each.rpartition(":") for each in tres_of(job.get("tres_per_task")).split(",") if each]
    return ",".join([*([f"cpu={cpus}"] if cpus > 1 else []), *(f"{name}={count}" for name, _, count in gres)])


def _place(job: Record, nodes: Mapping[str, Record]) -> Shape:
    shares = job.get("shares") or []
    return {
        "nodes": text_of(job, "node_list"),
        "batch_host": text_of(job, "batch_host"),
        "scheduled_nodes": text_of(job, "planned_nodes"),
        "failed_node": "",
        "gres_detail": [_gres_detail(share) for share in shares if share.get("gres")],
        "job_resources": _resources(job, shares, nodes) if shares else None,
        "job_size_str": [],
        "licenses_allocated": text_of(job, "licenses") if shares else "",
    }


def _gres_detail(share: Record) -> str:
    return ",".join(f"{gres_text(gres)}(IDX:{id_ranges(gres.get('indices') or ())})" for gres in share["gres"])


def _resources(job: Record, shares: list[Any], nodes: Mapping[str, Record]) -> Shape:
    return {
        "select_type": ["CR_CORE_MEMORY"],
        "nodes": {
            "count": len(shares),
            "select_type": ["ONE_ROW"],
            "list": text_of(job, "node_list"),
            "whole": bool(job.get("exclusive")),
            "allocation": [
                {
                    "index": index,
                    "name": share["node"],
                    "cpus": {"count": share.get("cpus") or 0, "used": share.get("cpus") or 0},
                    "memory": {"used": share.get("memory_mib") or 0, "allocated": share.get("memory_mib") or 0},
                    "sockets": _sockets(share, nodes.get(share["node"]) or {}),
                }
                for index, share in enumerate(shares)
            ],
        },
        "cpus": sum(share.get("cpus") or 0 for share in shares),
        "threads_per_core": triple(None),
    }


def _sockets(share: Record, node: Record) -> list[Shape]:
    """Every core of the node's sockets, and whether the job has it."""
    each, threads = int(node.get("cores_per_socket") or 1), int(node.get("threads_per_core") or 1)
    held = {cpu // threads for cpu in share.get("cpu_ids") or ()}
    return [
        {
            "index": socket,
            "cores": [
                {"index": core, "status": ["ALLOCATED" if socket * each + core in held else "UNALLOCATED"]}
                for core in range(each)
            ],
        }
        for socket in range(int(node.get("sockets") or 0))
    ]


def _request(job: Record) -> Shape:
    return {
        "stdin_expanded": text_of(job, "std_in"),
        "stdout_expanded": text_of(job, "std_out"),
        "stderr_expanded": facts.error_file(job),
        "batch_features": "",
        "container_id": "",
        "container_type": "",
        "cron": "",
        "extra": "",
        "network": "",
        "mcs_label": "",
        "selinux_context": "",
        "burst_buffer": "",
        "burst_buffer_state": "",
        "cluster_features": "",
        "federation_origin": "",
        "federation_siblings_active": "",
        "federation_siblings_viable": "",
    }


# -- fields of the table ---------------------------------------------------------------------------------------------


def _memory(job: Record, per: str) -> int | None:
    """What was asked for each node, CPU or GPU; None: it was asked for each of something else."""
    return job.get("memory_mib") if job.get("memory_per") == per else None


def _mail_types(job: Record) -> list[str]:
    kinds = job.get("mail_type") or []
    return kinds.split(",") if isinstance(kinds, str) and kinds else list(kinds)


OWN: dict[str, Write] = {
    "array_max_tasks": lambda job: triple(job.get("array_throttle") or 0),
    "batch_flag": facts.is_batch,
    "command": lambda job: facts.command_line(job) if job.get("command") else "",
    "cpus_per_task": lambda job: triple(job.get("cpus_per_task") or 1),
    "mail_type": _mail_types,
    "mail_user": lambda job: text_of(job, "mail_user") or text_of(job, "user_name"),
    "max_nodes": lambda job: triple(0 if job.get("shares") else job.get("nodes_max") or 0),
    "maximum_switch_wait_time": lambda job: job.get("switches_wait_s") or 0,
    "memory_per_cpu": lambda job: triple(_memory(job, "cpu")),
    "memory_per_node": lambda job: triple(_memory(job, "node")),
    "minimum_tmp_disk_per_node": lambda job: triple(job.get("tmp_disk_mib") or 0),
    "priority": lambda job: triple(facts.priority(job)),
    "requeue": lambda job: job.get("requeue") is not False,
    "shared": lambda job: ["oversubscribe"] if job.get("oversubscribe") == "YES" else [],
    "standard_error": facts.error_file,
    "tasks": lambda job: triple(job.get("num_tasks") or 1),
    "tasks_per_core": lambda job: triple(job.get("ntasks_per_core") or None, infinite=True),
    "tasks_per_node": lambda job: triple(job.get("ntasks_per_node") or 0),
    "tasks_per_socket": lambda job: triple(job.get("ntasks_per_socket") or None, infinite=True),
    "thread_spec": lambda job: _NO_THREADS_SET_ASIDE,
    "time_limit": lambda job: triple(_minutes(job.get("time_limit_s")), infinite=True),
    "time_minimum": lambda job: triple(_minutes(job.get("time_min_s")) or 0),
    "tres_per_node": lambda job: tres_of(job.get("tres_per_node") or job.get("gres_requested")),
    "tres_per_task": _tres_per_task,
}
_NO_THREADS_SET_ASIDE = 32766
"""Slurm's number for it."""
_TABLED = tuple(
    (field.json, OWN[field.json] if Place.JSON in field.own else by_form(field)) for field in FIELDS if field.json
)
"""Each key of a field of the table, and how its value is written."""
