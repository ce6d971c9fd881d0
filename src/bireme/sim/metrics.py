"""What a simulation comes to, as plain numbers: waits, slowdowns, utilisation, fairness, fragmentation, losses, energy.

A pure function of a `Result`. The unit is the GPU, or the CPU on a cluster without GPUs. Times are seconds.
Invariant: everything in a `Report` can be written as JSON and is the same for the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bireme.core.model.cluster import ClusterConfig
from bireme.sim.recorder import JobRun
from bireme.sim.replay import Result

BINS = 240
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Classes by size: up to so many."""
GROUPS_SHOWN = 40
HOUR_S = 3600.0

Floats = NDArray[np.float64]
Numbers = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Watts:
    """The power that parts of a cluster draw, in watts. `gpu`: one in use; `idle`: one that is not; `node`: the rest of
    a node."""

    gpu: float = 0.0
    idle: float = 0.0
    node: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """`numbers` for people and machines; `series` for plots."""

    numbers: Numbers
    series: dict[str, Floats]


def measure(result: Result, watts: Watts | None = None) -> Report:
    unit, total = capacity(result.config)
    started = [run for run in result.runs if run.first_start is not None]
    ended = [run for run in started if run.end is not None]
    columns = _columns(ended)
    series = _series(result, unit)
    numbers: Numbers = {
        "policy": result.policy.name,
        "policy_about": result.policy.about,
        "cluster": {"name": result.config.name, "nodes": len(result.config.nodes), "unit": unit, "units": total},
        "workload": {
            "source": result.workload.source,
            "remarks": list(result.workload.remarks),
            "rows_skipped": result.workload.skipped(),
            "jobs_refused": len(result.problems),
        },
        "jobs": {"submitted": len(result.runs), "ended": len(ended), "never_started": len(result.runs) - len(started)},
        "states": _count(run.state for run in result.runs),
        "first_submit": result.first,
        "makespan_s": result.last - result.first,
        **_statistics(columns),
        "utilisation": _utilisation(result, series, total),
        "by_size": _groups(columns, [size_class(run, unit) for run in ended], order=_by_size),
        "by_user": _groups(columns, [run.trace.user for run in ended]),
        "by_account": _groups(columns, [run.trace.account or "(none)" for run in ended]),
        "by_partition": _groups(columns, [run.trace.partition or "(default)" for run in ended]),
        "fairness": _fairness(ended, columns, unit),
        "fragmentation": _fragmentation(result, total if unit == "GPU" else 0),
        "preemptions": sum(run.preempted for run in result.runs),
        "requeues": sum(run.restarts for run in result.runs),
        "lost_gpu_hours": sum(run.lost_gpu_s for run in result.runs) / HOUR_S,
        "simulation": {"turns": result.turns, "events": result.recorder.events, "wall_s": result.wall_s},
    }
    if watts is not None:
        numbers["energy"] = _energy(result, series, watts)
    return Report(numbers, series)


def capacity(config: ClusterConfig) -> tuple[str, int]:
    """What the cluster is counted in, and how much of it there is."""
    gpus = sum(node.gres_count("gpu") for node in config.nodes)
    return ("GPU", gpus) if gpus else ("CPU", sum(node.cpus for node in config.nodes))


def _count(words: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return dict(sorted(counts.items()))


# -- waits -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Columns:
    """The figures of jobs that have ended, a column for each, all in one order."""

    wait_s: Floats
    turnaround_s: Floats
    slowdown: Floats
    gpu_s: Floats
    cpu_s: Floats

    def of(self, some: list[int]) -> _Columns:
        return _Columns(*(getattr(self, name)[some] for name in self.__slots__))


def _columns(runs: Sequence[JobRun]) -> _Columns:
    facts = [(run.wait_s, run.turnaround_s, run.slowdown, run.gpus * run.run_s, run.cpus * run.run_s) for run in runs]
    return _Columns(*np.array(facts, dtype=np.float64).reshape(-1, 5).T)


def _statistics(columns: _Columns) -> Numbers:
    return {
        "wait_s": _spread(columns.wait_s),
        "turnaround_s": _spread(columns.turnaround_s),
        "slowdown": _spread(columns.slowdown),
    }


def _spread(column: Floats) -> dict[str, float]:
    if not len(column):
        return dict.fromkeys(("mean", "p50", "p95", "p99", "max"), 0.0)
    p50, p95, p99 = np.quantile(column, (0.5, 0.95, 0.99))
    return {
        "mean": float(column.mean()),
        "p50": float(p50),
        "p95": float(p95),
        "p99": float(p99),
        "max": float(column.max()),
    }


def used_of(run: JobRun, unit: str) -> float:
    return run.gpus if unit == "GPU" else float(run.cpus)


def size_class(run: JobRun, unit: str) -> str:
    used = used_of(run, unit)
    if used == 0:
        return f"no {unit}"
    upper = next((size for size in SIZES if used <= size), SIZES[-1])
    lower = max((size for size in SIZES if size < upper), default=0) + 1
    return str(upper) if lower >= upper else f"{lower}-{upper}"


def _by_size(name: str) -> float:
    word = name.partition("-")[0]
    return float(word) if word.isdigit() else 0.0


def _members(names: Iterable[str]) -> dict[str, list[int]]:
    """Name -> where it stands."""
    members: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        members.setdefault(name, []).append(position)
    return members


def _groups(columns: _Columns, names: Sequence[str], order: Callable[[str], float] | None = None) -> list[Numbers]:
    """The largest groups by GPU time, or all of them in the given order."""
    rows = []
    for name, positions in _members(names).items():
        own = columns.of(positions)
        hours = {"gpu_hours": float(own.gpu_s.sum()) / HOUR_S, "cpu_hours": float(own.cpu_s.sum()) / HOUR_S}
        rows.append({"name": name, "jobs": len(positions), **hours, **_statistics(own)})
    if order is not None:
        return sorted(rows, key=lambda row: order(str(row["name"])))
    return sorted(rows, key=lambda row: (-float(row["gpu_hours"]), -float(row["cpu_hours"])))[:GROUPS_SHOWN]


# -- over time -------------------------------------------------------------------------------------------------------


def _series(result: Result, unit: str) -> dict[str, Floats]:
    """Means over equal pieces of time, from the first submission to the last end."""
    edges = np.linspace(result.first, max(result.last, result.first + 1.0), BINS + 1)
    held = [(at, gpus if unit == "GPU" else float(cpus)) for at, gpus, cpus in result.recorder.held]
    stranded = result.recorder.stranded
    return {
        "edges": edges,
        "held": _means(held, edges),
        "waiting_jobs": _means([(at, float(jobs)) for at, jobs, _ in result.recorder.queue], edges),
        "waiting_gpus": _means([(at, gpus) for at, _, gpus in result.recorder.queue], edges),
        "waits": np.array([run.wait_s for run in result.runs if run.first_start is not None], dtype=np.float64),
        "stranded_at": np.array([at for at, _ in stranded], dtype=np.float64),
        "stranded": np.array([gpus for _, gpus in stranded], dtype=np.float64),
    }


def _means(changes: Sequence[tuple[float, float]], edges: Floats) -> Floats:
    """The mean of a step function, given by its changes, between each two edges: exact, not sampled."""
    if not changes:
        return np.zeros(len(edges) - 1)
    at = np.array([when for when, _ in changes])
    order = np.argsort(at, kind="stable")
    at, steps = at[order], np.array([change for _, change in changes])[order]
    values = np.cumsum(steps)
    areas = np.concatenate(([0.0], np.cumsum(values[:-1] * np.diff(at))))
    index = np.clip(np.searchsorted(at, edges, side="right") - 1, -1, None)
    up_to = np.where(index < 0, 0.0, areas[index] + values[index] * (edges - at[index]))
    means: Floats = np.diff(up_to) / np.diff(edges)
    return means


def _utilisation(result: Result, series: dict[str, Floats], total: int) -> Numbers:
    """Of the whole time, and of the time in which jobs came: what comes after it is only the tail draining."""
    if not total:
        return {"mean": 0.0, "while_submitting": 0.0}
    edges, share = series["edges"], series["held"] / total
    coming = edges[1:] <= result.workload.jobs[-1].submit
    return {
        "mean": float(share.mean()),
        "while_submitting": float(share[coming].mean()) if coming.any() else float(share.mean()),
    }


def _fragmentation(result: Result, total: int) -> Numbers:
    """GPUs that are free on nodes partly in use, as a share of all: no job that wants whole nodes can have them."""
    stranded = [gpus for _, gpus in result.recorder.stranded]
    if not stranded or not total:
        return {"stranded_mean": 0.0, "stranded_max": 0.0}
    return {"stranded_mean": float(np.mean(stranded)) / total, "stranded_max": float(np.max(stranded)) / total}


def _energy(result: Result, series: dict[str, Floats], watts: Watts) -> Numbers:
    unit, total = capacity(result.config)
    span_s = float(series["edges"][-1] - series["edges"][0])
    busy_s = float(np.sum(series["held"] * np.diff(series["edges"]))) if unit == "GPU" else 0.0
    idle_s = total * span_s - busy_s if unit == "GPU" else 0.0
    joules = busy_s * watts.gpu + idle_s * watts.idle + len(result.config.nodes) * span_s * watts.node
    return {"kwh": joules / 3.6e6, "idle_gpu_kwh": idle_s * watts.idle / 3.6e6}


# -- fairness --------------------------------------------------------------------------------------------------------


def jain(values: Sequence[float]) -> float:
    """1: all the same; 1/n: one has everything."""
    column = np.array(values, dtype=np.float64)
    squares = float(np.sum(column**2))
    return float(np.sum(column)) ** 2 / (len(column) * squares) if squares else 1.0


def _fairness(runs: Sequence[JobRun], columns: _Columns, unit: str) -> Numbers:
    """How alike users fare (Jain's index of their mean slowdowns), and what accounts used against an equal share."""
    users = _members(run.trace.user for run in runs)
    used_s = columns.gpu_s if unit == "GPU" else columns.cpu_s
    by_account = _members(run.trace.account or "(none)" for run in runs)
    accounts = {name: float(used_s[positions].sum()) for name, positions in by_account.items()}
    used = sum(accounts.values()) or 1.0
    return {
        "jain_slowdown": jain([float(columns.slowdown[each].mean()) for each in users.values()]) if users else 1.0,
        "jain_use": jain(list(accounts.values())) if accounts else 1.0,
        "share_and_use": [
            {"account": name, "share": 1 / len(accounts), "use": amount / used}
            for name, amount in sorted(accounts.items(), key=lambda pair: -pair[1])[:GROUPS_SHOWN]
        ],
    }
