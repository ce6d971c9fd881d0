"""One simulation: a workload on a cluster under a policy, from the first submission to the last end.

The composition root of `bireme sim`: store, engine, clock, world, recorder. Jobs come when the workload says, run as
long as it says, and everything in between is the real kernel's. Invariant: same workload, cluster and policy, same
result, on any machine.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from bireme.core.jobs.submission import submit
from bireme.core.model import events as e
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.jobs import Job, JobSpec
from bireme.core.model.refusals import Caller, Refusal
from bireme.core.model.resources import Allocation, ExitStatus
from bireme.core.state.state import State
from bireme.engines.simulated.clock import VirtualClock
from bireme.engines.simulated.engine import Script, SimulatedEngine
from bireme.sim.policies import Ranking, SimPolicy
from bireme.sim.recorder import SAMPLES, JobRun, Recorder
from bireme.sim.specs import LimitOf, SpecMaker, account_book, limit_of
from bireme.sim.workloads.trace import BadTraceError, Problem, Workload
from bireme.sim.world import GATHERED_EVENTS, World, no_rows
from bireme.slurm.conf.altered import with_keys
from bireme.slurm.records.steps import rows_of
from bireme.store.journal import SqliteStore

PROGRESS_EVERY_S = 0.2
ROOT = Caller(uid=0, gid=0, user="root", admin=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    rule: LimitOf
    skip_bad: bool = False
    launch_s: float = 0.0
    """Between the decision to start a job and its first instruction."""
    journal: str = ""
    """Where the journal is kept; empty: it is thrown away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    workload: Workload
    config: ClusterConfig
    policy: SimPolicy
    runs: tuple[JobRun, ...]
    """In order of submission."""
    recorder: Recorder
    problems: tuple[Problem, ...]
    """Jobs that this cluster can never run."""
    turns: int
    wall_s: float
    first: float
    last: float


Progress = Callable[[int, float], None]
"""(jobs ended, virtual time)."""


def simulate(
    workload: Workload, config: ClusterConfig, policy: SimPolicy, options: Options, progress: Progress | None = None
) -> Result:
    """Raises BadTraceError when a job can never run and is not to be skipped."""
    began = time.monotonic()
    config = with_keys(config, policy.keys, policy.name)
    with kept_journal(options.journal) as store, rare_collections():
        replay = _Replay(workload, config, policy.ranking(), options, store)
        problems = replay.check()
        replay.run(progress)
    runs = tuple(replay.recorder.runs.values())
    ends = [run.end for run in runs if run.end is not None]
    return Result(
        workload=workload,
        config=config,
        policy=policy,
        runs=runs,
        recorder=replay.recorder,
        problems=problems,
        turns=replay.world.turns,
        wall_s=time.monotonic() - began,
        first=workload.jobs[0].submit,
        last=max(ends, default=workload.jobs[-1].submit),
    )


@contextmanager
def kept_journal(path: str) -> Iterator[SqliteStore]:
    with tempfile.TemporaryDirectory(prefix="bireme-sim-") as folder:
        store = SqliteStore(path or os.path.join(folder, "journal.db"), durable=False, gather=GATHERED_EVENTS)
        try:
            yield store
        finally:
            store.close(thrown_away=not path)


@contextmanager
def rare_collections() -> Iterator[None]:
    """A replay makes few cycles and many objects that stay: looking at all of them often costs a tenth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def never_runs(workload: Workload, specs: SpecMaker, state: State, now: float, *, skip_bad: bool) -> dict[int, Problem]:
    """Jobs that this cluster refuses, by their place in the workload. Raises BadTraceError unless they are skipped."""
    answers: dict[int, str] = {}
    problems: dict[int, Problem] = {}
    for place, job in enumerate(workload.jobs):
        spec = specs.make(job)
        if id(spec) not in answers:
            answers[id(spec)] = _refusal(state, spec, now)
        if answers[id(spec)]:
            problems[place] = Problem(workload.source, job.line, answers[id(spec)])
    if problems and not skip_bad:
        raise BadTraceError(problems.values(), hint="--skip-bad leaves such jobs out and counts them")
    return problems


def _refusal(state: State, spec: JobSpec, now: float) -> str:
    try:
        submit(state, ROOT, [spec], now)
    except Refusal as refusal:
        return f"this cluster can never run it: {refusal}"
    return ""


@dataclass(slots=True)
class _Replay:
    workload: Workload
    config: ClusterConfig
    ranking: Ranking
    options: Options
    store: SqliteStore
    world: World = field(init=False)
    recorder: Recorder = field(init=False)
    _clock: VirtualClock = field(init=False)
    _specs: SpecMaker = field(init=False)
    _skipped: dict[int, Problem] = field(default_factory=dict)
    """Jobs that can never run, by their place in the workload, and why."""
    _at: int = 0
    """The next job to come."""

    def __post_init__(self) -> None:
        jobs = self.workload.jobs
        self._clock = VirtualClock(jobs[0].submit)
        self._specs = SpecMaker(self.config, self.options.rule)
        self.recorder = Recorder(max(1.0, self.workload.span_s / SAMPLES))
        engine = SimulatedEngine(self._clock, self._script)
        records = rows_of if self.options.journal else no_rows
        self.world = World(self.store, engine, self._clock, records)
        self.world.watchers.append(self.recorder.watch)
        self.world.watchers.append(self._learn)
        self.world.start(self.config)
        book = account_book(jobs, self.world.state.accounts)
        self.world.ask("simulation", lambda state, now: [book], lambda events, error: None)
        self.world.run(jobs[0].submit)

    def _script(self, job: Job, allocation: Allocation) -> Script:
        trace = self.recorder.runs[job.id].trace
        return Script(trace.run_s, ExitStatus(trace.exit_code), self.options.launch_s)

    # -- before ------------------------------------------------------------------------------------------------------

    def check(self) -> tuple[Problem, ...]:
        """Jobs that the cluster refuses even when it is empty. Raises BadTraceError unless they are to be skipped."""
        state, now = self.world.state, self._clock.now()
        self._skipped = never_runs(self.workload, self._specs, state, now, skip_bad=self.options.skip_bad)
        return tuple(self._skipped.values())

    # -- during ------------------------------------------------------------------------------------------------------

    def run(self, progress: Progress | None) -> None:
        self._await_next()
        shown = time.monotonic()
        while (at := self.world.next_at()) is not None and not self._done:
            self._clock.advance(at)
            self.world.turn()
            if progress is not None and (now := time.monotonic()) - shown >= PROGRESS_EVERY_S:
                progress(self.recorder.finished, self._clock.now())
                shown = now
        if progress is not None:
            progress(self.recorder.finished, self._clock.now())

    @property
    def _done(self) -> bool:
        return self._at >= len(self.workload.jobs) and self.recorder.finished >= len(self.recorder.runs)

    def _await_next(self) -> None:
        while self._at in self._skipped:
            self._at += 1
        if self._at < len(self.workload.jobs):
            self._clock.call_at(self.workload.jobs[self._at].submit, self._submit_next)

    def _submit_next(self) -> None:
        trace = self.workload.jobs[self._at]
        self._at += 1
        limit_s = limit_of(trace, self.options.rule)
        spec = self._specs.make(trace, self.ranking.priority(trace, limit_s))
        owner = spec.owner
        caller = Caller(uid=owner.uid, gid=owner.gid, user=owner.user, admin=True)  # policies give priorities

        def answer(events: Sequence[e.Recorded], error: Exception | None) -> None:
            if error is not None:
                raise error
            submitted = events[0].event
            assert isinstance(submitted, e.JobSubmitted)
            self._specs.admitted(spec, submitted.spec)
            self.recorder.submitted(submitted.job_id, trace, limit_s, events[0].at)

        self.world.ask(f"{owner.user} submit", lambda state, now: submit(state, caller, [spec], now), answer)
        self._await_next()

    def _learn(self, state: object, events: Sequence[e.Recorded]) -> None:
        for recorded in events:
            if isinstance(recorded.event, e.JobEnded):
                run = self.recorder.runs.get(recorded.event.job_id)
                if run is not None and run.end is not None:
                    self.ranking.learn(run.trace, run.run_s)
