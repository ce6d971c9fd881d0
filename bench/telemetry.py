"""The store of series: what a sample takes on disk, what writing costs, how long a plot of a long job is in coming; and
the page for Prometheus.

CPU times of this process: writing and reading compute, and wait for little. Figures are made beforehand
(`bench.gpu_curves`); of the samples the time to make them does not count.
"""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench import gathering, reports
from bench.folders import new_folder
from bench.gpu_curves import Curves, node_curves
from bench.results import Row, Target
from bench.sizes import Sizes
from bireme.api.exporting.exporter import NOBODY
from bireme.api.exporting.taken import Ended, Taken
from bireme.api.exporting.writing import write
from bireme.api.privacy import Viewer
from bireme.core.model.cluster import NodeConfig
from bireme.core.model.jobs import Job, JobSpec, Owner, Pending, Running
from bireme.core.model.nodes import Health, Node
from bireme.core.model.resources import Allocation, GresPool, NodeShare
from bireme.core.state.state import State
from bireme.core.telemetry.curves import Asked
from bireme.core.telemetry.exported import GpuFigures, Measured, NodeFigures
from bireme.core.telemetry.metrics import about
from bireme.core.telemetry.subjects import Subject
from bireme.ports import NewestRound, Sampled
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
SCRAPE_GPUS, SCRAPE_JOBS = 1_000, 2_000
SCRAPE_MAX_SERIES = 80_000
SCRAPE_MAX_MS = 1_000.0


def measure(sizes: Sizes) -> Iterator[Row]:
    yield _writing(sizes)
    yield from _job(sizes)
    yield from _scrape(sizes)
    yield from gathering.measure(sizes)
    yield from reports.measure(sizes)


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


def _scrape(sizes: Sizes) -> Iterator[Row]:
    """The daemon's page for Prometheus: every metric of 1,000 GPUs, 2,000 jobs that run and 2,000 that wait."""
    taken, figures = of_a_cluster()
    times = []
    for _ in range(sizes.repeats + 1):
        began = time.process_time()
        text = write(taken, lambda: figures)
        times.append(1e3 * (time.process_time() - began))
    plain = text.encode()
    deflated = zlib.compress(plain, 1)
    series = sum(not line.startswith("#") for line in text.splitlines())
    details = {"bytes": len(plain), "deflated_bytes": len(deflated), "ms": times}
    of = f"{SCRAPE_GPUS:,} GPUs, {SCRAPE_JOBS:,} jobs"
    target = Target("<", SCRAPE_MAX_SERIES)
    yield Row("telemetry", f"scrape of {of}: series", series, "series", target=target, details=details)
    yield Row("telemetry", f"scrape of {of}: size", len(plain) / 2**20, "MiB")
    yield Row("telemetry", f"scrape of {of}: size, deflated", len(deflated) / 2**20, "MiB")
    target = Target("<", SCRAPE_MAX_MS)
    yield Row("telemetry", f"scrape of {of}: written in", statistics.median(times[1:]), "ms", target=target)


def of_a_cluster() -> tuple[Taken, dict[int, dict[str, float]]]:
    """What the page is made of. Every second GPU's job has two of them; users and accounts as of a hundred people."""
    nodes = tuple(
        Node(NodeConfig(name=f"n{no}", cpus=128, gres=(GresPool("gpu", "h200", GPUS),)), health=Health.UP)
        for no in range(SCRAPE_GPUS // GPUS)
    )
    jobs = [_job_of(no) for no in range(1, 2 * SCRAPE_JOBS + 1)]
    for job in jobs[:SCRAPE_JOBS]:
        share = NodeShare(f"n{job.id % len(nodes)}", cpus=8, memory_mib=1_000)
        job.phase = Running(Allocation(job.id, 1, "train", (share,)), float(START))
    names = [metric.name for metric in about("gpu")]
    values = np.random.default_rng(15).uniform(0, 2_000, (SCRAPE_GPUS, len(names))).round(1).tolist()
    gpus = [
        GpuFigures(
            f"n{no // GPUS}", _gpus(no // GPUS)[no % GPUS].id, no % GPUS, dict(zip(names, values[no], strict=True)),
            device=f"nvidia{no % GPUS}", model="NVIDIA H200", pci_bus_id="00000000:1B:00.0", driver="580.159.03",
            job_ids=(no + 1,),
        )
        for no in range(SCRAPE_GPUS)
    ]  # fmt: skip
    rounds = tuple(NewestRound(node.name, START + 55.0, is_late=False) for node in nodes)
    measured = Measured(gpus, [NodeFigures(node.name, {each.name: 7.5 for each in about("node")}) for node in nodes])
    taken = Taken(
        now=START + 60.0, cluster="bench", engine="embedded", version="0", up_since=float(START), problems={},
        pending=tuple(jobs[SCRAPE_JOBS:]), verdicts={}, holding=tuple(jobs[:SCRAPE_JOBS]), nodes=nodes, services=(),
        submitted=len(jobs), events=9 * len(jobs), planned_at=float(START), ended=Ended(SCRAPE_JOBS, {"COMPLETED": 7}),
        work=None, measured=measured, rounds=rounds, findings=(), findings_opened=0, fences=(), healings=(),
        healings_proposed=0, router_page="",
        viewer=Viewer(State(), NOBODY),
    )  # fmt: skip
    figures = {job.id: {"cpu_user": 7.5, "cpu_system": 0.5, "memory": 1000.0} for job in jobs[:SCRAPE_JOBS]}
    return taken, figures


def _job_of(no: int) -> Job:
    owner = Owner(uid=no % 100, gid=1, user=f"user{no % 100}")
    spec = JobSpec(owner=owner, name=f"train-{no}", account=f"group{no % 10}", qos="normal", partitions=("train",))
    return Job(no, spec, float(START), Pending(float(START), float(START)))
