"""Which start of which job it was: what nodes of a cluster call a job or a pod, in the daemon's own numbers.

Asked by `outer_door` for every round. A job counts on a node only if it had that node at that time: by the state, and
for rounds that come late by the history.
Invariant: of what had not that node at that time, nothing is attributed to any job.
"""

from __future__ import annotations

from collections.abc import Callable

from bireme.core.model.jobs import HOLDING, Finished, Job
from bireme.core.state.state import State
from bireme.daemon.telemetry.ownership import since
from bireme.daemon.telemetry.vetting import Start
from bireme.ports import Archive, ForeignQueue, HistoryQuery, KnowsPods, StoreError
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.hostlist import expand

_EARLY_S = 60.0
"""Slurm tells when a job began and ended in its own clock and in whole seconds."""


class Naming:
    """`state`: as it is now; `pods`: who knows whose a pod is, on Kubernetes. `queue`: of another scheduler, if one
    numbers the jobs: its numbers are then those that its nodes tell."""

    def __init__(
        self,
        state: Callable[[], State],
        archive: Archive,
        *,
        queue: ForeignQueue | None = None,
        pods: KnowsPods | None = None,
    ) -> None:
        self._state, self._archive, self._queue, self._pods = state, archive, queue, pods

    def knows_node(self, node: str) -> bool:
        return node in self._state().nodes

    def is_behind(self) -> bool:
        """Whether jobs may have begun or ended that are not known here yet, because nobody could look."""
        queue = self._queue
        return queue is not None and bool(queue.out_of_date("queue") or queue.out_of_date("history"))

    def running(self, name: str, node: str, at: float) -> Start | None:
        """By the state. None: not that, or it is not known yet."""
        if not name.isdigit():
            pod = name if "/" in name else name.removeprefix("pod-")  # a namespace may be called as it likes
            found = self._pods.start_of_pod(pod) if self._pods is not None else None
            return Start(*found[:2]) if found is not None and found[2] == node else None
        job = self._state().jobs.get(int(name)) if self._queue is not None else None
        return _start_then(job, node, at) if job is not None else None

    def past(self, name: str, node: str, at: float) -> Start | None:
        """By the history, earlier starts of requeued jobs too. Reads the disk."""
        if self._queue is None or not name.isdigit():
            return None
        try:
            records = self._archive.finished(HistoryQuery(jobs=((int(name), None),), duplicates=True))
        except StoreError:
            return None
        for record in records:
            began, ended = record.get("start_time") or 0.0, record.get("end_time") or 0.0
            had = record["job_id"] == int(name) and node in _nodes(str(record.get("node_list") or ""))
            if had and began - _EARLY_S <= at <= ended + _EARLY_S:
                return Start(int(name), int(record.get("generation") or 0))
        return None


def _start_then(job: Job, node: str, at: float) -> Start | None:
    phase = job.phase
    if isinstance(phase, Finished):
        if phase.allocation is None or phase.started_at is None or at > phase.ended_at + _EARLY_S:
            return None
        began, allocation = phase.started_at, phase.allocation
    elif isinstance(phase, HOLDING):
        began, allocation = since(phase), phase.allocation
    else:
        return None
    if node not in allocation.node_names or at < began - _EARLY_S:
        return None
    return Start(job.id, allocation.generation)


def _nodes(written: str) -> frozenset[str]:
    try:
        return frozenset(expand(written))
    except SlurmSyntaxError:
        return frozenset()
