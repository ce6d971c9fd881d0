"""Rows `commands`: how long the commands take that people call in loops, beside a Python that does nothing.

Behind one job that holds the node wait ten others. `squeue` of a long queue has rows of its own (`queue`), and `srun`
stands next to Slurm's of the same run (`beside_slurm`). Each figure is a median, and so is the floor, measured in turns
with it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator

from bench import bireme_cluster, machine
from bench.bireme_cluster import BiremeCluster
from bench.results import Row, Target
from bench.sizes import Sizes
from bench.submit import SCRIPT, fill_queue

FEW_JOBS = 10
FLOOR = [sys.executable, "-c", ""]
AT_MOST = 3.64
"""Times the floor: 40 ms where Python takes 11."""


def measure(sizes: Sizes) -> Iterator[Row]:
    with bireme_cluster.running(bireme_cluster.this_host(sizes.cpus)) as cluster:
        fill_queue(cluster, FEW_JOBS)
        yield from _few(cluster, sizes.command_calls)


def _few(cluster: BiremeCluster, calls: int) -> Iterator[Row]:
    script = cluster.folder / "true.sh"
    script.write_text(SCRIPT)
    lines = (
        ("sbatch", str(script)),
        ("squeue",),
        ("scontrol", "show", "job", "2"),
        ("sacct", "-j", "2"),
        ("sinfo",),
        ("scancel", "2"),
    )
    bare = [sys.executable, "-S", "-c", ""]
    spent: dict[str, list[float]] = {}
    for line in lines:
        words = cluster.command(line[0], *line[1:])
        subprocess.run(words, env=cluster.env, stdout=subprocess.DEVNULL, check=True)  # what is loaded late is loaded
        for _ in range(calls):  # in turns: what else runs on the machine meets all alike
            for name, command in ((" ".join(line), words), ("floor", FLOOR), ("bare", bare)):
                spent.setdefault(name, []).append(machine.timed(command, cluster.env))
    floor, least = (statistics.median(spent[name]) * 1000 for name in ("floor", "bare"))
    yield Row("commands", "python -S -c ''", least, "ms", floor)
    for line in lines:
        figures = sorted(spent[" ".join(line)])
        name = " ".join(word for word in line if word != str(script))
        if line == ("squeue",):
            name = f"squeue, {FEW_JOBS} waiting jobs"
        details = {"fastest_ms": figures[0] * 1000, "slowest_ms": figures[-1] * 1000, "calls": calls}
        value, target = statistics.median(figures) * 1000, Target("<", AT_MOST, of_ratio=True)
        yield Row("commands", f"{name}, median", value, "ms", floor, target, details=details)
