"""Makes the digest of every start of a job when it is over, and again where rounds about it come later.

Made by the keeper of samples, which tells it of commits and of what gatherers said. Starts that ended while no daemon
ran, or none could write, are found in the history. The curves are read in a thread of its own.

A digest is made once the gatherers of all its nodes have told of a time after its end, at the latest ten minutes after
that. A gatherer that catches up later tells of a job that does not run: its digest is made anew.
Invariant: every start that ended is due, digested, or has nothing measured; nothing here is needed to run jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from bireme.core.model import events as e
from bireme.core.model.jobs import HOLDING, Finished, Job
from bireme.core.state.state import State
from bireme.core.telemetry.digest import Digest
from bireme.daemon.telemetry.ownership import since
from bireme.ports import Clock, Holding, Series, SeriesError, StoreError
from bireme.slurm.hostlist import expand

log = logging.getLogger("bireme.daemon")

AT_THE_LATEST_S = 600.0
_BACK_S = 3600.0
"""At the start, starts are looked for that ended so long before the latest one that has a digest."""
_LOOK_S = 2.0
_AT_ONCE = 50
_UNMEASURED_MOST = 10_000

Answer = TypeVar("Answer")
Name = tuple[int, int]
"""A job and its generation."""


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a job, from when to when it had its nodes."""

    job_id: int
    generation: int
    start: float
    end: float
    nodes: tuple[str, ...]
    gpus: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """The whole GPUs it had on each node, by their numbers there."""

    @property
    def name(self) -> Name:
        return self.job_id, self.generation

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Run:
        """Of a job that started and ended, as the history tells it."""
        start, end = float(record["start_time"]), float(record.get("end_time") or record["start_time"])
        nodes = tuple(expand(record.get("node_list") or ""))
        gpus = tuple(
            (share["node"], tuple(gres.get("indices") or ()))
            for share in record.get("shares") or ()
            for gres in share.get("gres") or ()
            if gres["name"] == "gpu"
        )
        return cls(record["job_id"], int(record.get("generation") or 0), start, max(start, end), nodes, gpus)


class RunsFollowed:
    """Which starts go on, and which are over and wait for their digest. Without IO."""

    def __init__(self) -> None:
        self._open: dict[int, Run] = {}
        self.due: dict[Name, Run] = {}

    def all(self, state: State, now: float) -> None:
        """After a start of the daemon."""
        self._look(state, {*self._open, *state.jobs}, now)

    def after(self, state: State, events: Sequence[e.Recorded], now: float) -> None:
        """`state`: as it is after these events."""
        ids = {job_id for recorded in events if (job_id := getattr(recorded.event, "job_id", None)) is not None}
        self._look(state, ids, now)

    def goes_on(self, name: Name) -> bool:
        run = self._open.get(name[0])
        return run is not None and run.generation == name[1]

    def ready(self, told_until: Mapping[str, float], now: float) -> list[Run]:
        """Those whose gatherers have told of a later time, or that have waited long enough."""
        return [
            run
            for run in self.due.values()
            if now >= run.end + AT_THE_LATEST_S or all(told_until.get(node, 0.0) > run.end for node in run.nodes)
        ]

    def _look(self, state: State, job_ids: Collection[int], now: float) -> None:
        for job_id in job_ids:
            job = state.jobs.get(job_id)
            run = _run(job) if job is not None else None
            had = self._open.pop(job_id, None)
            if had is not None and (run is None or run.generation != had.generation):
                ended = job.phase.ended_at if job is not None and isinstance(job.phase, Finished) else now
                self.due[had.name] = replace(had, end=max(ended, had.start))
            if run is not None:
                self._open[job_id] = run


def _run(job: Job) -> Run | None:
    if not isinstance(job.phase, HOLDING):
        return None
    allocation = job.phase.allocation
    gpus = tuple((share.node, tuple(share.gres_indices("gpu"))) for share in allocation.shares if share.gres)
    return Run(job.id, allocation.generation, since(job.phase), float("inf"), allocation.node_names, gpus)


class Digester:
    """`past`: the starts that ended at or after a time, by the history."""

    def __init__(self, clock: Clock, past: Callable[[float], Sequence[Run]]) -> None:
        self._clock, self._past = clock, past
        self.runs = RunsFollowed()
        self._thread = ThreadPoolExecutor(1, "digests")
        self._unmeasured: dict[Name, Run] = {}
        """Digested without a sample: what comes late finds them here."""
        self._late: set[Name] = set()
        self._looked_back = False
        self._problem = ""
        """Why nothing could be put together the last time."""
        self._work: asyncio.Task[None] | None = None

    def begin(
        self,
        series: Callable[[], Series | None],
        told_until: Callable[[], Mapping[str, float]],
        uuid_of: Callable[[str, int], str],
    ) -> None:
        """`uuid_of` a GPU by its node and number; empty: not known."""
        self._uuid_of = uuid_of
        self._work = asyncio.create_task(self._keep(series, told_until))

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            with suppress(asyncio.CancelledError):
                await self._work
        await asyncio.to_thread(self._thread.shutdown)

    def heard_of(self, names: Iterable[Name]) -> None:
        """A round told of tasks of these starts: those that are over are made anew."""
        for name in names:
            if not self.runs.goes_on(name) and name not in self.runs.due:
                self._late.add(name)

    async def _keep(self, series: Callable[[], Series | None], told_until: Callable[[], Mapping[str, float]]) -> None:
        while True:
            opened = series()
            if opened is not None:
                try:
                    await self._digest_some(opened, told_until())
                except (SeriesError, StoreError) as error:
                    self._tell(str(error))
                except Exception as error:  # a fault of ours must not end it for all jobs
                    self._tell(f"{type(error).__name__}: {error}", error)
                else:
                    self._problem = ""
            await asyncio.sleep(_LOOK_S)

    async def _digest_some(self, series: Series, told_until: Mapping[str, float]) -> None:
        if not self._looked_back:
            found = await self._aside(lambda: self._undigested(series))
            self.runs.due = {run.name: run for run in found if not self.runs.goes_on(run.name)} | self.runs.due
            self._looked_back = True
        late, self._late = self._late, set()
        if late:
            again = await self._aside(lambda: self._known(series, late))
            self.runs.due |= {run.name: run for run in again if not self.runs.goes_on(run.name)}
        for run in self.runs.ready(told_until, self._clock.now())[:_AT_ONCE]:
            try:
                await self._digest(series, run)
            except (SeriesError, StoreError):
                raise
            except Exception as error:  # it would fail again, and keep the others waiting
                self.runs.due.pop(run.name, None)
                log.error("what start %d of job %d used cannot be put together: %s: %s",
                          run.generation, run.job_id, type(error).__name__, error)  # fmt: skip

    async def _digest(self, series: Series, run: Run) -> None:
        if run.gpus:
            await self._aside(partial(self._write_down, series, run))
        made = await self._aside(partial(series.digest, run.job_id, run.generation, run.start, run.end))
        self._made(series, run, made)

    def _tell(self, problem: str, fault: Exception | None = None) -> None:
        """When it is not what it was; `fault`: one that nobody expected is told with its way through the code."""
        if problem != self._problem:
            log.warning("what jobs used is not put together now: %s", problem, exc_info=fault)
        self._problem = problem

    def _made(self, series: Series, run: Run, made: Digest) -> None:
        self.runs.due.pop(run.name, None)
        if made.measured:
            series.keep_digests([made])
            self._unmeasured.pop(run.name, None)
            return
        if len(self._unmeasured) >= _UNMEASURED_MOST:
            self._unmeasured.pop(next(iter(self._unmeasured)))
        self._unmeasured[run.name] = run

    # --- in the thread -------------------------------------------------------------------------------------

    async def _aside(self, work: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _undigested(self, series: Series) -> list[Run]:
        """Starts of the history that ended since about the latest digest and have none."""
        latest = series.digested_until()
        ended = self._past(latest - _BACK_S if latest is not None else self._clock.now() - 24 * _BACK_S)
        known = {(one.job_id, one.generation) for one in series.digests({run.job_id for run in ended})}
        return [run for run in ended if run.name not in known]

    def _write_down(self, series: Series, run: Run) -> None:
        """Whose GPUs they were, of a start of which no daemon lived to write it."""
        known = {one.uuid for one in series.holdings(job_id=run.job_id) if one.generation == run.generation}
        had = [(node, uuid) for node, indices in run.gpus for each in indices if (uuid := self._uuid_of(node, each))]
        series.hold(
            [Holding(*run.name, node, uuid, False, run.start, run.end) for node, uuid in had if uuid not in known]
        )

    def _known(self, series: Series, names: Collection[Name]) -> list[Run]:
        """As they were digested before."""
        found = [self._unmeasured[name] for name in names if name in self._unmeasured]
        kept = series.digests({job_id for job_id, _ in names})
        return found + [
            Run(one.job_id, one.generation, one.start, one.end, tuple({gpu.node for gpu in one.gpus}))
            for one in kept
            if (one.job_id, one.generation) in names
        ]
