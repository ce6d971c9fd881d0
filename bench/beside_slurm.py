"""Rows `slurm`: the same things on a real Slurm and on Bireme, one after the other, each figure as a ratio.

An array of tasks from `sbatch` to the last end; one `sbatch` after another behind a full node; a queue of jobs of
mixed sizes from the moment its partition opens until the last has ended; `srun hostname`. Both run the same commands on
one node, this machine, said to have as many CPUs; Slurm is tuned for throughput (`slurm_cluster.SETTINGS`). The report
has both configurations.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench import bireme_cluster, machine, slurm_cluster
from bench.array import array_options
from bench.results import Row, Target
from bench.sizes import Sizes

_LOOK_AGAIN_S = 0.1
_TASKS_OF_JOBS = (1, 2, 4, 8, 16, 1, 3, 1)
"""Sizes of the queue's jobs, over and over."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two, as a user at the shell has it."""

    folder: Path
    programs: Mapping[str, str]
    env: Mapping[str, str]

    def command(self, name: str, *arguments: str) -> list[str]:
        return [self.programs[name], *arguments]

    def call(self, name: str, *arguments: str) -> str:
        done = subprocess.run(self.command(name, *arguments), env=self.env, capture_output=True, text=True, check=True)
        return done.stdout.strip()


@dataclass(frozen=True, slots=True)
class Figures:
    array_s: float
    sbatch_s: float
    queue_s: float
    srun_alone_s: float
    srun_inside_s: float


_COMMANDS = ("sbatch", "squeue", "scontrol", "srun", "salloc")
_SRUN_MORE_MS = 120
"""What `srun` may take more than Slurm's."""
_TIMED = """
import statistics, subprocess, sys, time
spent = []
for _ in range(int(sys.argv[1])):
    begun = time.perf_counter()
    subprocess.run([sys.argv[2], "hostname"], stdout=subprocess.DEVNULL, check=True)
    spent.append(time.perf_counter() - begun)
print(statistics.median(spent))
"""
"""Run inside an allocation: the median of so many calls of this `srun`."""


def measure(sizes: Sizes, facts: dict[str, object]) -> Iterator[Row]:
    if reason := slurm_cluster.missing():
        facts["slurm"] = reason
        return
    with slurm_cluster.running(sizes.cpus) as cluster:
        facts["slurm"], facts["slurm_conf"] = cluster.slurm.version_text, cluster.conf
        programs = {name: cluster.slurm.program(name) for name in _COMMANDS}
        theirs = _figures(Side(cluster.folder, programs, cluster.env), sizes)
    with bireme_cluster.running(bireme_cluster.this_host(sizes.cpus)) as own:
        programs = {name: own.command(name)[0] for name in _COMMANDS}
        ours = _figures(Side(own.folder, programs, own.env), sizes)
    yield from _rows(ours, theirs, sizes)


def _rows(ours: Figures, theirs: Figures, sizes: Sizes) -> Iterator[Row]:
    tasks, jobs = sizes.side_tasks, sizes.side_jobs
    name = f"array of {tasks:,} tasks"
    yield Row("slurm", name, tasks / ours.array_s, "/s", tasks / theirs.array_s, Target(">=", 3, of_ratio=True))
    name = f"queue of {jobs:,} jobs of mixed sizes"
    yield Row("slurm", name, jobs / ours.queue_s, "/s", jobs / theirs.queue_s, Target(">=", 3, of_ratio=True))
    yield Row("slurm", "sbatch, median", ours.sbatch_s * 1000, "ms", theirs.sbatch_s * 1000)
    for name, mine, slurms in (
        ("alone", ours.srun_alone_s, theirs.srun_alone_s),
        ("inside an allocation", ours.srun_inside_s, theirs.srun_inside_s),
    ):
        yield Row("slurm", f"srun hostname, {name}, median", mine * 1000, "ms", slurms * 1000)
        more, target = (mine - slurms) * 1000, Target("<", _SRUN_MORE_MS)
        yield Row("slurm", f"srun hostname, {name}: more than Slurm's", more, "ms", target=target)


def _figures(side: Side, sizes: Sizes) -> Figures:
    _array(side, 1, "warm")  # the first job pays for what is loaded late
    array_s = _array(side, sizes.side_tasks, "array")
    queue_s = _queue(side, sizes.side_jobs, sizes.cpus)
    alone_s, inside_s = _srun(side, sizes.command_calls)
    return Figures(array_s, _sbatch(side, sizes.side_calls), queue_s, alone_s, inside_s)


def _array(side: Side, tasks: int, name: str) -> float:
    output = side.folder / f"side-{name}"
    output.mkdir()
    begun = time.perf_counter()
    side.call("sbatch", *array_options(tasks, output))
    _until_empty(side)
    return _counted(time.perf_counter() - begun, output, tasks)


def _queue(side: Side, jobs: int, cpus: int) -> float:
    """Submitted while the partition is closed; what is timed is planning and running them."""
    output = side.folder / "side-queue"
    output.mkdir()
    side.call("scontrol", "update", "PartitionName=main", "State=DOWN")
    for number in range(jobs):
        tasks = min(_TASKS_OF_JOBS[number % len(_TASKS_OF_JOBS)], cpus)
        side.call("sbatch", f"-n{tasks}", "--time=1", f"--output={output}/%j.out", "--wrap=bash -c true")
    begun = time.perf_counter()
    side.call("scontrol", "update", "PartitionName=main", "State=UP")
    _until_empty(side)
    return _counted(time.perf_counter() - begun, output, jobs)


def _sbatch(side: Side, calls: int) -> float:
    """The median of `calls` submissions to a node that one job holds."""
    side.call("sbatch", "--exclusive", "--output=/dev/null", "--wrap=exec sleep 86400")
    words = side.command("sbatch", "--time=10", "--output=/dev/null", "--wrap=bash -c true")
    return statistics.median(machine.timed(words, dict(side.env)) for _ in range(calls))


def _srun(side: Side, calls: int) -> tuple[float, float]:
    """The medians of `srun hostname` with a job of its own, and as a step of an allocation."""
    words = side.command("srun", "hostname")
    alone_s = statistics.median(machine.timed(words, dict(side.env)) for _ in range(calls))
    inside = side.call("salloc", "-Q", "-n1", sys.executable, "-c", _TIMED, str(calls), side.programs["srun"])
    return alone_s, float(inside.split()[-1])


def _until_empty(side: Side) -> None:
    while side.call("squeue", "-h", "-t", "PD,CF,R,CG", "-o", "%i"):
        time.sleep(_LOOK_AGAIN_S)


def _counted(spent_s: float, output: Path, wanted: int) -> float:
    written = sum(1 for _ in output.iterdir())
    if written != wanted:
        raise RuntimeError(f"{written} of {wanted} jobs wrote their output into {output}")
    return spent_s
