"""Rows `submit`: one `sbatch` after another, and the SDK over one connection; every answer comes after the disk's.

Jobs are held (`-H`), so that only accepting them is measured, not running them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import bireme
from bench import bireme_cluster, machine
from bench.bireme_cluster import BiremeCluster
from bench.launch import SCRIPT, write_script
from bench.results import Row, Target
from bench.sizes import Sizes


def measure(sizes: Sizes) -> Iterator[Row]:
    with bireme_cluster.running(bireme_cluster.this_host(sizes.cpus)) as cluster:
        yield from _sbatch(cluster, sizes.sbatch_calls)
        with bireme.Client(cluster.home) as client:
            yield from _sdk(client, sizes)


def _sbatch(cluster: BiremeCluster, calls: int) -> Iterator[Row]:
    command = cluster.command("sbatch", "-H", str(write_script(cluster.folder)))
    spent = [machine.timed(command, cluster.env) for _ in range(calls)]
    ordered = sorted(spent)
    details = {"p99": _percentile(ordered, 0.99), "fastest": ordered[0], "slowest": ordered[-1], "calls": calls}
    yield Row("submit", "sbatch, median", statistics.median(spent) * 1000, "ms", details=details)
    yield Row("submit", "sbatch, 99th percentile", _percentile(ordered, 0.99) * 1000, "ms")


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _sdk(client: bireme.Client, sizes: Sizes) -> Iterator[Row]:
    begun = time.perf_counter()
    for _ in range(sizes.sdk_single):
        client.submit(SCRIPT, hold=True)
    rate = sizes.sdk_single / (time.perf_counter() - begun)
    yield Row("submit", "SDK, one by one", rate, "/s")
    begun = time.perf_counter()
    _submit_many(client, sizes.sdk_many, sizes.batch)
    rate = sizes.sdk_many / (time.perf_counter() - begun)
    name = f"SDK, submit_many of {sizes.batch:,}"
    yield Row("submit", name, rate, "/s", target=Target(">=", 2000))


def _submit_many(client: bireme.Client, jobs: int, batch: int) -> None:
    for first in range(0, jobs, batch):
        client.submit_many([{"script": SCRIPT, "hold": True}] * min(batch, jobs - first))


def fill_queue(cluster: BiremeCluster, jobs: int, batch: int) -> None:
    """Pending jobs, each a job of its own."""
    with bireme.Client(cluster.home) as client:
        _submit_many(client, jobs, batch)
