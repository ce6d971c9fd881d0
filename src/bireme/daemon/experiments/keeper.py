"""Keeps jobs' runs in MLflow: made before a job's first start, given back at the next ones, ended after the last.

The daemon makes it; the gate asks it before every start, the engine for variables, the API for what there is to show.
The id that the server gives a run is journaled (`JobTracked`) before the job is told; all else here may be forgotten.

A server that does not answer costs the first job half a second (`experiments.mlflow_wait_ms`) and the others nothing:
they start with the address and the experiment alone, the reason is journaled, and their programs' own runs carry the
job's key (MLFLOW_RUN_CONTEXT), by which a later start finds them and goes on with them.
Invariants: nothing here holds up the loop or fails a job; no secret is handed on.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model.jobs import Finished, Job, TrackedRun
from bireme.core.model.refusals import Refusal
from bireme.core.model.resources import Allocation
from bireme.core.state.state import State
from bireme.daemon.experiments.mlflow import Mlflow, gone
from bireme.daemon.experiments.policy import Policy
from bireme.daemon.scaling.fetching import Unanswered
from bireme.ports import Blobs, Clock, JournalError, LostBlobError, StoreError
from bireme.slurm.variables.experiments import (
    KEY_TAG,
    URI,
    Variables,
    chosen_experiment,
    experiment_variables,
    run_key,
    tags,
    takes_a_run,
)

log = logging.getLogger("bireme.daemon")

CAUSE = "experiments"
PROBE_EVERY_S = 5.0
"""While the server does not answer in time it is asked so often whether it does again."""
RETRY_S = 20.0
"""Runs whose end could not be told are told again so often."""
MOST_ENDS = 10_000
AT_ONCE = 16
"""So many jobs are asked for at a time: of an array of thousands each would be a connection."""
ENDED_AS = {
    "COMPLETED": "FINISHED",
    "CANCELLED": "KILLED",
    "TIMEOUT": "KILLED",
    "DEADLINE": "KILLED",
    "PREEMPTED": "KILLED",
}
"""What a run is set to by the state its job ended in; all others: FAILED."""
_OPEN = ("RUNNING", "SCHEDULED")

Decide = Callable[[State, float], list[e.Event]]


class Cluster(Protocol):
    """What is asked of the runtime."""

    @property
    def state(self) -> State: ...

    @property
    def clock(self) -> Clock: ...

    async def do_all(
        self, cause: str, decides: Sequence[Decide], *, own: bool = False
    ) -> list[Sequence[e.Recorded] | Refusal]: ...

    def subscribe(self, subscriber: Callable[[Sequence[e.Recorded]], None]) -> Callable[[], None]: ...


@dataclass(slots=True)
class _Asked:
    """One start that a run is asked for."""

    launch: c.LaunchJob
    given: Variables
    environment: Mapping[str, str]
    late: bool = False
    """The start has gone on without it."""
    has_turn: bool = False


@dataclass(frozen=True, slots=True)
class _End:
    run_id: str
    status: str
    at: float


class RunKeeper:
    """Made with the runtime; `begin` when it runs."""

    def __init__(self, cluster: Cluster, blobs: Blobs, policy: Policy) -> None:
        self._cluster, self._blobs = cluster, blobs
        self._leave: Callable[[], None] = lambda: None
        self._tasks: set[asyncio.Task[None]] = set()
        self._probed_at = -PROBE_EVERY_S
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._environment = lru_cache(maxsize=256)(self._read_environment)
        self._ends: dict[int, _End] = {}
        self._telling: asyncio.Task[None] | None = None
        self.problem = ""
        """Why starts do not wait for the server now; empty: it answers, as far as is known."""
        self.reconsider(policy)

    def reconsider(self, policy: Policy) -> None:
        """The settings may be others now."""
        self.policy = policy
        self.mlflow = Mlflow(policy.trackers.mlflow, policy.credential) if policy.trackers.mlflow else None
        self.problem = ""

    def begin(self) -> None:
        self._leave = self._cluster.subscribe(self._committed)
        for job_id in list(self._cluster.state.finished):
            self._note_end(job_id)  # what was not told before the daemon ended

    async def close(self) -> None:
        self._leave()
        tasks = [*self._tasks, *((self._telling,) if self._telling else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- starts --------------------------------------------------------------------------------------------------------

    def further(self, job: Job, allocation: Allocation) -> Variables:
        """What a job is told of its run, as far as its own environment does not say otherwise."""
        state = self._cluster.state
        newest = state.jobs.get(job.id, job)
        return experiment_variables(self.policy.trackers, state.config.name, newest, allocation)

    def prepare(self, launch: c.LaunchJob) -> Awaitable[None] | None:
        """Sees to it that the job has its run. None: nothing to wait for."""
        if self.mlflow is None or not self.policy.trackers.mlflow_runs:
            return None
        asked = self._asked(launch)
        if asked is None:
            return None
        if self.problem:
            self._probe()
            self._spawn(self._note_missed(asked, self.problem))
            return None
        work = self._spawn(self._see_to_run(asked, self.mlflow))
        return self._for_a_moment(asked, work)

    def _asked(self, launch: c.LaunchJob) -> _Asked | None:
        given = self.further(launch.job, launch.allocation)
        environment = self.environment(launch.job) if URI in given else None
        if environment is None or not takes_a_run(environment, given):
            return None
        return _Asked(launch, given, environment)

    def environment(self, job: Job) -> Mapping[str, str] | None:
        """What the job was submitted with; None where nobody knows any more, which the engine will tell."""
        try:
            return self._environment(job.spec.environment) if job.spec.environment else {}
        except (LostBlobError, StoreError, OSError, ValueError):
            return None

    def _read_environment(self, blob_id: str) -> dict[str, str]:
        found: dict[str, str] = json.loads(self._blobs.get(blob_id))
        return found

    @asynccontextmanager
    async def _turn(self, asked: _Asked) -> AsyncIterator[None]:
        """One of `AT_ONCE`. Who is late gives it back at once, so that a question that hangs holds up no later job."""
        await self._turns.acquire()
        asked.has_turn = True
        try:
            yield
        finally:
            self._give_back(asked)

    def _give_back(self, asked: _Asked) -> None:
        if asked.has_turn:
            asked.has_turn = False
            self._turns.release()

    async def _for_a_moment(self, asked: _Asked, work: asyncio.Task[None]) -> None:
        done, _ = await asyncio.wait((work,), timeout=self.policy.wait_s)
        if not done:
            asked.late = True
            why = f"no answer within {self.policy.wait_s:g} s"
            if asked.has_turn:  # else it was not asked yet: too many jobs started at once
                self._give_back(asked)
                self._falls_silent(why)
            self._spawn(self._note_missed(asked, why))

    async def _see_to_run(self, asked: _Asked, mlflow: Mlflow) -> None:
        job = asked.launch.job
        try:
            async with self._turn(asked):
                run = await self._found_or_made(asked, mlflow) if not asked.late else None
        except Unanswered as error:
            if error.silent:  # what it says to one job, in whatever words, is nothing to the others
                self._falls_silent(str(error))
            if not asked.late:  # else it was noted then
                await self._note_missed(asked, str(error))
            return
        if run is None:
            return  # it has one, or went on without
        told = await self._note(job.id, lambda: None if asked.late else run)
        if not told:
            with suppress(Unanswered):
                await mlflow.delete_run(run.run_id)

    async def _found_or_made(self, asked: _Asked, mlflow: Mlflow) -> TrackedRun | None:
        """The job's run. None: it has one, which is still there."""
        job, allocation = asked.launch.job, asked.launch.allocation
        known = self._cluster.state.jobs.get(job.id, job).tracked
        has_one = known is not None and known.run_id and known.server == mlflow.base
        if known is not None and has_one and await self._is_there(mlflow, known.run_id):
            return None
        experiment_id, name = chosen_experiment(asked.environment, asked.given)
        if not experiment_id:
            experiment_id = await mlflow.experiment(name)
        cluster = self._cluster.state.config.name
        if allocation.generation > 1:  # an earlier start may have made one by itself
            key = run_key(cluster, job.id, job.submitted_at)
            if (found := await mlflow.run_tagged([experiment_id], KEY_TAG, key)) is not None:
                return TrackedRun(mlflow.base, found.experiment_id, found.run_id)
        at = self._cluster.clock.now()
        run_id = await mlflow.make_run(experiment_id, job.spec.name or job.label, tags(cluster, job, allocation), at)
        return TrackedRun(mlflow.base, experiment_id, run_id)

    async def _is_there(self, mlflow: Mlflow, run_id: str) -> bool:
        """Whether a run can be gone on with: one that somebody deleted cannot. In doubt it can."""
        try:
            return not (await mlflow.run(run_id)).deleted
        except Unanswered as error:
            return not gone(error)

    async def _note_missed(self, asked: _Asked, why: str) -> None:
        """Why this start is told of no run. A run that the job has already it is told of in any case."""
        server = self.policy.trackers.mlflow
        before = self._cluster.state.jobs.get(asked.launch.job.id, asked.launch.job).tracked
        if before is not None and before.server == server and (before.run_id or before.missed == why):
            return
        await self._note(asked.launch.job.id, lambda: TrackedRun(server, missed=why))

    async def _note(self, job_id: int, run: Callable[[], TrackedRun | None]) -> bool:
        """Has it journaled; whether it is. `run` is asked in the moment of the decision."""

        def decide(state: State, now: float) -> list[e.Event]:
            noted = run() if job_id in state.jobs else None
            return [e.JobTracked(job_id, noted)] if noted is not None else []

        try:
            (answer,) = await self._cluster.do_all(CAUSE, [decide], own=True)
        except JournalError as error:
            log.warning("the run of job %d could not be written down: %s", job_id, error)
            return False
        return not isinstance(answer, Refusal) and bool(answer)

    # -- the server ----------------------------------------------------------------------------------------------------

    def _falls_silent(self, why: str) -> None:
        if not self.problem:
            log.warning("MLflow at %s: %s; jobs start without their runs", self.policy.trackers.mlflow, why)
        self.problem = why
        self._probed_at = asyncio.get_running_loop().time()

    def _probe(self) -> None:
        now = asyncio.get_running_loop().time()
        if self.mlflow is not None and now - self._probed_at >= PROBE_EVERY_S:
            self._probed_at = now
            self._spawn(self._ask_whether_well(self.mlflow))

    async def _ask_whether_well(self, mlflow: Mlflow) -> None:
        try:
            async with asyncio.timeout(self.policy.wait_s):
                await mlflow.well()
        except TimeoutError:
            return
        except Unanswered as error:
            if error.silent:
                return
        if mlflow is self.mlflow:
            log.info("MLflow at %s answers again", mlflow.base)
            self.problem = ""

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def guarded() -> None:
            try:
                await work
            except Exception:  # a bug here is not the job's
                log.exception("experiments: something failed, and jobs go on")

        task = asyncio.get_running_loop().create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # one that was cancelled before it began
        return task

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _committed(self, events: Sequence[e.Recorded]) -> None:
        for recorded in events:
            event = recorded.event
            if isinstance(event, e.JobEnded | e.JobCancelled):
                self._note_end(event.job_id)
            elif isinstance(event, e.JobRequeued):
                self._ends.pop(event.job_id, None)

    def _note_end(self, job_id: int) -> None:
        """A job that has ended for good: its run is to be told, unless its program did that."""
        job = self._cluster.state.jobs.get(job_id)
        if job is None or not isinstance(job.phase, Finished) or job.tracked is None or not job.tracked.run_id:
            return
        if self.mlflow is None or job.tracked.server != self.mlflow.base:
            return
        if len(self._ends) >= MOST_ENDS:
            del self._ends[next(iter(self._ends))]
        status = ENDED_AS.get(job.phase.outcome.state, "FAILED")
        self._ends[job_id] = _End(job.tracked.run_id, status, job.phase.ended_at)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._tell_ends())

    async def _tell_ends(self) -> None:
        while self._ends and self.mlflow is not None:
            mlflow = self.mlflow
            batch = list(self._ends.items())[:AT_ONCE]
            told = await asyncio.gather(*(self._tell_end(mlflow, job_id, end) for job_id, end in batch))
            if not all(told):
                await asyncio.sleep(RETRY_S)

    async def _tell_end(self, mlflow: Mlflow, job_id: int, end: _End) -> bool:
        """Whether there is nothing more to tell of it."""
        try:
            run = await mlflow.run(end.run_id)
            if run.status in _OPEN:
                await mlflow.set_status(end.run_id, end.status, end.at)
        except Unanswered as error:
            if not error.refuses:
                if self._ends.get(job_id) == end:
                    self._ends[job_id] = self._ends.pop(job_id)  # behind the others: they may have more luck
                return False
            log.warning("MLflow at %s does not take the end of job %d: %s", mlflow.base, job_id, error)
        if self._ends.get(job_id) == end:
            del self._ends[job_id]
        return True
