"""What a job's run says, read from MLflow when somebody looks: its status, latest metrics, and curves of some.

Asked by the API. Answers are kept for some seconds, so that many who look at one job cost the server one question.
Invariant: a server that does not answer costs who asks `LIMIT_S`, and nobody else anything; it is told, not raised.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from bireme.core.model.jobs import Job
from bireme.daemon.experiments.keeper import RunKeeper
from bireme.daemon.experiments.mlflow import MOST_POINTS, Mlflow, Point, RunSeen
from bireme.daemon.scaling.fetching import Unanswered
from bireme.slurm.variables.experiments import KEY_TAG, WANDB_RUN, own_variables, run_key

LIMIT_S = 5.0
KEPT_S = 5.0
MOST_KEPT = 64
MOST_CURVES = 20
AT_ONCE = 8
_WANDB = {"entity": "WANDB_ENTITY", "project": "WANDB_PROJECT", "mode": "WANDB_MODE"}
_WANDB_URL = "https://wandb.ai"


class RunReader:
    """`ports.Experiments`, over the keeper of runs."""

    def __init__(self, keeper: RunKeeper, cluster: Callable[[], str]) -> None:
        self._keeper, self._cluster = keeper, cluster
        self._kept: dict[tuple[str, ...], tuple[float, Any]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def of_job(self, job: Job, metrics: Sequence[str]) -> dict[str, Any]:
        """Of a job that the daemon knows."""
        tracked, trackers = job.tracked, self._keeper.policy.trackers
        mlflow: dict[str, Any] | None = None
        if tracked is not None:
            mlflow = {"server": tracked.server, "run_id": tracked.run_id, "missed": tracked.missed}
            if tracked.run_id:
                mlflow |= _linked(tracked.server, tracked.experiment_id, tracked.run_id)
                mlflow |= await self._of_run(tracked.server, tracked.run_id, metrics)
        allocation = job.allocation
        told = trackers.wandb and allocation is not None and trackers.concern(job, allocation)
        return {"job_id": job.id, "mlflow": mlflow, "wandb": self._wandb(job) if told else None}

    async def of_past(self, job_id: int, submitted_at: float, metrics: Sequence[str]) -> dict[str, Any]:
        """Of a job that is only in the history: its run is looked for by its key. Whether it was told of one in W&B is
        not known any more: `supposed`, for whoever finds traces of it."""
        mlflow = self._keeper.mlflow
        found: dict[str, Any] | None = None
        key = run_key(self._cluster(), job_id, submitted_at)
        if mlflow is not None:
            try:
                run = await self._asked(("key", mlflow.base, key), lambda: _by_key(mlflow, key))
            except Unanswered as error:
                found = {"server": mlflow.base, "run_id": "", "missed": "", "problem": str(error)}
            else:
                if run is not None:
                    found = {"server": mlflow.base, "run_id": run.run_id, "missed": ""}
                    found |= _linked(mlflow.base, run.experiment_id, run.run_id)
                    found |= await self._of_run(mlflow.base, run.run_id, metrics)
        wandb = {"run_id": key, "link": "", "supposed": True} if self._keeper.policy.trackers.wandb else None
        return {"job_id": job_id, "mlflow": found, "wandb": wandb}

    # -- MLflow --------------------------------------------------------------------------------------------------------

    async def _of_run(self, server: str, run_id: str, metrics: Sequence[str]) -> dict[str, Any]:
        mlflow = self._keeper.mlflow
        if mlflow is None or mlflow.base != server:
            return {"problem": "this server is no longer the one of the settings, and is not asked"}
        try:
            run: RunSeen = await self._asked(("run", server, run_id), lambda: mlflow.run(run_id))
            curves = [await self._curve(mlflow, run_id, metric) for metric in metrics[:MOST_CURVES]]
        except Unanswered as error:
            return {"problem": str(error)}
        latest = [
            {"metric": name, "value": _plain(point.value), "at": point.at, "step": point.step}
            for name, point in sorted(run.metrics.items())
        ]
        return {
            "status": run.status,
            "name": run.name,
            "metrics": latest,
            "params": dict(sorted(run.params.items())),
            "curves": curves,
            "problem": "",
        }

    async def _curve(self, mlflow: Mlflow, run_id: str, metric: str) -> dict[str, Any]:
        points: list[Point] = await self._asked(
            ("curve", mlflow.base, run_id, metric), lambda: mlflow.history(run_id, metric)
        )
        return {
            "metric": metric,
            "points": [[point.at, point.step, _plain(point.value)] for point in points],
            "whole": len(points) < MOST_POINTS,
        }

    async def _asked(self, key: tuple[str, ...], ask: Callable[[], Awaitable[Any]]) -> Any:
        """What was answered lately, or is now. Raises Unanswered."""
        now = asyncio.get_running_loop().time()
        kept = self._kept.get(key)
        if kept is not None and now - kept[0] < KEPT_S:
            return kept[1]
        try:
            async with asyncio.timeout(LIMIT_S), self._turns:
                found = await ask()
        except TimeoutError:
            raise Unanswered(f"no answer within {LIMIT_S:g} s") from None
        self._keep(key, found, asyncio.get_running_loop().time())
        return found

    def _keep(self, key: tuple[str, ...], found: Any, now: float) -> None:
        """Behind all others, so that those that nobody may use any more stand before it."""
        self._kept.pop(key, None)
        while self._kept:
            oldest = next(iter(self._kept))
            if len(self._kept) < MOST_KEPT and now - self._kept[oldest][0] < KEPT_S:
                break
            del self._kept[oldest]
        self._kept[key] = (now, found)

    # -- Weights & Biases ----------------------------------------------------------------------------------------------

    def _wandb(self, job: Job) -> dict[str, str]:
        """Where the job's run is, as far as its variables say it: a program may say otherwise."""
        given: Mapping[str, str] = self._keeper.policy.trackers.wandb_settings or {}
        own = own_variables(self._keeper.environment(job) or {})
        said = {name: own.get(variable, given.get(variable, "")) for name, variable in _WANDB.items()}
        run_id = own.get(WANDB_RUN) or run_key(self._cluster(), job.id, job.submitted_at)
        base = given.get("WANDB_BASE_URL", _WANDB_URL).rstrip("/")
        known = said["entity"] and said["project"] and said["mode"] not in ("offline", "disabled")
        link = f"{base}/{said['entity']}/{said['project']}/runs/{run_id}" if known else ""
        return {"run_id": run_id, **said, "link": link}


async def _by_key(mlflow: Mlflow, key: str) -> RunSeen | None:
    experiments = await mlflow.experiment_ids()
    return await mlflow.run_tagged(experiments, KEY_TAG, key) if experiments else None


def _linked(server: str, experiment_id: str, run_id: str) -> dict[str, str]:
    return {"experiment_id": experiment_id, "link": f"{server}/#/experiments/{experiment_id}/runs/{run_id}"}


def _plain(value: float) -> float | None:
    """JSON has no word for what is not a number."""
    return value if math.isfinite(value) else None
