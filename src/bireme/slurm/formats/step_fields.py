"""squeue's fields for steps (`squeue -s`), over StepRecords.

A StepRecord does not say which array task its job is: the command adds `job_label` and `user_name` to it.
"""

from __future__ import annotations

from bireme.slurm.formats.fields import Field, FieldTable, Text
from bireme.slurm.formats.values import NULL, Context, Record, gres_text, short_duration


def _always(word: str) -> Text:
    return lambda _step, _context: word


def _label(step: Record, _: Context) -> str:
    return f"{step.get('job_label') or step['job_id']}.{step['step_id']}"


def _label_key(step: Record, _: Context) -> tuple[int, float]:
    step_id = step["step_id"]
    return int(step["job_id"]), float(step_id) if isinstance(step_id, int) else float("inf")


def _start(step: Record, context: Context) -> str:
    at = step.get("start_time")
    return "N/A" if at is None else context.stamp(at)


def _gres(step: Record, _: Context) -> str:
    on_first_node = (step.get("nodes") or [{}])[0].get("gres") or []
    return ",".join(f"gres:{gres_text(gres)}" for gres in on_first_node) or "N/A"


STEP_FIELDS = FieldTable("job step", (
    Field("A", ("numtasks",), "TASKS", ("num_tasks",), lambda step, _: str(step.get("num_tasks") or 1),
          lambda step, _: step.get("num_tasks") or 0),
    Field("b", ("tres-per-node", "gres"), "TRES_PER_JOB", ("nodes",), _gres),
    Field("i", ("stepid",), "STEPID", ("job_id", "step_id"), _label, _label_key),
    Field("j", ("stepname",), "NAME", ("name",), lambda step, _: str(step.get("name") or "")),
    Field("l", ("timelimit",), "TIME_LIMIT", ("time_limit_s",),
          lambda step, _: short_duration(step.get("time_limit_s"))),
    Field("M", ("timeused",), "TIME", ("elapsed_s",), lambda step, _: short_duration(step.get("elapsed_s") or 0),
          lambda step, _: step.get("elapsed_s") or 0, cut=False),
    Field("N", ("nodes",), "NODELIST", ("node_list",), lambda step, _: str(step.get("node_list") or "")),
    Field("P", ("partition",), "PARTITION", ("partition",), lambda step, _: str(step.get("partition") or "")),
    Field("S", ("starttime",), "START_TIME", ("start_time",), _start),
    Field("u", ("username",), "USER", ("user_id",),
          lambda step, _: str(step.get("user_name") or step.get("user_id"))),
    Field("U", ("userid",), "UID", ("user_id",), lambda step, _: str(step.get("user_id") or 0)),
    Field("", ("arrayjobid",), "ARRAY_JOB_ID", (), lambda step, _: str(step.get("array_job_id") or 0)),
    Field("", ("arraytaskid",), "ARRAY_TASK_ID", (),
          lambda step, _: "N/A" if step.get("array_task_id") is None else str(step["array_task_id"])),
    Field("", ("cluster",), "CLUSTER", (), lambda _, context: context.cluster),
    Field("", ("container",), "CONTAINER", (), _always(NULL)),
    Field("", ("cpufreq",), "CPU_FREQ", (), _always("Unknown-Unknown:Unknown")),
    Field("", ("cpus-per-tres",), "CPUS_PER_TRES", (), _always(NULL)),
    Field("", ("mem-per-tres",), "MEM_PER_TRES", (), _always(NULL)),
    Field("", ("network",), "NETWORK", (), _always(NULL)),
    Field("", ("numcpus",), "NUM_CPUS", ("num_cpus",), lambda step, _: str(step.get("num_cpus") or 0)),
    Field("", ("resvports",), "RESERVED_PORTS", (), _always(NULL)),
    Field("", ("stepstate",), "STATE", ("state",), lambda step, _: str(step.get("state") or "")),
    Field("", ("tres-bind",), "TRES_BIND", (), _always(NULL)),
    Field("", ("tres-freq",), "TRES_FREQ", (), _always(NULL)),
    Field("", ("tres-per-job", "tres-per-step"), "TRES_PER_STEP", (), _always(NULL)),
    Field("", ("tres-per-socket",), "TRES_PER_SOCKET", (), _always(NULL)),
    Field("", ("tres-per-task",), "TRES_PER_TASK", (), _always(NULL)),
))  # fmt: skip

DEFAULT_STEP_FORMAT = "%.15i %.8j %.9P %.8u %.9M %N"
DEFAULT_STEP_SORT = "P,i"
