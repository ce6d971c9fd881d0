"""What single facts about a job look like in squeue, scontrol and sacct: the rules more than one of them shares.

Records in, text out; `squeue`'s table is `squeue_fields`, `scontrol show job` is `show_job`.
"""

from __future__ import annotations

from bireme.slurm.formats.values import Context, Record, or_null, size, tres_per

REASON_SHOWN_FOR = frozenset({"PENDING", "RESV_DEL_HOLD", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE", "FAILED"})
"""States for which squeue's last column says why instead of where."""
FINISHED = frozenset({
    "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE",
    "OUT_OF_MEMORY",
})  # fmt: skip


def base_state(job: Record) -> str:
    """The outcome of a job that is completing, RUNNING while it is configured, as in Slurm; its state otherwise."""
    state = str(job["state"])
    if state == "CONFIGURING":
        return "RUNNING"
    return str(job.get("base_state") or state) if state == "COMPLETING" else state


def reason(job: Record) -> str:
    return str(job.get("reason") or "None")


def reason_word(job: Record) -> str:
    """The reason alone, without the names and remarks that people are shown with it."""
    text = reason(job)
    return "ReqNodeNotAvail" if text.startswith("Nodes_required_for_job") else text.partition(",")[0]


def reason_words(job: Record) -> str:
    """As squeue shows it: what Slurm stores as a sentence (`job requeued in held state`) with its spaces."""
    return reason(job).replace("_", " ")


def start_time(job: Record) -> float | None:
    """Actual or expected start."""
    started: float | None = job.get("start_time")
    if started is not None:
        return started
    if job["state"] in FINISHED:
        return job.get("end_time")
    expected: float | None = job.get("expected_start")
    return expected if expected is not None else job.get("begin_time")


START_NEEDS = ("start_time", "expected_start", "begin_time", "state", "end_time")


def end_time(job: Record) -> float | None:
    """Actual end, or the one its limit allows; None when there is no telling."""
    ended: float | None = job.get("end_time")
    if ended is not None:
        return ended
    started, limit = start_time(job), job.get("time_limit_s")
    return started + limit if started is not None and limit is not None else None


END_NEEDS = (*START_NEEDS, "time_limit_s")


def command_line(job: Record) -> str:
    """The script or program with its arguments."""
    return or_null(" ".join(filter(None, [str(job.get("command") or ""), *(job.get("argv") or ())])))


def elapsed(job: Record) -> float:
    return float(job.get("elapsed_s") or 0)


def min_cpus(job: Record) -> int:
    """The fewest CPUs a node must give: those of the tasks that have to run on it."""
    return int(job.get("cpus_per_task") or 1) * int(job.get("ntasks_per_node") or 1)


MIN_CPUS_NEEDS = ("cpus_per_task", "ntasks_per_node")


def min_memory(job: Record, context: Context) -> str:
    """Memory per node or per CPU; Slurm has no column for memory per GPU and shows 0."""
    if job.get("memory_per") == "gpu":
        return "0"
    return size(job.get("memory_mib"), "M", context)


def node_count(job: Record) -> int:
    return int(job.get("node_count") or job.get("nodes_min") or 1)


def per_node(job: Record) -> str:
    return tres_per(job.get("tres_per_node") or job.get("gres_requested"))


def is_batch(job: Record) -> bool:
    return str(job.get("kind") or "batch") == "batch"


def priority(job: Record) -> int:
    return int(job.get("priority") or 0)


def error_file(job: Record) -> str:
    """Named only where it is another file than the output's, as newer releases have it."""
    return "" if job.get("std_err") == job.get("std_out") else str(job.get("std_err") or "")
