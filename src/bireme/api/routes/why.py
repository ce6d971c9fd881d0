"""`bireme why` and `bireme snapshot`: what the planner thinks of a job, and everything it plans with.

What is said of a waiting job, and each suggestion, costs a planning pass: they are made beside the loop (`asides`), and
no suggestion is begun once `PATIENCE_S` is spent; the answer says whether all were tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api import listing
from bireme.api.looking_back import known
from bireme.api.privacy import WORDS, Viewer
from bireme.api.problems import answer
from bireme.api.routes.faults.findings import Reader
from bireme.api.routing import Context, Routes, flag
from bireme.api.targets import one_target
from bireme.commands.scancel import label
from bireme.core.faults.findings.concerning import concerning
from bireme.core.jobs import requests
from bireme.core.jobs.requests import Target
from bireme.core.jobs.states import job_state
from bireme.core.model.jobs import Finished, Job, Owner, Pending
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.plan.trial import Trial
from bireme.core.state.state import State
from bireme.core.why.ended import ended_text
from bireme.core.why.healed import explain_healed
from bireme.core.why.running import explain_running
from bireme.core.why.sooner import find_sooner
from bireme.core.why.waiting import explain_waiting
from bireme.store.codec import all_fields
from bireme.store.planning_input import encode_input

routes = Routes("planning")

PATIENCE_S = 4.0
"""For the suggestions to all jobs of an answer."""
_PRIVATE = "(private)"
MOST_RECORDS = 8
"""Of an array, so many are explained: those that wait first, then those that run."""
_ENDED_FIELDS = (
    "job_id,array_job_id,array_task_id,name,user_name,state,partition,submit_time,start_time,end_time,elapsed_s,"
    "time_limit_s,node_list,exit_code,exit_signal,derived_exit_code,cancelled_by,reasons,std_out,std_err,restarts"
)


@routes.get("/v1/jobs/{job}/why", suggestions="0: leave out what would start it sooner.")
async def explain_job(api: Context, request: Request) -> Response:
    """Why a job waits and when it will start; why it runs where it does; or how it ended.

    `jobs` has one element for each record of the job, with `waiting` and `suggestions`, `running` (`images`: by node,
    those that it waits for) and `findings` (what is wrong with it or where it runs, as in `/v1/findings`), or `ended`;
    and `healed`: sentences on what was decided about its failures, or would have been. Each suggestion was planned;
    `all_tried` is false when there was no time to try every kind of change.
    """
    caller, target = api.caller(request), one_target(request.path_params["job"])

    def sees(job: Job) -> bool:
        return api.sees(caller, job.spec.owner.uid, job.spec.account)

    try:
        found = [job for job in requests.find(api.cluster.state, target) if sees(job)]
    except Refusal:
        return answer(await _from_history(api, request, target))
    return answer(await _told(api, request, found, sees, suggest=request.query_params.get("suggestions") != "0"))


@routes.get("/v1/pods/{namespace}/{pod}/why")
async def explain_pod(api: Context, request: Request) -> Response:
    """Why a pod that Bireme schedules waits, runs or ended, told of the job that it is, alone or with its gang.

    `outside` is there instead when the pod waits and is not in the queue, and says why; also where an earlier pod of
    this name was a job.
    """
    caller, path = api.caller(request), request.path_params

    def sees(job: Job) -> bool:
        return api.sees(caller, job.spec.owner.uid, job.spec.account)

    found = [job for job in requests.with_pod(api.cluster.state, path["namespace"], path["pod"]) if sees(job)]
    pods = api.cluster.engine.capabilities.pods
    over = all(isinstance(job.phase, Finished) for job in found)
    outside = pods.why_outside(path["namespace"], path["pod"]) if pods is not None and over else ""
    if outside:
        return answer({"jobs": [], "left_out": 0, "now": api.now(), "outside": outside})
    return answer(await _told(api, request, found[-1:], sees, suggest=False))  # what one may suggest is about scripts


async def _told(
    api: Context, request: Request, found: list[Job], sees: Callable[[Job], bool], *, suggest: bool
) -> dict[str, Any]:
    if not found:
        raise Refusal(Why.INVALID_JOB_ID)
    viewer = api.viewer(api.caller(request))
    found.sort(key=lambda job: (isinstance(job.phase, Finished), not isinstance(job.phase, Pending), job.id))
    shown, now = found[:MOST_RECORDS], api.now()
    waiting = [job for job in shown if isinstance(job.phase, Pending)]
    owners = {job.spec.owner: await api.callers.owner(job.spec.owner) for job in waiting} if suggest else {}

    def think() -> list[dict[str, Any]]:
        return _explained_waiting(api.cluster.state, waiting, now, sees, owners)

    told = await api.aside(request, think) if waiting else []
    reader = Reader(api, api.caller(request))
    for job in shown[len(waiting) :]:
        told.append(_explained(api, job, sees, reader))
        if "running" in told[-1]:
            told[-1]["running"]["images"] = await _awaited_images(api, job)
    return {"jobs": [_shown(each, viewer) for each in told], "left_out": len(found) - len(told), "now": now}


async def _awaited_images(api: Context, job: Job) -> dict[str, list[str]]:
    """By node: what its script and steps wait for, and how far that is. Asked of the nodes where one has an image."""
    port = api.cluster.engine.capabilities.images
    asked = [job.spec.container_image or job.spec.container_bundle]
    asked += [step.spec.container_image or step.spec.container_bundle for step in job.steps.values()]
    if port is None or not any(asked):
        return {}
    return {node: list(words) for node, words in (await port.awaited_images(job.id)).items()}


def _shown(told: Any, viewer: Viewer) -> Any:
    """Without the names of reservations that the caller may not know of."""
    if isinstance(told, list | tuple):
        return [_shown(each, viewer) for each in told]
    if not isinstance(told, dict):
        return told
    shown = {name: _shown(value, viewer) for name, value in told.items()}
    if isinstance(name := shown.get("reservation"), str) and not viewer.sees_reservation_named(name):
        shown["reservation"] = _PRIVATE
    return shown


def _explained(api: Context, job: Job, sees: Callable[[Job], bool], reader: Reader) -> dict[str, Any]:
    """One that runs or has ended."""
    state = api.cluster.state
    if isinstance(job.phase, Finished):
        record = listing.records_of(state, [job], api.now(), _ENDED_FIELDS.split(","))[0]
        return {**_named(job), "ended": _ended(record), "healed": explain_healed(state, job, api.now())}
    found = [reader.record(each) for each in concerning(state, job) if reader.sees(each)]
    running = all_fields(explain_running(state, job, sees))
    return {**_named(job), "running": running, "findings": found, "healed": explain_healed(state, job, api.now())}


def _explained_waiting(
    state: State, jobs: list[Job], now: float, sees: Callable[[Job], bool], owners: dict[Owner, Caller]
) -> list[dict[str, Any]]:
    """Those that wait. Suggestions are made for those whose owner is known: the owner's rights count, whoever asks."""
    explained = [(job, *explain_waiting(state, job, now, sees)) for job in jobs]
    deadline = time.monotonic() + PATIENCE_S
    return [
        {
            **_named(job),
            "waiting": all_fields(waiting),
            "healed": explain_healed(state, job, now),
            **_suggestions(state, job, trial, now, owners, deadline),
        }
        for job, waiting, trial in explained
    ]


def _suggestions(
    state: State, job: Job, trial: Trial, now: float, owners: dict[Owner, Caller], deadline: float
) -> dict[str, Any]:
    if job.spec.owner not in owners:
        return {}
    found = []
    for suggestion in find_sooner(state, job, owners[job.spec.owner], trial, now):
        if suggestion is not None:
            found.append(all_fields(suggestion))
        if time.monotonic() > deadline:
            return {"suggestions": found, "all_tried": False}
    return {"suggestions": found, "all_tried": True}


def _named(job: Job) -> dict[str, Any]:
    return {
        "job": job.label,
        "job_id": job.id,
        "name": job.spec.name,
        "user": job.spec.owner.user,
        "state": job_state(job),
    }


async def _from_history(api: Context, request: Request, target: Target) -> dict[str, Any]:
    """Of a job that the cluster no longer has in memory."""
    past = await known.over(api, request, target)
    if not past:
        raise Refusal(Why.INVALID_JOB_ID)
    told = [
        {
            "job": label(record),
            "job_id": record["job_id"],
            "name": record["name"],
            "user": record["user_name"],
            "state": record["state"],
            "ended": _ended(record),
        }
        for record in past[:MOST_RECORDS]
    ]
    return {"jobs": told, "left_out": len(past) - len(told), "now": api.now()}


def _ended(record: dict[str, Any]) -> dict[str, Any]:
    text = ended_text(
        record["state"],
        record.get("exit_code") or 0,
        record.get("exit_signal") or 0,
        record.get("cancelled_by"),
        ever_ran=record.get("start_time") is not None,
    )
    more = next((each["text"] for each in record.get("reasons") or () if each["facts"].get("why")), "")
    text = f"{text} {more}".rstrip()
    return {"text": text, **{name: record.get(name) for name in _ENDED_FIELDS.split(",")}}


@routes.get(
    "/v1/snapshot",
    media="application/x-ndjson",
    anonymise="1: other names for users, groups, accounts and jobs.",
)
async def snapshot(api: Context, request: Request) -> Response:
    """Everything the planner plans with, to be planned again elsewhere. Only for operators where PrivateData is set.

    One JSON object a line. No scripts, environments, arguments or paths are in it.
    """
    if api.viewer(api.caller(request)).hidden(*WORDS):
        raise Refusal(Why.ACCESS_DENIED, "a snapshot shows everybody's jobs, and PrivateData is set on this cluster")
    state, now, version, anonymise = api.cluster.state, api.now(), api.service.version, flag(request, "anonymise")
    data = await api.aside(request, lambda: encode_input(state, now, version, anonymise=anonymise))
    return Response(data, media_type="application/x-ndjson")
