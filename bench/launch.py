"""Row `launch`: tasks of an array a second, each a full job with its own record and output file.

Timed from before `sbatch` starts until the last task has ended. The floor is measured right before and right after.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import bireme
from bench import bireme_cluster, machine, slurm_cluster
from bench.array import array_options
from bench.bireme_cluster import BiremeCluster
from bench.results import Row, Target
from bench.sizes import Sizes


def measure(sizes: Sizes, facts: dict[str, object], with_slurm: bool) -> Iterator[Row]:
    tasks = sizes.launch_tasks
    before = machine.bash_rate(tasks)
    one_node = _bireme_rate(bireme_cluster.this_host(sizes.cpus), tasks)
    after = machine.bash_rate(tasks)
    virtual = _bireme_rate(bireme_cluster.virtual_nodes(sizes.virtual_nodes, sizes.cpus), tasks)
    floor = (before + after) / 2
    details = {"floor_before": before, "floor_after": after, "tasks": tasks}
    yield Row("launch", "floor: bash -c true, two bare loops", floor, "/s", details=details)
    yield Row("launch", "array, 1 node", one_node, "/s", floor, Target(">=", 0.4, of_ratio=True))
    yield Row("launch", f"array, {sizes.virtual_nodes} virtual nodes", virtual, "/s", floor)
    reason = slurm_cluster.missing() if with_slurm else "not asked for"
    if reason:
        facts["slurm"] = reason
        return
    slurm = _slurm_rate(sizes, facts)
    yield Row("launch", "Slurm: the same array, 1 node", slurm, "/s", floor)
    yield Row("launch", "array, 1 node, next to Slurm", one_node, "/s", slurm, Target(">=", 3, of_ratio=True))


def _bireme_rate(nodes: tuple[str, str], tasks: int) -> float:
    with bireme_cluster.running(nodes) as cluster:
        _run_array(cluster, 1)  # the first job of a cluster pays for imports and caches
        return tasks / _run_array(cluster, tasks)


def _run_array(cluster: BiremeCluster, count: int) -> float:
    """Seconds of an array of `count` tasks: `sbatch --wait` returns when the last one ended."""
    output = cluster.folder / f"out{count}"
    output.mkdir()
    command = cluster.command("sbatch", "--wait", *array_options(count, output))
    begun = time.perf_counter()
    done = subprocess.run(command, env=cluster.env, stdout=subprocess.PIPE, text=True, check=True)
    spent = time.perf_counter() - begun
    written = sum(1 for _ in output.iterdir())
    with bireme.Client(cluster.home) as client:
        good = sum(record["state"] == "COMPLETED" for record in client.jobs(job=done.stdout.strip()))
    if (good, written) != (count, count):
        raise RuntimeError(f"of {count} tasks {good} completed and {written} wrote their output")
    return spent


def _slurm_rate(sizes: Sizes, facts: dict[str, object]) -> float:
    with slurm_cluster.running(sizes.cpus) as cluster:
        facts["slurm"], facts["slurm_conf"] = slurm_cluster.version(), cluster.conf
        return sizes.launch_tasks / cluster.run_array(sizes.launch_tasks)
