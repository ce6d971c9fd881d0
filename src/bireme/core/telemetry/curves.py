"""Curves: one metric of one subject over time, in equal steps, with the least, the mean and the most of each step.

Values that `store/series` reads and everybody who shows them takes: the API, timelines, reports, plots. Pure; what is
on disk is the store's.

Invariant: the three columns of a curve have the same length, and a step in which nothing was measured is NaN in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bireme.core.telemetry.metrics import About

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Subject:
    """What a series is of. Of a node its name, of a GPU its UUID, of a task `JOB.GENERATION.STEP.TASK`, of the use of a
    GPU by a task `JOB.GENERATION.STEP.TASK@UUID`."""

    about: About
    node: str
    id: str


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which curves: of these subjects, each in its own span, in steps of at least `step_s`."""

    subjects: Sequence[Subject]
    metrics: Sequence[str]
    start: float
    end: float
    step_s: float


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
