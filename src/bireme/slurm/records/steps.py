"""Steps as records, the batch script's own line included, and the rows that the history gets of a job's end.

Called by the API (live steps) and by the runtime (history, in the transaction that ends the job or step). Invariant:
a row of the history never says RUNNING.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bireme.core.kinds.kind import Entry, RunOver, StepOver
from bireme.core.model.distribution import NodeMethod
from bireme.core.model.jobs import Ending, Finished, Job, Phase, Suspended
from bireme.core.model.resources import SUCCESS, ExitStatus, GresShare, add_gres_tres
from bireme.core.model.steps import BATCH_STEP, Step, StepState, step_label
from bireme.core.state.state import State
from bireme.slurm.gres import format_gres
from bireme.slurm.records import values
from bireme.slurm.records.alike import in_two_parts
from bireme.slurm.records.jobs import JobView, job_record

ENDED_BY_FORCE = frozenset({"CANCELLED", "TIMEOUT", "PREEMPTED", "DEADLINE", "REQUEUED", "NODE_FAIL"})
"""Outcomes of a job that end its script from outside: Slurm calls the script's own line CANCELLED."""


@dataclass(frozen=True, slots=True)
class Row:
    """What the history keeps of a finished job (`step_id` None) or step; the runtime wraps it for the journal."""

    job_id: int
    step_id: int | None
    submitted_at: float
    restarts: int
    record: dict[str, Any]
    """All fields; where it is like another, those of its own."""
    like: Mapping[str, Any] | None = None
    """A record that says the other fields: tens of thousands may be like one."""

    @property
    def whole(self) -> dict[str, Any]:
        return self.record if self.like is None else {**self.like, **self.record}


def step_record(state: State, job: Job, step: Step, now: float, phase: Phase | None = None) -> dict[str, Any]:
    view = JobView(state, job, now, phase or job.phase)
    ended_at = step.ended_at if step.state is StepState.ENDED else view.ended_at
    code, signal = values.shown_status(step.status)
    shares = [(node.cpus, node.memory_mib, node.gres) for node in step.nodes]
    return {
        **_identity(view, step.id),
        "name": step.spec.name,
        "state": _step_state(view, step),
        "cancelled_by": step.cancelled_by,
        "exit_code": code,
        "exit_signal": signal,
        **_times(view, step.started_at or step.created_at, ended_at),
        "node_list": values.node_list(tuple(node.node for node in step.nodes)),
        "node_count": len(step.nodes),
        "num_tasks": step.ntasks,
        "num_cpus": sum(node.cpus for node in step.nodes),
        "tres_allocated": _tres(shares),
        "usage": values.usage_record(step.usage),
        "layout": _layout(step),
        "submit_line": step.spec.submit_line,
        "time_limit_s": step.spec.time_limit_s,
        "cpus_per_task": step.spec.cpus_per_task,
        "tres_per_node": _asked_per_node(job, step),
        "tres_per_task": format_gres(step.spec.gres_per_task),
        "nodes": [
            {
                "node": node.node,
                "task_ids": list(node.task_ids),
                "cpus": node.cpus,
                "gres": values.gres_records(node.gres),
            }
            for node in step.nodes
        ],
    }


def _asked_per_node(job: Job, step: Step) -> str:
    """What the job asked for stands before what the step does: both reach it."""
    both = (*job.spec.resources.gres_per_node, *(step.spec.gres_per_node or ()))
    return format_gres(tuple(dict.fromkeys(both)))


def batch_step_record(state: State, job: Job, now: float, phase: Phase | None = None) -> dict[str, Any] | None:
    """sacct's `42.batch`; None for a job that never started or has no script, as a het job's later components."""
    view = JobView(state, job, now, phase or job.phase)
    if not job.runs_script or view.allocation is None or view.started_at is None:
        return None
    share = view.allocation.shares[0]
    code, signal = values.shown_status(job.batch_status or SUCCESS)
    return {
        **_identity(view, BATCH_STEP),
        "name": "batch",
        "state": _batch_state(view),
        "cancelled_by": None,
        "exit_code": code,
        "exit_signal": signal,
        **_times(view, view.started_at, job.batch_ended_at or view.ended_at),
        "node_list": share.node,
        "node_count": 1,
        "num_tasks": 1,
        "num_cpus": share.cpus,
        "tres_allocated": _tres([(share.cpus, share.memory_mib, share.gres)]),
        "usage": values.usage_record(job.batch_usage),
        "layout": "Unknown",
        "submit_line": "",
        "time_limit_s": None,
        "cpus_per_task": None,
        "tres_per_node": "",
        "tres_per_task": "",
        "nodes": [{"node": share.node, "task_ids": [0], "cpus": share.cpus, "gres": values.gres_records(share.gres)}],
    }


def rows_of(state: State, entry: Entry, now: float) -> list[Row]:
    """What a kind puts into the history, as rows (`ports.Records`)."""
    match entry:
        case RunOver(job, phase):
            return history_rows(state, job, phase, now)
        case StepOver(job, step):
            return [step_row(state, job, step, now)]


def history_rows(state: State, job: Job, phase: Phase, now: float) -> list[Row]:
    """Rows of a job that is about to be in `phase`: the job, its script, and its steps still in memory."""
    parts = in_two_parts(state, job, phase, now) or (job_record(state, job, now, phase=phase), None)
    rows = [Row(job.id, None, job.submitted_at, job.restarts, *parts)]
    batch = batch_step_record(state, job, now, phase)
    if batch is not None:
        rows.append(_row(job, BATCH_STEP, batch))
    rows.extend(_row(job, step.id, step_record(state, job, step, now, phase)) for step in job.steps.values())
    return rows


def step_row(state: State, job: Job, step: Step, now: float) -> Row:
    """The row of a step that ended while its job goes on."""
    return _row(job, step.id, step_record(state, job, step, now))


def _row(job: Job, step_id: int | None, record: dict[str, Any]) -> Row:
    return Row(job.id, step_id, job.submitted_at, job.restarts, record)


def _identity(view: JobView, step_id: int) -> dict[str, Any]:
    return {
        "job_id": view.job.id,
        "array_job_id": view.job.array_job_id,
        "array_task_id": view.job.task_id,
        "step_id": step_id if step_id >= 0 else step_label(step_id),
        "user_id": view.owner.uid,
        "user_name": view.owner.user,
        "partition": view.allocation.partition if view.allocation else "",
    }


def _times(view: JobView, started: float, ended: float | None) -> dict[str, Any]:
    """A suspension of the job is one of all its steps; when it began in the middle of one, it counts in full."""
    suspended = min(view.suspended_s, max(0.0, (ended or view.now) - started))
    return {
        "start_time": started,
        "end_time": ended,
        "elapsed_s": values.elapsed_s(started, ended or view.now, suspended),
        "suspended_s": int(suspended),
    }


def _step_state(view: JobView, step: Step) -> str:
    if step.state is StepState.ENDED:
        return step.outcome
    if isinstance(view.phase, Finished):  # its job is gone, so it is too
        return "NODE_FAIL" if view.phase.outcome.state == "NODE_FAIL" else "CANCELLED"
    return "SUSPENDED" if isinstance(view.phase, Suspended) else "RUNNING"


def _batch_state(view: JobView) -> str:
    phase, status = view.phase, view.job.batch_status
    if isinstance(phase, Ending | Finished):
        word = phase.outcome.state
        if word in ENDED_BY_FORCE and not (status is not None and status.code):
            return "CANCELLED"
        return _batch_word(status) if status is not None else word
    if status is not None:
        return _batch_word(status)
    return "SUSPENDED" if isinstance(phase, Suspended) else "RUNNING"


def _batch_word(status: ExitStatus) -> str:
    """A script that a signal ended is cancelled, as a step is, though its job failed."""
    return "CANCELLED" if status.signal and not status.out_of_memory else _word(status)


def _word(status: ExitStatus) -> str:
    return "COMPLETED" if status.ok else "OUT_OF_MEMORY" if status.out_of_memory else "FAILED"


def _tres(shares: Iterable[tuple[int, int, tuple[GresShare, ...]]]) -> dict[str, int]:
    totals = {"cpu": 0, "mem": 0, "node": 0}
    for cpus, memory_mib, gres in shares:
        totals["cpu"] += cpus
        totals["mem"] += memory_mib
        totals["node"] += 1
        for share in gres:
            add_gres_tres(totals, share.name, share.type, share.count)
    return totals


def _layout(step: Step) -> str:
    """Where srun named no distribution, Slurm lays out by block once there are more tasks than nodes."""
    method = step.spec.distribution.nodes
    if method is None:
        method = NodeMethod.BLOCK if step.ntasks > len(step.nodes) else NodeMethod.CYCLIC
    return method.value.capitalize()
