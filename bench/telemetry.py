"""The store of series: what a sample takes on disk, what writing costs, how long a plot of a long job is in coming.

CPU times of this process: writing and reading compute, and wait for little. Figures are made beforehand
(`bench.gpu_curves`); of the samples the time to make them does not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.folders import new_folder
from bench.gpu_curves import Curves, node_curves
from bench.results import Row, Target
from bench.sizes import Sizes
from bireme.core.telemetry.curves import Asked, Subject
from bireme.ports import Sampled
from bireme.store.series.store import SqliteSeries
from bireme.store.series.thinning import LATE_S

GPUS = 8
INTERVAL_S = 10
MINUTE = 60 // INTERVAL_S
"""Rounds."""
TEN_MINUTES = 600 // INTERVAL_S
HOUR = 3600 // INTERVAL_S
START = 1_790_000_000 // 432_000 * 432_000
JOB_NODES = 8
POINTS = 1_000
REFERENCE_GPUS = 1_000

SAMPLE_MAX_BYTES = 2.0
WRITING_MAX_PERCENT = 5.0
READING_MAX_MS = 100.0


def measure(sizes: Sizes) -> Iterator[Row]:
    yield _writing(sizes)
    yield from _job(sizes)


def _gpus(node: int) -> tuple[Subject, ...]:
    return tuple(Subject("gpu", f"n{node}", f"GPU-{node:08x}-{gpu:04x}-4a8e-9d2c-5b7f1c3e9a60") for gpu in range(GPUS))


def _told(series: SqliteSeries, nodes: Sequence[Curves], rounds: int, flush_every: int) -> float:
    """CPU seconds of taking in, flushing, compacting and thinning out so many rounds of all nodes."""
    spent = 0.0
    gpus = [_gpus(no) for no in range(len(nodes))]
    for no in range(rounds):
        at = START + INTERVAL_S * no + 0.3
        samples = [
            Sampled(at, INTERVAL_S, gpus[node], {metric: values[:, no] for metric, values in curves.items()})
            for node, curves in enumerate(nodes)
        ]
        began = time.process_time()
        for node, sampled in enumerate(samples):
            series.append(f"gatherer {node}", no + 1, [sampled])
        if (no + 1) % flush_every == 0:
            series.flush()
        if (no + 1) % TEN_MINUTES == 0:
            series.thin_out(at)
        spent += time.process_time() - began
    return spent


def _writing(sizes: Sizes) -> Row:
    """An hour as it comes, flushed each minute; and the thinning out of that hour, which is due half an hour later."""
    rounds = int(sizes.series_hours * HOUR)
    nodes = [node_curves(GPUS, rounds, INTERVAL_S, seed) for seed in range(sizes.series_nodes)]
    series = SqliteSeries(str(new_folder("series") / "series.db"))
    spent = _told(series, nodes, rounds, MINUTE)
    began = time.process_time()
    series.thin_out(START + rounds * INTERVAL_S + LATE_S)
    spent += time.process_time() - began
    series.close()
    gpus = GPUS * sizes.series_nodes
    percent = 100 * spent / (rounds * INTERVAL_S) * REFERENCE_GPUS / gpus
    name = f"written: {REFERENCE_GPUS:,} GPUs x {len(nodes[0])} metrics each {INTERVAL_S} s, of a core"
    details = {"gpus": gpus, "rounds": rounds, "cpu_s": spent}
    return Row("telemetry", name, percent, "%", target=Target("<", WRITING_MAX_PERCENT), details=details)


def _job(sizes: Sizes) -> Iterator[Row]:
    rounds = int(sizes.series_job_hours * HOUR)
    nodes = [node_curves(GPUS, rounds, INTERVAL_S, seed) for seed in range(JOB_NODES)]
    path = Path(new_folder("series") / "series.db")
    series = SqliteSeries(str(path))
    _told(series, nodes, rounds, TEN_MINUTES)
    samples = sum(int((~np.isnan(values)).sum()) for curves in nodes for values in curves.values())
    size = path.stat().st_size / samples
    yield Row("telemetry", "kept, with all levels: a sample", size, "bytes", target=Target("<", SAMPLE_MAX_BYTES))
    times = [_read(series, rounds * INTERVAL_S) for _ in range(sizes.repeats + 1)]
    name = f"read: one metric of {JOB_NODES * GPUS} GPUs for {sizes.series_job_hours:g} h as {POINTS:,} points"
    details = {"first_ms": times[0], "ms": times[1:]}
    target = Target("<", READING_MAX_MS)
    yield Row("telemetry", name, statistics.median(times[1:]), "ms", target=target, details=details)
    series.close()


def _read(series: SqliteSeries, seconds: int) -> float:
    subjects = [gpu for node in range(JOB_NODES) for gpu in _gpus(node)]
    asked = Asked(subjects=subjects, metrics=("gpu_sm_active",), start=START, end=START + seconds,
                  step_s=seconds / POINTS)  # fmt: skip
    began = time.process_time()
    curves = series.read(asked)
    spent = time.process_time() - began
    assert len(curves) >= JOB_NODES * (GPUS - 1), "nearly all of them have that counter"
    return 1e3 * spent
