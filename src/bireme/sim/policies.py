"""Scheduling policies to compare: by name, or as a fragment of a slurm.conf.

A policy is keys of slurm.conf and, for those that order jobs by something Slurm's priority does not know, a rule that
gives each job its priority when it is submitted. Every policy runs in the real planner; only the order differs.
Invariant: a policy sees of a job what a scheduler could see when it was submitted, except `sjf`, which is told the run
time on purpose: no policy that must guess can be expected to beat it.
"""

from __future__ import annotations

import os
from bisect import insort
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from bireme.sim.workloads.trace import TraceJob

TOP_PRIORITY = 2_000_000_000
WINDOW = 100
"""So many of the latest runs of a kind are remembered."""
ENOUGH = 5
"""Runs of a kind that are needed before they are believed."""
QUANTILE = 0.5


class Ranking(Protocol):
    """Gives jobs their priorities, and may learn from those that ended."""

    def priority(self, job: TraceJob, limit_s: int) -> int | None: ...

    def learn(self, job: TraceJob, ran_s: float) -> None: ...


class ByPriority:
    """Leaves the order of jobs to the keys of slurm.conf."""

    def priority(self, job: TraceJob, limit_s: int) -> int | None:
        return None

    def learn(self, job: TraceJob, ran_s: float) -> None:
        pass


class ShortestFirst(ByPriority):
    """Knows how long each job will run."""

    def priority(self, job: TraceJob, limit_s: int) -> int | None:
        return TOP_PRIORITY - int(job.run_s)


@dataclass(slots=True)
class _Runs:
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    ordered: list[float] = field(default_factory=list)

    def add(self, ran_s: float) -> None:
        if len(self.latest) == WINDOW:
            self.ordered.remove(self.latest[0])
        self.latest.append(ran_s)
        insort(self.ordered, ran_s)

    def quantile(self) -> float | None:
        return self.ordered[int(QUANTILE * len(self.ordered))] if len(self.ordered) >= ENOUGH else None


class PredictedShortestFirst:
    """Guesses run times: the median of the latest runs of the same user and size, else user, else size, else limit.

    The guess orders the queue and nothing else: limits stay the user's, so a wrong guess ends no job.
    """

    def __init__(self) -> None:
        self._runs: dict[tuple[object, ...], _Runs] = defaultdict(_Runs)

    def _kinds(self, job: TraceJob) -> tuple[tuple[object, ...], ...]:
        size = job.gpus or job.cpus or 0
        return (("user", job.user, job.partition, size), ("partition", job.partition, size), ("size", size))

    def known(self, job: TraceJob) -> float | None:
        """The median of the nearest kind of which there are enough runs."""
        for kind in self._kinds(job):
            found = self._runs[kind].quantile() if kind in self._runs else None
            if found is not None:
                return found
        return None

    def predict(self, job: TraceJob, limit_s: int) -> float:
        found = self.known(job)
        return float(limit_s) if found is None else min(found, float(limit_s))

    def priority(self, job: TraceJob, limit_s: int) -> int | None:
        return TOP_PRIORITY - int(self.predict(job, limit_s))

    def learn(self, job: TraceJob, ran_s: float) -> None:
        for kind in self._kinds(job):
            self._runs[kind].add(ran_s)


@dataclass(frozen=True, slots=True)
class SimPolicy:
    name: str
    about: str
    keys: dict[str, str]
    ranking: Callable[[], Ranking] = ByPriority


_BACKFILL = {"SchedulerType": "sched/backfill", "SchedulerParameters": "bf_max_job_part=20"}
"""Twenty jobs of each partition have slots, as large sites set it: testing thousands at every end finds hardly more."""
_MULTIFACTOR = {
    **_BACKFILL,
    "PriorityType": "priority/multifactor",
    "PriorityMaxAge": "7-0",
    "PriorityCalcPeriod": "30",
}

POLICIES = {
    policy.name: policy
    for policy in (
        SimPolicy("as-configured", "what the cluster's own slurm.conf says", {}),
        SimPolicy(
            "fifo",
            "first come, first served; nobody overtakes",
            {"SchedulerType": "sched/builtin", "PriorityType": "priority/basic"},
        ),
        SimPolicy(
            "backfill",
            "priority by age and size, with backfill",
            {**_MULTIFACTOR, "PriorityWeightAge": "10000", "PriorityWeightJobSize": "1000"},
        ),
        SimPolicy(
            "fairshare",
            "who used less goes first (Fair Tree), then age; with backfill",
            {**_MULTIFACTOR, "PriorityWeightFairShare": "100000", "PriorityWeightAge": "1000"},
        ),
        SimPolicy(
            "sjf",
            "shortest first, knowing every run time beforehand; with backfill",
            {**_BACKFILL, "PriorityType": "priority/basic"},
            ShortestFirst,
        ),
        SimPolicy(
            "predicted",
            "shortest first by run times predicted from history; with backfill",
            {**_BACKFILL, "PriorityType": "priority/basic"},
            PredictedShortestFirst,
        ),
    )
}


class UnknownPolicyError(ValueError):
    """Neither a policy's name nor a file; the text lists what there is."""


def find_policy(text: str) -> SimPolicy:
    """By name, or a file with lines of slurm.conf (Key=Value). Raises UnknownPolicyError."""
    if text in POLICIES:
        return POLICIES[text]
    if not os.path.exists(text):
        raise UnknownPolicyError(f"{text!r} is no file and no policy; there are {', '.join(POLICIES)}")
    keys: dict[str, str] = {}
    with open(text, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            line = line.partition("#")[0].strip()
            key, equals, value = line.partition("=")
            if line and not (equals and key.strip()):
                raise UnknownPolicyError(f"{text}:{number}: not Key=Value: {line!r}")
            if line:
                keys[key.strip()] = value.strip()
    name = os.path.splitext(os.path.basename(text))[0]
    return SimPolicy(name, f"the keys of {text}", keys)
