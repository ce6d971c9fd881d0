"""Finds out why jobs ended that may be started again, and says so, of each end that awaits its verdict once.

The daemon makes it. The output is read, and the cause judged, as for whoever asks `GET /v1/jobs/JOB/diagnosis`; the
newest checkpoint is looked for meanwhile. What comes of it `core/faults/restarts` decides when it hears `InquestHeld`.
Invariant: every end is told of within `LIMIT_S`, if only that nobody could look; after a restart of the daemon too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from bireme.api.serving.turns import Slots
from bireme.core.faults.restarts.shelves import INQUESTS
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Quote
from bireme.core.model.jobs import Job
from bireme.core.telemetry.attribution import gpus_of
from bireme.daemon.cluster import Cluster
from bireme.daemon.faults.restarts.saving import CheckpointKeeper, saves

log = logging.getLogger("bireme.daemon")

LIMIT_S = 25.0
_AT_ONCE, _EACH = 6, 2
"""Ends that are looked into at a time, and of one user: nobody's flood keeps others waiting."""
_MOST_QUOTES, _LONGEST = 4, 500
_NEWS_S = 1.0
"""So much later than its program, which dies of it at once, the daemon may hear of a GPU that broke."""

Diagnose = Callable[[str, float], Awaitable[Mapping[str, Any]]]
"""By the job as people write it, and how long it may take: the answer of the API."""


class InquestKeeper:
    def __init__(self, cluster: Cluster, diagnose: Diagnose, checkpoints: CheckpointKeeper) -> None:
        self._cluster, self._diagnose, self._checkpoints = cluster, diagnose, checkpoints
        self._slots = Slots(_AT_ONCE, _EACH, spare=2)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """By job."""
        self._leave: Callable[[], None] = lambda: None

    def begin(self) -> None:
        self._leave = self._cluster.subscribe(self._committed)
        for job_id in list(INQUESTS.of(self._cluster.state)):
            self._look_into(job_id)

    async def close(self) -> None:
        self._leave()
        for task in (tasks := list(self._tasks.values())):
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    def _committed(self, events: Sequence[e.Recorded]) -> None:
        for recorded in events:
            if isinstance(recorded.event, e.JobEnding) and recorded.event.inquest:
                self._look_into(recorded.event.job_id)

    def _look_into(self, job_id: int) -> None:
        job = self._cluster.state.jobs.get(job_id)
        if job is None or job_id in self._tasks:
            return
        task = asyncio.get_running_loop().create_task(self._held(job, job.generation), name=f"inquest {job.label}")
        self._tasks[job_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job_id, None))

    async def _held(self, job: Job, generation: int) -> None:
        """Whatever happens here, it is told."""
        told: Mapping[str, Any] = {}
        try:
            async with asyncio.timeout(LIMIT_S), self._slots.held_by(job.spec.owner.uid):
                saved = self._checkpoints.look([job]) if saves(job) else asyncio.sleep(0)
                news = asyncio.sleep(_NEWS_S if _had_gpus(job) else 0.0)
                told, *_ = await asyncio.gather(self._diagnose(job.label, LIMIT_S), saved, news)
        except Exception as error:  # a bug, or a daemon that is busy, must not keep the job for a minute
            log.warning("why job %s ended could not be found out: %s", job.label, error or type(error).__name__)
        self._cluster.report([seen_from(told, job, generation, self._cluster.clock.now())])


def _had_gpus(job: Job) -> bool:
    return job.allocation is not None and gpus_of(job.allocation) > 0


def seen_from(told: Mapping[str, Any], job: Job, generation: int, now: float) -> o.InquestHeld:
    """What a diagnosis says, as the core hears it."""
    evidence = [each for each in told.get("evidence") or () if isinstance(each, Mapping)]
    nodes = job.allocation.node_names if job.allocation is not None else ()
    named = [str(each.get("node") or "") for each in evidence if each.get("node") in nodes]
    return o.InquestHeld(
        job_id=job.id,
        generation=generation,
        at=now,
        cause=str(told.get("cause") or ""),
        title=str(told.get("title") or "")[:_LONGEST],
        summary=str(told.get("summary") or "")[:_LONGEST],
        who=str(told.get("who") or ""),
        confidence=str(told.get("confidence") or "none"),
        is_hardware=bool(told.get("is_hardware")),
        node=named[0] if named else "",
        advice=next((str(text)[:_LONGEST] for text in told.get("actions") or ()), ""),
        quotes=tuple(
            Quote(
                text=str(each.get("text") or "")[:_LONGEST],
                source=str(each.get("source") or ""),
                at=float(each.get("time") or 0.0),
                node=str(each.get("node") or ""),
            )
            for each in evidence[:_MOST_QUOTES]
        ),
    )
