"""A finished or running job with its steps as `sacct --json` of Slurm 26.05 writes it.

What was asked for is written as its row says (`slurm/job_fields`), what comes of a job's life is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bireme.slurm.formats.job_values import FINISHED, base_state, error_file
from bireme.slurm.formats.usage_values import Of, energy_j, figure
from bireme.slurm.formats.values import Record
from bireme.slurm.hostlist import expand
from bireme.slurm.job_fields.row import Place
from bireme.slurm.job_fields.table import FIELDS
from bireme.slurm.json_shapes.by_form import Write, by_form
from bireme.slurm.json_shapes.envelope import Shape, exit_shape, triple
from bireme.slurm.json_shapes.tres import tres_ids, tres_list


def accounting_shapes(jobs: Sequence[Record]) -> list[Shape]:
    ids = tres_ids(_tres_names(jobs))
    return [_job_shape(job, ids) for job in jobs]


def _tres_names(jobs: Iterable[Record]) -> Iterator[str]:
    for job in jobs:
        yield from job.get("tres_allocated") or ()
        yield from job.get("tres_requested") or ()
        for step in job.get("steps") or ():
            yield from step.get("tres_allocated") or ()
            usage = step.get("usage") or {}
            yield from (tres for tres, name in _GPU_FIGURES.items() if figure(usage, name) is not None)


def _job_shape(job: Record, ids: Mapping[str, int]) -> Shape:
    shape = _from_its_life(job, ids)
    for path, write in _TABLED:
        where = shape
        for part in path[:-1]:
            where = where.setdefault(part, {})
        where[path[-1]] = write(job)
    return shape


def _from_its_life(job: Record, ids: Mapping[str, int]) -> Shape:
    return {
        "job_id": job["job_id"],
        "user": job.get("user_name") or "",
        "group": job.get("group_name") or "",
        "cluster": job.get("cluster") or "",
        "qosreq": "",
        "sluid": "",
        "original_sluid": "",
        "nodes": job.get("node_list") or "None assigned",
        "allocation_nodes": (job.get("node_count") or 0) if job.get("node_list") else 0,
        "array": {
            "job_id": job.get("array_job_id") or 0,
            "limits": {"max": {"running": {"tasks": job.get("array_throttle") or 0}}},
            "task_id": triple(job.get("array_task_id")),
            "task": job.get("array_tasks") or "",
        },
        "het": {"job_id": job.get("het_job_id") or 0, "job_offset": triple(job.get("het_offset"))},
        "association": {
            "account": job.get("account") or "",
            "cluster": job.get("cluster") or "",
            "partition": "",
            "user": job.get("user_name") or "",
            "id": 0,
        },
        "state": {"current": [base_state(job)], "reason": job.get("reason") or "None"},
        "exit_code": exit_shape(job.get("exit_code"), job.get("exit_signal")),
        "derived_exit_code": exit_shape(job.get("derived_exit_code"), job.get("derived_exit_signal")),
        "time": {**_times(job, job.get("steps") or []), **_job_times(job)},
        "required": _required(job),
        "tres": {
            "allocated": tres_list(job.get("tres_allocated"), ids),
            "requested": tres_list(job.get("tres_requested"), ids),
        },
        "comment": {"system": job.get("system_comment") or ""},
        "flags": ["START_RECEIVED"] if job.get("start_time") else [],
        "hold": bool(job.get("held_by")),
        "kill_request_user": str(job["cancelled_by"]) if job.get("cancelled_by") is not None else "",
        "mcs": {"label": ""},
        "reservation": {"id": 0, "requested": ""},
        "restart_cnt": job.get("restarts") or 0,
        "script": "",
        **_files(job),
        "used_gres": "",
        "wckey": {"flags": []},
        "block": "",
        "extra": "",
        "failed_node": "",
        "steps": [_step_shape(job, step, ids) for step in job.get("steps") or []],
    }


def _job_times(job: Record) -> Shape:
    return {
        "eligible": int(job.get("eligible_time") or 0),
        "submission": int(job.get("submit_time") or 0),
        "planned": triple(max(0, int((job.get("start_time") or 0) - (job.get("eligible_time") or 0)))),
    }


def _files(job: Record) -> Shape:
    """By their names, patterns filled in: the same as those of the fields."""
    names = {"stdin": job.get("std_in") or "", "stdout": job.get("std_out") or "", "stderr": error_file(job)}
    return {f"{stream}_expanded": name for stream, name in names.items()}


def _split_seconds(seconds: float) -> Shape:
    return {"seconds": int(seconds), "microseconds": int(seconds * 1_000_000) % 1_000_000}


def _times(subject: Record, measured: list[Any]) -> Shape:
    """`measured`: whose usage adds up to the subject's."""
    user, system = (
        sum(float((part.get("usage") or {}).get(key) or 0) for part in measured)
        for key in ("user_cpu_s", "system_cpu_s")
    )
    return {
        "elapsed": int(subject.get("elapsed_s") or 0),
        "start": int(subject.get("start_time") or 0),
        "end": int(subject.get("end_time") or 0) if subject.get("state") in FINISHED else 0,
        "suspended": int(subject.get("suspended_s") or 0),
        "user": _split_seconds(user),
        "system": _split_seconds(system),
        "total": _split_seconds(user + system),
    }


def _required(job: Record) -> Shape:
    per, memory = job.get("memory_per"), job.get("memory_mib")
    return {
        "CPUs": (job.get("tres_requested") or {}).get("cpu") or job.get("num_cpus") or 1,
        "memory_per_cpu": triple(memory if per == "cpu" else None),
        "memory_per_node": triple(memory if per == "node" else None),
    }


_NO_FILES = dict.fromkeys(("stderr", "stdin", "stdout", "stderr_expanded", "stdin_expanded", "stdout_expanded"), "")
"""The files of a step are not kept."""


def _step_times(step: Record) -> Shape:
    """Of a step, begin and end are numbers that may be unset, and there is a limit."""
    times = _times(step, [step])
    return {**times, "start": triple(times["start"]), "end": triple(times["end"]), "limit": triple(None, infinite=True)}


def _step_shape(job: Record, step: Record, ids: Mapping[str, int]) -> Shape:
    nodes = step.get("node_list") or ""
    usage = step.get("usage") or {}
    return {
        "time": _step_times(step),
        "exit_code": exit_shape(step.get("exit_code"), step.get("exit_signal")),
        "nodes": {"count": step.get("node_count") or 0, "range": nodes, "list": expand(nodes) if nodes else []},
        "tasks": {"count": step.get("num_tasks") or 1},
        "CPU": _frequency(asked=step["step_id"] in ("batch", "extern")),
        "kill_request_user": str(step["cancelled_by"]) if step.get("cancelled_by") is not None else "",
        "state": [step.get("state") or ""],
        "statistics": {"CPU": {"actual_frequency": 0}, "energy": {"consumed": triple(energy_j(usage))}},
        "step": {"id": f"{job['job_id']}.{step['step_id']}", "name": step.get("name") or "", **_NO_FILES},
        "submit_line": step.get("submit_line") or "",
        "task": {"distribution": str(step.get("layout") or "Unknown")},
        "tres": {
            "requested": {
                "max": [*_peaks(usage), *_measured(usage, ids, "most")],
                "min": _measured(usage, ids, "least"),
                "average": [_energy(usage, "mean"), *_measured(usage, ids, "mean")],
                "total": [_energy(usage, "total"), *_measured(usage, ids, "total")],
            },
            "consumed": {
                "max": _written(usage, "most"),
                "min": _written(usage, "least"),
                "average": [_NO_ENERGY, *_written(usage, "mean")],
                "total": [_NO_ENERGY, *_written(usage, "total")],
            },
            "allocated": tres_list(step.get("tres_allocated"), ids),
        },
    }


_NO_ENERGY = {"type": "energy", "name": "", "id": 3, "count": 0}
_DISK = ("fs", "disk", 6)
_GPU_FIGURES = {"gres/gpumem": "gpu_memory_mib", "gres/gpuutil": "gpu_util"}
_FACTORS = {"read_kib": 1024, "written_kib": 1024, "gpu_memory_mib": 1 << 20}
"""What is told in bytes."""


def _energy(usage: Mapping[str, Any], of: Of) -> Shape:
    return {**_NO_ENERGY, "count": energy_j(usage, of)}


def _measured(usage: Mapping[str, Any], ids: Mapping[str, int], of: Of) -> list[Shape]:
    """What was seen of the step's tasks besides memory: pages, what was read, and the GPUs."""
    named = [("fs", "disk", 6, "read_kib"), ("pages", "", 8, "pages")]
    named += [("gres", tres.partition("/")[2], ids.get(tres, 0), name) for tres, name in _GPU_FIGURES.items()]
    return [_figure(found, each, of) for each in named if (found := figure(usage, each[3])) is not None]


def _written(usage: Mapping[str, Any], of: Of) -> list[Shape]:
    found = figure(usage, "written_kib")
    return [] if found is None else [_figure(found, (*_DISK, "written_kib"), of)]


def _figure(found: Mapping[str, Any], named: tuple[str, str, int, str], of: Of) -> Shape:
    kind, name, identity, of_step = named
    shape = {"type": kind, "name": name, "id": identity, "count": int(found[of] * _FACTORS.get(of_step, 1))}
    return shape if of not in ("least", "most") else {**shape, "task": found[f"{of}_task"], "node": found[f"{of}_node"]}


def _peaks(usage: Mapping[str, Any]) -> list[Shape]:
    """The most memory that a task had, and where: what was measured."""
    where = {"task": usage.get("max_rss_task") or 0, "node": usage.get("max_rss_node") or ""}
    measured = (("mem", 2, usage.get("max_rss_kib")), ("vmem", 7, usage.get("max_vmsize_kib")))
    return [
        {"type": kind, "name": "", "id": identity, "count": int(kib) * 1024, **where}
        for kind, identity, kib in measured
        if kib
    ]


def _frequency(*, asked: bool) -> Shape:
    """Clock rates are left alone. Slurm has zeros for a script and nothing for a step that srun started."""
    rate = triple(0 if asked else None)
    return {"requested_frequency": {"min": rate, "max": rate}, "governor": "0" if asked else "Unknown"}


# -- fields of the table ---------------------------------------------------------------------------------------------


def _limit(job: Record) -> Shape:
    limit = job.get("time_limit_s")
    return triple(None if limit is None else limit // 60, infinite=True)


OWN: dict[str, Write] = {
    "exclusive": lambda job: "NODE" if job.get("exclusive") else "NO",
    "oversubscribe": lambda job: "YES" if job.get("oversubscribe") == "YES" else "NO",
    "priority": lambda job: triple(job.get("priority") or 0),
    "stderr": error_file,
    "time/limit": _limit,
}
_TABLED = tuple(
    (field.accounting.split("/"), OWN[field.accounting] if Place.ACCOUNTING in field.own else by_form(field))
    for field in FIELDS
    if field.accounting
)
"""The path of each field of the table, and how its value is written."""
