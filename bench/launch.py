"""Rows `launch`: tasks of an array a second, each a full job with its own record and output file.

A wrapped command is two programs, `sh` and the `bash` that it runs, where the floor counts one; so there is a row for a
script of bash that does nothing, too, whose tasks are one program each as the floor's are. The target is the first's.

Timed from before `sbatch` starts until the last task has ended. The floor is measured right before and right after; of
several such rounds the one with the median ratio counts.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import bireme
from bench import bireme_cluster, machine
from bench.array import WRAPPED, array_options
from bench.bireme_cluster import BiremeCluster
from bench.folders import new_folder
from bench.results import Row, Target
from bench.sizes import Sizes


def measure(sizes: Sizes) -> Iterator[Row]:
    one_node = _rounds(bireme_cluster.this_host(sizes.cpus), sizes)
    alone = _rounds(bireme_cluster.this_host(sizes.cpus), sizes, (str(_script_of_bash()),))
    virtual = _rounds(bireme_cluster.virtual_nodes(sizes.virtual_nodes, sizes.cpus), sizes)
    details = {"rounds": [asdict(one) for one in one_node], "tasks": sizes.launch_tasks}
    typical = _typical(one_node)
    yield Row("launch", "floor: bash -c true, two bare loops", typical.floor, "/s", details=details)
    yield Row("launch", "array, 1 node", typical.rate, "/s", typical.floor, Target(">=", 0.4, of_ratio=True))
    details = {"rounds": [asdict(one) for one in alone]}
    name = "array of a script of bash, 1 node"
    yield Row("launch", name, _typical(alone).rate, "/s", _typical(alone).floor, details=details)
    name = f"array, {sizes.virtual_nodes} virtual nodes"
    details = {"rounds": [asdict(one) for one in virtual]}
    yield Row("launch", name, _typical(virtual).rate, "/s", _typical(virtual).floor, details=details)


@dataclass(frozen=True, slots=True)
class Round:
    """One array, and the floor around it: the mean of right before and right after."""

    rate: float
    floor: float

    @property
    def ratio(self) -> float:
        return self.rate / self.floor


def _script_of_bash() -> Path:
    script = new_folder("script") / "true.sh"
    script.write_text("#!/bin/bash\ntrue\n")
    return script


def _rounds(nodes: tuple[str, str], sizes: Sizes, program: Sequence[str] = WRAPPED) -> list[Round]:
    """Several, because whatever else the machine does hits one of them."""
    tasks, rounds = sizes.launch_tasks, list[Round]()
    with bireme_cluster.running(nodes) as cluster:
        _run_array(cluster, 1, "warm", program)  # the first job of a cluster pays for imports and caches
        before = machine.bash_rate(tasks)
        for number in range(sizes.launch_rounds):
            rate = tasks / _run_array(cluster, tasks, f"round{number}", program)
            after = machine.bash_rate(tasks)
            rounds.append(Round(rate, (before + after) / 2))
            before = after
    return rounds


def _typical(rounds: list[Round]) -> Round:
    """The round with the median ratio."""
    return sorted(rounds, key=lambda one: one.ratio)[len(rounds) // 2]


def _run_array(cluster: BiremeCluster, count: int, name: str, program: Sequence[str]) -> float:
    """Seconds of an array of `count` tasks: `sbatch --wait` returns when the last one ended."""
    output = cluster.folder / name
    output.mkdir()
    command = cluster.command("sbatch", "--wait", *array_options(count, output, program))
    begun = time.perf_counter()
    done = subprocess.run(command, env=cluster.env, stdout=subprocess.PIPE, text=True, check=True)
    spent = time.perf_counter() - begun
    written = sum(1 for _ in output.iterdir())
    with bireme.Client(cluster.home) as client:
        good = sum(record["state"] == "COMPLETED" for record in client.jobs(job=done.stdout.strip()))
    if (good, written) != (count, count):
        raise RuntimeError(f"of {count} tasks {good} completed and {written} wrote their output")
    return spent
