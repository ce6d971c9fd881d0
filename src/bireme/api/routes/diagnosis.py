"""`bireme diagnose`: what the daemon knows of a job's end. How it is gathered is `api/testimony`."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import Request, Response

from bireme.api import listing, testimony
from bireme.api.problems import answer
from bireme.api.routing import Context, Routes
from bireme.api.targets import one_target
from bireme.api.testimony import Sources, Whose
from bireme.commands.scancel import label
from bireme.core.jobs import requests
from bireme.core.model.refusals import Refusal, Why
from bireme.ports import HistoryQuery

routes = Routes("diagnosis")

_FIELDS = (
    "job_id,array_job_id,array_task_id,array_tasks,het_job_id,het_offset,name,user_id,user_name,state,start_time,"
    "end_time,exit_code,exit_signal,cancelled_by,std_out,std_err,work_dir"
)
_NOT_MEASURED = "nothing is measured here: telemetry.gather is off (bireme.toml)"
_PRIVATE = "what is known of a job's end quotes its output and names its files: it is for its owner and for operators"
_ORDER = ("COMPLETED", "PENDING", "RUNNING")
"""Of an array's records those come first that are none of these, then from the last to the first."""


@routes.get("/v1/jobs/{job}/evidence")
async def show_evidence(api: Context, request: Request) -> Response:
    """What is known of the end of a job's latest start, besides its output: for its owner and for operators.

    `lines` are what the journal, nodes and GPUs say, in the order of time (`source`: record, kernel or device);
    `outputs` the files that it wrote to; `absent` says what is not known and why. Of an array one record is told,
    a failed one if there is one; `left_out` says how many more there are.
    """
    whose, left_out = await _found(api, request)
    sources = await _sources(api)
    told = await api.in_thread(request, partial(testimony.evidence_of, whose, sources, api.now()))
    return answer({**told, "left_out": left_out, "now": api.now()})


async def _found(api: Context, request: Request) -> tuple[Whose, int]:
    caller, target = api.caller(request), one_target(request.path_params["job"])
    try:
        jobs = requests.find(api.cluster.state, target)
        records = listing.records_of(api.cluster.state, jobs, api.now(), [*_FIELDS.split(","), "account"])
    except Refusal:
        query = HistoryQuery(jobs=((target.job_id, target.task_id),))
        records = await api.in_thread(request, partial(api.archive.finished, query))
    seen = [record for record in records if api.sees(caller, record["user_id"], record.get("account") or "")]
    if not seen:
        raise Refusal(Why.INVALID_JOB_ID)
    seen.sort(key=lambda record: (_rank(record["state"]), -record["job_id"]))
    if not caller.may_change(seen[0]["user_id"]):
        raise Refusal(Why.ACCESS_DENIED, _PRIVATE)
    return _whose(seen[0]), len(seen) - 1


def _rank(state: str) -> int:
    """The smaller, the more there is to explain."""
    return len(_ORDER) - _ORDER.index(state) if state in _ORDER else 0


def _whose(record: dict[str, Any]) -> Whose:
    return Whose(
        job=label(record),
        job_id=record["job_id"],
        array_job_id=record.get("array_job_id"),
        array_task_id=record.get("array_task_id"),
        name=record.get("name") or "",
        user=record.get("user_name") or "",
        uid=record["user_id"],
        state=record["state"],
        std_out=record.get("std_out") or "",
        std_err=record.get("std_err") or "",
        work_dir=record.get("work_dir") or "",
        record=record,
    )


async def _sources(api: Context) -> Sources:
    telemetry = api.service.telemetry()
    machines = {node.name: node.hostname or node.name for node in api.cluster.state.config.nodes}
    if telemetry is None:
        return Sources(store=api.archive, series=None, no_series=_NOT_MEASURED, gpu_names={}, machines=machines)
    return Sources(
        store=api.archive,
        series=telemetry.series,
        no_series=telemetry.problem or "the store of what was measured is being opened",
        gpu_names={gpu.uuid: f"{gpu.node} GPU {gpu.index}" for gpu in await telemetry.gpus()},
        machines=machines,
    )
