"""A job by its name, in the queue or else in the history, and where things are known of it from.

Used by the routes that tell of one job, also of one that the cluster no longer has in memory (`routes/timelines`,
`routes/why`, `routes/experiments` ...).
Invariant: only jobs that the caller may see are found; one that is not is as one that never was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request

from bireme.api.measured import NOT_MEASURED
from bireme.api.routing import Context
from bireme.api.targets import one_target
from bireme.core.jobs import requests
from bireme.core.jobs.requests import Target
from bireme.core.model.jobs import Job
from bireme.core.model.refusals import Refusal, Why
from bireme.ports import HistoryQuery, Series, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where things are known from."""

    store: Store
    series: Series | None
    no_series: str
    """Why there is none."""
    gpu_names: Mapping[str, str]
    """By UUID, of MIG instances too."""
    machines: Mapping[str, str]
    """By node: what its machine is called."""


async def found(api: Context, request: Request) -> tuple[list[Job], list[dict[str, Any]]]:
    """The jobs of the queue that `{job}` names; where there are none, records of the history. Raises Refusal."""
    caller, target = api.caller(request), one_target(request.path_params["job"])
    try:
        jobs = requests.find(api.cluster.state, target)
    except Refusal:
        jobs = []
    jobs = list(api.seen(caller, jobs))
    if jobs:
        return jobs, []
    past = await over(api, request, target)
    if not past:
        raise Refusal(Why.INVALID_JOB_ID)
    return [], past


async def over(api: Context, request: Request, target: Target) -> list[dict[str, Any]]:
    """The records of the history that `target` means, and that the caller may see."""
    caller, query = api.caller(request), HistoryQuery(jobs=((target.job_id, target.task_id),))
    past = await api.in_thread(request, partial(api.archive.finished, query))
    return [
        record
        for record in past
        if api.sees(caller, record["user_id"], record.get("account") or "")
        # the history tells of a component with all of its job
        and target.het_offset in (None, record.get("het_offset"))
    ]


async def sources(api: Context) -> Sources:
    telemetry = api.service.telemetry()
    gpus = await telemetry.gpus() if telemetry is not None else []
    return Sources(
        store=api.archive,
        series=telemetry.series if telemetry is not None else None,
        no_series=NOT_MEASURED
        if telemetry is None
        else telemetry.problem or "the store of what was measured is being opened",
        gpu_names={gpu.uuid: f"{gpu.node} GPU {gpu.index}{' ' + gpu.profile if gpu.parent else ''}" for gpu in gpus},
        machines={node.name: node.hostname or node.name for node in api.cluster.state.config.nodes},
    )
