"""Row `squeue`: how long a look at a long queue takes, and how long the command itself takes to start.

Between two looks is as much time as the daemon gives the same answer again: each is made for who asks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from bench import bireme_cluster, machine
from bench.results import Row, Target
from bench.sizes import Sizes
from bench.submit import fill_queue
from bireme.api.answers import FRESH_S


def measure(sizes: Sizes) -> Iterator[Row]:
    with bireme_cluster.running(bireme_cluster.this_host(sizes.cpus)) as cluster:
        fill_queue(cluster, sizes.queued_jobs)
        rows = (
            (f"squeue, {sizes.queued_jobs:,} pending jobs", ("squeue",), 0.15),
            ("squeue --version", ("squeue", "--version"), 0.1),
        )
        for name, (command, *arguments), bound in rows:
            words = cluster.command(command, *arguments)
            spent = []
            for _ in range(sizes.repeats):
                time.sleep(FRESH_S)
                spent.append(machine.timed(words, cluster.env))
            details = {"fastest": min(spent), "slowest": max(spent), "runs": len(spent)}
            yield Row("squeue", name, statistics.median(spent), "s", target=Target("<", bound), details=details)
