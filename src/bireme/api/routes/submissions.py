"""Submission: `POST /v1/jobs` for one job, many, or a heterogeneous one, and `POST /v1/blobs`.

Many jobs in one request become one group in the journal: that is how a client reaches thousands of durable
submissions a second. Invariant: the owner is the caller; what the request says about it is not looked at, except that
an operator may submit for another uid.
"""

from __future__ import annotations

import asyncio
import pwd
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.problems import ProblemError, answer, parse_json, read_body, refusal_content, script_too_large
from bireme.api.routing import Context, Routes, flag
from bireme.api.serving.peers import group_name, groups_of_user
from bireme.api.serving.slices import slices_of
from bireme.api.submitted import Submission, within_own
from bireme.core.explain.wording import sentence
from bireme.core.jobs.keys import KEYS
from bireme.core.jobs.requests import Target
from bireme.core.jobs.rights import passed_over
from bireme.core.jobs.sizes import ENVIRONMENT, KEY, check_sizes
from bireme.core.jobs.submission import MOST_COMPONENTS, submit
from bireme.core.model.events import JobSubmitted, Recorded
from bireme.core.model.jobs import ArrayWaiting, Dependencies, Job, JobKind, JobSpec, Pending
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.model.steps import StepSpec
from bireme.core.plan.trial import try_jobs
from bireme.ports import BlobShareError, ForeignQueue
from bireme.slurm.containers import ContainerError, check_texts
from bireme.slurm.options.catalogue.help import is_applied
from bireme.slurm.records.partitions import cluster_names
from bireme.store import codec

routes = Routes("jobs")
_BODY_OF_OUR_CLIENTS = {"spec", "script", "environment", "idempotency_key"}
GROUP = 100
"""Of many jobs, so many are decided and written at once."""


@routes.post("/v1/blobs", body="Raw bytes.")
async def store_blob(api: Context, request: Request) -> Response:
    """Keep a script or an environment, to be named by several jobs.

    It is stored together with the first job that names it.
    """
    data = await read_body(request, api.service.max_body_bytes, api.bodies)
    limit = api.cluster.state.config.settings.max_script_bytes
    if len(data) > limit:
        raise script_too_large(len(data), limit)
    return answer({"id": api.archive.put(data, api.caller(request).uid)})


@routes.post(
    "/v1/jobs",
    body="`spec` (a JobSpec without owner), `script` (text), `environment` (object), `idempotency_key`, "
    "`clusters` (names); or `jobs`: a list of these; or `het`: the components of a heterogeneous job. "
    "`script` and `environment` beside `jobs` hold for all jobs that give none.",
    test_only="1: say whether and when it could start; store nothing.",
)
async def submit_jobs(api: Context, request: Request) -> Response:
    """Submit jobs.

    One job is answered with `job_id`, and with `remarks` where something that it asked for is not applied. A list is
    answered with `jobs`: for each, `job_id` or `error`, in order. It is taken in groups, between which others have
    their turn. The answer comes when everything is on disk. An `idempotency_key` that was seen before returns the first
    job's id.
    """
    raw, caller = await api.raw_body(request), api.caller(request)
    known = api.submitted.find(raw, caller, api.cluster.state.config)
    body = {} if known is not None else parse_json(raw)
    if "jobs" not in body:
        submission = known or await _read_alone(api, caller, raw, body)
        if flag(request, "test_only"):
            return answer(await _would_start(api, request, caller, submission))
        accepted = await _submit(api, caller, submission, api.cause(request))
        await _tie_to_holder(api, request, caller, submission, accepted["job_id"])
        return answer(accepted)
    if not isinstance(body["jobs"], list):
        raise ProblemError(400, "jobs: expected a list")
    others = await _other_owners(api, caller, body["jobs"])
    read: list[Submission | Exception] = []
    async for part in slices_of(api.turns, request, body["jobs"]):
        read += [_read_one(api, caller, one, body, others) for one in part]
    cause, answers = api.cause(request), list[dict[str, Any]]()
    for begin in range(0, len(read), GROUP):
        some = read[begin : begin + GROUP]
        answers += await asyncio.gather(*(_submit_or_say(api, caller, each, cause) for each in some))
        await api.turns.mine(caller.uid)
    return answer({"jobs": answers})


async def _read_alone(api: Context, caller: Caller, raw: bytes, body: dict[str, Any]) -> Submission:
    """The only submission of a request; one of the caller's own is known when it comes again."""
    config, others = api.cluster.state.config, await _other_owners(api, caller, [body])
    submission = read_submission(api, caller, body, {}, others)
    if config is api.cluster.state.config and body.keys() == _BODY_OF_OUR_CLIENTS:
        spec, sent = submission.specs[0], (_script_bytes(body["script"]), codec.dumps(body["environment"]))
        if (spec.script, spec.environment) == tuple(api.archive.put(blob, caller.uid) for blob in sent):
            api.submitted.remember(raw, caller, config, submission, sent)
    return submission


def _read_one(api: Context, caller: Caller, one: Any, shared: dict[str, Any], others: Owners) -> Submission | Exception:
    """One of many, or what is wrong with it."""
    try:
        if not isinstance(one, dict):
            raise ProblemError(400, "each of jobs must be an object")
        return read_submission(api, caller, one, shared, others)
    except (Refusal, ProblemError, codec.WrongShapeError, BlobShareError) as wrong:
        return wrong


async def _submit_or_say(api: Context, caller: Caller, read: Submission | Exception, cause: str) -> dict[str, Any]:
    """The answer for one of many: a bad job must not spoil the others."""
    try:
        if isinstance(read, Exception):
            raise read
        return await _submit(api, caller, read, cause)
    except Refusal as refusal:
        return refusal_content(refusal)
    except ProblemError as problem:
        return problem.content
    except codec.WrongShapeError as error:
        return ProblemError(400, str(error)).content
    except BlobShareError as error:
        return ProblemError(429, "Too many large requests at once", errno=11, hint=str(error)).content


async def _submit(api: Context, caller: Caller, submission: Submission, cause: str) -> dict[str, Any]:
    queue = _chosen_queue(api, submission)
    if queue is not None:
        for spec in submission.specs:
            check_sizes(spec)
        number = await queue.submit(submission.specs, submission.key)
        await api.cluster.settled()  # who has just submitted expects to see the job
        return {"job_id": number}
    for spec in submission.specs:
        refuse_containers(api, spec)
    recorded = await api.cluster.do(
        cause, lambda state, now: submit(state, caller, submission.specs, now, submission.key)
    )
    job_id = _job_id(recorded)
    if job_id is None:  # the key was seen before
        job_id = KEYS.of(api.cluster.state)[submission.key]
    remarks = dict.fromkeys(passed_over(caller, spec) for spec in submission.specs if spec.priority is not None)
    said = [remark for remark in remarks if remark]
    return {"job_id": job_id, "remarks": said} if said else {"job_id": job_id}


async def _tie_to_holder(api: Context, request: Request, caller: Caller, submission: Submission, job_id: int) -> None:
    """A job that lives as long as who asked for it is connected ends at once if nobody is there to be told of it."""
    if submission.specs[0].held_open and await request.is_disconnected():
        await api.holders.give_back(caller, Target(job_id), f"uid {caller.uid} disconnected")


def refuse_containers(api: Context, spec: JobSpec | StepSpec) -> None:
    """What an engine cannot run in must be refused: it would run on the host, or in another image than was asked."""
    texts = {name: getattr(spec, f"container_{name}") for name in ("image", "mounts", "name", "save", "env")}
    try:
        check_texts({f"container-{name}": text for name, text in texts.items()})
    except ContainerError as error:
        raise Refusal(Why.NOT_SUPPORTED, f"pyxis: {error}") from error
    port = api.cluster.engine.capabilities.containers
    if port is not None and (why := port.why_no_container(spec)):
        raise Refusal(Why.NOT_SUPPORTED, why)


def _chosen_queue(api: Context, submission: Submission) -> ForeignQueue | None:
    """The queue of another scheduler, when its cluster or a partition of it is named; None: the job is planned here."""
    queue, own = api.cluster.engine.capabilities.queue, api.cluster.state.config.name
    if queue is None:
        return None
    named = submission.clusters
    theirs = queue.takes(submission.specs)
    if named and own not in named:
        return queue
    if named == (own,) and theirs and not queue.takes(()):
        partitions = ",".join(submission.specs[0].partitions)
        raise Refusal(Why.INVALID_PARTITION_NAME, f"{partitions} is not of cluster {own}")
    return queue if theirs else None


def _read_clusters(api: Context, given: Any) -> tuple[str, ...]:
    known = cluster_names(api.cluster.state)
    if not isinstance(given, list) or len(given) > len(known) or not all(name in known for name in given):
        raise ProblemError(400, f"clusters: expected a list of names among {', '.join(known)}")
    return tuple(given)


def _job_id(recorded: Sequence[Recorded]) -> int | None:
    return next((one.event.job_id for one in recorded if isinstance(one.event, JobSubmitted)), None)


def read_submission(
    api: Context, caller: Caller, body: dict[str, Any], shared: dict[str, Any], others: Owners
) -> Submission:
    """Checks every part and puts the script and the environment among the blobs."""
    parts = body.get("het", [body])
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts) or not parts:
        raise ProblemError(400, "het: expected a list of objects")
    if len(parts) > MOST_COMPONENTS:
        raise ProblemError(400, f"het: a heterogeneous job has at most {MOST_COMPONENTS} components")
    uid = body.get("uid")
    owner = _owner(caller, uid, others)
    key = body.get("idempotency_key", "")
    if not isinstance(key, str):
        raise ProblemError(400, "idempotency_key: expected text")
    if len(key) > KEY:
        raise ProblemError(400, f"idempotency_key has {len(key)} characters, at most {KEY}")
    places = range(len(parts)) if len(parts) > 1 else (None,)
    return Submission(
        tuple(
            replace(spec, het_component=place) if spec.het_component != place else spec
            for place, spec in zip(places, (_read_spec(api, part, {**shared, **body}, owner) for part in parts))
        ),
        within_own(caller, key),
        _read_clusters(api, body.get("clusters", [])),
    )


Owners = dict[int, dict[str, Any] | None]
"""By uid: owners of jobs, as the user database knows them; None: it does not."""


async def _other_owners(api: Context, caller: Caller, jobs: list[Any]) -> Owners:
    """Those for whom an operator submits: asked beside the loop, since the user database may be slow."""
    uids = {job["uid"] for job in jobs if isinstance(job, dict) and isinstance(job.get("uid"), int)} - {caller.uid}
    if not caller.admin:
        return {}
    return {uid: await api.callers.ask(caller.uid, _owner_of, uid) for uid in uids}


def _owner(caller: Caller, uid: Any, others: Owners) -> dict[str, Any]:
    if uid is None or uid == caller.uid:
        return {
            "uid": caller.uid,
            "gid": caller.gid,
            "user": caller.user,
            "group": caller.group,
            "groups": list(caller.groups),
        }
    if not caller.admin:
        raise Refusal(Why.ACCESS_DENIED, "only an operator may submit for another user")
    owner = others.get(uid) if isinstance(uid, int) else None
    if owner is None:
        raise ProblemError(400, "Invalid user id", code="ESLURM_USER_ID_MISSING", errno=2010)
    return owner


def _owner_of(uid: int) -> dict[str, Any] | None:
    try:
        entry = pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        return None
    return {
        "uid": entry.pw_uid,
        "gid": entry.pw_gid,
        "user": entry.pw_name,
        "group": group_name(entry.pw_gid),
        "groups": sorted(groups_of_user(entry.pw_uid)),
    }


def read_own_spec(api: Context, caller: Caller, part: dict[str, Any]) -> JobSpec:
    """What a service's replicas are to be: as of a job that the caller submits, with its script and environment."""
    return _read_spec(api, part, {}, _owner(caller, None, {}))


def _read_spec(api: Context, part: dict[str, Any], shared: dict[str, Any], owner: dict[str, Any]) -> JobSpec:
    given = part.get("spec")
    if not isinstance(given, dict):
        raise ProblemError(400, "spec: expected an object")
    if given.get("kind") == JobKind.PODS or given.get("workload") is not None:
        raise ProblemError(403, "pods are submitted to Kubernetes: create them with schedulerName: bireme")
    if given.get("replica") is not None:
        raise ProblemError(400, "spec.replica: replicas are made for services (bireme serve), not submitted")
    if isinstance(given.get("resources"), dict) and given["resources"].get("node_rules") is not None:
        raise ProblemError(400, "resources.node_rules: these are of pods; ask for features (constraint) or a nodelist")
    fields = {**given, "owner": owner}
    script = part.get("script", shared.get("script"))
    if script is not None and not fields.get("script"):
        fields["script"] = _put_script(api, script, owner["uid"])
    environment = part.get("environment", shared.get("environment"))
    if environment is not None and not fields.get("environment"):
        fields["environment"] = put_environment(api, environment, owner["uid"])
    spec = codec.convert(JobSpec, fields)
    if not spec.ignored:
        return spec
    engine = api.cluster.engine.name
    return replace(spec, ignored=tuple(name for name in spec.ignored if not is_applied(name, engine)))


def _put_script(api: Context, script: Any, uid: int) -> str:
    if not isinstance(script, str):
        raise ProblemError(400, "script: expected text")
    data = _script_bytes(script)
    limit = api.cluster.state.config.settings.max_script_bytes
    if len(data) > limit:
        raise script_too_large(len(data), limit)
    if b"\0" in data:
        raise ProblemError(400, "the script contains a NUL byte: it is not a text file")
    return api.archive.put(data, uid)


def _script_bytes(script: str) -> bytes:
    return script.encode("utf-8", "surrogateescape")


def put_environment(api: Context, environment: Any, uid: int) -> str:
    if not isinstance(environment, dict):
        raise ProblemError(400, "environment: expected an object")
    for name, value in environment.items():
        if not isinstance(value, str) or not name or "=" in name or "\0" in name or "\0" in value:
            raise ProblemError(400, f"environment: {name!r} cannot be a variable with this value")
    data = codec.dumps(environment)
    if len(data) > ENVIRONMENT:
        raise ProblemError(413, f"the environment has {len(data)} bytes, at most {ENVIRONMENT}")
    return api.archive.put(data, uid)


async def _would_start(api: Context, request: Request, caller: Caller, submission: Submission) -> dict[str, Any]:
    """`sbatch --test-only`: as the last of the queue, planned in a copy of it.

    As with Slurm only resources count: not a hold, and not what it depends on; a begin time is waited for.
    """
    state, now = api.cluster.state, api.now()
    events = [event for event in submit(state, caller, submission.specs, now) if isinstance(event, JobSubmitted)]
    jobs, next_job_id = [_as_submitted(event, now) for event in events], state.next_job_id
    trial = await api.aside(request, lambda: try_jobs(state, jobs, now))
    return {
        "job_id": next_job_id,
        "start_time": None if trial.start is None else max(trial.start, submission.specs[0].begin_at or 0.0),
        "partition": trial.partition,
        "nodes": list(trial.nodes),
        "cpus": sum(share.cpus for share in trial.shares),
        "reasons": [sentence(why) for why in trial.verdict.reasons] if trial.start is None and trial.verdict else [],
    }


def _as_submitted(event: JobSubmitted, now: float) -> Job:
    spec = replace(event.spec, hold=False, begin_at=None, dependencies=Dependencies())
    phase = Pending(since=now, eligible_at=now)
    waiting = ArrayWaiting(deque(spec.array.task_ids), spec.array.throttle) if spec.array else None
    return Job(event.job_id, spec, now, phase, priority=event.priority, array=waiting, het_job_id=event.het_job_id)
