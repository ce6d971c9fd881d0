"""Jobs that exist: list, show, wait, and everything that changes one.

Each change is one pure function of `core/jobs/requests.py`, run by the runtime against the newest state. Not here:
submission (`submissions.py`), steps (`steps.py`), finished jobs (`history.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bireme.api import listing
from bireme.api.answers import Recipe
from bireme.api.live import event_content
from bireme.api.looking_back import known
from bireme.api.passing import passed_on
from bireme.api.problems import ProblemError, answer
from bireme.api.routes.orders import Change, read_order, whole
from bireme.api.routing import Context, Routes, fields_of, number, words
from bireme.api.serving.slices import as_of_now
from bireme.api.targets import named_jobs, one_target
from bireme.core.jobs import requests
from bireme.core.jobs.requests import Target
from bireme.core.model.events import JobCheckpointed, JobMirrored, JobSubmitted, JobUpdated, Recorded
from bireme.core.model.jobs import Finished, Job, JobSpec, Pending, Starting
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.model.resources import ExitStatus
from bireme.core.state.state import State
from bireme.ports import Order
from bireme.slurm.records.many import Records

routes = Routes("jobs")
LONGEST_WAIT_S = 3600.0

FILTERS = {
    "fields": "Only these fields of each record, separated by commas. All when absent.",
    "user": "Names or uids of owners.",
    "account": "Accounts.",
    "partition": "Partitions.",
    "state": "States in Slurm's words: PENDING, RUNNING, ...",
    "name": "Job names.",
    "job": "Job ids as people write them: 1,2_3,4_[1-3].",
    "nodes": "Jobs that hold one of these nodes.",
}


@routes.get("/v1/jobs", **FILTERS)
async def list_jobs(api: Context, request: Request) -> Response:
    """List the jobs that are waiting, running, or ended a short while ago.

    Each element is a JobRecord. Jobs that were forgotten (MinJobAge) are in `/v1/history`.
    """
    wanted = listing.Filter(
        users=words(request, "user"),
        accounts=words(request, "account"),
        partitions=words(request, "partition"),
        states=words(request, "state"),
        names=words(request, "name"),
        nodes=words(request, "nodes"),
        jobs=named_jobs(request.query_params.get("job", "")),
    )
    caller, made = api.caller(request), Records(fields_of(request))

    def records(jobs: Sequence[Job]) -> list[dict[str, Any]]:
        state = api.cluster.state
        known = [job for job in jobs if job.id in state.jobs]  # meanwhile some may have been forgotten
        seen = api.seen(caller, listing.matching(state, wanted, known))
        return made.of(state, seen, api.now())

    recipe = Recipe(
        "jobs", lambda: as_of_now(listing.candidates(api.cluster.state, wanted)), records, lambda: {"now": api.now()}
    )
    return await api.shared(request, "jobs", recipe)


@routes.get("/v1/jobs/{job}", fields=FILTERS["fields"])
async def show_job(api: Context, request: Request) -> Response:
    """Show a job: one record, or several for an array or a heterogeneous job."""
    found, made = _visible(api, request, one_target(request.path_params["job"])), Records(fields_of(request))

    def records(jobs: Sequence[Job]) -> list[dict[str, Any]]:
        state = api.cluster.state
        known = [job for job in jobs if job.id in state.jobs]  # meanwhile some may have been forgotten
        return made.of(state, known, api.now())

    return await api.in_slices(request, Recipe("jobs", lambda: as_of_now(found), records, lambda: {"now": api.now()}))


def _visible(api: Context, request: Request, target: Target) -> Sequence[Job]:
    caller = api.caller(request)
    found = api.seen(caller, requests.find(api.cluster.state, target))
    if not found:
        raise Refusal(Why.INVALID_JOB_ID)
    return found


@routes.get("/v1/jobs/{job}/script", media="text/plain")
async def job_script(api: Context, request: Request) -> Response:
    """The batch script, as it was submitted. Only for the owner and operators."""
    spec = await _own_spec(api, request)
    if not spec.script:
        raise Refusal(Why.JOB_SCRIPT_MISSING, "an interactive job has no script")
    return Response(await api.in_thread(request, api.archive.get, spec.script), media_type="text/plain; charset=utf-8")


async def _own_spec(api: Context, request: Request) -> JobSpec:
    caller = api.caller(request)
    found = requests.find(api.cluster.state, one_target(request.path_params["job"]))
    api.viewer(caller).must_see(found)
    spec = found[0].spec
    if not caller.may_change(spec.owner.uid):
        raise Refusal(Why.ACCESS_DENIED)
    return spec


@routes.get("/v1/jobs/{job}/story")
async def job_story(api: Context, request: Request) -> Response:
    """Every event about a job, oldest first: what happened, when, and who or what made it happen.

    Also for jobs that ended long ago. Only for the owner and operators.
    """
    target, caller = one_target(request.path_params["job"]), api.caller(request)
    try:
        job_id = requests.find(api.cluster.state, target)[0].id
    except Refusal:
        job_id = target.job_id
    story = await api.in_thread(request, api.archive.story, job_id)
    if not story:
        raise Refusal(Why.INVALID_JOB_ID)
    specs = [recorded.event.spec for recorded in story if isinstance(recorded.event, JobSubmitted | JobUpdated)]
    specs += [recorded.event.seen.spec for recorded in story if isinstance(recorded.event, JobMirrored)]
    owners = {spec.owner.uid for spec in specs}
    if not caller.admin and caller.uid not in owners:
        seen = all(api.sees(caller, spec.owner.uid, spec.account) for spec in specs)
        raise Refusal(Why.ACCESS_DENIED if seen else Why.INVALID_JOB_ID)
    return await api.in_slices(request, Recipe("events", lambda: story, _contents, dict))


def _contents(part: Sequence[Recorded]) -> list[dict[str, Any]]:
    return [event_content(recorded) for recorded in part]


@routes.get_waiting(
    "/v1/jobs/{job}/wait",
    timeout="Seconds to wait at most (default 60); then `done` is false.",
    until="`ended` (default) or `started`.",
    fields=FILTERS["fields"],
)
async def wait_for_job(api: Context, request: Request) -> Response:
    """Wait until a job (every task of an array) ended, or started; answers with its records."""
    target = one_target(request.path_params["job"])
    _refuse_private(api, request, target)
    until = request.query_params.get("until", "ended")
    if until not in ("ended", "started"):
        raise ProblemError(400, f"until={until!r}: use started or ended")
    deadline = asyncio.get_running_loop().time() + min(number(request, "timeout", 60.0), LONGEST_WAIT_S)
    while True:
        jobs = _known(api.cluster.state, target)
        open_jobs = [job.id for job in jobs if not _reached(job, until)]
        left = deadline - asyncio.get_running_loop().time()
        if not open_jobs or left <= 0 or api.live.closing:
            return await _wait_answer(api, request, target, jobs, done=not open_jobs)
        await _all_changed(api, open_jobs, until, deadline)


async def _all_changed(api: Context, open_jobs: list[int], until: str, deadline: float) -> None:
    """Returns when none of these is as it was, or it is too late. One after the other: of an array of thousands, which
    change all the time, looking at every one at each change would cost more than running them."""
    while open_jobs and not api.live.closing:
        job = api.cluster.state.jobs.get(open_jobs[-1])
        if job is None or _reached(job, until):
            open_jobs.pop()
            continue
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            return
        await api.live.changed([job.id], left)


def _refuse_private(api: Context, request: Request, target: Target) -> None:
    caller = api.caller(request)
    if not all(api.sees(caller, job.spec.owner.uid, job.spec.account) for job in _known(api.cluster.state, target)):
        raise Refusal(Why.INVALID_JOB_ID)


def _known(state: State, target: Target) -> list[Job]:
    try:
        return requests.find(state, target)
    except Refusal:
        return []


def _reached(job: Job, until: str) -> bool:
    return isinstance(job.phase, Finished) or (until == "started" and not isinstance(job.phase, Pending | Starting))


async def _wait_answer(api: Context, request: Request, target: Target, jobs: list[Job], *, done: bool) -> Response:
    records = listing.records_of(api.cluster.state, jobs, api.now(), fields_of(request))
    array = api.cluster.state.arrays.get(target.job_id)
    some_forgotten = not jobs or (array is not None and target.task_id is None and len(jobs) < array.total)
    if done and some_forgotten:  # tasks that were forgotten meanwhile still count for `sbatch --wait`
        here = {job.id for job in jobs}
        records += [record for record in await known.over(api, request, target) if record["job_id"] not in here]
        if not records:
            raise Refusal(Why.INVALID_JOB_ID)
    return answer({"done": done, "jobs": records})


@routes.get("/v1/jobs/{job}/environment", scope="`allocation`: the variables that salloc gives to its command.")
async def job_environment(api: Context, request: Request) -> Response:
    """The variables a job's processes get. Only for the owner and operators."""
    await _own_spec(api, request)
    job = requests.find(api.cluster.state, one_target(request.path_params["job"]))[0]
    if job.allocation is None:
        raise Refusal(Why.JOB_PENDING)
    return answer({"variables": listing.allocation_variables(api.cluster.state, job, job.allocation)})


# -- changes ---------------------------------------------------------------------------------------------------------


async def _change(api: Context, request: Request, change: Change, order: Order) -> Response:
    caller, target = api.caller(request), one_target(request.path_params["job"])
    if await passed_on(api, caller, target, order):
        return answer({"jobs": [job.id for job in requests.find(api.cluster.state, target)]})
    api.viewer(caller).must_see(requests.find(api.cluster.state, target))
    recorded = await api.cluster.do(api.cause(request), lambda state, _: change(state, caller, target))
    touched = sorted({job_id for one in recorded if (job_id := getattr(one.event, "job_id", None)) is not None})
    return answer({"jobs": touched})


@routes.post(
    "/v1/jobs/{job}/cancel",
    body="`signal`: a number, instead of ending the job; `batch_only`: to the script; `full`: to script and steps.",
)
async def cancel_job(api: Context, request: Request) -> Response:
    """Cancel a job, or send it a signal."""
    return await _change(api, request, *read_order("cancel", await api.body(request), api.now()))


@routes.post("/v1/jobs/{job}/signal", body="`signal`: a number; `scope`: `steps` (default), `batch` or `all`.")
async def signal_job(api: Context, request: Request) -> Response:
    """Send a signal to the processes of a running job."""
    body = await api.body(request)
    if whole(body, "signal") is None:
        raise ProblemError(400, "signal: is missing")
    return await _change(api, request, *read_order("cancel", body, api.now()))


@routes.post("/v1/jobs/{job}/hold", body="`by`: `user` if its owner may release it, though an operator holds it.")
async def hold_job(api: Context, request: Request) -> Response:
    """Keep a waiting job from starting until it is released."""
    return await _change(api, request, *read_order("hold", await api.body(request), api.now()))


@routes.post("/v1/jobs/{job}/release")
async def release_job(api: Context, request: Request) -> Response:
    """Let a held job start again."""
    return await _change(api, request, *read_order("release", {}, api.now()))


@routes.post("/v1/jobs/{job}/requeue", body="`hold`: true to keep it from starting again by itself.")
async def requeue_job(api: Context, request: Request) -> Response:
    """Put a running or finished batch job back into the queue, under the same id."""
    return await _change(api, request, *read_order("requeue", await api.body(request), api.now()))


@routes.post("/v1/jobs/{job}/checkpoint")
async def job_checkpointed(api: Context, request: Request) -> Response:
    """Say that a running job has saved its work: less of it is lost if the job is preempted from now on."""
    caller, target = api.caller(request), one_target(request.path_params["job"])
    api.viewer(caller).must_see(requests.find(api.cluster.state, target))
    recorded = await api.cluster.do(api.cause(request), lambda state, _: requests.checkpointed(state, caller, target))
    return answer({"jobs": [one.event.job_id for one in recorded if isinstance(one.event, JobCheckpointed)]})


@routes.post("/v1/jobs/{job}/suspend")
async def suspend_job(api: Context, request: Request) -> Response:
    """Stop the processes of a running job (operators only)."""
    return await _change(api, request, *read_order("suspend", {}, api.now()))


@routes.post("/v1/jobs/{job}/resume")
async def resume_job(api: Context, request: Request) -> Response:
    """Continue a suspended job (operators only)."""
    return await _change(api, request, *read_order("resume", {}, api.now()))


@routes.post("/v1/jobs/{job}/complete", body="`exit_code` and `signal` of the command that used the allocation.")
async def complete_job(api: Context, request: Request) -> Response:
    """Give back an interactive allocation: its command ended."""
    body = await api.body(request)
    status = ExitStatus(whole(body, "exit_code") or 0, whole(body, "signal") or 0)
    order = Order(verb="cancel", target="")
    return await _change(
        api, request, lambda state, caller, target: requests.complete(state, caller, target, status), order
    )


@routes.post("/v1/jobs/{job}/update", body="`changes`: new values by the names of JobSpec and ResourceRequest.")
async def update_job(api: Context, request: Request) -> Response:
    """Change what a job asks for, as `scontrol update` does."""
    return await _change(api, request, *read_order("update", await api.body(request), api.now()))


# -- the interactive caller's lease ----------------------------------------------------------------------------------


@routes.get_waiting("/v1/jobs/{job}/hold-open", media="application/x-ndjson")
async def hold_open(api: Context, request: Request) -> Response:
    """Stay connected on behalf of an interactive job: events about it, one JSON object a line.

    When the connection ends before the job does (the caller was killed), the allocation is given back.
    """
    await _own_spec(api, request)
    target, caller = one_target(request.path_params["job"]), api.caller(request)
    job_ids = {job.id for job in requests.find(api.cluster.state, target)}
    lines = _lease(api, target, caller, job_ids)
    return StreamingResponse(lines, media_type="application/x-ndjson")


async def _lease(api: Context, target: Target, caller: Caller, job_ids: set[int]) -> AsyncIterator[bytes]:
    ended = False
    with api.holders.holding(target.job_id):
        try:
            yield b'{"kind":"Watching"}\n'
            follow = api.live.follow(lambda recorded: getattr(recorded.event, "job_id", None) in job_ids)
            async for recorded in follow:
                content = {"kind": "Heartbeat"} if recorded is None else event_content(recorded)
                yield json.dumps(content).encode() + b"\n"
                ended = all(isinstance(job.phase, Finished) for job in _known(api.cluster.state, target))
                if ended:
                    return
        finally:
            if not ended and not api.live.closing:
                giving = api.holders.give_back(caller, target, f"uid {caller.uid} disconnected")
                await asyncio.shield(asyncio.ensure_future(giving))
