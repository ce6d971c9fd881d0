"""Curves of a job as lanes of its timeline: its GPUs one by one while they are few, together where they are many.

Called by `api/looking_back/timelines` with what the store of series has. What the GPU's hardware counted (tensor cores,
multiprocessors) stands before "util", which is time in which anything at all ran. Pure.
Invariant: a step in which nothing was measured is NaN, also in a sum: nothing is made up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bireme.core.telemetry.curves import Column, Curve
from bireme.core.telemetry.metrics import BY_NAME
from bireme.core.telemetry.timeline import Lane, Line, Mark

MOST_LINES = 8
"""Of one lane; more GPUs are drawn as their least, mean and most."""
OUTPUTS = {"out": "output_position", "err": "error_position"}
"""How far a script's output has come, by the stream; see `log_lines`."""


@dataclass(frozen=True, slots=True)
class _Sort:
    metric: str
    title: str
    top: float | None = None
    summed: bool = False
    """Of tasks: what they have together."""


_LANES = (
    _Sort("gpu_tensor_active", "tensor cores", 100.0),
    _Sort("gpu_sm_active", "SMs active", 100.0),
    _Sort("gpu_util", "GPU util", 100.0),
    _Sort("use_gpu_util", "its GPU share", 100.0),
    _Sort("gpu_memory_used", "GPU memory"),
    _Sort("use_gpu_memory", "its GPU memory", summed=True),
    _Sort("gpu_power", "GPU power"),
    _Sort("gpu_temperature", "GPU heat"),
    _Sort("cpu_user", "CPUs", summed=True),
    _Sort("memory", "memory", summed=True),
    _Sort("io_read", "read", summed=True),
    _Sort("io_written", "written", summed=True),
)
METRICS = tuple(sort.metric for sort in _LANES)
REAL_USE = ("gpu_tensor_active", "gpu_sm_active")
"""Counted by the GPU's hardware; where one is known it is the better answer than util."""


def lanes_of(curves: Sequence[Curve], names: Mapping[str, str]) -> list[Lane]:
    """`names`: of GPUs, by their UUID."""
    by_metric: dict[str, list[Curve]] = {}
    for curve in curves:
        by_metric.setdefault(curve.metric, []).append(curve)
    return [_lane(sort, by_metric[sort.metric], names) for sort in _LANES if sort.metric in by_metric]


@dataclass(frozen=True, slots=True)
class Logged:
    """What a job's program wrote into its run in an experiment tracker."""

    link: str
    curves: Mapping[str, Sequence[tuple[float, float]]]
    """(time, value) by the metric."""
    absent: tuple[str, ...] = ()
    """What of it is not known, a sentence each."""


def logged_lanes(logged: Logged, start: float, end: float, points: int) -> list[Lane]:
    """A mark with the run's address where the job began, and a lane for each metric, which has a scale of its own."""
    lanes = [Lane("run", "run", marks=(Mark(start, "its run in MLflow", "note", logged.link),))] if logged.link else []
    about = "what the job's program logged under this name"
    for metric, curve in sorted(logged.curves.items()):
        line = _binned(metric, curve, start, end, points)
        if line is not None:
            lanes.append(Lane(f"logged {metric}", metric, lines=(line,), about=about))
    return lanes


def _binned(name: str, curve: Sequence[tuple[float, float]], start: float, end: float, points: int) -> Line | None:
    """Points at any time as equal steps; of those outside the axis nothing. None: there are none within."""
    within = np.array([(at, value) for at, value in curve if start <= at <= end], dtype=np.float64).reshape(-1, 2)
    if not len(within) or end <= start:
        return None
    step_s = (end - start) / points
    places = np.minimum(((within[:, 0] - start) / step_s).astype(np.int64), points - 1)
    low, high, total = np.full(points, np.inf), np.full(points, -np.inf), np.zeros(points)
    np.minimum.at(low, places, within[:, 1])
    np.maximum.at(high, places, within[:, 1])
    np.add.at(total, places, within[:, 1])
    count = np.bincount(places, minlength=points)
    known = count > 0
    mean = total / np.maximum(count, 1)
    return Line(name, start, step_s, _with_nan(low, known), _with_nan(mean, known), _with_nan(high, known))


def output_positions(curves: Iterable[Curve], metric: str) -> list[tuple[float, float, float]]:
    """(from, until, bytes): how far the output of a job's script had come at the end of each step, oldest first."""
    found: list[tuple[float, float, float]] = []
    for curve in curves:
        if curve.metric == metric and _is_script(curve.subject.id):
            places = np.flatnonzero(~np.isnan(curve.high))
            begins = curve.start + places * curve.step_s
            found += [
                (float(begin), float(begin + curve.step_s), float(high))
                for begin, high in zip(begins, curve.high[places], strict=True)
            ]
    return sorted(found)


def _is_script(task: str) -> bool:
    return task.split(".")[2:3] == ["-5"]


def _lane(sort: _Sort, curves: Sequence[Curve], names: Mapping[str, str]) -> Lane:
    metric = BY_NAME[sort.metric]
    if sort.summed:
        tasks = len({curve.subject.id.partition("@")[0] for curve in curves})
        lines = [_line(f"all {tasks} tasks" if tasks > 1 else "its task", *_sum(curves))]
    else:
        gpus = _by_gpu(curves)
        if len(gpus) > MOST_LINES:
            lines = [
                _line(
                    f"{len(gpus)} GPUs: least, mean, most",
                    *_spread([curve for found in gpus.values() for curve in found]),
                )
            ]
        else:
            lines = [_line(names.get(uuid, uuid), *_merged(found)) for uuid, found in gpus.items()]
    return Lane(sort.metric, sort.title, lines=tuple(lines), unit=metric.unit, top=sort.top, about=metric.meaning)


_Columns = tuple[float, float, Column, Column, Column]


def _line(name: str, start: float, step_s: float, low: Column, mean: Column, high: Column) -> Line:
    return Line(name, start, step_s, low, mean, high)


def _by_gpu(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """One GPU may be a job's in several of its starts; of a task's use the GPU is behind the at sign."""
    found: dict[str, list[Curve]] = {}
    for curve in curves:
        found.setdefault(curve.subject.id.rpartition("@")[2], []).append(curve)
    return dict(sorted(found.items()))


def _stacked(curves: Sequence[Curve], column: str) -> Column:
    length = max(len(curve) for curve in curves)
    rows = [
        np.append(getattr(curve, column), np.full(length - len(curve), np.nan)).astype(np.float64) for curve in curves
    ]
    return np.vstack(rows)


def _with_nan(values: Column, known: NDArray[np.bool_]) -> Column:
    return np.where(known, values, np.nan)


def _merged(curves: Sequence[Curve]) -> _Columns:
    """Curves of one subject at different times, or of several tasks on it, laid over each other."""
    return _spread(curves) if len(curves) > 1 else _plain(curves[0])


def _plain(curve: Curve) -> _Columns:
    return curve.start, curve.step_s, curve.low, curve.mean, curve.high


def _spread(curves: Sequence[Curve]) -> _Columns:
    """The least, the mean and the most of all."""
    mean = _stacked(curves, "mean")
    count = (~np.isnan(mean)).sum(axis=0)
    known = count > 0
    means = np.where(np.isnan(mean), 0.0, mean).sum(axis=0) / np.maximum(count, 1)
    low, high = _stacked(curves, "low"), _stacked(curves, "high")
    lows = np.where(np.isnan(low), np.inf, low).min(axis=0)
    highs = np.where(np.isnan(high), -np.inf, high).max(axis=0)
    first = curves[0]
    return first.start, first.step_s, _with_nan(lows, known), _with_nan(means, known), _with_nan(highs, known)


def _sum(curves: Sequence[Curve]) -> _Columns:
    columns = []
    known = (~np.isnan(_stacked(curves, "mean"))).sum(axis=0) > 0
    for name in ("low", "mean", "high"):
        rows = _stacked(curves, name)
        columns.append(_with_nan(np.where(np.isnan(rows), 0.0, rows).sum(axis=0), known))
    return curves[0].start, curves[0].step_s, columns[0], columns[1], columns[2]
