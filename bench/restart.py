"""Row `restart`: a daemon with a long journal behind it, from its start to its first answer, and what it then weighs.

The daemon is killed, not stopped: a stop writes a snapshot, and the question is how long a crash keeps people waiting.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from bench import bireme_cluster
from bench.results import Row, Target
from bench.sizes import Sizes
from bench.submit import fill_queue
from bireme.client.transport import Transport
from bireme.daemon import process


def measure(sizes: Sizes) -> Iterator[Row]:
    with bireme_cluster.running(bireme_cluster.this_host(sizes.cpus)) as cluster:
        fill_queue(cluster, sizes.restart_jobs)
        for how, end in (("kill -9", kill), ("stop", lambda one: one.stop())):
            end(cluster)
            begun = time.perf_counter()
            pid = cluster.start()
            with Transport(cluster.home, patience_s=60.0) as transport:
                transport.get("/v1/ping")
            spent = time.perf_counter() - begun
            jobs = f"{sizes.restart_jobs:,} jobs, after {how}"
            yield Row("restart", f"first ping, {jobs}", spent, "s", target=Target("<", 5))
            yield Row("restart", f"memory, {jobs}", rss_mib(pid), "MiB", target=Target("<", 1024))


def kill(cluster: bireme_cluster.BiremeCluster) -> None:
    pid = process.running_pid(cluster.home)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while process.running_pid(cluster.home) is not None:
        time.sleep(0.01)


def rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no VmRSS")
