"""What happened in a simulation, noted from the journal's events as they are committed.

One `JobRun` per job, the changes of what is held and what waits, and samples of how the free GPUs lie. What it means
is `metrics.py`. Invariant: it only reads; a simulation with and without it is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bireme.core.model import events as e
from bireme.core.model.jobs import Pending
from bireme.core.model.resources import Allocation
from bireme.core.state.state import State
from bireme.sim.workloads.trace import TraceJob

SAMPLES = 400
"""How often, over the whole of the workload, it is looked at how the free GPUs lie."""
BOUND_S = 10.0
"""Of the slowdown: a job shorter than this counts as so long."""


@dataclass(slots=True)
class JobRun:
    """One job from its submission to its end."""

    job_id: int
    trace: TraceJob
    submit: float
    limit_s: int
    start: float | None = None
    """Of its last start."""
    first_start: float | None = None
    end: float | None = None
    state: str = "PENDING"
    nodes: int = 0
    cpus: int = 0
    gpus: float = 0.0
    restarts: int = 0
    preempted: int = 0
    lost_gpu_s: float = 0.0
    """Of the runs that ended before their time and were begun again."""

    @property
    def wait_s(self) -> float:
        assert self.first_start is not None
        return self.first_start - self.submit

    @property
    def run_s(self) -> float:
        assert self.start is not None
        assert self.end is not None
        return self.end - self.start

    @property
    def turnaround_s(self) -> float:
        assert self.end is not None
        return self.end - self.submit

    @property
    def slowdown(self) -> float:
        """Bounded: a very short job counts as if it had run for a while."""
        return max(1.0, (self.wait_s + self.run_s) / max(self.run_s, BOUND_S))


@dataclass(slots=True)
class Recorder:
    interval_s: float
    """Between two samples."""
    runs: dict[int, JobRun] = field(default_factory=dict)
    held: list[tuple[float, float, int]] = field(default_factory=list)
    """(when, change in GPUs held, change in CPUs held)."""
    queue: list[tuple[float, int, float]] = field(default_factory=list)
    """(when, change in jobs waiting, change in GPUs they want)."""
    stranded: list[tuple[float, float]] = field(default_factory=list)
    """(when, GPUs that are free on nodes that are partly in use)."""
    events: int = 0
    finished: int = 0
    _next_sample: float = 0.0

    def submitted(self, job_id: int, trace: TraceJob, limit_s: int, at: float) -> None:
        self.runs[job_id] = JobRun(job_id, trace, at, limit_s)
        self.queue.append((at, 1, float(trace.gpus * trace.gpu_milli / 1000)))

    def watch(self, state: State, events: Sequence[e.Recorded]) -> None:
        self.events += len(events)
        for recorded in events:
            event = recorded.event
            if isinstance(event, e.JobAllocated):
                self._allocated(event, recorded.at)
            elif isinstance(event, e.JobEnding):
                self._ending(event, recorded.at)
            elif isinstance(event, e.JobEnded):
                self._ended(state, event)
            elif isinstance(event, e.JobCancelled) and event.job_id in self.runs:
                run = self.runs[event.job_id]
                run.state, run.end = event.outcome.state, recorded.at
                self._left_queue(run, recorded.at)
                self.finished += 1
        if events and events[-1].at >= self._next_sample:
            self._sample(state, events[-1].at)

    def _allocated(self, event: e.JobAllocated, at: float) -> None:
        run = self.runs.get(event.job_id)
        if run is None:
            return
        run.start, run.state = at, "RUNNING"
        run.first_start = at if run.first_start is None else run.first_start
        run.nodes, run.cpus = len(event.allocation.shares), event.allocation.cpus
        run.gpus = gpus_of(event.allocation)
        self.held.append((at, run.gpus, run.cpus))
        self._left_queue(run, at)

    def _left_queue(self, run: JobRun, at: float) -> None:
        self.queue.append((at, -1, -float(run.trace.gpus * run.trace.gpu_milli / 1000)))

    def _ending(self, event: e.JobEnding, at: float) -> None:
        run = self.runs.get(event.job_id)
        if run is None or run.start is None:
            return
        run.state = event.outcome.state
        if event.outcome.state == "PREEMPTED":
            run.preempted += 1
        if event.requeue:
            run.lost_gpu_s += (at - run.start) * run.gpus

    def _ended(self, state: State, event: e.JobEnded) -> None:
        run = self.runs.get(event.job_id)
        if run is None:
            return
        self.held.append((event.at, -run.gpus, -run.cpus))
        job = state.jobs.get(event.job_id)
        if job is not None and isinstance(job.phase, Pending):
            run.restarts, run.state, run.start = run.restarts + 1, "PENDING", None
            self.queue.append((event.at, 1, float(run.trace.gpus * run.trace.gpu_milli / 1000)))
            return
        run.end = event.at
        self.finished += 1

    def _sample(self, state: State, at: float) -> None:
        self._next_sample = at + self.interval_s
        free = state.occupancy.free
        gpus = free.gres_of("gpu", None)
        self.stranded.append((at, float(np.sum(gpus[free.jobs > 0]))))


def gpus_of(allocation: Allocation) -> float:
    """Whole ones, and parts of GPUs as parts."""
    whole, parts = 0, 0.0
    for share in allocation.shares:
        for gres in share.gres:
            if gres.name == "gpu":
                whole += gres.count
            elif gres.name == "shard":
                parts += gres.count / 1000
    return whole + parts
