"""Several simulations side by side: policies or clusters, each over the same seeds, and how they differ from the first.

A seed of a generated workload is the generator's. A trace is shaken: every submission moves by a few minutes, so that
what depends on one lucky coincidence shows as spread. Invariant: all cases of one seed see the same jobs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from bireme.core.model.cluster import ClusterConfig
from bireme.sim.metrics import Report, Watts, measure
from bireme.sim.policies import SimPolicy
from bireme.sim.replay import Options, Progress, simulate
from bireme.sim.workloads import generator
from bireme.sim.workloads.trace import Workload

SHAKE_S = 300.0

MEASURES: dict[str, tuple[str, Callable[[dict[str, Any]], float]]] = {
    "wait_mean_s": ("mean wait", lambda numbers: numbers["wait_s"]["mean"]),
    "wait_p95_s": ("wait, 95th percentile", lambda numbers: numbers["wait_s"]["p95"]),
    "turnaround_mean_s": ("mean turnaround", lambda numbers: numbers["turnaround_s"]["mean"]),
    "slowdown_mean": ("mean bounded slowdown", lambda numbers: numbers["slowdown"]["mean"]),
    "utilisation": ("utilisation while jobs come", lambda numbers: numbers["utilisation"]["while_submitting"]),
    "makespan_s": ("makespan", lambda numbers: numbers["makespan_s"]),
    "jain_slowdown": ("fairness (Jain, slowdowns)", lambda numbers: numbers["fairness"]["jain_slowdown"]),
    "stranded": ("stranded GPUs", lambda numbers: numbers["fragmentation"]["stranded_mean"]),
    "preemptions": ("preemptions", lambda numbers: float(numbers["preemptions"])),
}
"""What is compared: name -> (words, where it stands in the numbers)."""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    config: ClusterConfig
    policy: SimPolicy


@dataclass(frozen=True, slots=True)
class Compared:
    case: Case
    reports: tuple[Report, ...]
    """One for each seed."""
    values: dict[str, dict[str, float]]
    """measure -> mean, spread (standard deviation over seeds), and difference to the first case with its own spread."""


def workload_of_seed(workload: Workload, text: str, seed: int) -> Workload:
    """Seed 0 is the workload as it is."""
    if not seed:
        return workload
    if text.startswith(generator.PREFIX):
        mix = generator.parse(text)
        return generator.generate(replace(mix, seed=mix.seed + seed))
    rng = random.Random(seed)
    first = workload.jobs[0].submit
    moved = [replace(job, submit=max(first, job.submit + rng.uniform(-SHAKE_S, SHAKE_S))) for job in workload.jobs]
    return replace(workload, jobs=tuple(sorted(moved, key=lambda job: job.submit)))


def compare(
    workload: Workload,
    text: str,
    cases: Sequence[Case],
    seeds: int,
    options: Options,
    watts: Watts | None = None,
    progress: Callable[[Case, int], Progress] | None = None,
) -> list[Compared]:
    reports: list[list[Report]] = [[] for _ in cases]
    for seed in range(seeds):
        jobs = workload_of_seed(workload, text, seed)
        for position, case in enumerate(cases):
            tell = progress(case, seed) if progress is not None else None
            reports[position].append(measure(simulate(jobs, case.config, case.policy, options, tell), watts))
    first = reports[0]
    return [Compared(case, tuple(own), _values(own, first)) for case, own in zip(cases, reports)]


def _values(own: Sequence[Report], first: Sequence[Report]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, (_, value) in MEASURES.items():
        mine = [value(report.numbers) for report in own]
        differences = [mine[seed] - value(report.numbers) for seed, report in enumerate(first)]
        found[name] = {
            "mean": fmean(mine),
            "spread": stdev(mine) if len(mine) > 1 else 0.0,
            "difference": fmean(differences),
            "difference_spread": stdev(differences) if len(differences) > 1 else 0.0,
        }
    return found
