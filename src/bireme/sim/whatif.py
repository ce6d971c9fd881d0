"""What if: a live cluster's snapshot, simulated twice, as it is and with a change, and what differs.

Jobs that run or wait are taken from the snapshot; how long they will run is guessed from the cluster's history (the
median of the latest like them), else their time limits. No new jobs come, unless the history of the last days is to
come again. Invariant: both worlds begin from the same state and see the same jobs; only the change differs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bireme.core.jobs.due import time_limit_s
from bireme.core.jobs.submission import submit
from bireme.core.model import events as e
from bireme.core.model.jobs import Job, JobSpec, Running, Suspended
from bireme.core.model.nodes import Health
from bireme.core.model.refusals import Caller, Refusal
from bireme.core.model.resources import Allocation
from bireme.core.nodes import operators
from bireme.core.placement.demand import requested_tres, resolve
from bireme.core.state.state import State
from bireme.engines.simulated.clock import VirtualClock
from bireme.engines.simulated.engine import Script, SimulatedEngine
from bireme.sim.metrics import capacity
from bireme.sim.policies import PredictedShortestFirst
from bireme.sim.specs import SpecMaker, exact_limit
from bireme.sim.workloads.trace import TraceJob, Workload
from bireme.sim.world import GATHERED_EVENTS, World, no_rows
from bireme.slurm.conf.altered import Alteration, BadChangeError, altered, drained_nodes
from bireme.store.journal import SqliteStore
from bireme.store.planning_input import PlanningInput, decode_input

ROOT = Caller(uid=0, gid=0, user="root", admin=True)
HORIZON_S = 60 * 86_400.0
"""No further: what has not started by then never does, as far as this can tell."""
UNKNOWN_S = 3600.0
"""Run time of a job without a limit of which nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Alteration):
    """What is tried: another cluster, and jobs that are submitted to it."""

    submit: tuple[tuple[JobSpec, ...], ...] = ()
    """Submissions: one specification each, or all components of a heterogeneous job."""
    submit_run_s: float | None = None
    """How long submitted jobs run; None: as long as they may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """A job that waits now, or that the change submits, and when it starts."""

    job: str
    job_id: int
    name: str
    user: str
    partition: str
    gpus: int
    nodes: int
    before: float | None
    """None: not within the horizon; of a submitted job: it is not there."""
    after: float | None
    submitted: bool = False
    component: int | None = None
    """Which one it is of a heterogeneous job."""
    last_before: float | None = None
    """Of an array: when its last task starts."""
    last_after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    now: float
    window_s: float
    """Utilisation is that of the time from now until then, the same for both."""
    unit: str
    units_before: int
    units_after: int
    used_before: float
    """Of all units, on average."""
    used_after: float
    waiters: tuple[Waiter, ...]
    ends_before: float
    """When the last of today's jobs has ended."""
    ends_after: float
    guessed: int
    """Run times that history told, of all that were needed."""
    jobs: int
    preempted_after: int = 0


@dataclass(frozen=True, slots=True)
class _Told:
    """What one world came to."""

    starts: dict[int, list[float]]
    """record's id (an array's own for its tasks) -> starts."""
    held: tuple[tuple[float, float], ...]
    end: float
    units: int
    submitted: tuple[Job, ...]
    preempted: int
    state: State


class Estimates:
    """How long jobs run, as far as the cluster's history can tell."""

    def __init__(self, history: Workload | None) -> None:
        self._guess = PredictedShortestFirst()
        self.told = self.asked = 0
        for job in sorted(history.jobs if history else (), key=lambda job: job.submit + job.run_s):
            self._guess.learn(job, job.run_s)

    def total_s(self, state: State, job: Job) -> float:
        limit = time_limit_s(state, job)
        known = self._guess.known(_as_trace(state, job))
        self.asked += 1
        self.told += known is not None
        if known is not None:
            return known if limit is None else min(known, float(limit))
        return UNKNOWN_S if limit is None else float(limit)

    def left_s(self, state: State, job: Job, phase: Running | Suspended, now: float) -> float:
        """One that runs longer than those like it did is believed to run until its limit."""
        until = now if isinstance(phase, Running) else phase.since
        ran = until - phase.started_at - phase.suspended_s
        left = self.total_s(state, job) - ran
        if left > 0:
            return left
        limit = time_limit_s(state, job)
        return UNKNOWN_S if limit is None else max(1.0, limit - ran)


def _as_trace(state: State, job: Job) -> TraceJob:
    tres = _tres(state, job)
    partition = job.allocation.partition if job.allocation else job.spec.partitions[0]
    return TraceJob(
        submit=job.submitted_at, run_s=1.0, gpus=tres.get("gres/gpu", 0), cpus=tres.get("cpu"),
        user=job.spec.owner.user, account=job.spec.account, partition=partition,
    )  # fmt: skip


def _tres(state: State, job: Job) -> dict[str, int]:
    if job.allocation is not None:
        return job.allocation.tres()
    partition = state.partitions.get(job.spec.partitions[0])
    return requested_tres(resolve(job.spec, partition, state.config.settings)) if partition is not None else {}


# -- the two worlds --------------------------------------------------------------------------------------------------


def what_if(snapshot: bytes, change: Change, history: Workload | None = None, again_s: float = 0.0) -> Outcome:
    """`again_s`: the jobs that the history has of the last so many seconds come again. Raises BadChangeError."""
    taken = decode_input(snapshot)
    waiting = list(taken.state.pending.values())
    before = _told(decode_input(snapshot), Change(), history, again_s)
    after = _told(decode_input(snapshot), change, history, again_s)
    estimates = Estimates(history)
    for job in (*waiting, *taken.state.holding.values()):
        estimates.total_s(taken.state, job)
    window = max([3600.0, *(max(starts) - taken.now for told in (before, after) for starts in told.starts.values())])
    unit, _ = capacity(taken.state.config)
    return Outcome(
        now=taken.now,
        window_s=window,
        unit=unit,
        units_before=before.units,
        units_after=after.units,
        used_before=_mean(before.held, taken.now, window) / max(1, before.units),
        used_after=_mean(after.held, taken.now, window) / max(1, after.units),
        waiters=(*(_waiter(taken.state, job, before, after) for job in waiting), *_submitted(after)),
        ends_before=before.end,
        ends_after=after.end,
        guessed=estimates.told,
        jobs=estimates.asked,
        preempted_after=after.preempted - before.preempted,
    )


def _mean(held: Sequence[tuple[float, float]], now: float, window_s: float) -> float:
    """The mean of what is held from now on, given by its changes in order of time."""
    area = level = 0.0
    at = now
    for when, change in held:
        until = min(when, now + window_s)
        area += level * max(0.0, until - at)
        at, level = max(at, until), level + change
    return (area + level * max(0.0, now + window_s - at)) / window_s


def _waiter(state: State, job: Job, before: _Told, after: _Told) -> Waiter:
    one, two = before.starts.get(job.id, []), after.starts.get(job.id, [])
    tres = _tres(state, job)
    return Waiter(
        job=job.label,
        job_id=job.id,
        name=job.spec.name,
        user=job.spec.owner.user,
        partition=",".join(job.spec.partitions),
        gpus=tres.get("gres/gpu", 0),
        nodes=tres.get("node", 1),
        component=job.spec.het_component,
        before=min(one, default=None),
        after=min(two, default=None),
        last_before=max(one, default=None) if job.is_waiting_array else None,
        last_after=max(two, default=None) if job.is_waiting_array else None,
    )


def _submitted(after: _Told) -> list[Waiter]:
    empty = replace(after, starts={})
    return [replace(_waiter(after.state, job, empty, after), submitted=True) for job in after.submitted]


def _told(taken: PlanningInput, change: Change, history: Workload | None, again_s: float) -> _Told:
    with tempfile.TemporaryDirectory(prefix="bireme-whatif-") as folder:
        store = SqliteStore(os.path.join(folder, "journal.db"), durable=False, gather=GATHERED_EVENTS)
        try:
            taken.state.seq = 0  # the scene's own journal begins here: no snapshot is ahead of its journal
            store.write_snapshot(taken.state.seq, taken.state)
            return _Scene(taken, change, store, history, again_s).play()
        finally:
            store.close(thrown_away=True)


class _Scene:
    """One of the two worlds: set up from the snapshot, changed, and played to its end."""

    def __init__(
        self, taken: PlanningInput, change: Change, store: SqliteStore, history: Workload | None, again_s: float
    ) -> None:
        self.taken, self.change = taken, change
        self.estimates = Estimates(history)
        self.clock = VirtualClock(taken.now)
        self.engine = SimulatedEngine(self.clock, self._script)
        self.world = World(store, self.engine, self.clock, no_rows)
        self.world.watchers.append(self._watch)
        self.config = altered(taken.state.config, change)
        self.unit, self.units = capacity(self.config)
        self.submitted: list[Job] = []
        self.runs: dict[int, float] = {}
        """Run times of jobs that are not in the snapshot."""
        self.starts: dict[int, list[float]] = {}
        self.held: list[tuple[float, float]] = []
        """(when, change in units held)."""
        self.amounts: dict[tuple[int, int], float] = {}
        self.waiting = set(taken.state.pending)
        self.preempted = 0
        self.history, self.again_s = history, again_s

    def _script(self, job: Job, allocation: Allocation) -> Script:
        known = self.runs.get(job.id)
        return Script(self.estimates.total_s(self.world.state, job) if known is None else known)

    def play(self) -> _Told:
        state, now = self.world.state, self.clock.now()
        for node in state.nodes.values():
            self.engine.nodes[node.name] = node.health is Health.UP
        for job in state.holding.values():
            if isinstance(job.phase, Running | Suspended):
                self.engine.adopt(job, job.phase.allocation, self.estimates.left_s(state, job, job.phase, now))
        for job in state.holding.values():
            if job.allocation is not None:
                self.held.append((now, self._amount(job.allocation)))
        self.world.start(self.config)
        self._ask_for_changes()
        self._come_again()
        self.world.run(now + HORIZON_S)
        held = tuple(sorted(self.held, key=lambda change: change[0]))
        end = max((at for at, change in held if change < 0), default=now)
        return _Told(self.starts, held, end, self.units, tuple(self.submitted), self.preempted, self.world.state)

    # -- what is changed ---------------------------------------------------------------------------------------------

    def _ask_for_changes(self) -> None:
        if self.change.drain:
            names = drained_nodes(self.config, self.change.drain)
            self._ask(lambda state, now: operators.update_nodes(state, ROOT, names, "DRAIN", "what if"))
        for specs in self.change.submit:
            self._submit(specs, self.change.submit_run_s)

    def _ask(self, decide: Any) -> None:
        def answer(events: Sequence[e.Recorded], error: Exception | None) -> None:
            if error is not None:
                raise BadChangeError(_sentence(error))

        self.world.ask("what if", decide, answer)

    def _submit(self, specs: Sequence[JobSpec], run_s: float | None) -> None:
        owner = specs[0].owner
        caller = Caller(uid=owner.uid, gid=owner.gid, user=owner.user, admin=True)

        def answer(events: Sequence[e.Recorded], error: Exception | None) -> None:
            if error is not None:
                raise BadChangeError(f"{specs[0].name}: {_sentence(error)}")
            ids = [recorded.event.job_id for recorded in events if isinstance(recorded.event, e.JobSubmitted)]
            self.submitted.extend(self.world.state.jobs[job_id] for job_id in ids)
            self.waiting.update(ids)
            if run_s is not None:
                self.runs.update(dict.fromkeys(ids, run_s))

        self.world.ask("what if submit", lambda state, now: submit(state, caller, specs, now), answer)

    def _come_again(self) -> None:
        """The last days of the history, as the next ones. Jobs that this cluster refuses do not come."""
        if not self.again_s or self.history is None:
            return
        make = SpecMaker(self.config, exact_limit)
        now = self.clock.now()
        for job in self.history.jobs:
            if job.submit >= now - self.again_s:
                spec = make.make(replace(job, qos=""))
                self.clock.call_at(job.submit + self.again_s, partial(self._arrive, spec, job.run_s))

    def _arrive(self, spec: JobSpec, run_s: float) -> None:
        def answer(events: Sequence[e.Recorded], error: Exception | None) -> None:
            if error is None and isinstance(events[0].event, e.JobSubmitted):
                self.runs[events[0].event.job_id] = run_s
            elif not isinstance(error, Refusal):
                raise error or AssertionError("an answer without events")

        owner = spec.owner
        caller = Caller(uid=owner.uid, gid=owner.gid, user=owner.user, admin=True)
        self.world.ask("history", lambda state, now: submit(state, caller, [spec], now), answer)

    # -- what is seen ------------------------------------------------------------------------------------------------

    def _watch(self, state: State, events: Sequence[e.Recorded]) -> None:
        for recorded in events:
            event = recorded.event
            if isinstance(event, e.JobAllocated):
                self.held.append((recorded.at, self._amount(event.allocation)))
                job = state.jobs[event.job_id]
                record = job.array_job_id or job.id
                if record in self.waiting:
                    self.starts.setdefault(record, []).append(recorded.at)
            elif isinstance(event, e.JobEnding) and event.outcome.state == "PREEMPTED":
                self.preempted += 1
            elif isinstance(event, e.JobEnded):
                self.held.append((event.at, -self.amounts.pop((event.job_id, event.generation), 0.0)))

    def _amount(self, allocation: Allocation) -> float:
        """What it holds, remembered until it ends."""
        tres = allocation.tres()
        amount = float(tres.get("gres/gpu", 0) if self.unit == "GPU" else tres["cpu"])
        self.amounts[allocation.job_id, allocation.generation] = amount
        return amount


def _sentence(error: Exception) -> str:
    hint = getattr(error, "hint", "")
    return f"{error} ({hint})" if hint and hint not in str(error) else str(error)
