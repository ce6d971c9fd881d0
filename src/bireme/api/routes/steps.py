"""Steps of a running job: what srun, sattach and sstat ask for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api import listing, reported
from bireme.api.answers import Recipe
from bireme.api.passing import passed_on
from bireme.api.privacy import Viewer
from bireme.api.problems import ProblemError, answer
from bireme.api.routes.submissions import put_environment, refuse_containers
from bireme.api.routing import Context, Routes, number
from bireme.api.targets import one_target
from bireme.core.jobs import requests
from bireme.core.jobs.requests import Target
from bireme.core.jobs.submission import MOST_COMPONENTS
from bireme.core.model.events import StepCreated
from bireme.core.model.jobs import Job, Starting
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.model.steps import StepSpec
from bireme.core.steps.creation import Part, create_spanning_step
from bireme.ports import Order
from bireme.store import codec

routes = Routes("steps")
_START_S = 30.0
"""A script may ask for its first step before the word that it runs has come: that is on its way."""
_MAY_CHANGE_SOON = (Why.NODES_BUSY, Why.JOB_PENDING, Why.JOB_SUSPENDED)


@routes.post(
    "/v1/jobs/{job}/steps",
    body="`spec` (a StepSpec) and `environment` (object): the variables of the tasks. Or `het`: a list of objects with "
    "`job` (a component such as `42+1`), `spec` and `environment`: one step over several components.",
    wait="Seconds to wait for resources that other steps of the job use; then 409.",
)
async def create_job_step(api: Context, request: Request) -> Response:
    """Create a step: lay its tasks out over the job's nodes and start them.

    The answer says where its streams are: for each node, the endpoint to connect to and the tasks it runs. Of a step
    over several components it has `parts`, one such answer for each.
    """
    body = await api.body(request)
    caller = api.caller(request)
    parts = _read_parts(api, body, request.path_params["job"], caller.uid)
    asked_at = asyncio.get_running_loop().time()
    deadline = asked_at + number(request, "wait", 0.0)
    while True:
        try:
            recorded = await api.cluster.do(
                api.cause(request), lambda state, _: create_spanning_step(state, caller, parts)
            )
            break
        except Refusal as refusal:
            found = [job for target, _ in parts for job in requests.find(api.cluster.state, target)]
            if refusal.why is Why.JOB_PENDING and any(isinstance(job.phase, Starting) for job in found):
                deadline = max(deadline, asked_at + _START_S)
            left = deadline - asyncio.get_running_loop().time()
            if refusal.why not in _MAY_CHANGE_SOON or left <= 0 or api.live.closing:
                raise
            await api.live.changed([job.id for job in found], left)
    inside = bool(api.inside_job(request))
    made = [_created(api, one.event, inside=inside) for one in recorded if isinstance(one.event, StepCreated)]
    return answer({"parts": made} if "het" in body else made[-1])


def _read_parts(api: Context, body: dict[str, Any], job: str, uid: int) -> list[Part]:
    if "het" not in body:
        return [(one_target(job), _read_spec(api, body, uid))]
    parts = body["het"]
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise ProblemError(400, "het: expected a list of objects")
    if len(parts) > MOST_COMPONENTS:
        raise ProblemError(400, f"het: a heterogeneous job has at most {MOST_COMPONENTS} components")
    return [(one_target(str(part.get("job") or job)), _read_spec(api, part, uid)) for part in parts]


def _read_spec(api: Context, body: dict[str, Any], uid: int) -> StepSpec:
    spec = codec.convert(StepSpec, body.get("spec", {}))
    refuse_containers(api, spec)
    if spec.het is not None:
        raise ProblemError(400, "spec.het: made by the cluster; give the components as `het`")
    if body.get("environment") is not None:
        spec = replace(spec, environment=put_environment(api, body["environment"], uid))
    return spec


def _created(api: Context, created: StepCreated, *, inside: bool) -> dict[str, Any]:
    return {
        "job_id": created.job_id,
        "generation": created.generation,
        "step_id": created.step_id,
        "ntasks": sum(len(node.task_ids) for node in created.nodes),
        "nodes": _places(api, created.job_id, created.step_id, created.nodes, inside),
    }


def _places(api: Context, job_id: int, step_id: int, nodes: Any, inside: bool) -> list[dict[str, Any]]:
    found = api.cluster.engine.step_endpoints(job_id, step_id)
    endpoints = {one.node: (one.inside if inside else "") or one.address for one in found}
    return [
        {"node": node.node, "endpoint": endpoints.get(node.node, ""), "tasks": list(node.task_ids), "cpus": node.cpus}
        for node in nodes
    ]


@routes.get("/v1/jobs/{job}/steps")
async def list_steps(api: Context, request: Request) -> Response:
    """The steps of a job's current run, as StepRecords; with the endpoints of those that still run."""
    found = requests.find(api.cluster.state, one_target(request.path_params["job"]))
    caller = api.caller(request)
    visible = [job for job in found if api.sees(caller, job.spec.owner.uid, job.spec.account)]
    if not visible:
        raise Refusal(Why.INVALID_JOB_ID)
    inside = bool(api.inside_job(request))

    def records(jobs: Sequence[Job]) -> list[dict[str, Any]]:
        known = [job for job in jobs if job.id in api.cluster.state.jobs]  # meanwhile some may have been forgotten
        return [record for job in known for record in _step_records(api, caller, job, inside)]

    return await api.in_slices(request, Recipe("steps", lambda: visible, records, dict))


def _step_records(api: Context, caller: Caller, job: Job, inside: bool) -> list[dict[str, Any]]:
    records = listing.step_records(api.cluster.state, job, api.now())
    if caller.may_change(job.spec.owner.uid):
        running = {step.label: step for step in job.steps.values() if step.ended_at is None}
        for record in records:
            step = running.get(str(record["step_id"]))
            if step is not None:
                record["endpoints"] = _places(api, job.id, step.id, step.nodes, inside)
                record["generation"] = job.generation
                record["io_key"] = step.spec.io_key
    return records


@routes.post(
    "/v1/jobs/{job}/steps/{step}/cancel",
    body="`signal`: a number; none ends the step. `failed`: true when srun ends it because a task failed.",
)
async def cancel_step(api: Context, request: Request) -> Response:
    """End a step, or send its tasks a signal."""
    body = await api.body(request)
    signal = body.get("signal")
    if signal is not None and type(signal) is not int:
        raise ProblemError(400, "signal: expected a whole number")
    target, caller = _step_target(request), api.caller(request)
    order = Order(verb="signal" if signal else "cancel", target="", signal=signal)
    if await passed_on(api, caller, target, order):
        return answer({})
    Viewer(api.cluster.state, caller).must_see(requests.find(api.cluster.state, target))
    if body.get("failed"):
        await api.cluster.do(api.cause(request), lambda state, _: requests.fail_step(state, caller, target))
    else:
        await api.cluster.do(api.cause(request), lambda state, _: requests.end_step(state, caller, target, signal))
    return answer({})


def _step_target(request: Request) -> Target:
    step = request.path_params["step"]
    if re.fullmatch(r"-?\d{1,10}", step, re.ASCII) is None:
        raise Refusal(Why.INVALID_JOB_ID, f"{step[:80]!r} is not a step")
    return replace(one_target(request.path_params["job"]), step_id=int(step))


@routes.get("/v1/jobs/{job}/usage")
async def live_usage(api: Context, request: Request) -> Response:
    """What the running steps of a job use right now (`sstat`). Only for the owner and operators.

    Under `measured` of each: what was measured of it from its start until now.
    """
    job = requests.find(api.cluster.state, one_target(request.path_params["job"]))[0]
    caller = api.caller(request)
    if not api.sees(caller, job.spec.owner.uid, job.spec.account):
        raise Refusal(Why.INVALID_JOB_ID)
    if not caller.may_change(job.spec.owner.uid):
        raise Refusal(Why.ACCESS_DENIED)
    if job.allocation is None:
        raise Refusal(Why.JOB_PENDING)
    steps = dict(await api.cluster.engine.live_usage(job.id))
    series, now = reported.series_of(api), api.now()
    if series is not None:
        (record,) = listing.records_of(api.cluster.state, [job], now, ("job_id", "generation", "start_time", "state"))
        digest = await api.in_thread(request, reported.live_digest, series, record, now)
        for label, measured in (reported.measured_steps(digest) if digest is not None else {}).items():
            if label in steps:
                steps[label] = {**steps[label], "measured": measured}
    return answer({"steps": steps})
