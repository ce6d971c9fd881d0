"""Tells runs of jobs that run what their GPUs and nodes do: one batch a job, as often as the settings say.

Made by the daemon beside the keeper of runs. Nothing is kept for a server that is away: what it missed is in the
daemon's own series (docs/telemetry.md). Invariant: one slow answer holds up no other job's figures for long, and none
of this holds up the daemon.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from bireme.core.model.jobs import Job, Running
from bireme.core.state.state import State
from bireme.daemon.experiments.figures import OWN_SAMPLING, Readings, system_figures
from bireme.daemon.experiments.keeper import RunKeeper
from bireme.daemon.experiments.mlflow import Mlflow
from bireme.daemon.scaling.fetching import Unanswered
from bireme.ports import Clock, SeriesError, Telemetry

log = logging.getLogger("bireme.daemon")

AT_ONCE = 8
_LOOK_S = 30.0
"""While nothing is to be told: whether something is now."""


class FigureTeller:
    """`telemetry`: what is measured; None: nothing is."""

    def __init__(
        self,
        keeper: RunKeeper,
        state: Callable[[], State],
        clock: Clock,
        telemetry: Callable[[], Telemetry | None],
    ) -> None:
        self._keeper, self._state, self._clock, self._telemetry = keeper, state, clock, telemetry
        self._task: asyncio.Task[None] | None = None
        self._measures_itself: dict[int, bool] = {}
        """Jobs whose programs tell their own."""

    def begin(self) -> None:
        """Begins to tell figures, and the keeper of runs with it."""
        self._keeper.begin()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="system metrics")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._keeper.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._keeper.policy.figures_every_s or _LOOK_S)
            try:
                await self.tell()
            except Exception:  # a bug here must not end it for all jobs
                log.exception("system metrics of jobs could not be told")

    async def tell(self) -> None:
        """Once, of all jobs that run and have a run."""
        mlflow, telemetry = self._keeper.mlflow, self._telemetry()
        if mlflow is None or telemetry is None or self._keeper.problem or not self._keeper.policy.figures_every_s:
            return
        series, jobs = telemetry.series, self._tracked(mlflow)
        if series is None or not jobs:
            return
        gpus = await telemetry.gpus()
        try:
            of_gpus, of_nodes = await asyncio.to_thread(lambda: (series.latest("gpu"), series.latest("node")))
        except SeriesError:
            return  # who keeps the series says it
        turns, now = asyncio.Semaphore(AT_ONCE), self._clock.now()
        readings = await asyncio.to_thread(Readings.of, gpus, of_gpus, of_nodes, now)

        async def told(job: Job) -> None:
            async with turns:
                figures = system_figures(self._state(), job, readings)
                if figures and job.tracked is not None:
                    with suppress(Unanswered):  # dropped
                        await mlflow.log(job.tracked.run_id, figures, now, int(now - job.submitted_at))

        await asyncio.gather(*map(told, jobs))

    def _tracked(self, mlflow: Mlflow) -> list[Job]:
        """Jobs that run, have a run on this server, and do not measure by themselves."""
        state = self._state()
        found = []
        for job_id in state.holding:
            job = state.jobs[job_id]
            has_run = job.tracked is not None and job.tracked.run_id and job.tracked.server == mlflow.base
            if has_run and isinstance(job.phase, Running) and not self._measures(job):
                found.append(job)
        for gone in self._measures_itself.keys() - state.holding:
            del self._measures_itself[gone]
        return found

    def _measures(self, job: Job) -> bool:
        if job.id not in self._measures_itself:
            said = (self._keeper.environment(job) or {}).get(OWN_SAMPLING, "")
            self._measures_itself[job.id] = said.lower() in ("true", "1")
        return self._measures_itself[job.id]
