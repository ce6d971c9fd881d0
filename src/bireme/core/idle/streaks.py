"""How long a GPU has been idle, as far as that is known: figures in steps of time, and one unbroken streak of low ones.

Called by the daemon's keeper (`daemon/idle`), with what was measured since it last asked. Pure; figures never come any
further than this: the kernel hears since when, and no figure.
Invariant: a streak holds no step that was busy and no time longer than `gap_s` of which nothing is known. So neither a
gatherer that was gone, nor a daemon that was, nor a clock that jumped makes anybody idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bireme.core.telemetry.curves import Column

NOTHING_KNOWN = "nothing is known of its GPUs yet"


@dataclass(frozen=True, slots=True)
class Streak:
    """Since when one GPU of a job has been idle, as far as it was measured."""

    known_until: float
    """The beginning of the newest step that was measured, which may still change and is looked at again."""
    since: float | None = None
    """It has been idle from then on; None: it is not."""
    percent: float = 0.0
    """The most that was measured since then."""
    measure: str = ""
    why: str = NOTHING_KNOWN
    """Why it is not idle."""

    @property
    def is_begun(self) -> bool:
        """Whether there was a figure of it at all."""
        return bool(self.measure)


@dataclass(frozen=True, slots=True)
class Figures:
    """One GPU's use over time: step `i` begins at `start + i * step_s`; NaN where nothing was measured."""

    start: float
    step_s: float
    percent: Column
    measures: Sequence[str]
    """By which metric, for each step."""


def begun(at: float) -> Streak:
    """Of a GPU that a job has from then on: nothing is known."""
    return Streak(known_until=at)


def extended(streak: Streak, figures: Figures, below_percent: float, gap_s: float) -> Streak:
    """With what was measured from `known_until` on. Steps from before then are passed over."""
    for index in np.flatnonzero(~np.isnan(figures.percent)).tolist():
        at = figures.start + index * figures.step_s
        if at < streak.known_until:
            continue
        streak = _with_step(streak, at, float(figures.percent[index]), figures.measures[index], below_percent, gap_s)
    return streak


def _with_step(streak: Streak, at: float, percent: float, measure: str, below: float, gap_s: float) -> Streak:
    if percent >= below:
        return Streak(at, None, percent, measure, f"{measure} was {percent:.0f}%")
    if streak.since is None or at - streak.known_until > gap_s:
        return Streak(at, at, percent, measure, "")
    return replace(streak, known_until=at, percent=max(streak.percent, percent), measure=measure)


def stale(streak: Streak, now: float, step_s: float, gap_s: float) -> bool:
    """Whether nothing of now is known: the newest figure is too old, or from a time that has not come."""
    return not -gap_s <= now - streak.known_until <= step_s + gap_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How all GPUs of one start of a job stand, by its rule."""

    job_id: int
    generation: int
    gpus: int
    at: float = 0.0
    """The newest figure of all of them: nothing later is known of one."""
    since: float | None = None
    """Idle, as the rule means it, without a break from then on; None: it is not, or nobody knows."""
    known: bool = False
    """Whether there is a figure of now of each of them."""
    why: str = NOTHING_KNOWN
    gpus_idle: int = 0
    percent: float = 0.0
    measure: str = ""
    memory_mib: int = 0


def together(unmeasured: Measured, streaks: Sequence[Streak], memory_mib: Sequence[int], gpus: str) -> Measured:
    """`unmeasured` with what is known of each of its GPUs. `gpus`: whether all of them have to be idle, or any."""
    assert streaks, "a job without GPUs is not asked about"
    assert len(streaks) == len(memory_mib)
    idle = [place for place, each in enumerate(streaks) if each.since is not None]
    times = [each.since for each in streaks if each.since is not None]
    since = None
    if times and (gpus == "any" or len(times) == len(streaks)):
        since = min(times) if gpus == "any" else max(times)
    busy = next((each for each in streaks if each.since is None), None)
    shown = [streaks[place] for place in idle] or list(streaks)
    return replace(
        unmeasured,
        at=min(each.known_until for each in streaks),
        since=since,
        known=True,
        why="" if since is not None else busy.why if busy is not None else NOTHING_KNOWN,
        gpus_idle=len(idle),
        percent=max(each.percent for each in shown),
        measure=shown[0].measure,
        memory_mib=sum(memory_mib[place] for place in idle),
    )
