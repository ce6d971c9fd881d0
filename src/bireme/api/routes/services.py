"""Services: deploy, look, scale, stop, restart, roll back, promote, keys; what happened to one; and waiting for it.

Each changing route hands a request of `core/services` to the runtime. Who may know of a service is who may know of the
jobs that its replicas are (PrivateData=jobs); to others it is as if there were none, but that its name is taken.
Invariants: the owner is the caller; a key's text leaves here once, in the answer to the request that made it.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.answers import Recipe
from bireme.api.live import event_content
from bireme.api.problems import ProblemError, answer
from bireme.api.routes.submissions import read_own_spec, refuse_containers
from bireme.api.routing import Context, Routes, number, words
from bireme.core.jobs.sizes import KEY, check_sizes
from bireme.core.model import events as e
from bireme.core.model.events import Event, Recorded
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.model.serving.names import is_host
from bireme.core.model.serving.services import Revision, RevisionLife, Service, ServiceKey, ServiceSpec
from bireme.core.services import requests
from bireme.core.services.awaited import Awaited, awaited
from bireme.core.services.standing import standing
from bireme.core.state.state import State
from bireme.slurm.records.services import key_record, service_record
from bireme.store import codec

routes = Routes("services")
LONGEST_WAIT_S = 3600.0
ROUTER_PATIENCE_S, ROUTER_LOOK_S = 10.0, 0.01
MOST_EVENTS = 1_000
MOST_OVER = 100
LONGEST_NOTE = 200
_KEY_BYTES = 32
_KEY_PREFIX = "bireme-"

Ask = Callable[[State, Caller, str, float], list[Event]]
"""(newest state, who asks, the service's name, now) -> events, or raises Refusal."""


# -- looking -----------------------------------------------------------------------------------------------------------


@routes.get("/v1/services", user="Names of owners.")
async def list_services(api: Context, request: Request) -> Response:
    """List the services, each as a ServiceRecord: name, state, url, wanted, ready, revision, replicas, reasons ..."""
    caller, users = api.caller(request), words(request, "user")

    def records(services: Sequence[Service]) -> list[dict[str, Any]]:
        known = (each for each in services if each.name in api.cluster.state.services)
        return [_record(api, each) for each in known if _sees(api, caller, each)]

    def wanted() -> list[Service]:
        found = api.cluster.state.services
        return [found[name] for name in sorted(found) if not users or found[name].owner.user in users]

    recipe = Recipe("services", wanted, records, lambda: {"now": api.now()})
    return await api.shared(request, "jobs", recipe)


@routes.get("/v1/services/{service}")
async def show_service(api: Context, request: Request) -> Response:
    """Show a service: where it is, how many replicas it has and why, its revisions, and what went wrong of late."""
    return answer({"service": _record(api, seen_service(api, request)), "now": api.now()})


@routes.get("/v1/services/{service}/logs")
async def service_logs(api: Context, request: Request) -> Response:
    """Where the output of its replicas is: files that their owner can read. Also of a service that is gone.

    Answered with `replicas`, as in its record, `over`: those that have ended, [{replica, revision, job_id, at, why}],
    the newest last, and `user_id`, whose the files are.
    """
    story = await _story(api, request)
    service = api.cluster.state.services.get(request.path_params["service"])
    replicas = _record(api, service)["replicas"] if service is not None else []
    deployed = (each.event.owner.uid for each in reversed(story) if isinstance(each.event, e.ServiceDeployed))
    owner = service.owner.uid if service is not None else next(deployed, api.caller(request).uid)
    return answer({"replicas": replicas, "over": _over(story)[-MOST_OVER:], "now": api.now(), "user_id": owner})


def _over(story: Sequence[Recorded]) -> list[dict[str, Any]]:
    """The replicas of a story that have ended, with why."""
    living: dict[int, dict[str, Any]] = {}
    over: list[dict[str, Any]] = []
    for recorded in story:
        match recorded.event:
            case e.ReplicaAdded(replica=replica, revision=revision, job_id=job_id):
                living[replica] = {"replica": replica, "revision": revision, "job_id": job_id, "at": 0.0, "why": ""}
            case e.ReplicaQueued(replica=replica, job_id=job_id) if replica in living:
                living[replica]["job_id"] = job_id
            case e.ReplicaDraining(replica=replica, why=why) if replica in living:
                living[replica]["why"] = why
            case e.ReplicaGone(replica=replica, crash=crash) if replica in living:
                gone = living.pop(replica)
                over.append({**gone, "at": recorded.at, "why": crash.why if crash is not None else gone["why"]})
    return [each for each in over if each["job_id"]]


@routes.get("/v1/services/{service}/events")
async def service_events(api: Context, request: Request) -> Response:
    """What happened to a service, its revisions and replicas, oldest first; also of one that is gone.

    The newest thousand events. Only for the owner and operators.
    """
    story = await _story(api, request)
    return await api.in_slices(request, Recipe("events", lambda: story, _contents, dict))


async def _story(api: Context, request: Request) -> Sequence[Recorded]:
    """What happened to it that the caller may know. Not empty."""
    caller, name = api.caller(request), request.path_params["service"]
    story: Sequence[Recorded] = await api.in_thread(request, api.archive.story_of_service, name, MOST_EVENTS)
    if not caller.admin:
        story = _since_it_is_his(story, caller)
    if not story:
        own_service(api, request)
        raise _unknown(api, caller, name)
    return story


def _since_it_is_his(story: Sequence[Recorded], caller: Caller) -> list[Recorded]:
    """Without what happened to services of others that had the same name."""
    kept: list[Recorded] = []
    his = False
    for recorded in story:
        if isinstance(recorded.event, e.ServiceDeployed):
            his = recorded.event.owner.uid == caller.uid
        if his:
            kept.append(recorded)
    return kept


def _contents(part: Sequence[Recorded]) -> list[dict[str, Any]]:
    return [event_content(recorded) for recorded in part]


@routes.get_waiting(
    "/v1/services/{service}/wait",
    timeout="Seconds to wait at most (default 60); then `done` is false.",
    until="`ready` (default: all replicas that are wanted, and no update under way), `settled` (that, or it does not "
    "get there: its replicas crash, or the update was given up) or `gone`.",
    revision="Number of the revision that is waited for; default: the newest one (of `ready`: the one it is to have).",
)
async def wait_for_service(api: Context, request: Request) -> Response:
    """Wait until a service is ready, or gone.

    Answered with `done`, `service` (its record; null when it is gone) and `failure`: why it does not get ready by
    itself, empty where nothing speaks against it.
    """
    caller, name = api.caller(request), request.path_params["service"]
    until = request.query_params.get("until", "ready")
    if until not in ("ready", "settled", "gone"):
        raise ProblemError(400, f"until={until[:40]!r}: use ready, settled or gone")
    if until != "gone":
        seen_service(api, request)
    of = int(number(request, "revision", 0.0))
    deadline = asyncio.get_running_loop().time() + min(number(request, "timeout", 60.0), LONGEST_WAIT_S)
    while True:
        service = api.cluster.state.services.get(name)
        service = service if service is not None and _sees(api, caller, service) else None
        found = Awaited(True) if service is None else _awaited(api, service, of or _newest(service, until))
        done = service is None or (until != "gone" and (found.reached or (until == "settled" and bool(found.failure))))
        left = deadline - asyncio.get_running_loop().time()
        if done or left <= 0 or api.live.closing:
            record = None if service is None else _record(api, service)
            return answer({"done": done, "service": record, "failure": found.failure})
        await api.live.changed([name], left)


def _newest(service: Service, until: str) -> int:
    """Who waits until it is settled waits for what was asked for last; else for what it is to have now."""
    return max(service.revisions) if until == "settled" else service.target.number


def _awaited(api: Context, service: Service, revision: int) -> Awaited:
    state = api.cluster.state
    return awaited(service, revision, standing(state, service), api.now(), state.awake_since)


def _record(api: Context, service: Service) -> dict[str, Any]:
    scaling, traffic = api.service.scaling(service.name), api.service.lately(service.name)
    return service_record(api.cluster.state, service, api.now(), api.service.router_url(), scaling, traffic)


def _sees(api: Context, caller: Caller, service: Service) -> bool:
    return api.sees(caller, service.owner.uid, service.target.spec.job.account)


def seen_service(api: Context, request: Request) -> Service:
    """The one that is named, if the caller may know of it."""
    caller, name = api.caller(request), request.path_params["service"]
    service = api.cluster.state.services.get(name)
    if service is None or not _sees(api, caller, service):
        raise _unknown(api, caller, name)
    return service


def own_service(api: Context, request: Request) -> Service:
    """The one that is named, if the caller may change it."""
    service = seen_service(api, request)
    if not api.caller(request).may_change(service.owner.uid):
        raise Refusal(Why.ACCESS_DENIED, f"service {service.name} is {service.owner.user}'s")
    return service


def _unknown(api: Context, caller: Caller, name: str) -> Refusal:
    known = [each.name for each in api.cluster.state.services.values() if _sees(api, caller, each)]
    near = difflib.get_close_matches(name[:100], known, 1)
    more = f"did you mean {near[0]}?" if near else "`bireme services` lists them" if known else "there are none yet"
    return Refusal(Why.INVALID_SERVICE, f"there is no service {name[:100]!r}; {more}")


# -- deploying ---------------------------------------------------------------------------------------------------------


@routes.post(
    "/v1/services",
    body="`spec` (a ServiceSpec; its `job` is a JobSpec without owner), `script` (text), `environment` (object), "
    "`idempotency_key`.",
)
async def deploy_service(api: Context, request: Request) -> Response:
    """Make a service, or the next revision of one.

    Answered when it is on disk, with `name`, `revision`, `url`, `updates` (the revision that served before; 0: there
    was none), `canary_percent` (null: it is none) and `notices` (what was asked for and is not applied, in sentences).
    An `idempotency_key` that made a revision of this service already is answered with that one.
    """
    body, caller = await api.body(request), api.caller(request)
    spec, key = _read_spec(api, caller, body), _read_key(body)
    name = spec.name
    known = api.cluster.state.services.get(name)
    if known is not None and not _sees(api, caller, known):
        raise Refusal(Why.SERVICE_NAME_TAKEN, f"another has a service {name}: choose another name (--name)")
    _check_hosts(api, caller, spec, known)
    check_sizes(spec.job)
    refuse_containers(api, spec.job)
    elsewhere = _is_elsewhere(api, spec)
    under_way = _under_way(known)
    await api.cluster.do(
        api.cause(request),
        lambda state, now: requests.deploy(state, caller, spec, now, elsewhere=elsewhere, key=key),
        own=True,
    )
    await _is_routed(api, name)
    made = _made(api, name, key)
    made["notices"] += _given_up_for_it(api, name, under_way)
    return answer(made)


def _under_way(service: Service | None) -> list[Revision]:
    """Revisions that are on their way, and that a new one would take the place of."""
    found = (service.in_phase(each) for each in (RevisionLife.ROLLING, RevisionLife.CANARY)) if service else ()
    return [each for each in found if each is not None]


def _given_up_for_it(api: Context, name: str, under_way: Sequence[Revision]) -> list[str]:
    """Who asks for a revision is told which other ones he ended with it."""
    service = api.cluster.state.services.get(name)
    now = service.revisions if service is not None else {}
    retired = [each for each in under_way if each.number in now and now[each.number].phase is RevisionLife.RETIRED]
    what = {RevisionLife.CANARY: "the canary", RevisionLife.ROLLING: "which was on its way"}
    return [f"revision {each.number}, {what[each.phase]}, is given up for it" for each in retired]


def _made(api: Context, name: str, key: str) -> dict[str, Any]:
    service = api.cluster.state.services.get(name)
    if service is None:
        raise Refusal(Why.SERVICE_STOPPING, f"service {name} was made, and stopped by somebody since")
    newest = service.revisions[max(service.revisions)]
    made = next((each for each in service.revisions.values() if key and each.key == key), newest)
    asked, is_canary = made.spec.updating.canary_percent, made.phase is RevisionLife.CANARY
    notices = []
    if asked is not None and not is_canary and not service.current:
        notices.append(f"--canary={asked}% is not applied: no revision serves yet, so this one has all requests")
    if problem := api.service.router().get("problem"):
        notices.append(f"it cannot be reached now: {problem}; see: bireme doctor")
    return {
        "name": name,
        "revision": made.number,
        "url": _record(api, service)["url"],
        "updates": service.current,
        "canary_percent": asked if is_canary else None,
        "notices": notices,
    }


def _check_hosts(api: Context, caller: Caller, spec: ServiceSpec, known: Service | None) -> None:
    """Under the router's own name, and that of the pages, all services are found: it is nobody's alone. Any other may
    be a name by which people come, too: who has it reads their requests, so operators say whose it is."""
    machine = os.uname().nodename.lower()
    own = {urlsplit(api.service.router_url()).hostname, machine, machine.partition(".")[0]}
    for host in own.intersection(spec.routing.hosts):
        raise Refusal(Why.INVALID_SERVICE_SPEC, f"--host={host} is the router's own name: choose another")
    for host in {*api.service.not_for_services()}.intersection(spec.routing.hosts):
        raise Refusal(Why.INVALID_SERVICE_SPEC, f"--host={host} is the name of this cluster's pages: choose another")
    had = {host for each in known.revisions.values() for host in each.spec.routing.hosts} if known is not None else ()
    allowed = api.service.router_hosts()
    for host in filter(is_host, spec.routing.hosts) if not caller.admin else ():
        if host not in had and not any(_is_among(host, each) for each in allowed):
            others = f"; anybody may take {', '.join(allowed)}" if allowed else ""
            hint = f"--host={host} is for an operator to give (`router.hosts` in bireme.toml){others}"
            raise Refusal(Why.ACCESS_DENIED, hint)


def _is_among(host: str, allowed: str) -> bool:
    return host.endswith(allowed[1:].lower()) if allowed.startswith("*.") else host == allowed.lower()


async def _is_routed(api: Context, name: str) -> None:
    """Waits a moment for a router that is just being started, or has not heard of it: who is told an address may use it
    at once."""
    for _ in range(int(ROUTER_PATIENCE_S / ROUTER_LOOK_S)):
        router = api.service.router()
        if "problem" in router or ("url" in router and api.service.routes(name)) or api.live.closing:
            return
        await asyncio.sleep(ROUTER_LOOK_S)


def _read_spec(api: Context, caller: Caller, body: dict[str, Any]) -> ServiceSpec:
    given = body.get("spec")
    if not isinstance(given, dict) or not isinstance(given.get("job"), dict):
        raise ProblemError(400, "spec: expected an object with a job")
    job = read_own_spec(api, caller, {**body, "spec": given["job"]})
    read = codec.convert(ServiceSpec, {**given, "job": {"owner": {"uid": caller.uid, "gid": caller.gid, "user": ""}}})
    return replace(read, job=job)


def _read_key(body: dict[str, Any]) -> str:
    key = body.get("idempotency_key", "")
    if not isinstance(key, str) or len(key) > KEY:
        raise ProblemError(400, f"idempotency_key: expected text of at most {KEY} characters")
    return key


def _is_elsewhere(api: Context, spec: ServiceSpec) -> bool:
    queue = api.cluster.engine.capabilities.queue
    return queue is not None and queue.takes((spec.job,))


# -- changing ----------------------------------------------------------------------------------------------------------


async def _change(api: Context, request: Request, ask: Ask) -> Response:
    service, caller = own_service(api, request), api.caller(request)
    name, under_way = service.name, _under_way(service)
    await api.cluster.do(api.cause(request), lambda state, now: ask(state, caller, name, now), own=True)
    left = api.cluster.state.services.get(name)
    notices = _given_up_for_it(api, name, under_way)
    return answer({"service": None if left is None else _record(api, left), "notices": notices})


@routes.post("/v1/services/{service}/scale", body="`replicas`: how many; null: as the load needs, again.")
async def scale_service(api: Context, request: Request) -> Response:
    """Say how many replicas a service is to have, whatever the load, until its next revision."""
    body = await api.body(request)
    wanted = body.get("replicas")
    if wanted is None and "replicas" in body:
        return await _change(api, request, lambda state, caller, name, _: requests.unfix(state, caller, name))
    if not isinstance(wanted, int) or isinstance(wanted, bool):
        raise ProblemError(400, "replicas: expected a whole number, or null")
    return await _change(api, request, lambda state, caller, name, _: requests.scale(state, caller, name, wanted))


@routes.post("/v1/services/{service}/stop")
async def stop_service(api: Context, request: Request) -> Response:
    """End a service: its replicas finish their requests and end, then it is gone."""
    return await _change(api, request, lambda state, caller, name, _: requests.stop(state, caller, name))


@routes.post("/v1/services/{service}/restart")
async def restart_service(api: Context, request: Request) -> Response:
    """Replace all replicas, as an update would, without a failed request."""
    return await _change(api, request, lambda state, caller, name, _: requests.restart(state, caller, name))


@routes.post("/v1/services/{service}/rollback", body="`to`: number of a revision; without it, the one before.")
async def roll_back_service(api: Context, request: Request) -> Response:
    """Give up an update or a canary; or, if there is none under way, go back to the revision that served before."""
    to = (await api.body(request)).get("to")
    if to is not None and (not isinstance(to, int) or isinstance(to, bool)):
        raise ProblemError(400, "to: expected the number of a revision")
    return await _change(api, request, lambda state, caller, name, _: requests.rollback(state, caller, name, to))


@routes.post("/v1/services/{service}/promote")
async def promote_service(api: Context, request: Request) -> Response:
    """Let the canary take the place of the revision that serves."""
    return await _change(api, request, lambda state, caller, name, _: requests.promote(state, caller, name))


@routes.post("/v1/services/{service}/canary", body="`percent`: the part of the requests that it gets, 1 to 99.")
async def shift_canary(api: Context, request: Request) -> Response:
    """Give the canary another part of the requests; its replicas follow."""
    percent = (await api.body(request)).get("percent")
    if not isinstance(percent, int) or isinstance(percent, bool):
        raise ProblemError(400, "percent: expected a whole number")
    return await _change(api, request, lambda state, caller, name, _: requests.shift(state, caller, name, percent))


# -- keys --------------------------------------------------------------------------------------------------------------


@routes.get("/v1/services/{service}/keys")
async def list_keys(api: Context, request: Request) -> Response:
    """List a service's keys: their names, limits and makers. Only for the owner and operators."""
    return answer({"keys": [key_record(key) for key in own_service(api, request).keys.values()]})


@routes.post(
    "/v1/services/{service}/keys",
    body="`note`: what it is for; `requests_per_minute`, `max_concurrency`: limits for who has it.",
)
async def add_key(api: Context, request: Request) -> Response:
    """Make a key: answered with `id` and `key`, which is shown this once and not kept."""
    body = await api.body(request)
    note = body.get("note", "")
    if not isinstance(note, str) or len(note) > LONGEST_NOTE or not note.isprintable():
        raise ProblemError(400, f"note: expected printable text of at most {LONGEST_NOTE} characters")
    text = _KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    key = ServiceKey(
        id=secrets.token_hex(4),
        digest=hashlib.sha256(text.encode()).hexdigest(),
        note=note,
        requests_per_minute=_limit(body, "requests_per_minute"),
        max_concurrency=_limit(body, "max_concurrency"),
    )
    service, caller = own_service(api, request), api.caller(request)
    name = service.name
    await api.cluster.do(
        api.cause(request), lambda state, now: requests.add_key(state, caller, name, key, now), own=True
    )
    return answer({"id": key.id, "key": text})


def _limit(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000_000:
        raise ProblemError(400, f"{name}: expected a whole number of at least 1")
    return value


@routes.post("/v1/services/{service}/keys/{key}/revoke")
async def revoke_key(api: Context, request: Request) -> Response:
    """Take a key back: who shows it is not let in any more."""
    key = request.path_params["key"]
    return await _change(api, request, lambda state, caller, name, _: requests.revoke_key(state, caller, name, key))
