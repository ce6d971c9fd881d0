"""Rows `much`: tens of thousands of waiting jobs cancelled by one command, what the history keeps of each, a start with
as many of them, and thousands of short jobs one after the other.

The daemon is killed, not stopped, before it starts again: what is measured is what a crash costs.
"""

from __future__ import annotations

import getpass
import os
import sqlite3
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import bireme
from bench import bireme_cluster, machine
from bench.bireme_cluster import BiremeCluster
from bench.restart import kill, rss_mib
from bench.results import Row, Target
from bench.sizes import Sizes
from bench.submit import SCRIPT, fill_nodes
from bireme.client.transport import Transport
from bireme.daemon import process

_TABLES = ("runs", "runs_by_end", "runs_by_array", "runs_by_het", "shapes")


def measure(sizes: Sizes) -> Iterator[Row]:
    with bireme_cluster.running(bireme_cluster.this_host(sizes.cpus)) as cluster:
        fill_nodes(cluster)
        _submit_array(cluster, sizes.much_tasks)
        yield _cancelled(cluster, f"scancel -u: an array of {sizes.much_tasks:,} waiting tasks")
        _submit_array(cluster, sizes.much_tasks)
        _submit_singles(cluster, sizes.much_jobs)
        yield from _restarted(cluster, sizes.much_tasks + sizes.much_jobs)
        yield _cancelled(cluster, f"scancel -u: these, {sizes.much_jobs:,} of them jobs of their own")
        _submit_singles(cluster, sizes.much_tasks)
        yield _cancelled(cluster, f"scancel -u: {sizes.much_tasks:,} waiting jobs, each its own")
        cluster.stop()
        yield Row("much", "a cancelled job in the history", _bytes_a_row(cluster), "B", target=Target("<", 400))
    yield from _in_a_row(sizes)


def _submit_array(cluster: BiremeCluster, tasks: int) -> None:
    words = cluster.command("sbatch", f"--array=0-{tasks - 1}", "--output=/dev/null", "--wrap=true")
    subprocess.run(words, env=cluster.env, stdout=subprocess.DEVNULL, check=True)


def _submit_singles(cluster: BiremeCluster, jobs: int) -> None:
    with bireme.Client(cluster.home) as client:
        refused = [each for each in client.submit_many([SCRIPT] * jobs) if isinstance(each, bireme.ApiError)]
    if refused:
        raise RuntimeError(f"{len(refused)} of {jobs} jobs were refused: {refused[0]}")


def _cancelled(cluster: BiremeCluster, what: str) -> Row:
    words = cluster.command("scancel", "-u", getpass.getuser(), "-t", "PENDING")
    spent = machine.timed(words, cluster.env)
    left = subprocess.run(
        cluster.command("squeue", "-h", "-t", "PENDING"), env=cluster.env, capture_output=True, text=True, check=True
    )
    if left.stdout:
        raise RuntimeError(f"still waiting after scancel: {left.stdout[:200]}")
    return Row("much", what, spent, "s", target=Target("<", 3))


def _restarted(cluster: BiremeCluster, jobs: int) -> Iterator[Row]:
    kill(cluster)
    begun = time.perf_counter()
    pid = cluster.start()
    with Transport(cluster.home, patience_s=60.0) as transport:
        transport.get("/v1/ping")
    spent = time.perf_counter() - begun
    yield Row("much", f"first ping, {jobs:,} waiting jobs, after kill -9", spent, "s", target=Target("<", 3))
    yield Row("much", "memory then", rss_mib(pid), "MiB")


def _bytes_a_row(cluster: BiremeCluster) -> float:
    """On disk, with the indexes and what rows share."""
    connection = sqlite3.connect(f"file:{Path(cluster.home) / 'journal.db'}?mode=ro", uri=True)
    try:
        sizes = dict(connection.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name"))
        (rows,) = connection.execute("SELECT count(*) FROM runs").fetchone()
    finally:
        connection.close()
    return float(sum(sizes[name] for name in _TABLES)) / max(rows, 1)


def _in_a_row(sizes: Sizes) -> Iterator[Row]:
    """Short jobs, each submitted when the one before it has ended: the last tenth against the second to the fourth.

    What is compared is the CPU time of daemon, agent, keepers and jobs: the time by the clock also tells how long the
    machine let them wait, and comes along as a detail.
    """
    part = max(sizes.row_jobs // 10, 1)
    settings = ("MinJobAge=300", "MinJobAge=10")
    with bireme_cluster.running(bireme_cluster.this_host(sizes.cpus), settings) as cluster:
        pid = process.running_pid(cluster.home)
        assert pid is not None
        waited, spent, memory, descriptors = [], [], [], []
        with bireme.Client(cluster.home) as client:
            for _ in range(10):
                begun, used = time.perf_counter(), machine.cpu_s_of(cluster.home)
                for _ in range(part):
                    client.submit("#!/bin/sh\n#SBATCH -o /dev/null\ntrue\n").wait()
                waited.append((time.perf_counter() - begun) / part)
                spent.append((machine.cpu_s_of(cluster.home) - used) / part)
                memory.append(rss_mib(pid))
                descriptors.append(len(os.listdir(f"/proc/{pid}/fd")))
    jobs = f"{part * 10:,} jobs one after the other"
    details = {"seconds_a_job": waited, "cpu_s_a_job": spent, "memory_mib": memory, "descriptors": descriptors}
    dearer = spent[-1] / max(statistics.median(spent[1:4]), 1e-6)
    gained, files = memory[-1] - memory[0], float(descriptors[-1] - descriptors[0])
    yield Row("much", f"{jobs}: CPU, last tenth to the first", dearer, "x", target=Target("<", 1.2), details=details)
    yield Row("much", f"{jobs}: memory gained after the first tenth", gained, "MiB", target=Target("<", 20))
    yield Row("much", f"{jobs}: descriptors gained", files, "", target=Target("<", 5))
