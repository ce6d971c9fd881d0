"""The placement study over lists, policies and seeds: runs it, sums it up, and compares it with published figures.

Called by `bireme sim placement`. Runs are independent and can be spread over processes; the result is the same.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import repeat
from statistics import fmean

from bireme.sim.openb import Node, Pod, read_nodes, read_pods
from bireme.sim.placement import FIRST_SEED, READ_AT, Reading, reading_at, study
from bireme.sim.workloads.trace import BadTraceError, Problem

METRICS = {"allo": "allocated", "frag": "fragmented"}
"""The published names of the two measures, and ours."""
PREFIX = "openb_pod_list_"


@dataclass(frozen=True, slots=True)
class Measured:
    """One measure of one policy on one list at one demand, over the seeds; in percent of all GPUs."""

    list_name: str
    policy: str
    metric: str
    demand: int
    values: tuple[float, ...]
    published: float | None = None
    """The published mean."""

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def off(self) -> float | None:
        """How far the mean is from the published one."""
        return None if self.published is None else self.mean - self.published


Published = dict[tuple[str, str, str, int], float]
"""(metric, list, policy, demand) -> mean."""


def list_name(path: str) -> str:
    return os.path.basename(path).split(".")[0].removeprefix(PREFIX)


def read_published(path: str) -> Published:
    """Rows of metric,workload,policy,arrived_pct,...,mean. Raises BadTraceError or OSError."""
    found: Published = {}
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        for row in reader:
            try:
                policy = row["policy"].split("-")[-1].lower()
                key = (row["metric"], row["workload"].removeprefix(PREFIX), policy, int(row["arrived_pct"]))
                found[key] = float(row["mean"])
            except (KeyError, TypeError, ValueError, AttributeError):
                wanted = "the columns are metric,workload,policy,arrived_pct,mean"
                raise BadTraceError([Problem(path, reader.line_num, wanted)], hint="") from None
    return found


def measure(
    nodes_path: str,
    pods_paths: Sequence[str],
    policies: Sequence[str],
    seeds: int,
    published: Published,
    processes: int = 1,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[Measured]:
    """List by list, policy by policy. Raises BadTraceError or OSError."""
    nodes = read_nodes(nodes_path)
    lists = {list_name(path): read_pods(path) for path in pods_paths}
    pool: Executor | None = ProcessPoolExecutor(processes) if processes > 1 else None
    with pool or nullcontext():
        for name, pods in lists.items():
            for policy in policies:
                tell(f"{name}, {policy}")
                runs = _runs(pool, nodes, pods, policy, range(FIRST_SEED, FIRST_SEED + seeds))
                yield from _summed_up(name, policy, runs, published)


def _runs(
    pool: Executor | None, nodes: Sequence[Node], pods: Sequence[Pod], policy: str, seeds: Sequence[int]
) -> list[dict[int, Reading]]:
    over = pool.map if pool else map
    return list(over(study, repeat(nodes), repeat(pods), repeat(policy), seeds))


def _summed_up(name: str, policy: str, runs: Sequence[dict[int, Reading]], published: Published) -> Iterator[Measured]:
    for demand in READ_AT:
        for metric, field in METRICS.items():
            values = tuple(float(getattr(reading_at(run, demand), field)) for run in runs)
            yield Measured(name, policy, metric, demand, values, published.get((metric, name, policy, demand)))
