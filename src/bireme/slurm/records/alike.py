"""Records of jobs that ended, in two parts: the fields of one alone, and a record that says the others for all like it.

Tens of thousands may be cancelled together while they wait, and an array has as many tasks that run one after another:
what such jobs share is worked out once, and held once against what the history has (`store/shapes.py`). `steps` asks
here for the rows of the history. Invariant: the two parts together are `job_record`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bireme.core.model.jobs import ArrayWaiting, Finished, Job, Outcome, Pending, Phase
from bireme.core.model.resources import NodeShare
from bireme.core.state.state import State
from bireme.slurm.records.jobs import FIELDS, Getter, JobView, job_record, what_was_asked

InTwoParts = tuple[dict[str, Any], Mapping[str, Any]]
"""The fields of its own, and a record that says the others."""

OF_ONE_THAT_WAITED = (
    "job_id", "array_job_id", "array_task_id", "array_tasks", "array_throttle", "priority", "submit_time",
    "eligible_time", "accrue_time", "end_time", "last_sched_time", "node_count", "std_in", "std_out", "std_err",
)  # fmt: skip
"""Fields in which jobs differ that never started, asked for the same and ended alike."""
OF_ONE_THAT_RAN = (
    "job_id", "array_job_id", "array_task_id", "priority", "time_limit_s", "submit_time", "eligible_time",
    "accrue_time", "start_time", "end_time", "elapsed_s", "suspended_s", "last_sched_time", "node_list", "batch_host",
    "shares", "exit_code", "exit_signal", "derived_exit_code", "derived_exit_signal", "restarts", "generation", "usage",
    "checkpoint", "saved_time", "unsaved_s", "std_in", "std_out", "std_err",
)  # fmt: skip
"""Fields in which jobs differ that ran on one node, asked for the same, got as much and ended alike."""
_MOST_KEPT = 1_000

_Own = tuple[tuple[str, Getter], ...]
_WAITED: _Own = tuple((name, FIELDS[name]) for name in OF_ONE_THAT_WAITED)
_RAN: _Own = tuple((name, FIELDS[name]) for name in OF_ONE_THAT_RAN)
_Got = tuple[Any, ...]
_known: dict[tuple[int, Outcome, _Got], tuple[dict[str, Any], dict[str, Any]]] = {}
"""The record of one, by the identity of what was asked (which is kept with it), how it ended and what it got."""


def in_two_parts(state: State, job: Job, phase: Phase, now: float) -> InTwoParts | None:
    """The record of a job that is about to be in `phase`; None: it shares too little with others."""
    if not isinstance(phase, Finished) or job.mirrored or job.het_job_id is not None:
        return None
    if phase.allocation is None:
        never = job.generation == 0 and job.restarts == 0 and isinstance(job.phase, Pending)
        return _parts(state, job, phase, now, _WAITED, ()) if never else None
    alone = len(phase.allocation.shares) == 1 and job.held_on_return is None and not isinstance(job.array, ArrayWaiting)
    return _parts(state, job, phase, now, _RAN, _got(phase.allocation.shares[0])) if alone else None


def _got(share: NodeShare) -> _Got:
    return share.cpus, share.memory_mib, share.tasks, share.gres


def _parts(state: State, job: Job, phase: Finished, now: float, own: _Own, got: _Got) -> InTwoParts:
    view = JobView(state, job, now, phase)
    asked = what_was_asked(view)
    key = (id(asked), phase.outcome, got)
    known = _known.get(key)
    if known is None or known[0] is not asked:
        if len(_known) >= _MOST_KEPT:
            _known.clear()
        known = _known[key] = (asked, job_record(state, job, now, phase=phase))
    return {name: get(view) for name, get in own}, known[1]
