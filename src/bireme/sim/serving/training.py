"""Training jobs that make way for a service: what they had saved, what they lose, and when they end.

A job writes a checkpoint after every so much work, and, if it is told to make way and has time for it, one more. When
it starts again it first reads the last one, and goes on from there. What it loses is the work since then, the time
between the order to make way and its end, and the time it takes to read; each is counted apart, in GPU-seconds (CPU-
seconds on a cluster without GPUs).

Who calls it: `pool`, which plays the cluster. Reads the journal's events and decides nothing.
Invariant: a job's work on disk never shrinks, and a run that ends by itself has done all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from bireme.core.model import events as e
from bireme.core.model.jobs import Job, Pending
from bireme.core.model.resources import Allocation, ExitStatus
from bireme.core.state.state import State
from bireme.engines.simulated.engine import Script
from bireme.sim.recorder import gpus_of
from bireme.sim.workloads.trace import TraceJob


@dataclass(frozen=True, slots=True)
class Habits:
    """How training saves its work."""

    checkpoint_s: float = 3600.0
    """After every so much work it has it on disk; inf: never."""
    restart_s: float = 120.0
    """A job that was begun before works only so long after its start: it reads its checkpoint."""
    save_s: float | None = None
    """Told to make way, it takes so long to write a checkpoint, and ends; None: it writes none."""


@dataclass(slots=True)
class TrainingRun:
    """One job of the workload."""

    trace: TraceJob
    saved_s: float = 0.0
    """Its work that is on disk."""
    starts: int = 0
    began_at: float | None = None
    """Of the run that there is."""
    units: float = 0.0
    """GPUs, or CPUs, that it holds while it runs."""
    told_at: float | None = None
    """When it was told to make way."""
    stopped_at: float | None = None
    stood_s: float = 0.0
    """Of this run, suspended."""
    preempted: int = 0
    lost: float = 0.0
    grace: float = 0.0
    restart: float = 0.0
    ended_at: float | None = None
    complete: bool = False

    def reading_s(self, habits: Habits) -> float:
        return habits.restart_s if self.starts > 1 else 0.0

    def ran_s(self, now: float) -> float:
        assert self.began_at is not None, "it runs"
        standing = now - self.stopped_at if self.stopped_at is not None else 0.0
        return now - self.began_at - self.stood_s - standing


@dataclass(slots=True)
class Training:
    """All jobs of a workload, as they come and go. `counts_gpus`: else CPUs are counted."""

    habits: Habits
    counts_gpus: bool
    runs: dict[int, TrainingRun] = field(default_factory=dict)
    """By job id, in order of submission."""
    over: int = 0

    def submitted(self, job_id: int, trace: TraceJob) -> None:
        self.runs[job_id] = TrainingRun(trace)

    def script_of(self, job: Job, allocation: Allocation) -> Script:
        """What its next run does."""
        run = self.runs[job.id]
        reading_s = self.habits.restart_s if run.starts else 0.0
        left_s = reading_s + run.trace.run_s - run.saved_s
        return Script(left_s, ExitStatus(run.trace.exit_code), term_s=self.habits.save_s or 0.0)

    # -- what the journal says -----------------------------------------------------------------------------------------

    def watch(self, state: State, events: Sequence[e.Recorded]) -> None:
        for recorded in events:
            event = recorded.event
            run = self.runs.get(getattr(event, "job_id", 0))
            if run is None:
                continue
            if isinstance(event, e.JobAllocated):
                held = gpus_of(event.allocation) if self.counts_gpus else float(event.allocation.cpus)
                run.units, run.starts, run.stood_s = held, run.starts + 1, 0.0
            elif isinstance(event, e.JobStarted):
                run.began_at = recorded.at
            elif isinstance(event, e.JobSuspended):
                run.stopped_at, run.preempted = recorded.at, run.preempted + 1
            elif isinstance(event, e.JobResumed) and run.stopped_at is not None:
                run.stood_s, run.stopped_at = run.stood_s + recorded.at - run.stopped_at, None
            elif isinstance(event, e.JobEnding):
                self._ending(run, event, recorded.at)
            elif isinstance(event, e.JobEnded | e.JobCancelled):
                self._ended(run, state.jobs.get(event.job_id), recorded.at)

    def _ending(self, run: TrainingRun, event: e.JobEnding, now: float) -> None:
        run.complete = event.outcome.state in ("COMPLETED", "FAILED")
        if run.began_at is None:
            return
        ran_s, reading_s = run.ran_s(now), run.reading_s(self.habits)
        run.restart += min(ran_s, reading_s) * run.units
        if event.outcome.state != "PREEMPTED":
            return
        run.preempted, run.told_at = run.preempted + 1, now
        done_s = run.saved_s + max(0.0, ran_s - reading_s)
        if not event.requeue:
            run.saved_s = 0.0  # nobody goes on from it
        elif self._saves_within(event.grace_s) and done_s > run.saved_s:
            run.saved_s = done_s
        elif self.habits.checkpoint_s < inf:
            run.saved_s = max(run.saved_s, done_s // self.habits.checkpoint_s * self.habits.checkpoint_s)
        run.lost += (done_s - run.saved_s) * run.units

    def _saves_within(self, grace_s: int | None) -> bool:
        return self.habits.save_s is not None and grace_s is not None and self.habits.save_s < grace_s

    def _ended(self, run: TrainingRun, job: Job | None, now: float) -> None:
        if run.told_at is not None:
            run.grace += (now - run.told_at) * run.units
        run.began_at = run.told_at = run.stopped_at = None
        if job is None or not isinstance(job.phase, Pending):
            run.ended_at = now
            self.over += 1


@dataclass(frozen=True, slots=True)
class Toll:
    """What a service cost the training beside it, against the same training on the same cluster alone."""

    jobs: int
    unit: str
    """GPU or CPU: what the hours are of."""
    asked_hours: float
    """The work of all jobs."""
    preemptions: int
    preempted_jobs: int
    lost_hours: float
    """Work since the last checkpoint, done again."""
    grace_hours: float
    """Between the order to make way and the end."""
    restart_hours: float
    """Reading checkpoints."""
    unfinished: int
    """Jobs that did not do all of their work: ended for good by a preemption or a time limit, or never started."""
    end_delay_s: float
    """The last job ends so much later than it would alone."""
    mean_delay_s: float
    """Of the jobs that did all their work in both."""
    max_delay_s: float

    @property
    def wasted_hours(self) -> float:
        return self.lost_hours + self.grace_hours + self.restart_hours


def toll_of(beside: Training, alone: Training) -> Toll:
    """What the service cost training, from two plays of the same jobs in the same order."""
    runs = list(beside.runs.values())
    pairs = zip(runs, alone.runs.values(), strict=True)
    delays = [mine.ended_at - its.ended_at for mine, its in pairs if mine.ended_at and its.ended_at and mine.complete]
    last, last_alone = (max(each.ended_at or 0.0 for each in which.runs.values()) for which in (beside, alone))
    return Toll(
        jobs=len(runs),
        unit="GPU" if beside.counts_gpus else "CPU",
        asked_hours=sum(run.trace.run_s * run.units for run in runs) / _HOUR_S,
        preemptions=sum(run.preempted for run in runs),
        preempted_jobs=sum(run.preempted > 0 for run in runs),
        lost_hours=sum(run.lost for run in runs) / _HOUR_S,
        grace_hours=sum(run.grace for run in runs) / _HOUR_S,
        restart_hours=sum(run.restart for run in runs) / _HOUR_S,
        unfinished=sum(not run.complete for run in runs),
        end_delay_s=last - last_alone,
        mean_delay_s=sum(delays) / len(delays) if delays else 0.0,
        max_delay_s=max(delays, default=0.0),
    )


_HOUR_S = 3600.0
