"""Rows `containers`: what an image costs a task that starts in it, and many tasks that do at once.

The image is a folder with a static busybox, so that what is measured is the box and not the program; the same busybox
is the program outside. In turns, so that what else the machine does meets both.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path

from bench import bireme_cluster, machine
from bench.bireme_cluster import BiremeCluster
from bench.results import Row, Target
from bench.sizes import Sizes

MOST_MORE_MS, LEAST_RATE = 60.0, 0.7
_TASKS = 200


def measure(sizes: Sizes) -> Iterator[Row]:
    program = shutil.which("busybox")
    if program is None:
        return
    with bireme_cluster.running(bireme_cluster.this_host(sizes.cpus)) as cluster:
        image = _image(cluster.folder / "image", program)
        outside, inside = _in_turns(cluster, image, program, 1, sizes.command_calls)
        more_ms = (statistics.median(inside) - statistics.median(outside)) * 1000
        details = {"outside_s": outside, "inside_s": inside}
        yield Row("containers", "a task in a cached image, more than outside", more_ms, "ms",
                  target=Target("<", MOST_MORE_MS), details=details)  # fmt: skip
        tasks = min(_TASKS, sizes.launch_tasks)
        outside, inside = _in_turns(cluster, image, program, tasks, max(sizes.launch_rounds, 1))
        rates = [tasks / statistics.median(each) for each in (inside, outside)]
        details = {"outside_s": outside, "inside_s": inside}
        target = Target(">=", LEAST_RATE, of_ratio=True)
        yield Row("containers", f"{tasks} tasks in one image", rates[0], "/s", floor=rates[1], target=target,
                  details=details)  # fmt: skip


def _image(folder: Path, program: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    shutil.copy(program, folder / "bin/busybox")
    return folder


def _in_turns(
    cluster: BiremeCluster, image: Path, program: str, tasks: int, rounds: int
) -> tuple[list[float], list[float]]:
    """Seconds of each `srun`: outside, inside."""
    spent: tuple[list[float], list[float]] = ([], [])
    srun = cluster.command("srun", f"-n{tasks}", "--overcommit", "--quiet")
    words = ([*srun, program, "true"], [*srun, f"--container-image={image}", "/bin/busybox", "true"])
    for _ in range(rounds + 1):  # the first finds what is cached
        for each, command in zip(spent, words, strict=True):
            each.append(machine.timed(command, cluster.env))
    return spent[0][1:], spent[1][1:]
