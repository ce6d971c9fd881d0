"""sacct's fields, over jobs of the history and their steps.

What shows a field that was asked for is its row's (`slurm/job_fields`); what comes of a job's life is listed here. A
line is a job, or a step with its job. Many fields exist for one of the two only and are blank for the other, as in
Slurm. Besides Slurm 22.05's fields there are those that newer releases renamed or added (Planned, ...) and two that it
dropped but scripts still ask for: AllocGRES and ReqGRES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bireme.slurm.formats.accounting import AccountingField, AccountingText, field_map
from bireme.slurm.formats.identity import job_label
from bireme.slurm.formats.job_values import FINISHED, base_state
from bireme.slurm.formats.usage_values import USAGE_TEXTS, UsageText
from bireme.slurm.formats.values import (
    Context,
    Record,
    cpu_duration,
    exit_text,
    long_duration,
    size,
    tres_text,
)  # fmt: skip
from bireme.slurm.job_fields.row import JobField, Place
from bireme.slurm.job_fields.table import FIELDS

OVER = FINISHED | {"REQUEUED"}
"""States of rows that will not change: a requeued job has a row of its own for every allocation it had."""


IN_EVERY_LINE = (
    "job_id", "array_job_id", "array_task_id", "array_tasks", "array_throttle", "het_job_id", "het_offset", "user_id",
    "state", "base_state", "eligible_time", "start_time", "end_time", "elapsed_s",
)  # fmt: skip
"""Keys of a job's record by which it is chosen and named, and that say when it was: asked for, whatever is printed."""


class Row(NamedTuple):
    """A line of sacct: a job, or one of its steps."""

    job: Record
    step: Record | None = None

    @property
    def subject(self) -> Record:
        return self.job if self.step is None else self.step


def rows_of(job: Record, *, steps: bool = True) -> list[Row]:
    """A job's own line and, unless only allocations are asked for, one for each step: batch and extern first."""
    rows = [Row(job)]
    if steps:
        rows += [Row(job, step) for step in sorted(job.get("steps") or [], key=_step_order)]
    return rows


def _step_order(step: Record) -> tuple[int, int]:
    step_id = step["step_id"]
    if isinstance(step_id, int):
        return 1, step_id
    return 0, ("batch", "interactive", "extern").index(step_id) if step_id in ("batch", "interactive", "extern") else 3


def _job_word(key: str, missing: str = "") -> AccountingText:
    """A fact of the job, blank on its steps' lines."""

    def text(row: Row, _: Context) -> str:
        if row.step is not None:
            return ""
        value = row.job.get(key)
        return missing if value is None or value == "" else str(value)

    return text


def _both(key: str, missing: str = "") -> AccountingText:
    """A fact of the job that its steps' lines repeat."""

    def text(row: Row, _: Context) -> str:
        value = row.job.get(key)
        return missing if value is None or value == "" else str(value)

    return text


def _own(key: str, missing: str = "") -> AccountingText:
    """A fact that jobs and steps have each of their own."""

    def text(row: Row, _: Context) -> str:
        value = row.subject.get(key)
        return missing if value is None or value == "" else str(value)

    return text


def _blank(_row: Row, _context: Context) -> str:
    return ""


def _usage(text: UsageText) -> AccountingText:
    """Measured on steps only; a job's own line has none."""

    def of_row(row: Row, context: Context) -> str:
        if row.step is None or not row.step.get("usage"):
            return ""
        return text(row.step["usage"], context)

    return of_row


def _cpus(row: Row) -> int:
    if row.step is not None:
        return int(row.step.get("num_cpus") or (row.step.get("tres_allocated") or {}).get("cpu") or 0)
    held = (row.job.get("tres_allocated") or {}).get("cpu")
    return int(held or (row.job.get("tres_requested") or {}).get("cpu") or 0)  # asked for, until it has some


def _elapsed(row: Row) -> int:
    return int(row.subject.get("elapsed_s") or 0)


def _cpu_sum(*keys: str) -> AccountingText:
    """CPU time of a step, or of all steps for a job."""

    def text(row: Row, _: Context) -> str:
        parts = [row.step] if row.step is not None else list(row.job.get("steps") or ()) or [row.job]
        total = sum(float((part.get("usage") or {}).get(key) or 0) for part in parts for key in keys)
        return cpu_duration(total) if total else "00:00:00"

    return text


def _stamp(key: str, own: bool = True) -> AccountingText:
    def text(row: Row, context: Context) -> str:
        at = (row.subject if own else row.job).get(key)
        return "Unknown" if at is None else context.stamp(at)

    return text


def _start(row: Row, context: Context) -> str:
    at = row.subject.get("start_time")
    if at is not None:
        return context.stamp(at)
    return "None" if row.job["state"] in OVER else "Unknown"


def _end(row: Row, context: Context) -> str:
    """A running job's end_time is only expected: sacct says Unknown."""
    ended = row.subject.get("state") in OVER
    at = row.subject.get("end_time")
    return context.stamp(at) if ended and at is not None else "Unknown"


def _submit(row: Row, context: Context) -> str:
    at = row.job.get("submit_time") if row.step is None else row.step.get("start_time")
    return "Unknown" if at is None else context.stamp(at)


def _state(row: Row, _: Context) -> str:
    # The accounting learns the outcome when the job ends, before its nodes are cleared.
    state = base_state(row.job) if row.step is None else str(row.step.get("state") or "")
    by = row.subject.get("cancelled_by")
    return f"{state} by {by}" if state == "CANCELLED" and by is not None else state


def _job_id(row: Row, context: Context) -> str:
    label = job_label(row.job, context.bitstr_len)
    return label if row.step is None else f"{label}.{row.step['step_id']}"


def _raw_id(row: Row, _: Context) -> str:
    return str(row.job["job_id"]) if row.step is None else f"{row.job['job_id']}.{row.step['step_id']}"


def _exit(row: Row, _: Context) -> str:
    return exit_text(row.subject.get("exit_code"), row.subject.get("exit_signal"))


def _derived(row: Row, _: Context) -> str:
    if row.step is not None:
        return ""
    return exit_text(row.job.get("derived_exit_code"), row.job.get("derived_exit_signal"))


def _alloc_tres(row: Row, context: Context) -> str:
    return tres_text(row.subject.get("tres_allocated"), context, alphabetical=True)


def _req_tres(row: Row, context: Context) -> str:
    return "" if row.step is not None else tres_text(row.job.get("tres_requested"), context, alphabetical=True)


def _req_mem(row: Row, context: Context) -> str:
    if row.step is not None:
        return ""
    return size((row.job.get("tres_requested") or {}).get("mem"), "M", context)


def _gres(key: str) -> AccountingText:
    """`gpu:h100:8` from `gres/gpu:h100`=8: the form that old scripts split at the colons."""

    def text(row: Row, _: Context) -> str:
        tres: Mapping[str, Any] = (row.subject if key == "tres_allocated" else row.job).get(key) or {}
        names = [name for name in tres if name.startswith("gres/")]
        typed = {name.partition(":")[0] for name in names if ":" in name}
        kept = sorted(name for name in names if name not in typed)
        return ",".join(f"{name.removeprefix('gres/')}:{tres[name]}" for name in kept)

    return text


def _nodes(row: Row) -> int:
    return int(row.subject.get("node_count") or 0)


def _node_count(row: Row, _: Context) -> str:
    return str(_nodes(row) or row.job.get("nodes_min") or 1)


def _alloc_nodes(row: Row, _: Context) -> str:
    return str(_nodes(row) if row.subject.get("node_list") else 0)


def _time_limit(form: Callable[[float | None], str]) -> AccountingText:
    return lambda row, _: "" if row.step is not None else form(row.job.get("time_limit_s"))


def _raw_limit(seconds: float | None) -> str:
    return "UNLIMITED" if seconds is None else str(int(seconds) // 60)


def _waited_s(row: Row, context: Context) -> int | None:
    eligible = row.job.get("eligible_time")
    if row.step is not None or eligible is None:
        return None
    started = row.job.get("start_time")
    until = started if started is not None else row.job.get("end_time") or context.now
    return max(0, int(until - eligible))


def _waited(factor: Callable[[Row], int], form: Callable[[float], str]) -> AccountingText:
    def text(row: Row, context: Context) -> str:
        waited = _waited_s(row, context)
        return "" if waited is None else form(waited * factor(row))

    return text


def _requested_cpus(row: Row) -> int:
    return int((row.job.get("tres_requested") or {}).get("cpu") or row.job.get("num_cpus") or 1)


def _raw(value: float) -> str:
    return str(int(value))


def flags_of(job: Record) -> str:
    """Which scheduler started a job: here there is one."""
    return "None" if job.get("start_time") is None else "SchedMain"


def _flags(row: Row, _: Context) -> str:
    return "" if row.step is not None or row.job.get("start_time") is None else flags_of(row.job)


def _name(row: Row, _: Context) -> str:
    return str(row.subject.get("name") or "")


def _tasks(row: Row, _: Context) -> str:
    return "" if row.step is None else str(row.step.get("num_tasks") or 1)


def _layout(row: Row, _: Context) -> str:
    return "" if row.step is None else str(row.step.get("layout") or "Unknown").capitalize()


def _frequency(row: Row, _: Context) -> str:
    return "" if row.step is None else "0"


def _time(name: str, text: AccountingText, *needs: str) -> AccountingField:
    return AccountingField(name, 19, text, plain_cut=True, needs=needs)


def _f(name: str, width: int, text: AccountingText, *needs: str) -> AccountingField:
    return AccountingField(name, width, text, needs=needs)


_FROM_ITS_LIFE = (
    _f("AllocCPUS", 10, lambda row, _: str(_cpus(row)), "tres_allocated", "tres_requested"),
    _f("AllocGRES", 12, _gres("tres_allocated"), "tres_allocated"),
    _f("AllocNodes", 10, _alloc_nodes, "node_count", "node_list"),
    _f("AllocTRES", 10, _alloc_tres, "tres_allocated"),
    _f("AssocID", 7, lambda row, _: "0"),
    _f("BlockID", 16, _blank),
    _f("Cluster", 10, lambda row, context: str(row.job.get("cluster") or context.cluster), "cluster"),
    _f("CPUTime", 10, lambda row, _: long_duration(_elapsed(row) * _cpus(row)), "tres_allocated", "tres_requested"),
    _f("CPUTimeRAW", 10, lambda row, _: str(_elapsed(row) * _cpus(row)), "tres_allocated", "tres_requested"),
    AccountingField("DBIndex", 10, _both("job_id"), left=True),
    _f("DerivedExitCode", 15, _derived, "derived_exit_code", "derived_exit_signal"),
    _f("Elapsed", 10, lambda row, _: long_duration(_elapsed(row))),
    _f("ElapsedRaw", 10, lambda row, _: str(_elapsed(row))),
    _time("Eligible", lambda row, context: _stamp("eligible_time", own=False)(row, context)
          if row.step is None else _submit(row, context)),
    _time("End", _end),
    _f("ExitCode", 8, _exit, "exit_code", "exit_signal"),
    _f("Extra", 20, _blank),
    _f("FailedNode", 20, _blank),
    _f("Flags", 19, _flags),
    _f("GID", 6, _job_word("group_id"), "group_id"),
    _f("Group", 9, _job_word("group_name"), "group_name"),
    AccountingField("JobID", 12, _job_id, left=True),
    AccountingField("JobIDRaw", 12, _raw_id, left=True),
    _f("Layout", 9, _layout),
    _f("McsLabel", 12, _blank),
    _f("NCPUS", 10, lambda row, _: str(_cpus(row)), "tres_allocated", "tres_requested"),
    _f("NNodes", 8, _node_count, "node_count", "nodes_min"),
    _f("NodeList", 15, _own("node_list", "None assigned"), "node_list"),
    _f("NTasks", 8, _tasks),
    _f("Planned", 10, _waited(lambda _: 1, long_duration)),
    _f("PlannedCPU", 10, _waited(_requested_cpus, long_duration), "tres_requested", "num_cpus"),
    _f("PlannedCPURAW", 13, _waited(_requested_cpus, _raw), "tres_requested", "num_cpus"),
    _f("QOSRAW", 6, _blank),
    _f("QOSREQ", 10, _job_word("qos"), "qos"),
    _f("Reason", 22, _job_word("reason", "None"), "reason"),
    _f("ReqCPUFreq", 10, _frequency),
    _f("ReqCPUFreqGov", 13, _frequency),
    _f("ReqCPUFreqMax", 13, _frequency),
    _f("ReqCPUFreqMin", 13, _frequency),
    _f("ReqCPUS", 8, lambda row, _: str(_requested_cpus(row) if row.step is None else _cpus(row)),
       "tres_requested", "num_cpus"),
    _f("ReqGRES", 12, _gres("tres_requested"), "tres_requested"),
    _f("ReqMem", 10, _req_mem, "tres_requested"),
    _f("ReqNodes", 8, lambda row, _: str(row.job.get("nodes_min") or 1) if row.step is None else str(_nodes(row)),
       "nodes_min"),
    _f("ReqTRES", 10, _req_tres, "tres_requested"),
    _f("ReservationId", 8, _blank),
    _f("Reserved", 10, _waited(lambda _: 1, long_duration)),
    _f("Restarts", 8, _job_word("restarts", "0"), "restarts"),
    _f("ResvCPU", 10, _waited(_requested_cpus, long_duration), "tres_requested", "num_cpus"),
    _f("ResvCPURAW", 10, _waited(_requested_cpus, _raw), "tres_requested", "num_cpus"),
    _time("Start", _start),
    _f("State", 10, _state, "cancelled_by"),
    _time("Submit", _submit, "submit_time"),
    _f("Suspended", 10, lambda row, _: long_duration(row.subject.get("suspended_s") or 0), "suspended_s"),
    _f("SystemComment", 15, _job_word("system_comment"), "system_comment"),
    _f("SystemCPU", 10, _cpu_sum("system_cpu_s"), "usage"),
    _f("TimelimitRaw", 10, _time_limit(_raw_limit), "time_limit_s"),
    _f("TotalCPU", 10, _cpu_sum("user_cpu_s", "system_cpu_s"), "usage"),
    _f("UID", 6, _job_word("user_id")),
    _f("User", 9, _job_word("user_name"), "user_name"),
    _f("UserCPU", 10, _cpu_sum("user_cpu_s"), "usage"),
    _f("WCKeyID", 10, lambda row, _: "0"),
)  # fmt: skip


OWN: dict[str, AccountingText] = {
    "JobName": _name,
    "SubmitLine": _own("submit_line"),
    "Timelimit": _time_limit(long_duration),
}
"""How sacct shows fields of the table that need more than their record's value, by the names of their columns."""


def column_of(field: JobField) -> AccountingField | None:
    """The column of sacct that shows a field of the table; None: it has none."""
    column = field.sacct
    if column is None:
        return None
    by_record = _both if column.on_steps else _job_word
    text = OWN[column.name] if Place.SACCT in field.own else by_record(field.record)
    return _f(column.name, column.width, text, field.record)


_TABLED = tuple(column for column in map(column_of, FIELDS) if column is not None)
_USAGE_FIELDS = tuple(AccountingField(name, width, _usage(text)) for name, (width, text) in USAGE_TEXTS.items())

SACCT_FIELDS = field_map(sorted((*_FROM_ITS_LIFE, *_TABLED, *_USAGE_FIELDS), key=lambda field: field.name.lower()))
SACCT_ALIASES = {
    "exit": "exitcode", "job": "jobid", "name": "jobname", "nodes": "nnodes", "cputimeraw": "cputimeraw",
    "tresusageinmaxn": "tresusageinmaxnode", "tresusageinmaxt": "tresusageinmaxtask",
    "tresusageinminn": "tresusageinminnode", "tresusageinmint": "tresusageinmintask",
    "tresusageoutmaxn": "tresusageoutmaxnode", "tresusageoutmaxt": "tresusageoutmaxtask",
}  # fmt: skip

DEFAULT_FORMAT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
BRIEF_FORMAT = "JobID,State,ExitCode"
LONG_FORMAT = (
    "JobID,JobIDRaw,JobName,Partition,MaxVMSize,MaxVMSizeNode,MaxVMSizeTask,AveVMSize,MaxRSS,MaxRSSNode,MaxRSSTask,"
    "AveRSS,MaxPages,MaxPagesNode,MaxPagesTask,AvePages,MinCPU,MinCPUNode,MinCPUTask,AveCPU,NTasks,AllocCPUS,Elapsed,"
    "State,ExitCode,AveCPUFreq,ReqCPUFreqMin,ReqCPUFreqMax,ReqCPUFreqGov,ReqMem,ConsumedEnergy,MaxDiskRead,"
    "MaxDiskReadNode,MaxDiskReadTask,AveDiskRead,MaxDiskWrite,MaxDiskWriteNode,MaxDiskWriteTask,AveDiskWrite,ReqTRES,"
    "AllocTRES,TRESUsageInAve,TRESUsageInMax,TRESUsageInMaxNode,TRESUsageInMaxTask,TRESUsageInMin,TRESUsageInMinNode,"
    "TRESUsageInMinTask,TRESUsageInTot,TRESUsageOutMax,TRESUsageOutMaxNode,TRESUsageOutMaxTask,TRESUsageOutAve,"
    "TRESUsageOutTot"
)
