"""The lines of `seff`: those that people know from Slurm's contributed script, in its order, then ours.

Over what `GET /v1/jobs/{job}/report` tells of a job. Numbers in, text out. Invariant: a line of the script's is never
left out, nor changed in its form: programs read them. What was not measured is said so, in lines of ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from typing import Any

from bireme.slurm.formats.values import Record
from bireme.slurm.times import format_elapsed

RUNNING = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "STOPPED", "CONFIGURING"})
_UNITS = "KMGTP"
_LABELS = {"gpu_sm_active": "SM activity", "gpu_engine_active": "engine activity", "gpu_util": "utilisation"}


def size_text(kib: float) -> str:
    """`6.25 GB`, in steps of 1024 from kilobytes on."""
    if kib < 1:
        return "0.00 MB"
    power = min(int(log(kib) / log(1024)), len(_UNITS) - 1)
    return f"{kib / 1024**power:.2f} {_UNITS[power]}B"


def seff_lines(job: Record) -> Iterator[str]:
    had = job["had"]
    yield f"Job ID: {job['job_id']}"
    if job.get("array_job_id") and job.get("array_task_id") is not None:
        yield f"Array Job ID: {job['array_job_id']}_{job['array_task_id']}"
    yield f"Cluster: {job.get('cluster') or ''}"
    yield f"User/Group: {job.get('user_name') or ''}/{job.get('group_name') or ''}"
    yield f"State: {_state(job)}"
    if had["start"] is None:
        yield "Cores: 1" if had["cpus"] <= 1 else f"Cores: {had['cpus']}"
        yield f"Efficiency not available for jobs in the {job['state']} state."
        return
    yield from _cores(had)
    yield from _used(job)
    if not job["over"]:
        yield "WARNING: Efficiency statistics may be misleading for RUNNING jobs."
    yield from _gpus(job)
    yield from (f"Advice: {each['text']}" for each in job["advice"])
    total = job.get("sum") or {}
    if total.get("starts", 0) > 1:
        yield f"Starts: {total['starts']}, {format_elapsed(int(total['elapsed_s']))} together; the above is of the last"


def _state(job: Record) -> str:
    state = str(job["state"])
    if not job["over"]:
        return state
    return f"{state} (exit code {job.get('exit_code') or 0})"


def _cores(had: Record) -> Iterator[str]:
    nodes, cpus = max(1, had["nodes"]), had["cpus"]
    if cpus <= 1:
        yield f"Cores: {cpus}"
        return
    yield f"Nodes: {nodes}"
    yield f"Cores per node: {max(1, cpus // nodes)}"


def _used(job: Record) -> Iterator[str]:
    had, used = job["had"], job["efficiency"]
    cpu_s, held_s = used["cpu_used_s"] or 0.0, used["cpu_held_s"]
    share = 100.0 * cpu_s / held_s if held_s else 0.0
    yield f"CPU Utilized: {format_elapsed(int(cpu_s))}"
    yield f"CPU Efficiency: {share:.2f}% of {format_elapsed(int(held_s))} core-walltime"
    yield f"Job Wall-clock time: {format_elapsed(int(had['elapsed_s']))}"
    peak_kib = 1024.0 * (used["memory_peak_mib"] or 0.0)
    asked_kib = 1024.0 * had["memory_mib"]
    estimated = " (estimated maximum)" if used["memory_estimated"] and (job.get("num_tasks") or 1) > 1 else ""
    yield f"Memory Utilized: {size_text(peak_kib)}{estimated}"
    share = 100.0 * peak_kib / asked_kib if asked_kib else 0.0
    yield f"Memory Efficiency: {share:.2f}% of {size_text(asked_kib)}{_each(job)}"
    missing = [name for name, figure in (("CPU", "cpu_used_s"), ("Memory", "memory_peak_mib")) if used[figure] is None]
    if missing:
        yield f"Not measured: {', '.join(missing)}"


def _each(job: Record) -> str:
    """What that is for each core or node."""
    had = job["had"]
    if not had["memory_mib"]:
        return ""
    if job.get("memory_per") == "cpu":
        return f" ({size_text(1024.0 * had['memory_mib'] / max(1, had['cpus']))}/core)"
    return f" ({size_text(1024.0 * had['memory_mib'] / max(1, had['nodes']))}/node)"


def _gpus(job: Record) -> Iterator[str]:
    had, used, digest = job["had"], job["efficiency"], job.get("digest") or {}
    gpus: list[dict[str, Any]] = digest.get("gpus") or []
    if had["limit_s"]:
        share = 100.0 * had["elapsed_s"] / had["limit_s"]
        yield f"Wall-clock Efficiency: {share:.2f}% of {format_elapsed(int(had['limit_s']))} time limit"
    if had["waited_s"] is not None:
        yield f"Waited: {format_elapsed(int(had['waited_s']))}"
    if not had["gpus"] and not gpus:
        return
    yield f"GPUs: {had['gpus']}"
    if used["gpu_use"] is None and not any(gpu["use"] for gpu in gpus):
        yield f"GPU Efficiency: not measured ({job['unmeasured'] or 'no figures of its GPUs were taken'})"
        return
    if used["gpu_use"] is not None:
        what = _LABELS.get(next((gpu["by"] for gpu in gpus if gpu["by"]), ""), "use")
        yield f"GPU Efficiency: {used['gpu_use']:.2f}% ({what}) of {_hours(used['gpu_measured_s'])} GPU-hours measured"
    if used["tensor"] is not None:
        yield f"GPU Tensor Activity: {used['tensor']:.2f}%"
    yield from (f"GPU {_gpu_line(gpu)}" for gpu in gpus)
    if used["energy_j"] is not None:
        yield f"GPU Energy: {used['energy_j'] / 3.6e6:.3f} kWh"


def _gpu_line(gpu: Record) -> str:
    """`n1 GPU-5c: mean 43.1%, peak 99.0%, idle 00:10:00, memory 12.00 GB of 80.00 GB`."""
    parts = [f"mean {gpu['use']['mean']:.1f}%, peak {gpu['use']['peak']:.1f}%" if gpu["use"] else "use not measured"]
    if gpu["idle_s"] is not None and gpu["use"]:
        parts.append(f"idle {format_elapsed(int(gpu['idle_s']))}")
    if gpu["memory_mib"]:
        total = f" of {size_text(1024.0 * gpu['memory_total_mib'])}" if gpu["memory_total_mib"] else ""
        parts.append(f"memory {size_text(1024.0 * gpu['memory_mib']['peak'])}{total}")
    shared = " (shared)" if gpu["shared"] else ""
    return f"{gpu['node']} {gpu['uuid']}{shared}: {', '.join(parts)}"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600.0:.2f}"
