"""Row `squeue`: how long a look at a long queue takes, and how long the command itself takes to start."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench import bireme_cluster, machine
from bench.results import Row, Target
from bench.sizes import Sizes
from bench.submit import fill_queue


def measure(sizes: Sizes) -> Iterator[Row]:
    with bireme_cluster.running(bireme_cluster.this_host(sizes.cpus)) as cluster:
        fill_queue(cluster, sizes.queued_jobs)
        rows = (
            (f"squeue, {sizes.queued_jobs:,} pending jobs", ("squeue",), 0.15),
            ("squeue --version", ("squeue", "--version"), 0.1),
        )
        for name, (command, *arguments), bound in rows:
            words = cluster.command(command, *arguments)
            spent = [machine.timed(words, cluster.env) for _ in range(sizes.repeats)]
            details = {"fastest": min(spent), "slowest": max(spent), "runs": len(spent)}
            yield Row("squeue", name, statistics.median(spent), "s", target=Target("<", bound), details=details)
