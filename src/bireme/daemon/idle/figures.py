"""Reads from the series how the GPUs of jobs are used, and keeps for each how long it has been idle.

Called by `keeper` in a thread apart, one look after the other. Only what came since the last look is read; of a job
that is new here, as after a start of the daemon, also what was measured before. The rules are `core/idle/streaks`.
Invariant: a GPU of which one figure is missing at this moment is not known, and neither is its job.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bireme.core.idle.streaks import Figures, Measured, Streak, begun, extended, stale, together
from bireme.core.telemetry.attribution import HeldGpu
from bireme.core.telemetry.curves import Asked, Column, Curve
from bireme.core.telemetry.subjects import Subject
from bireme.ports import Series

STEP_S = 10.0
"""The finest cells of the series."""
_SM, _UTIL, _MEMORY = "gpu_sm_active", "gpu_util", "gpu_memory_used"
_USE, _USE_MEMORY = "use_gpu_util", "use_gpu_memory"


@dataclass(frozen=True, slots=True)
class Watched:
    """A start of a job whose GPUs are looked at, by what."""

    job_id: int
    generation: int
    gpus: tuple[HeldGpu, ...]
    below_percent: float
    of: str
    begins: float
    """It runs without a break from then on."""
    asks_from: float
    """What was measured before is not asked for."""


@dataclass(slots=True)
class _Kept:
    """What is remembered between two looks."""

    watched: Watched
    streaks: dict[str, Streak]
    memory_mib: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Read:
    figures: Figures
    memory_mib: int | None


class IdleFigures:
    """How long the GPUs of jobs have been idle."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}

    def look(self, series: Series, jobs: Sequence[Watched], now: float, gap_s: float) -> dict[int, Measured]:
        """How each of them stands, by what was measured until now. Raises SeriesError."""
        self._kept = {job.job_id: self._of(job, now) for job in jobs}
        by_start: dict[float, list[Watched]] = defaultdict(list)
        for job in jobs:
            by_start[self._from(job)].append(job)
        for start, group in by_start.items():
            self._read(series, group, start, now, gap_s)
        return {job.job_id: self._measured(job, now, gap_s) for job in jobs}

    def _of(self, job: Watched, now: float) -> _Kept:
        """What was known of it, unless the job, its GPUs, the rule or the clock is another now."""
        kept = self._kept.get(job.job_id)
        same = kept is not None and replace(kept.watched, asks_from=job.asks_from) == job
        if kept is None or not same or any(each.known_until > now + STEP_S for each in kept.streaks.values()):
            first = STEP_S * math.ceil(max(job.begins, job.asks_from) / STEP_S)  # a cell of before is another's too
            return _Kept(job, {gpu.uuid: begun(first) for gpu in job.gpus}, {})
        return kept

    def _from(self, job: Watched) -> float:
        return min(each.known_until for each in self._kept[job.job_id].streaks.values())

    def _read(self, series: Series, jobs: Iterable[Watched], start: float, now: float, gap_s: float) -> None:
        whole: dict[str, tuple[Watched, Subject]] = {}
        for job in jobs:
            for gpu in job.gpus:
                if not gpu.shared:
                    whole[gpu.uuid] = job, Subject("gpu", gpu.node, gpu.uuid)
            if any(gpu.shared for gpu in job.gpus):
                for uuid, read in _of_shared(series, job, start, now).items():
                    self._take(job, uuid, read, gap_s)
        if not whole:
            return
        subjects = [subject for _, subject in whole.values()]
        curves = _curves(series, subjects, (_SM, _UTIL, _MEMORY), start, now)
        for uuid, (job, subject) in whole.items():
            if (of_whole := _of_whole(curves, subject)) is not None:
                self._take(job, uuid, of_whole, gap_s)

    def _take(self, job: Watched, uuid: str, read: _Read, gap_s: float) -> None:
        kept = self._kept[job.job_id]
        gap_s = max(gap_s, 2.0 * read.figures.step_s)  # what is old is kept in longer steps
        kept.streaks[uuid] = extended(kept.streaks[uuid], read.figures, job.below_percent, gap_s)
        if read.memory_mib is not None:
            kept.memory_mib[uuid] = read.memory_mib

    def _measured(self, job: Watched, now: float, gap_s: float) -> Measured:
        kept = self._kept[job.job_id]
        unmeasured = Measured(job_id=job.job_id, generation=job.generation, gpus=len(job.gpus))
        silent = next((gpu for gpu in job.gpus if stale(kept.streaks[gpu.uuid], now, STEP_S, gap_s)), None)
        if silent is not None:
            return replace(unmeasured, why=f"there is no figure of now of {silent.uuid} on {silent.node}")
        streaks = [kept.streaks[gpu.uuid] for gpu in job.gpus]
        if not all(streak.is_begun for streak in streaks):
            return unmeasured
        memory = [kept.memory_mib.get(gpu.uuid, 0) for gpu in job.gpus]
        return together(unmeasured, streaks, memory, job.of)


def _curves(
    series: Series, subjects: Sequence[Subject], metrics: Sequence[str], start: float, end: float
) -> dict[tuple[Subject, str], Curve]:
    through = end + STEP_S  # what was measured at this very moment is the first of its cell
    asked = Asked(subjects=subjects, metrics=metrics, start=start, end=through, step_s=STEP_S)
    return {(curve.subject, curve.metric): curve for curve in series.read(asked)}


def _of_whole(curves: dict[tuple[Subject, str], Curve], subject: Subject) -> _Read | None:
    """By the activity of the multiprocessors where that was measured, else by what the driver calls utilisation."""
    best, util = curves.get((subject, _SM)), curves.get((subject, _UTIL))
    curve = best or util
    if curve is None:
        return None
    unknown = np.full(len(curve), np.nan)
    active, used = (each.high if each is not None else unknown for each in (best, util))
    known = ~np.isnan(active)
    figures = Figures(
        curve.start, curve.step_s, np.where(known, active, used), [_SM if each else _UTIL for each in known]
    )
    return _Read(figures, _newest(curves.get((subject, _MEMORY))))


def _of_shared(series: Series, job: Watched, start: float, now: float) -> dict[str, _Read]:
    """By the job's own processes on each GPU. A step in which one of them has no figure is not known."""
    found: dict[str, _Read] = {}
    subjects = series.subjects("use", f"{job.job_id}.{job.generation}.", start, now)
    curves = _curves(series, subjects, (_USE, _USE_MEMORY), start, now) if subjects else {}
    for gpu in job.gpus:
        own = [subject for subject in subjects if subject.id.endswith(f"@{gpu.uuid}")]
        some = next((curves[key] for key in curves if key[0] in own), None)
        if gpu.shared and some is not None:
            used, unknown = np.full(len(some), np.nan), np.zeros(len(some), dtype=bool)
            for subject in own:
                used = _added(used, curves.get((subject, _USE)))
                unknown |= _untold(curves.get((subject, _USE)), curves.get((subject, _USE_MEMORY)), len(some))
            figures = Figures(some.start, some.step_s, np.where(unknown, np.nan, used), [_USE] * len(some))
            memory = sum(_newest(curves.get((subject, _USE_MEMORY))) or 0 for subject in own)
            found[gpu.uuid] = _Read(figures, memory)
    return found


def _added(total: Column, curve: Curve | None) -> Column:
    if curve is None:
        return total
    return np.where(np.isnan(curve.high), total, np.nan_to_num(total) + np.nan_to_num(curve.high))


def _untold(use: Curve | None, memory: Curve | None, steps: int) -> NDArray[np.bool_]:
    """Steps in which its processes were on the GPU and nobody knows what they did."""
    there = ~np.isnan(memory.high) if memory is not None else np.zeros(steps, dtype=bool)
    told = ~np.isnan(use.high) if use is not None else np.zeros(steps, dtype=bool)
    return there & ~told


def _newest(curve: Curve | None) -> int | None:
    if curve is None:
        return None
    known = curve.mean[~np.isnan(curve.mean)]
    return int(known[-1]) if len(known) else None
