"""Records of many jobs, with the same fields of each: what waiting jobs share is worked out once for an answer.

Of a queue of ten thousand nearly all wait for the same reason: their records differ in what was asked for, an id and a
priority. The API makes one `Records` for each answer that lists jobs; what a field means is said in `jobs`, and `alike`
does the like for those that ended. Invariant (tested): each record is `job_record`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bireme.core.model.jobs import Job, Pending
from bireme.core.state.state import State, Verdict
from bireme.slurm.records.jobs import FIELDS, JobView, job_record

OF_ALL_TOLD_THE_SAME = frozenset(
    (
        "array_job_id", "array_task_id", "array_tasks", "array_throttle", "het_job_id", "het_offset",
        "het_job_id_set", "state", "base_state", "reason", "reasons", "held_by", "cancelled_by", "start_time",
        "end_time", "expected_start", "elapsed_s", "suspended_s", "suspend_time", "preempt_time", "node_list",
        "planned_nodes", "batch_host", "shares", "tres_allocated", "exit_code", "exit_signal", "derived_exit_code",
        "derived_exit_signal", "restarts", "generation", "usage",
    )
)  # fmt: skip
"""Fields that jobs share which never ran and were told the same by the latest pass, whatever they ask for."""
_MOST_KEPT = 1_000


class Records:
    """Makes records for one answer."""

    def __init__(self, fields: Sequence[str] = ()) -> None:
        """`fields`: of each record; names that are no fields are left out. Nothing: all."""
        self._all = not fields
        self._fields = [(name, FIELDS[name]) for name in fields if name in FIELDS]
        self._own = [(name, get) for name, get in self._fields if name not in OF_ALL_TOLD_THE_SAME]
        self._known: dict[int, tuple[Verdict, dict[str, Any]]] = {}
        """The record of one that waits, by the identity of what it was told (which is kept with it)."""

    def of(self, state: State, jobs: Iterable[Job], now: float) -> list[dict[str, Any]]:
        if self._all:
            return [job_record(state, job, now) for job in jobs]
        return [self._of_one(JobView(state, job, now, job.phase)) for job in jobs]

    def _of_one(self, view: JobView) -> dict[str, Any]:
        verdict = view.state.verdicts.get(view.job.id)
        if verdict is None or not _waits_for_its_first_start(view.job):
            return {name: get(view) for name, get in self._fields}
        known = self._known.get(id(verdict))
        if known is None:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            known = self._known[id(verdict)] = (verdict, {name: get(view) for name, get in self._fields})
        record = known[1].copy()
        for name, get in self._own:
            record[name] = get(view)
        return record


def _waits_for_its_first_start(job: Job) -> bool:
    """As one job alone: not held, no part of another, on no node in particular, and planned here."""
    return (
        isinstance(job.phase, Pending)
        and job.phase.held_by is None
        and job.array is None
        and job.het_job_id is None
        and not job.mirrored
        and job.generation == 0
        and job.restarts == 0
        and not job.spec.resources.nodelist
    )
