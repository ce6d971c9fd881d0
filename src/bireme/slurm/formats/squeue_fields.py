"""squeue's fields for jobs: every letter of -o and every name of -O in the manual, over JobRecords.

What shows a field that was asked for is its row's (`slurm/job_fields`); what comes of a job's life is listed here.
Headers and the words for "nothing" (`(null)`, `N/A`, `n/a`, empty) differ from field to field in Slurm; they are kept
as Slurm prints them, because scripts compare with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bireme.slurm.formats import job_values as facts
from bireme.slurm.formats.fields import Field, FieldTable, SortKey, Text
from bireme.slurm.formats.identity import job_label, waiting_tasks
from bireme.slurm.formats.states import compact_state
from bireme.slurm.formats.values import NULL, Context, Record, short_duration, size, tres_per, tres_text
from bireme.slurm.job_fields.row import Form, JobField, Place, Squeue
from bireme.slurm.job_fields.table import FIELDS

_LABEL = (
    "job_id", "array_job_id", "array_task_id", "array_tasks", "array_throttle", "het_job_id", "het_offset",
)  # fmt: skip


def _value(key: str, missing: str = NULL) -> Text:
    """The record's own value, or the word for nothing."""

    def text(job: Record, _: Context) -> str:
        value = job.get(key)
        return missing if value is None or value == "" else str(value)

    return text


def _count(key: str, missing: str = "0") -> Text:
    def text(job: Record, _: Context) -> str:
        return str(job.get(key) or missing)

    return text


def _flag(key: str, default: bool = False) -> Text:
    def text(job: Record, _: Context) -> str:
        value = job.get(key)
        return "1" if (default if value is None else value) else "0"

    return text


def _system_comment(job: Record, _: Context) -> str:
    return str(job.get("system_comment") or NULL)


def _always(word: str) -> Text:
    return lambda _job, _context: word


def _stamp(get: Callable[[Record], float | None], missing: str = "N/A") -> Text:
    def text(job: Record, context: Context) -> str:
        at = get(job)
        return missing if at is None else context.stamp(at)

    return text


def _stamp_of(key: str) -> Text:
    return _stamp(lambda job: job.get(key))


def _tres(key: str) -> Text:
    return lambda job, _: tres_per(job.get(key)) or "N/A"


def _label(job: Record, context: Context) -> str:
    return job_label(job, context.bitstr_len)


def _label_key(job: Record, _: Context) -> tuple[int, int]:
    task = job.get("array_task_id")
    first = job.get("array_job_id") or job["job_id"]
    return int(first), (1 << 31) if task is None and job.get("array_tasks") else int(task or 0)


def _array_task(job: Record, context: Context) -> str:
    task = job.get("array_task_id")
    if task is not None:
        return str(task)
    return waiting_tasks(job, context.bitstr_len) or "N/A"


def _array_job(job: Record, _: Context) -> str:
    return str(job.get("array_job_id") or job["job_id"])


def _end(job: Record, context: Context) -> str:
    at = facts.end_time(job)
    if at is not None:
        return context.stamp(at)
    return "NONE" if job.get("start_time") is not None else "N/A"


def _time_used(job: Record, _: Context) -> str:
    return short_duration(facts.elapsed(job))


def _time_left(job: Record, _: Context) -> str:
    limit = job.get("time_limit_s")
    return short_duration(None if limit is None else limit - facts.elapsed(job))


def _reason_list(job: Record, _: Context) -> str:
    if facts.base_state(job) in facts.REASON_SHOWN_FOR:
        return f"({facts.reason_words(job)})"
    return str(job.get("node_list") or "")


def _priority_share(job: Record, _: Context) -> str:
    return f"{facts.priority(job) / 4294967295:.14f}"


def _batch_host(job: Record, _: Context) -> str:
    if job["state"] == "PENDING":
        return "n/a"
    host = job.get("batch_host") if facts.is_batch(job) else job.get("submit_host") or job.get("batch_host")
    return str(host or "n/a")


def _pending_seconds(job: Record, context: Context) -> str:
    started = job.get("start_time")
    until = started if started is not None else job.get("end_time") or context.now
    return str(max(0, int(until - (job.get("submit_time") or until))))


def _tres_alloc(job: Record, context: Context) -> str:
    return tres_text(job.get("tres_allocated") or job.get("tres_requested"), context) or "N/A"


def _exit_status(code: str, signal: str) -> Text:
    """-O exit_code is the raw wait status' code; a signal shows as its number, as Slurm's field does."""

    def text(job: Record, _: Context) -> str:
        return str(job.get(code) or job.get(signal) or 0)

    return text


def _max_nodes(job: Record, _: Context) -> str:
    return str(job.get("nodes_max") or facts.node_count(job))


def _number(key: str) -> Callable[[Record, Context], float]:
    return lambda job, _: job.get(key) or 0


def _of_checkpoint(key: str) -> Text:
    def text(job: Record, _: Context) -> str:
        value = (job.get("checkpoint") or {}).get(key)
        return "N/A" if value is None else str(value)

    return text


def _saved_at(job: Record) -> float | None:
    """When its newest checkpoint was written, or when it last said that it has saved its work."""
    known = [at for at in ((job.get("checkpoint") or {}).get("saved_at"), job.get("saved_time")) if at is not None]
    return max(known) if known else None


def _checkpoint_age(job: Record, context: Context) -> str:
    at = _saved_at(job)
    return "N/A" if at is None else short_duration(max(0, int(context.now - at)))


def _checkpoint_key(job: Record, _: Context) -> float:
    """The oldest last, those without any behind them."""
    at = _saved_at(job)
    return float("inf") if at is None else -at


_PRIORITY = lambda job, _: facts.priority(job)  # noqa: E731 - a sort key, used twice
_START = _stamp(facts.start_time)


def _sort_start(job: Record, _: Context) -> float:
    at = facts.start_time(job)
    return float("inf") if at is None else at


def _sort_end(job: Record, _: Context) -> float:
    at = facts.end_time(job)
    return float("inf") if at is None else at


_LETTERED = (
    Field("A", ("jobid",), "JOBID", ("job_id",), _value("job_id"), _number("job_id")),
    Field("B", ("batchhost",), "EXEC_HOST", ("batch_host", "state", "kind", "submit_host"), _batch_host),
    Field("c", ("mincpus",), "MIN_CPUS", facts.MIN_CPUS_NEEDS, lambda job, _: str(facts.min_cpus(job)),
          lambda job, _: facts.min_cpus(job)),
    Field("C", ("numcpus",), "CPUS", ("num_cpus",), _count("num_cpus", "1"), _number("num_cpus")),
    Field("D", ("numnodes",), "NODES", ("node_count", "nodes_min"), lambda job, _: str(facts.node_count(job)),
          lambda job, _: facts.node_count(job)),
    Field("e", ("endtime",), "END_TIME", facts.END_NEEDS, _end, _sort_end),
    Field("F", ("arrayjobid",), "ARRAY_JOB_ID", ("array_job_id", "job_id"), _array_job,
          lambda job, _: job.get("array_job_id") or job["job_id"]),
    Field("g", ("groupname",), "GROUP", ("group_name", "group_id"),
          lambda job, _: str(job.get("group_name") or job.get("group_id") or 0)),
    Field("G", ("groupid",), "GROUP", ("group_id",), _count("group_id"), _number("group_id")),
    Field("H", ("sockets",), "SOCKETS_PER_NODE", (), _always("*")),
    Field("i", ("jobarrayid",), "JOBID", _LABEL, _label, _label_key),
    Field("I", ("cores",), "CORES_PER_SOCKET", (), _always("*")),
    Field("J", ("threads",), "THREADS_PER_CORE", (), _always("*")),
    Field("K", ("arraytaskid",), "ARRAY_TASK_ID", ("array_task_id", "array_tasks", "array_throttle"), _array_task),
    Field("L", ("timeleft",), "TIME_LEFT", ("time_limit_s", "elapsed_s"), _time_left,
          lambda job, _: float("inf") if job.get("time_limit_s") is None
          else job["time_limit_s"] - facts.elapsed(job), cut=False),
    Field("m", ("minmemory",), "MIN_MEMORY", ("memory_mib", "memory_per"), facts.min_memory, _number("memory_mib")),
    Field("M", ("timeused",), "TIME", ("elapsed_s",), _time_used, lambda job, _: facts.elapsed(job),
          cut=False),
    Field("N", ("nodelist",), "NODELIST", ("node_list",), _value("node_list", "")),
    Field("p", ("priority",), "PRIORITY", ("priority",), _priority_share, _PRIORITY),
    Field("Q", ("prioritylong",), "PRIORITY", ("priority",), lambda job, _: str(facts.priority(job)), _PRIORITY),
    Field("r", ("reason",), "REASON", ("reason",), lambda job, _: facts.reason_words(job)),
    Field("R", ("reasonlist",), "NODELIST(REASON)", ("state", "base_state", "reason", "node_list"), _reason_list),
    Field("s", ("selectjobinfo",), "", (), _always("")),
    Field("S", ("starttime",), "START_TIME", facts.START_NEEDS, _START, _sort_start),
    Field("t", ("statecompact",), "ST", ("state",), lambda job, _: compact_state(job["state"])),
    Field("T", ("state",), "STATE", ("state",), _value("state")),
    Field("u", ("username",), "USER", ("user_name", "user_id"),
          lambda job, _: str(job.get("user_name") or job.get("user_id"))),
    Field("U", ("userid",), "UID", ("user_id",), _count("user_id"), _number("user_id")),
    Field("V", ("submittime",), "SUBMIT_TIME", ("submit_time",), _stamp_of("submit_time"), _number("submit_time")),
    Field("Y", ("schednodes",), "SCHEDNODES", ("planned_nodes",), _value("planned_nodes")),
    Field("z", ("sct",), "S:C:T", (), _always("*:*:*")),
)  # fmt: skip

_NAMED = (
    Field("", ("accruetime",), "ACCRUE_TIME", ("accrue_time",), _stamp_of("accrue_time")),
    Field("", ("allocsid",), "ALLOC_SID", (), _always("0")),
    Field("", ("associd",), "ASSOC_ID", (), _always("0")),
    Field("", ("batchflag",), "BATCH_FLAG", ("kind",), lambda job, _: "1" if facts.is_batch(job) else "0"),
    Field("", ("boardspernode",), "BOARDS_PER_NODE", (), _always("0")),
    Field("", ("burstbuffer",), "BURST_BUFFER", (), _always(NULL)),
    Field("", ("burstbufferstate",), "BURST_BUFFER_STATE", (), _always(NULL)),
    Field("", ("checkpoint",), "CHECKPOINT", ("checkpoint",), _of_checkpoint("path")),
    Field("", ("checkpointage",), "CHECKPOINT_AGE", ("checkpoint", "saved_time"), _checkpoint_age, _checkpoint_key,
          cut=False),
    Field("", ("checkpointstep",), "CHECKPOINT_STEP", ("checkpoint",), _of_checkpoint("step")),
    Field("", ("checkpointtime",), "CHECKPOINT_TIME", ("checkpoint", "saved_time"), _stamp(_saved_at)),
    Field("", ("cluster",), "CLUSTER", ("cluster",),
          lambda job, context: str(job.get("cluster") or context.cluster)),
    Field("", ("clusterfeature",), "CLUSTER_FEATURES", (), _always(NULL)),
    Field("", ("cpus-per-tres",), "CPUS_PER_TRES", ("cpus_per_tres",), _tres("cpus_per_tres")),
    Field("", ("delayboot",), "DELAY_BOOT", (), _always("0:00")),
    Field("", ("derivedec",), "DERIVED_EC", ("derived_exit_code", "derived_exit_signal"),
          _exit_status("derived_exit_code", "derived_exit_signal")),
    Field("", ("eligibletime",), "ELIGIBLE_TIME", ("eligible_time",), _stamp_of("eligible_time")),
    Field("", ("exit_code",), "EXIT_CODE", ("exit_code", "exit_signal"), _exit_status("exit_code", "exit_signal")),
    Field("", ("hetjobid",), "HET_JOB_ID", ("het_job_id",), _value("het_job_id", "N/A")),
    Field("", ("hetjobidset",), "HET_JOB_ID_SET", ("het_job_id",), _value("het_job_id", "N/A")),
    Field("", ("hetjoboffset",), "HET_JOB_OFFSET", ("het_job_id", "het_offset"),
          lambda job, _: str(job.get("het_offset") or 0) if job.get("het_job_id") else "N/A"),
    Field("", ("lastschedeval",), "LAST_SCHED_EVAL", ("last_sched_time",), _stamp_of("last_sched_time")),
    Field("", ("maxcpus",), "MAX_CPUS", ("num_cpus",), _count("num_cpus", "1")),
    Field("", ("mcslabel",), "MCSLABEL", (), _always(NULL)),
    Field("", ("mem-per-tres",), "MEM_PER_TRES", ("memory_per", "memory_mib"),
          lambda job, _: f"gres:gpu:{job['memory_mib']}" if job.get("memory_per") == "gpu" else "N/A"),
    Field("", ("network",), "NETWORK", (), _always(NULL)),
    Field("", ("ntperboard",), "NTASKS_PER_BOARD", (), _always("0")),
    Field("", ("origin",), "ORIGIN", (), _always("NA")),
    Field("", ("originraw",), "ORIGIN_RAW", (), _always("NA")),
    Field("", ("pendingtime",), "PENDING_TIME", ("submit_time", "start_time", "end_time"), _pending_seconds),
    Field("", ("preempttime",), "PREEMPT_TIME", ("preempt_time",), _stamp_of("preempt_time")),
    Field("", ("profile",), "PROFILE", (), _always("NotSet")),
    Field("", ("reboot",), "REBOOT", (), _always("0")),
    Field("", ("resizetime",), "RESIZE_TIME", (), _always("N/A")),
    Field("", ("restartcnt",), "RESTART_COUNT", ("restarts",), _count("restarts")),
    Field("", ("siblingsactive",), "ACTIVE_SIBLINGS", (), _always("NA")),
    Field("", ("siblingsactiveraw",), "ACTIVE_SIBLINGS_RAW", (), _always("NA")),
    Field("", ("siblingsviable",), "VIABLE_SIBLINGS", (), _always("NA")),
    Field("", ("siblingsviableraw",), "VIALBLE_SIBLINGS_RAW", (), _always("NA")),
    Field("", ("sperboard",), "SOCKETS_PER_BOARD", (), _always("0")),
    Field("", ("system_comment",), "SYSTEM_COMMENT", ("system_comment",), _system_comment),
    Field("", ("tres-alloc",), "TRES_ALLOC", ("tres_allocated", "tres_requested"), _tres_alloc),
    Field("", ("tres-bind",), "TRES_BIND", (), _always("N/A")),
    Field("", ("tres-freq",), "TRES_FREQ", (), _always("N/A")),
)  # fmt: skip


class Own(NamedTuple):
    """How squeue shows a field of the table that needs more than its form."""

    needs: tuple[str, ...]
    text: Text
    key: SortKey | None = None
    cut: bool = True
    also: tuple[str, ...] = ()
    """Further names for -O."""


OWN: dict[str, Own] = {
    "maxnodes": Own(("nodes_max", "node_count", "nodes_min"), _max_nodes),
    "mintime": Own(("time_min_s",), lambda job, _: short_duration(job.get("time_min_s") or 0)),
    "mintmpdisk": Own(
        ("tmp_disk_mib",),
        lambda job, context: size(job.get("tmp_disk_mib"), "M", context),
        _number("tmp_disk_mib"),
    ),
    "requeue": Own(("requeue",), _flag("requeue", default=True)),
    "command": Own(("command", "argv"), lambda job, _: facts.command_line(job)),
    "timelimit": Own(
        ("time_limit_s",),
        lambda job, _: short_duration(job.get("time_limit_s")),
        lambda job, _: float("inf") if job.get("time_limit_s") is None else job["time_limit_s"],
        cut=False,
    ),
    "tres-per-node": Own(
        ("tres_per_node", "gres_requested"), lambda job, _: facts.per_node(job) or "N/A", also=("gres",)
    ),
}
"""By the names of their columns."""


def _by_form(field: JobField, column: Squeue) -> Own:
    match field.shown_form:
        case Form.FLAG:
            text = _flag(field.record)
        case Form.MOMENT:
            text = _stamp_of(field.record)
        case Form.GRES | Form.GPUS:
            text = _tres(field.record)
        case _:
            text = _value(field.record, column.missing)
    return Own((field.record,), text, _number(field.record) if field.shown_form is Form.NUMBER else None)


def column_of(field: JobField) -> Field | None:
    """The column of squeue that shows a field of the table; None: it has none."""
    column = field.squeue
    if column is None:
        return None
    shown = OWN[column.name] if Place.SQUEUE in field.own else _by_form(field, column)
    names = (column.name, *shown.also)
    return Field(column.letter, names, column.header, shown.needs, shown.text, shown.key, shown.cut)


_TABLED = tuple(column for column in map(column_of, FIELDS) if column is not None)
JOB_FIELDS = FieldTable("job", _LETTERED + _NAMED + _TABLED)

DEFAULT_FORMAT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG_FORMAT = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
START_FORMAT = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
DEFAULT_SORT = "P,t,-p"
UNSORTABLE = frozenset("akoqrswxyAEFKRWXYZ")
"""Letters of --format that --sort refuses, as in Slurm."""
START_SORT = "S"
