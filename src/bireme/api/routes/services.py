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

from fastapi import Request, Response

from bireme.api.answers import Recipe
from bireme.api.live import event_content
from bireme.api.problems import ProblemError, answer
from bireme.api.routes.submissions import read_own_spec, refuse_containers
from bireme.api.routing import Context, Routes, number, words
from bireme.core.jobs.sizes import KEY, check_sizes
from bireme.core.model import events as e
from bireme.core.model.events import Event, Recorded
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.model.serving.services import RevisionLife, Service, ServiceKey, ServiceSpec
from bireme.core.services import requests
from bireme.core.services.standing import standing
from bireme.core.state.state import State
from bireme.slurm.records.services import key_record, service_record
from bireme.store import codec

routes = Routes("services")
LONGEST_WAIT_S = 3600.0
ROUTER_PATIENCE_S, ROUTER_LOOK_S = 10.0, 0.05
MOST_EVENTS = 1_000
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
    return answer({"service": _record(api, _seen(api, request)), "now": api.now()})


@routes.get("/v1/services/{service}/logs")
async def service_logs(api: Context, request: Request) -> Response:
    """Where the output of its replicas is, also of those that crashed: files that their owner can read."""
    service = _own(api, request)
    record = _record(api, service)
    living = {each["job_id"] for each in record["replicas"]}
    crashed = [each for each in record["crashes"] if each["job_id"] and each["job_id"] not in living]
    return answer({"replicas": record["replicas"], "crashed": crashed})


@routes.get("/v1/services/{service}/events")
async def service_events(api: Context, request: Request) -> Response:
    """What happened to a service, its revisions and replicas, oldest first; also of one that is gone.

    The newest thousand events. Only for the owner and operators.
    """
    caller, name = api.caller(request), request.path_params["service"]
    story = await api.in_thread(request, api.archive.story_of_service, name, MOST_EVENTS)
    if not caller.admin:
        story = _since_it_is_his(story, caller)
    if not story:
        _own(api, request)
        raise _unknown(api, caller, name)
    return await api.in_slices(request, Recipe("events", lambda: story, _contents, dict))


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
    until="`ready` (default: all replicas that are wanted, and no update under way), `settled` (that, or an update "
    "was given up) or `gone`.",
)
async def wait_for_service(api: Context, request: Request) -> Response:
    """Wait until a service is ready, or gone; answers with its record (null when it is gone)."""
    caller, name = api.caller(request), request.path_params["service"]
    until = request.query_params.get("until", "ready")
    if until not in ("ready", "settled", "gone"):
        raise ProblemError(400, f"until={until[:40]!r}: use ready, settled or gone")
    if until != "gone":
        _seen(api, request)
    deadline = asyncio.get_running_loop().time() + min(number(request, "timeout", 60.0), LONGEST_WAIT_S)
    while True:
        service = api.cluster.state.services.get(name)
        service = service if service is not None and _sees(api, caller, service) else None
        done = service is None or (until != "gone" and _reached(api.cluster.state, service, until))
        left = deadline - asyncio.get_running_loop().time()
        if done or left <= 0 or api.live.closing:
            return answer({"done": done, "service": None if service is None else _record(api, service)})
        await api.live.changed([name], left)


def _reached(state: State, service: Service, until: str) -> bool:
    if service.in_phase(RevisionLife.ROLLING) is not None and service.wanted:
        return False
    newest = service.revisions[max(service.revisions)]
    if newest.phase is RevisionLife.FAILED and until == "settled":
        return True
    return sum(each.ready for each in standing(state, service)) >= service.wanted


def _record(api: Context, service: Service) -> dict[str, Any]:
    scaling = api.service.scaling(service.name)
    return service_record(api.cluster.state, service, api.now(), api.service.router_url(), scaling)


def _sees(api: Context, caller: Caller, service: Service) -> bool:
    return api.sees(caller, service.owner.uid, service.target.spec.job.account)


def _seen(api: Context, request: Request) -> Service:
    caller, name = api.caller(request), request.path_params["service"]
    service = api.cluster.state.services.get(name)
    if service is None or not _sees(api, caller, service):
        raise _unknown(api, caller, name)
    return service


def _own(api: Context, request: Request) -> Service:
    service = _seen(api, request)
    if not api.caller(request).may_change(service.owner.uid):
        raise Refusal(Why.ACCESS_DENIED, f"service {service.name} is {service.owner.user}'s")
    return service


def _unknown(api: Context, caller: Caller, name: str) -> Refusal:
    known = [each.name for each in api.cluster.state.services.values() if _sees(api, caller, each)]
    near = difflib.get_close_matches(name[:100], known, 1)
    hint = f"there is no service {name[:100]!r}" + (f"; did you mean {near[0]}?" if near else "")
    return Refusal(Why.INVALID_SERVICE, hint)


# -- deploying ---------------------------------------------------------------------------------------------------------


@routes.post(
    "/v1/services",
    body="`spec` (a ServiceSpec; its `job` is a JobSpec without owner), `script` (text), `environment` (object), "
    "`idempotency_key`.",
)
async def deploy_service(api: Context, request: Request) -> Response:
    """Make a service, or the next revision of one.

    Answered when it is on disk, with `name`, `revision`, `url`, `updates` (the revision that served before; 0: there
    was none) and `canary_percent` (null: it is none). An `idempotency_key` that made a revision of this service already
    is answered with that one.
    """
    body, caller = await api.body(request), api.caller(request)
    spec, key = _read_spec(api, caller, body), _read_key(body)
    name = spec.name
    known = api.cluster.state.services.get(name)
    if known is not None and not _sees(api, caller, known):
        raise Refusal(Why.INVALID_SERVICE_SPEC, f"the name {name} is taken: choose another one")
    _check_hosts(api, spec)
    check_sizes(spec.job)
    refuse_containers(api, spec.job)
    elsewhere = _is_elsewhere(api, spec)
    await api.cluster.do(
        api.cause(request),
        lambda state, now: requests.deploy(state, caller, spec, now, elsewhere=elsewhere, key=key),
        own=True,
    )
    service = api.cluster.state.services[name]
    newest = service.revisions[max(service.revisions)]
    made = next((each for each in service.revisions.values() if key and each.key == key), newest)
    percent = made.spec.updating.canary_percent if made.phase is RevisionLife.CANARY else None
    record = _record(api, service)
    told = {"url": record["url"], "updates": service.current, "canary_percent": percent}
    return answer({"name": name, "revision": made.number, **told})


def _check_hosts(api: Context, spec: ServiceSpec) -> None:
    """Under the router's own name all services are found: it is nobody's alone."""
    machine = os.uname().nodename.lower()
    own = {urlsplit(api.service.router_url()).hostname, machine, machine.partition(".")[0]}
    for host in own.intersection(spec.routing.hosts):
        raise Refusal(Why.INVALID_SERVICE_SPEC, f"--host={host} is the router's own name: choose another")


async def _router_listens(api: Context) -> None:
    """Waits a moment for a router that is just being started: who is told an address may use it at once."""
    for _ in range(int(ROUTER_PATIENCE_S / ROUTER_LOOK_S)):
        router = api.service.router()
        if "url" in router or "problem" in router:
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
    service, caller = _own(api, request), api.caller(request)
    name = service.name
    await api.cluster.do(api.cause(request), lambda state, now: ask(state, caller, name, now), own=True)
    left = api.cluster.state.services.get(name)
    return answer({"service": None if left is None else _record(api, left)})


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


# -- keys --------------------------------------------------------------------------------------------------------------


@routes.get("/v1/services/{service}/keys")
async def list_keys(api: Context, request: Request) -> Response:
    """List a service's keys: their names, limits and makers. Only for the owner and operators."""
    return answer({"keys": [key_record(key) for key in _own(api, request).keys.values()]})


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
    service, caller = _own(api, request), api.caller(request)
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
