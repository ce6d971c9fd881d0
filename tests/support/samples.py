"""Samples for tests of the store of series: a node's GPUs, its tasks, rounds of them, and what is read back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bireme.core.telemetry.curves import Asked, Column, Curve
from bireme.core.telemetry.subjects import Subject
from bireme.ports import Sampled
from bireme.store.series.store import SqliteSeries

T0 = 1_790_000_000 // 432_000 * 432_000
"""A time at which windows of all levels begin."""
HOUR = 3600
DAY = 24 * HOUR


def gpu(no: int = 0, node: str = "n1") -> Subject:
    return Subject("gpu", node, f"GPU-{node}-{no}")


GPU = gpu()


def task(name: str, node: str = "n1") -> Subject:
    return Subject("task", node, name)


def sampled(
    at: float, subject: Subject | Sequence[Subject] = GPU, interval_s: float = 10.0, **values: object
) -> Sampled:
    """`values`: of each metric the values of all subjects, or of the one."""
    subjects = (subject,) if isinstance(subject, Subject) else tuple(subject)
    columns = {name: np.atleast_1d(np.asarray(column, np.float64)) for name, column in values.items()}
    return Sampled(at, interval_s, subjects, columns)


class Teller:
    """A gatherer: numbers its rounds."""

    def __init__(self, series: SqliteSeries, name: str = "g1") -> None:
        self.series = series
        self.name = name
        self.no = 0

    def tell(self, *samples: Sampled) -> None:
        self.no += 1
        self.series.append(self.name, self.no, samples)

    def tell_values(self, start: float, values: Sequence[float], step_s: float = 10.0, **more: object) -> None:
        """`gpu_power` of one GPU, a round for each."""
        for no, value in enumerate(values):
            self.tell(sampled(start + no * step_s, gpu_power=value, **more))  # type: ignore[arg-type]


def curves(series: SqliteSeries, start: float, end: float, step_s: float = 10.0, metric: str = "gpu_power",
           subjects: Sequence[Subject] = (GPU,)) -> list[Curve]:  # fmt: skip
    return series.read(Asked(subjects=subjects, metrics=(metric,), start=start, end=end, step_s=step_s))


def means(series: SqliteSeries, start: float, end: float, step_s: float = 10.0, **more: object) -> list[float | None]:
    """Of the one curve; empty if there is none."""
    found = curves(series, start, end, step_s, **more)  # type: ignore[arg-type]
    assert len(found) <= 1
    return [plain for one in found for plain in listed(one.mean)]


def listed(column: Column) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), 6) for value in column]
