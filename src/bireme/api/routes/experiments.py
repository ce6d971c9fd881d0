"""A job's run in experiment trackers: where it is, what it says."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.looking_back import known
from bireme.api.problems import ProblemError, answer
from bireme.api.routing import Context, Routes, words
from bireme.api.targets import one_target
from bireme.core.jobs import requests
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.ports import Experiments

routes = Routes("experiments")

MOST_METRICS = 20
_MOST_LETTERS = 250


@routes.get("/v1/jobs/{job}/experiment", metrics="Curves of these metrics too: names, with commas, 20 at most.")
async def show_experiment(api: Context, request: Request) -> Response:
    """The job's run in MLflow (`link`, `status`, `metrics`: the latest of each, `params`, `curves`) and in Weights &
    Biases (`run_id`, `link`); null where it has none.

    `supposed`: of a job that is only in the history it is not known whether it was told of this run.
    `missed` says why the job's latest start was told of no run, `problem` why the server could not be asked. A point of
    a curve is its time, its step and its value. Only for the owner and operators: the daemon asks with its own rights.
    """
    experiments = api.service.experiments()
    if experiments is None:
        raise ProblemError(404, "jobs are told of no experiment tracker here: experiments.mlflow (bireme.toml)")
    metrics = words(request, "metrics")
    if len(metrics) > MOST_METRICS or any(len(metric) > _MOST_LETTERS for metric in metrics):
        raise ProblemError(400, f"metrics: {MOST_METRICS} names at most, each of {_MOST_LETTERS} letters at most")
    return answer(await _of(api, request, experiments, metrics))


async def _of(api: Context, request: Request, experiments: Experiments, metrics: tuple[str, ...]) -> dict[str, Any]:
    caller, target = api.caller(request), one_target(request.path_params["job"])
    try:
        jobs = requests.find(api.cluster.state, target)
    except Refusal:
        jobs = []
    for job in jobs:
        if api.sees(caller, job.spec.owner.uid, job.spec.account):
            _check_owner(caller, job.spec.owner.uid)
            return await experiments.of_job(job, metrics)
    for record in await known.over(api, request, target):
        _check_owner(caller, record["user_id"])
        return await experiments.of_past(record["job_id"], record["submit_time"], metrics)
    raise Refusal(Why.INVALID_JOB_ID)


def _check_owner(caller: Caller, owner_uid: int) -> None:
    if not caller.may_change(owner_uid):
        raise Refusal(Why.ACCESS_DENIED)
