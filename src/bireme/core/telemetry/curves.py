"""Curves: one metric of one subject over time, in equal steps, with the least, the mean and the most of each step.

Values that `store/series` reads and everybody who shows them takes: the API, timelines, reports, plots. Pure; what is
on disk is the store's.

Invariant: the three columns of a curve have the same length, and a step in which nothing was measured is NaN in all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bireme.core.telemetry.subjects import Subject

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """`low`, `mean` and `high` of step i are those of the seconds from `start + i * step_s` on."""

    subject: Subject
    metric: str
    start: float
    step_s: float
    low: Column
    mean: Column
    high: Column

    def __post_init__(self) -> None:
        assert len(self.low) == len(self.mean) == len(self.high), self.metric

    def __len__(self) -> int:
        return len(self.mean)


Times = tuple[tuple[float, float], ...]
"""From when to before when, each."""


@dataclass(frozen=True, slots=True)
class Own:
    """When a subject was somebody's, and when it was another's: a GPU that jobs have one after the other."""

    mine: Times
    others: Times = ()

    def holds(self, begin: Column, end: Column) -> NDArray[np.bool_]:
        """Of spans of time: which lie in that somebody's time, and in nobody else's even in part."""
        return _touched(self.mine, begin, end) & ~_touched(self.others, begin, end)

    def has_sample(self, at: Column, interval_s: float) -> NDArray[np.bool_]:
        """Of samples, each of which tells of the time since the one before it: which were taken in that somebody's
        time, and tell of nobody else's."""
        return _touched(self.mine, at, np.nextafter(at, np.inf)) & ~_touched(self.others, at - interval_s, at)


def _touched(times: Times, begin: Column, end: Column) -> NDArray[np.bool_]:
    """Which spans share some moment with any of the times: by their end more of these have begun than were over."""
    begun = np.searchsorted(np.sort([first for first, _ in times]), end, "left")
    over = np.searchsorted(np.sort([last for _, last in times]), begin, "right")
    return np.asarray(begun > over)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which curves: of these subjects, in steps of at least `step_s`. Of one that is in `own`, only what was measured
    in time of its own: what is another's is left out before steps are made of it."""

    subjects: Sequence[Subject]
    metrics: Sequence[str]
    start: float
    end: float
    step_s: float
    own: Mapping[Subject, Own] = field(default_factory=dict)


def coarser(columns: tuple[Column, Column, Column], times: int) -> tuple[Column, Column, Column]:
    """(low, mean, high) of steps `times` as long; the last may be shorter. A step counts as far as it was measured."""
    low, mean, high = columns
    missing = -len(mean) % times
    padded = [np.append(column, np.full(missing, np.nan)).reshape(-1, times) for column in (low, mean, high)]
    known = ~np.isnan(padded[1])
    count = known.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        total = np.where(known, padded[1], 0.0).sum(axis=1)
        means = np.where(count > 0, total / count, np.nan)
    lows = np.where(np.isnan(padded[0]), np.inf, padded[0]).min(axis=1)
    highs = np.where(np.isnan(padded[2]), -np.inf, padded[2]).max(axis=1)
    return np.where(count > 0, lows, np.nan), means, np.where(count > 0, highs, np.nan)


def plain(column: Column) -> list[Any]:
    """For JSON: None where nothing was measured."""
    return [None if np.isnan(value) else float(value) for value in column]
