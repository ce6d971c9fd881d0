"""Asks experiment trackers for the losses of running jobs, where `detectors.loss` says so: a few jobs a minute.

Called by `keeper`. Invariant: a tracker that does not answer makes no trouble, and holds up no other detector.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bireme.core.faults.detection import loss
from bireme.core.faults.detection.thresholds import Thresholds
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Place
from bireme.core.model.jobs import Job, Running
from bireme.core.state.state import State
from bireme.ports import Experiments

EVERY_S = 60.0
_MOST = 50
"""Jobs that are asked about in a minute, in turns."""


class Losses:
    def __init__(self, experiments: Callable[[], Experiments | None], state: Callable[[], State]) -> None:
        self._experiments, self._state = experiments, state
        self._looked_at = -math.inf
        self._last = 0
        """The job that was asked about last."""

    async def look(self, thresholds: Thresholds, now: float) -> list[o.Observation]:
        experiments = self._experiments()
        if not thresholds.on(loss.DETECTOR) or experiments is None or now - self._looked_at < EVERY_S:
            return []
        self._looked_at = now
        found: list[o.Observation] = []
        for job in self._in_turn():
            told = (await experiments.of_job(job, ())).get("mlflow") or {}
            place = Place(job_id=job.id, generation=job.generation)
            found += loss.judge(place, _latest(told), thresholds, now)
        return found

    def _in_turn(self) -> list[Job]:
        running = self._state().holding
        tracked = [
            job
            for _, job in sorted(running.items())
            if isinstance(job.phase, Running) and job.tracked is not None and job.tracked.run_id
        ]
        after = [job for job in tracked if job.id > self._last]
        chosen = [*after, *(job for job in tracked if job.id <= self._last)][:_MOST]
        self._last = chosen[-1].id if chosen else 0
        return chosen


def _latest(told: dict[str, Any]) -> dict[str, float]:
    """A value that JSON has no word for comes as None: it is no number."""
    return {
        each["metric"]: math.nan if each["value"] is None else float(each["value"])
        for each in told.get("metrics") or ()
    }
