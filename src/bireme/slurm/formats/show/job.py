"""`scontrol show job` and `show step`: records as blocks of `Key=Value` lines, in Slurm's order and spacing.

A block is a list of lines without indentation; `block_text` joins it, on one line with -o. Which keys stand on which
line is `LAYOUT`; what a field that was asked for is called is its row's (`slurm/job_fields`). Called by
`commands/scontrol`. Invariant: a field whose row has a key is shown, in the layout or on a line of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bireme.slurm.formats import job_values as facts
from bireme.slurm.formats.identity import waiting_tasks
from bireme.slurm.formats.values import (
    NULL,
    Context,
    Record,
    exit_text,
    gres_text,
    long_duration,
    or_null,
    size,
    tres_per,
    tres_text,
)  # fmt: skip
from bireme.slurm.formats.visible import visible
from bireme.slurm.hostlist import compress
from bireme.slurm.id_ranges import id_ranges
from bireme.slurm.job_fields.row import Form, JobField, Place
from bireme.slurm.job_fields.table import FIELDS


def block_text(lines: Sequence[str], *, oneliner: bool) -> str:
    """A block with its line breaks; -o puts everything on one line."""
    lines = [visible(line) for line in lines]
    return " ".join(lines) + "\n" if oneliner else "\n   ".join(lines) + "\n\n"


def _time(at: float | None, context: Context, missing: str = "Unknown") -> str:
    return missing if at is None else context.stamp(at)


Text = Callable[[Record, Context], str | None]
"""The value of a key; None: the key is left out."""

LAYOUT = """
JobId ArrayJobId ArrayTaskId ArrayTaskThrottle HetJobId HetJobOffset JobName
HetJobIdSet
UserId GroupId MCS_label
Priority Nice Account QOS
JobState Reason Dependency
Requeue Restarts BatchFlag Reboot ExitCode
DerivedExitCode
RunTime TimeLimit TimeMin
SubmitTime EligibleTime
AccrueTime
StartTime EndTime Deadline
PreemptTime
SuspendTime SecsPreSuspend LastSchedEval Scheduler
Partition AllocNode:Sid
ReqNodeList ExcNodeList
NodeList SchedNodeList
BatchHost
NumNodes NumCPUs NumTasks CPUs/Task ReqB:S:C:T
TRES
Socks/Node NtasksPerN:B:S:C CoreSpec
JOB_GRES
MinCPUsNode MinMemoryCPU MinMemoryNode MinTmpDiskNode
Features DelayBoot
?Reservation
OverSubscribe Contiguous Licenses Network
Command
WorkDir
AdminComment
SystemComment
Comment
Checkpoint CheckpointStep CheckpointTime
?CheckpointPath ?Heal
StdErr
StdIn
StdOut
Switches
Power
ExpeditedRequeue
CpusPerTres
MemPerTres
?TresPerJob
TresPerNode
?TresPerSocket
?TresPerTask
MailUser MailType
"""
"""Slurm's lines, by their keys. `?`: left out where the job has none of it, instead of a word for nothing. A field of
the table whose key is not here has a line of its own after these."""
_DETAILS = frozenset({"DerivedExitCode", "JOB_GRES"})
"""Lines with -d only; behind the second comes one for each part of the shares."""


def job_block(job: Record, context: Context, *, details: bool = False) -> list[str]:
    lines: list[str] = []
    for line in LINES:
        first = line[0][0]
        if not details and first in _DETAILS:
            continue
        told = [key + "=" + value for key, text in line if (value := text(job, context)) is not None]
        if told:
            lines.append(" ".join(told))
        if first == "JOB_GRES":
            lines += _nodes_of_shares(job)
    lines.append("")
    return lines


# -- what comes of a job's life --------------------------------------------------------------------------------------


def _of_array(text: Text) -> Text:
    return lambda job, context: text(job, context) if job.get("array_job_id") else None


def _of_het(text: Text) -> Text:
    def of_het(job: Record, context: Context) -> str | None:
        return text(job, context) if job.get("het_job_id") and not job.get("array_job_id") else None

    return of_het


def _array_task(job: Record, _: Context) -> str:
    task = job.get("array_task_id")
    return str(waiting_tasks(job) if task is None else task)


def _stamp(key: str) -> Text:
    return lambda job, context: _time(job.get(key), context)


def _whom(name: str, number: str) -> Text:
    return lambda job, _: f"{job.get(name) or job.get(number)}({job.get(number)})"


def _exit(code: str, signal: str) -> Text:
    return lambda job, _: exit_text(job.get(code), job.get(signal))


def _before_suspension(job: Record, _: Context) -> str:
    return str(int(facts.elapsed(job)) if job["state"] == "SUSPENDED" else 0)


def _when_said(key: str) -> Text:
    return lambda job, _: str(job[key]) if job.get(key) else None


def _preempted(job: Record, context: Context) -> str | None:
    at = job.get("preempt_time")
    return None if at is None else context.stamp(at)


def _num_nodes(job: Record, _: Context) -> str:
    if job["state"] == "PENDING" and job.get("nodes_max"):
        return f"{job.get('nodes_min') or 1}-{job['nodes_max']}"
    return str(facts.node_count(job))


def _tasks_per(job: Record, _: Context) -> str:
    per_socket, per_core = job.get("ntasks_per_socket") or "*", job.get("ntasks_per_core") or "*"
    return f"{job.get('ntasks_per_node') or 0}:0:{per_socket}:{per_core}"


def _min_memory(per_cpu: bool) -> Text:
    return lambda job, context: facts.min_memory(job, context) if (job.get("memory_per") == "cpu") is per_cpu else None


def _cpus_per_tres(job: Record, _: Context) -> str | None:
    return tres_per(job["cpus_per_tres"]) if job.get("cpus_per_tres") else None


def _memory_per_gpu(job: Record, _: Context) -> str | None:
    return f"gres:gpu:{job.get('memory_mib')}" if job.get("memory_per") == "gpu" else None


def _shared_gres(job: Record, _: Context) -> str | None:
    """All generic resources that the job holds."""
    shares = job.get("shares") or []
    totals: dict[str, int] = {}
    for gres in (gres for share in shares for gres in share.get("gres") or []):
        name = ":".join(filter(None, (gres["name"], gres.get("type"))))
        totals[name] = totals.get(name, 0) + gres["count"]
    return (",".join(f"{name}:{count}" for name, count in totals.items()) or NULL) if shares else None


def _nodes_of_shares(job: Record) -> list[str]:
    """What the job holds on which nodes, those with equal shares together, a line for each."""
    groups: dict[str, list[str]] = {}
    for share in job.get("shares") or []:
        held = f"CPU_IDs={id_ranges(share.get('cpu_ids') or ())} Mem={share.get('memory_mib') or 0} GRES="
        held += ",".join(_held_gres(gres) for gres in share.get("gres") or [])
        groups.setdefault(held, []).append(share["node"])
    return [f"  Nodes={compress(names)} {held}" for held, names in groups.items()]


def _held_gres(gres: Record) -> str:
    indices = gres.get("indices") or ()
    return gres_text(gres) + (f"(IDX:{id_ranges(indices)})" if indices else f"(CNT:{gres['count']})")


def _always(word: str) -> Text:
    return lambda _job, _context: word


def _of_checkpoint(key: str) -> Text:
    def text(job: Record, _: Context) -> str | None:
        value = (job.get("checkpoint") or {}).get(key)
        return None if value is None else str(value)

    return text


def _checkpoint_time(job: Record, context: Context) -> str | None:
    at = (job.get("checkpoint") or {}).get("saved_at")
    return None if at is None else context.stamp(at)


_FROM_ITS_LIFE: dict[str, Text] = {
    "SystemComment": lambda job, _: f"{job['system_comment']} " if job.get("system_comment") else None,
    "JobId": lambda job, _: str(job["job_id"]),
    "ArrayJobId": _when_said("array_job_id"),
    "ArrayTaskId": _of_array(_array_task),
    "ArrayTaskThrottle": _of_array(_when_said("array_throttle")),
    "HetJobId": _of_het(_when_said("het_job_id")),
    "HetJobOffset": _of_het(lambda job, _: str(job.get("het_offset") or 0)),
    "HetJobIdSet": _of_het(lambda job, _: str(job["het_job_id_set"])),
    "UserId": _whom("user_name", "user_id"),
    "GroupId": _whom("group_name", "group_id"),
    "MCS_label": _always("N/A"),
    "Priority": lambda job, _: str(facts.priority(job)),
    "JobState": lambda job, _: str(job["state"]),
    "Reason": lambda job, _: facts.reason(job),
    "Restarts": lambda job, _: str(job.get("restarts") or 0),
    "Checkpoint": _of_checkpoint("path"),
    "CheckpointStep": _of_checkpoint("step"),
    "CheckpointTime": _checkpoint_time,
    "BatchFlag": lambda job, _: str(int(facts.is_batch(job))),
    "Reboot": _always("0"),
    "ExitCode": _exit("exit_code", "exit_signal"),
    "DerivedExitCode": _exit("derived_exit_code", "derived_exit_signal"),
    "RunTime": lambda job, _: long_duration(facts.elapsed(job)),
    "SubmitTime": _stamp("submit_time"),
    "EligibleTime": lambda job, context: _time(job.get("eligible_time") or job.get("begin_time"), context),
    "AccrueTime": _stamp("accrue_time"),
    "StartTime": lambda job, context: _time(facts.start_time(job), context),
    "EndTime": lambda job, context: _time(facts.end_time(job), context),
    "PreemptTime": _preempted,
    "SuspendTime": lambda job, context: _time(job.get("suspend_time"), context, "None"),
    "SecsPreSuspend": _before_suspension,
    "LastSchedEval": lambda job, context: _time(job.get("last_sched_time") or job.get("start_time"), context),
    "Scheduler": _always("Main"),
    "NodeList": lambda job, _: job.get("node_list") or "",
    "SchedNodeList": _when_said("planned_nodes"),
    "BatchHost": _when_said("batch_host"),
    "NumNodes": _num_nodes,
    "NumCPUs": lambda job, _: str(job.get("num_cpus") or 1),
    "ReqB:S:C:T": _always("0:0:*:*"),
    "TRES": lambda job, context: or_null(tres_text(job.get("tres_allocated") or job.get("tres_requested"), context)),
    "Socks/Node": _always("*"),
    "NtasksPerN:B:S:C": _tasks_per,
    "JOB_GRES": _shared_gres,
    "MinCPUsNode": lambda job, _: str(facts.min_cpus(job)),
    "MinMemoryCPU": _min_memory(per_cpu=True),
    "MinMemoryNode": _min_memory(per_cpu=False),
    "DelayBoot": _always("00:00:00"),
    "Network": _always(NULL),
    "Power": _always(""),
    "CpusPerTres": _cpus_per_tres,
    "MemPerTres": _memory_per_gpu,
}


# -- fields of the table ---------------------------------------------------------------------------------------------


def _of_batch(text: Text) -> Text:
    return lambda job, context: text(job, context) if facts.is_batch(job) else None


def _switches(job: Record, _: Context) -> str | None:
    return f"{job['switches']}@{long_duration(job.get('switches_wait_s') or 0)}" if job.get("switches") else None


def _mail_type(job: Record, _: Context) -> str | None:
    kinds = job.get("mail_type") or ()
    return (kinds if isinstance(kinds, str) else ",".join(kinds)) or None


def _time_min(job: Record, _: Context) -> str:
    least = job.get("time_min_s")
    return "N/A" if least is None else long_duration(least)


def _core_spec(job: Record, _: Context) -> str:
    value = job.get("core_spec")
    return "*" if value is None else str(value)


def _then_blank(key: str) -> Text:
    """Slurm has a blank behind its comments."""
    return lambda job, _: f"{job[key]} " if job.get(key) else None


OWN: dict[str, Text] = {
    "AdminComment": _then_blank("admin_comment"),
    "AllocNode:Sid": lambda job, _: f"{or_null(job.get('submit_host'))}:0",
    "Command": lambda job, _: facts.command_line(job),
    "Comment": _then_blank("comment"),
    "CoreSpec": _core_spec,
    "CPUs/Task": lambda job, _: str(job.get("cpus_per_task") or 1),
    "ExpeditedRequeue": lambda job, _: "Yes" if job.get("expedite_requeue") else None,
    "MailType": _mail_type,
    "MailUser": lambda job, _: str(job.get("mail_user") or job.get("user_name")) if job.get("mail_type") else None,
    "MinTmpDiskNode": lambda job, context: size(job.get("tmp_disk_mib"), "M", context),
    "NumTasks": lambda job, _: str(job.get("num_tasks") or "N/A"),
    "OverSubscribe": lambda job, _: job.get("oversubscribe") or "OK",
    "Requeue": lambda job, _: "0" if job.get("requeue") is False else "1",
    "StdErr": _of_batch(lambda job, _: job.get("std_err") or or_null(job.get("std_out"))),
    "StdIn": _of_batch(lambda job, _: job.get("std_in") or "/dev/null"),
    "StdOut": _of_batch(lambda job, _: or_null(job.get("std_out"))),
    "Switches": _switches,
    "TimeLimit": lambda job, _: long_duration(job.get("time_limit_s")),
    "TimeMin": _time_min,
    "TresPerNode": lambda job, _: facts.per_node(job) or None,
}


def _by_form(field: JobField) -> Text:
    key = field.record
    match field.shown_form:
        case Form.FLAG | Form.CHOICE:
            return lambda job, _: str(int(bool(job.get(key))))
        case Form.NUMBER | Form.COUNT | Form.MEMORY:
            return lambda job, _: str(job.get(key) or 0)
        case Form.LIMIT:
            return lambda job, _: long_duration(job.get(key))
        case Form.MOMENT:
            return lambda job, context: _time(job.get(key), context, "N/A")
        case Form.GRES | Form.GPUS:
            return lambda job, _: or_null(tres_per(job.get(key)))
        case _:
            return lambda job, _: or_null(job.get(key))


def _if_any(field: JobField, text: Text) -> Text:
    return lambda job, context: text(job, context) if job.get(field.record) else None


def _lines() -> tuple[tuple[tuple[str, Text], ...], ...]:
    shown = {field.show: field for field in FIELDS if field.show}
    texts = {key: OWN[key] if Place.SHOW in field.own else _by_form(field) for key, field in shown.items()}
    texts = {**_FROM_ITS_LIFE, **texts, **{f"?{key}": _if_any(shown[key], text) for key, text in texts.items()}}
    written = [line.split() for line in LAYOUT.split("\n") if line]
    elsewhere = shown.keys() - {key.removeprefix("?") for line in written for key in line}
    more = [[f"?{key}"] for key in shown if key in elsewhere]
    return tuple(tuple((key.removeprefix("?"), texts[key]) for key in line) for line in (*written, *more))


LINES = _lines()
"""The keys of each line, with their texts."""


def step_block(step: Record, context: Context, label: str) -> list[str]:
    """`label` is the step's id as people read it, `42_7.0`."""
    numbered = isinstance(step["step_id"], int)
    tres = tres_text(step.get("tres_allocated"), context, alphabetical=True) if numbered else ""
    layout = f" Dist={str(step.get('layout') or 'Block').capitalize()}" if numbered else ""
    return [
        f"StepId={label} UserId={step.get('user_id') or 0} StartTime={_time(step.get('start_time'), context)} "
        f"TimeLimit={long_duration(step.get('time_limit_s'))}",
        f"State={step.get('state')} Partition={or_null(step.get('partition'))} "
        f"NodeList={or_null(step.get('node_list'))}",
        f"Nodes={step.get('node_count') or 1} CPUs={step.get('num_cpus') or 0 if numbered else 0} "
        f"Tasks={step.get('num_tasks') or 1} Name={or_null(step.get('name'))} Network=(null)",
        f"TRES={or_null(tres)}",
        "ResvPorts=(null)",
        f"CPUFreqReq=Default{layout}",
        f"SrunHost:Pid={or_null(step.get('submit_host'))}:{step.get('submit_pid') or 0}",
        *(_step_tres(step) if numbered else ()),
    ]


def _step_tres(step: Record) -> Iterator[str]:
    """What the step asked for, and of its job, where srun inherited that."""
    each = [f"cpu:{step['cpus_per_task']}"] if step.get("cpus_per_task") else []
    each += tres_per(step.get("tres_per_task")).split(",") if step.get("tres_per_task") else []
    yield f"TresPerStep=cpu:{(step.get('num_tasks') or 1) * (step.get('cpus_per_task') or 1)}"
    if step.get("tres_per_node"):
        yield f"TresPerNode={tres_per(step['tres_per_node'])}"
    if each:
        yield f"TresPerTask={','.join(each)}"
