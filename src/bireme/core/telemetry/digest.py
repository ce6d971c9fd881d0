"""Digests: what one start of a job did with what it had, in some hundred bytes. Reckoned once, from its curves.

Curves become coarser with age and a report of a week has fifty thousand jobs: so what reports, `seff`, `sacct` and
`sstat` say is reckoned when a start is over (of one that runs: when it is asked for), and kept. Pure; who makes and
keeps digests is `daemon/telemetry/digesting` and `store/series`.

Invariant: what was not measured is None, or not there; nothing is zero that nobody measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bireme.core.telemetry.curves import Column, Curve
from bireme.core.telemetry.metrics import TOTALS

IDLE_BELOW = 1.0
"""Percent of real use: a GPU that does less in a step of its curve is idle then."""
REAL_USE = ("gpu_sm_active", "gpu_engine_active", "gpu_util")
"""Metrics of a whole GPU that say how much it did, the best first."""
GPU_METRICS = (
    *REAL_USE, "gpu_tensor_active", "gpu_memory_used", "gpu_memory_peak", "gpu_memory_free", "gpu_energy", "gpu_power",
)  # fmt: skip
TASK_METRICS = ("cpu_user", "cpu_system", "memory", "memory_peak", "page_faults", "io_read", "io_written")
TASK_TOTALS = tuple(TOTALS)
"""Read from the whole life of a task, which may begin and end a little beside that of its job."""
USE_METRICS = ("use_gpu_memory", "use_gpu_util")


@dataclass(frozen=True, slots=True)
class Level:
    """A gauge over the time in which it was measured."""

    mean: float
    peak: float


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure of all tasks of a step: the least and the most, with whose they were, and the sum."""

    least: float
    least_node: str
    least_task: int
    most: float
    most_node: str
    most_task: int
    total: float
    tasks: int

    @property
    def mean(self) -> float:
        return self.total / self.tasks


@dataclass(frozen=True, slots=True)
class GpuDigest:
    """What one GPU did while the job had it; of a shared one what the job's own processes did there."""

    node: str
    uuid: str
    shared: bool
    held_s: float
    measured_s: float = 0.0
    """Of that time, how much of its use was measured."""
    by: str = ""
    """The metric that `use` is of; empty: none was measured."""
    use: Level | None = None
    """Percent of real use, by the best metric that there was."""
    idle_s: float | None = None
    """Of the measured time, how much without use."""
    util: Level | None = None
    tensor: Level | None = None
    memory_mib: Level | None = None
    memory_total_mib: float | None = None
    energy_j: float | None = None
    """Of the time in which it was measured."""

    @property
    def never_used(self) -> bool:
        """Whether it was measured and never did anything."""
        return self.use is not None and self.use.peak < IDLE_BELOW


@dataclass(frozen=True, slots=True)
class StepDigest:
    """The tasks of one step (or the batch script, by its number)."""

    step: int
    figures: Mapping[str, Spread] = field(default_factory=dict)
    """By name: cpu_s, memory_mib, pages, read_kib, written_kib, gpu_util (percent, all its GPUs together),
    gpu_memory_mib; and energy_j, of the GPUs that its processes used, for as long as they did: by node, with -1 for the
    task."""


@dataclass(frozen=True, slots=True)
class Digest:
    """One start of a job."""

    job_id: int
    generation: int
    start: float
    end: float
    gpus: tuple[GpuDigest, ...] = ()
    steps: tuple[StepDigest, ...] = ()
    cpus: Level | None = None
    """CPUs busy, of all tasks together."""
    memory_mib: Level | None = None
    """Resident memory of all tasks together."""
    node_memory_peak_mib: float | None = None
    """The most that its tasks had on one node."""

    @property
    def measured(self) -> bool:
        return bool(self.steps) or any(gpu.use is not None or gpu.energy_j is not None for gpu in self.gpus)


# --- steps of a curve, by how much of each lies in a time -----------------------------------------------------------


def weights(curve: Curve, start: float, end: float) -> Column:
    """Seconds of each step that lie between `start` and `end`."""
    begins = curve.start + np.arange(len(curve)) * curve.step_s
    inside = np.minimum(begins + curve.step_s, end) - np.maximum(begins, start)
    return np.asarray(np.clip(inside, 0.0, curve.step_s), dtype=np.float64)


def level(curve: Curve | None, start: float, end: float) -> Level | None:
    """Mean and most of a curve between two times; None: nothing was measured then."""
    if curve is None:
        return None
    weight = weights(curve, start, end)
    known = ~np.isnan(curve.mean) & (weight > 0)
    if not known.any():
        return None
    mean = float(np.average(curve.mean[known], weights=weight[known]))
    return Level(mean, float(curve.high[known].max()))


def total(curve: Curve | None, start: float, end: float) -> float | None:
    """What a rate comes to over the time in which it was measured."""
    if curve is None:
        return None
    weight = weights(curve, start, end)
    known = ~np.isnan(curve.mean) & (weight > 0)
    return float((curve.mean[known] * weight[known]).sum()) if known.any() else None


def _seconds(curve: Curve, start: float, end: float, below: float | None = None) -> float:
    """In which it was measured; with `below`, and was lower than that."""
    weight = weights(curve, start, end)
    chosen = ~np.isnan(curve.mean) if below is None else curve.mean < below  # NaN is below nothing
    return float(weight[chosen].sum())


# --- GPUs ------------------------------------------------------------------------------------------------------------


def whole_gpu(node: str, uuid: str, start: float, end: float, curves: Mapping[str, Curve]) -> GpuDigest:
    """Of a GPU that the job had alone, by the curves of the GPU (metric -> curve)."""
    by = next((name for name in REAL_USE if level(curves.get(name), start, end) is not None), "")
    used = curves.get(by)
    return GpuDigest(
        node=node,
        uuid=uuid,
        shared=False,
        held_s=end - start,
        measured_s=_seconds(used, start, end) if used is not None else 0.0,
        by=by,
        use=level(used, start, end),
        idle_s=_seconds(used, start, end, IDLE_BELOW) if used is not None else None,
        util=level(curves.get("gpu_util"), start, end),
        tensor=level(curves.get("gpu_tensor_active"), start, end),
        memory_mib=_memory(curves, start, end),
        memory_total_mib=_memory_total(curves, start, end),
        energy_j=_energy(curves, start, end),
    )


def _memory(curves: Mapping[str, Curve], start: float, end: float) -> Level | None:
    used, marks = (level(curves.get(name), start, end) for name in ("gpu_memory_used", "gpu_memory_peak"))
    if used is None or marks is None:
        return used
    return Level(used.mean, max(used.peak, marks.peak))


def _memory_total(curves: Mapping[str, Curve], start: float, end: float) -> float | None:
    used, free = (level(curves.get(name), start, end) for name in ("gpu_memory_used", "gpu_memory_free"))
    return used.mean + free.mean if used is not None and free is not None else None


def _energy(curves: Mapping[str, Curve], start: float, end: float) -> float | None:
    counted = total(curves.get("gpu_energy"), start, end)
    return counted if counted is not None else total(curves.get("gpu_power"), start, end)


def shared_gpu(node: str, uuid: str, start: float, end: float, uses: Iterable[Mapping[str, Curve]]) -> GpuDigest:
    """Of a GPU that others may have had parts of: by what each of the job's own tasks did there."""
    found = list(uses)
    util = summed([curves[name] for curves in found if (name := "use_gpu_util") in curves])
    memory = summed([curves[name] for curves in found if (name := "use_gpu_memory") in curves])
    use = level(util, start, end)
    return GpuDigest(
        node=node,
        uuid=uuid,
        shared=True,
        held_s=end - start,
        measured_s=_seconds(util, start, end) if util is not None else 0.0,
        by="use_gpu_util" if use is not None else "",
        use=use,
        idle_s=_seconds(util, start, end, IDLE_BELOW) if util is not None else None,
        memory_mib=level(memory, start, end),
    )


# --- tasks -----------------------------------------------------------------------------------------------------------


def summed(curves: Sequence[Curve]) -> Curve | None:
    """The sum of several subjects' curves at each time. Where one of them was measured, the others count as far as they
    were.

    None: there is none, or they have different steps (some were folded while they were read)."""
    if not curves or len({(each.start, each.step_s, len(each)) for each in curves}) > 1:
        return None
    first = curves[0]

    def added(columns: Sequence[Column]) -> Column:
        table = np.stack(columns)
        known = ~np.isnan(table)
        return np.where(known.any(axis=0), np.where(known, table, 0.0).sum(axis=0), np.nan)

    low, mean, high = (added([getattr(each, name) for each in curves]) for name in ("low", "mean", "high"))
    return Curve(first.subject, first.metric, first.start, first.step_s, low, mean, high)


def spread(values: Iterable[tuple[str, int, float | None]]) -> Spread | None:
    """The least, the most and the sum of (node, task, value); those that were not measured are left out. None: none
    was."""
    known = [(value, node, task) for node, task, value in values if value is not None]
    if not known:
        return None
    least, most = min(known, key=lambda each: (each[0], each[2])), max(known, key=lambda each: (each[0], -each[2]))
    return Spread(*least, *most, sum(value for value, _, _ in known), len(known))


TaskCurves = Mapping[tuple[int, str, int], Mapping[str, Curve]]
"""(step, node, task) -> metric -> curve."""
UseCurves = Mapping[tuple[int, str, int], Mapping[str, Mapping[str, Curve]]]
"""(step, node, task) -> UUID -> metric -> curve."""


def task_figures(curves: Mapping[str, Curve], start: float, end: float) -> dict[str, float | None]:
    """The figures of one task."""
    peaks = [level(curves.get(name), start, end) for name in ("memory", "memory_peak")]
    return {
        "cpu_s": in_all(curves, "cpu_total", start, end),
        "memory_mib": max((peak.peak for peak in peaks if peak is not None), default=None),
        "pages": in_all(curves, "page_faults_total", start, end),
        "read_kib": in_all(curves, "io_read_total", start, end),
        "written_kib": in_all(curves, "io_written_total", start, end),
    }


def in_all(curves: Mapping[str, Curve], name: str, start: float, end: float) -> float | None:
    """What one task used: by its totals, and after the last of these (it runs, or nobody lived to tell) by its rates.

    A total that is less than the one before was told by a gatherer that began anew, and knows only of what still lives:
    from there on it counts by what it grows; what was used between the two is told by the rates.
    """
    rates = [curves[part] for part in TOTALS[name] if part in curves]

    def by_rates(begin: float, until: float) -> list[float]:
        return [part for rate in rates if (part := total(rate, begin, until)) is not None]

    told = curves.get(name)
    if told is None or np.isnan(told.high).all():
        parts = by_rates(start, end)
        return sum(parts) if parts else None
    known = np.flatnonzero(~np.isnan(told.high))
    said, begins = told.high[known].tolist(), (told.start + known * told.step_s).tolist()
    used = float(said[0])
    for (before, then), (now, begin) in pairwise(zip(said, begins, strict=True)):
        used += now - before if now >= before else sum(by_rates(then + told.step_s, begin))
    return used + sum(by_rates(begins[-1] + told.step_s, end))


def gpu_figures(
    uses: Mapping[str, Mapping[str, Curve]],
    gpus: Mapping[str, Mapping[str, Curve]],
    alone: Mapping[str, NDArray[np.bool_]],
    start: float,
    end: float,
) -> dict[str, float | None]:
    """Of one task on all its GPUs.

    Where a driver does not tell what each process did (it does so where several are), and this task was `alone` on a
    GPU, what the GPU did is the task's.
    """
    utils, memories = [], []
    for uuid, curves in uses.items():
        util = curves.get("use_gpu_util")
        if util is None:
            util = _while_alone(gpus.get(uuid, {}).get("gpu_util"), alone.get(uuid))
        if util is not None:
            utils.append(util)
        if "use_gpu_memory" in curves:
            memories.append(curves["use_gpu_memory"])
    used, most = level(summed(utils), start, end), level(summed(memories), start, end)
    return {"gpu_util": used.mean if used else None, "gpu_memory_mib": most.peak if most else None}


def energy_of(
    uses: Iterable[Mapping[str, Mapping[str, Curve]]], gpus: Mapping[str, Mapping[str, Curve]], start: float, end: float
) -> float | None:
    """Of the GPUs that some of these tasks used, in the time in which they did. Each counts once."""
    present: dict[str, list[Curve]] = {}
    for cards in uses:
        for uuid, curves in cards.items():
            present.setdefault(uuid, []).extend(curves.values())
    spent = []
    for uuid, seen in present.items():
        when = summed(seen)
        if when is not None:
            masked = {name: _while_present(curve, when) for name, curve in gpus.get(uuid, {}).items()}
            spent.append(_energy(masked, start, end))
    known = [each for each in spent if each is not None]
    return sum(known) if known else None


def _while_alone(curve: Curve | None, alone: NDArray[np.bool_] | None) -> Curve | None:
    if curve is None or alone is None or len(alone) != len(curve):
        return None
    return _masked(curve, alone)


def _while_present(curve: Curve, present: Curve) -> Curve:
    same = len(present) == len(curve)
    return _masked(curve, ~np.isnan(present.mean) if same else np.zeros(len(curve), dtype=np.bool_))


def _masked(curve: Curve, kept: NDArray[np.bool_]) -> Curve:
    low, mean, high = (np.where(kept, column, np.nan) for column in (curve.low, curve.mean, curve.high))
    return Curve(curve.subject, curve.metric, curve.start, curve.step_s, low, mean, high)


def alone_on(uses: UseCurves) -> dict[str, NDArray[np.bool_]]:
    """By UUID: in which steps of the curves exactly one task was seen on that GPU."""
    seen: dict[str, list[NDArray[np.bool_]]] = {}
    for cards in uses.values():
        for uuid, curves in cards.items():
            present = summed(list(curves.values()))
            if present is not None:
                seen.setdefault(uuid, []).append(~np.isnan(present.mean))
    return {
        uuid: np.stack(columns).sum(axis=0) == 1
        for uuid, columns in seen.items()
        if len({len(column) for column in columns}) == 1
    }


def step_digests(
    tasks: TaskCurves, uses: UseCurves, gpus: Mapping[str, Mapping[str, Curve]], start: float, end: float
) -> tuple[StepDigest, ...]:
    """Of all steps of which anything was measured. `gpus`: those that the job had whole, by UUID."""
    alone = alone_on(uses)
    rows: dict[int, dict[str, list[tuple[str, int, float | None]]]] = {}
    for key in dict.fromkeys((*tasks, *uses)):
        step, node, task = key
        figures = task_figures(tasks[key], start, end) if key in tasks else {}
        figures |= gpu_figures(uses[key], gpus, alone, start, end) if key in uses else {}
        columns = rows.setdefault(step, {})
        for name, value in figures.items():
            columns.setdefault(name, []).append((node, task, value))
    found = []
    for step, columns in sorted(rows.items()):
        nodes = sorted({key[1] for key in uses if key[0] == step})
        columns["energy_j"] = [
            (node, -1, energy_of((cards for key, cards in uses.items() if key[:2] == (step, node)), gpus, start, end))
            for node in nodes
        ]
        spreads = {name: one for name, values in columns.items() if (one := spread(values)) is not None}
        if spreads:
            found.append(StepDigest(step, spreads))
    return tuple(found)
