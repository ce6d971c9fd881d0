"""Rows `submit`: one `sbatch` after another, and the SDK over one connection; every answer comes after the disk's.

The cluster is full (one job holds its only node), so that what is measured is accepting jobs and planning around them,
not running them.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator

import bireme
from bench import bireme_cluster, machine
from bench.bireme_cluster import BiremeCluster
from bench.results import Row, Target
from bench.sizes import Sizes

SCRIPT = "#!/bin/bash\n#SBATCH --time=10\nbash -c true\n"


def measure(sizes: Sizes) -> Iterator[Row]:
    with bireme_cluster.running(bireme_cluster.this_host(sizes.cpus)) as cluster:
        fill_nodes(cluster)
        yield from _sbatch(cluster, sizes.sbatch_calls)
        with bireme.Client(cluster.home) as client:
            yield from _sdk(client, sizes)


def _sbatch(cluster: BiremeCluster, calls: int) -> Iterator[Row]:
    script = cluster.folder / "true.sh"
    script.write_text(SCRIPT)
    spent = sorted(machine.timed(cluster.command("sbatch", str(script)), cluster.env) for _ in range(calls))
    last = spent[min(calls - 1, int(calls * 0.99))]
    details = {"fastest_s": spent[0], "slowest_s": spent[-1], "calls": calls}
    yield Row("submit", "sbatch, median", statistics.median(spent) * 1000, "ms", details=details)
    yield Row("submit", "sbatch, 99th percentile", last * 1000, "ms")


def _sdk(client: bireme.Client, sizes: Sizes) -> Iterator[Row]:
    begun = time.perf_counter()
    for _ in range(sizes.sdk_single):
        client.submit(SCRIPT)
    rate = sizes.sdk_single / (time.perf_counter() - begun)
    yield Row("submit", "SDK, submit one by one", rate, "/s", target=Target(">=", 1500))
    begun = time.perf_counter()
    made = client.submit_many([SCRIPT] * sizes.sdk_many)
    rate = len(made) / (time.perf_counter() - begun)
    yield Row("submit", f"SDK, submit_many of {len(made):,}", rate, "/s", target=Target(">=", 2000))


def fill_nodes(cluster: BiremeCluster) -> None:
    """One job that holds everything: whatever comes after it waits."""
    command = cluster.command("sbatch", "--exclusive", "--output=/dev/null", "--wrap=exec sleep 86400")
    subprocess.run(command, env=cluster.env, stdout=subprocess.DEVNULL, check=True)


def fill_queue(cluster: BiremeCluster, jobs: int) -> None:
    """Pending jobs, each a job of its own, behind one that holds the node."""
    fill_nodes(cluster)
    with bireme.Client(cluster.home) as client:
        refused = [one for one in client.submit_many([SCRIPT] * jobs) if isinstance(one, bireme.ApiError)]
    if refused:
        raise RuntimeError(f"{len(refused)} of {jobs} jobs were refused: {refused[0]}")
