"""The cluster itself: ping, nodes, partitions, configuration, live events, and what operators change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bireme.api.answers import Recipe
from bireme.api.live import Missed, event_content
from bireme.api.machine import machine_facts
from bireme.api.problems import ProblemError, answer
from bireme.api.releases import other_releases
from bireme.api.routes.faults import findings, healings
from bireme.api.routing import Context, Routes, fields_of, is_id, words
from bireme.core.faults.fences.judging import concerns_the_pool
from bireme.core.faults.fences.shelves import FENCES
from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.jobs import requests
from bireme.core.limits.ledger import licences_in_use
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.events import Recorded, ServiceDeployed
from bireme.core.model.finding.findings import FindingLife
from bireme.core.model.nodes import Node
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.model.serving.events import ServiceEvent
from bireme.core.model.serving.services import ServiceLife
from bireme.core.nodes import operators
from bireme.ports import Order
from bireme.slurm.hostlist import compress, expand
from bireme.slurm.records.nodes import node_recorder
from bireme.slurm.records.partitions import cluster_names, config_record, partition_record
from bireme.store import codec

routes = Routes("cluster")
_PAGE = 500
_AGENT_ANSWERS_S = 3.0
_MOST_ROUNDS = 20


@routes.get(
    "/v1/ping", agents="`ask`: every agent is asked whether it answers, and `silent_agents` names who does not."
)
async def ping(api: Context, request: Request) -> Response:
    """Whether the daemon is there, and which cluster it serves."""
    keeper = api.cluster.engine.capabilities.agents if request.query_params.get("agents") == "ask" else None
    asked = {"silent_agents": await keeper.silent_agents(_AGENT_ANSWERS_S)} if keeper is not None else {}
    state, engine = api.cluster.state, api.cluster.engine
    confinement = engine.capabilities.confinement
    return answer(
        {
            "cluster": state.config.name,
            "clusters": cluster_names(state),
            "version": api.service.version,
            "pid": api.service.pid,
            "node_count": len(state.nodes),
            "now": api.now(),
            "engine": engine.name,
            "about": engine.about,
            "problem": engine.problem,
            "journal": api.cluster.unwritable,
            "up_since": api.service.up_since,
            "notices": list(api.service.notices()),
            "confined": api.service.confined(),
            "unconfined": confinement.unconfined() if confinement is not None else {},
            "releases": other_releases(api, request),
            "router": dict(api.service.router()),
            "telemetry": _measured(api, request),
            "findings": findings.counted(api, request),
            "healings": healings.counted(api, request),
            **asked,
        }
    )


def _measured(api: Context, request: Request) -> dict[str, Any]:
    """Of telemetry; empty: it is off. `rounds`: those whose newest round is the oldest, of so many `machines`."""
    telemetry = api.service.telemetry()
    if telemetry is None:
        return {}
    rounds, now = telemetry.newest_rounds(), api.now()
    shown = [] if api.viewer(api.caller(request)).hidden("nodes") else rounds[:_MOST_ROUNDS]
    ages = [
        {"node": one.node, "age_s": None if one.at is None else round(max(0.0, now - one.at), 1), "late": one.is_late}
        for one in shown
    ]
    return {"problem": telemetry.problem, "machines": len(rounds), "rounds": ages}


@routes.get("/v1/nodes", nodes="Only these nodes, as a hostlist: n[1-4].", fields="Only these fields of each record.")
async def list_nodes(api: Context, request: Request) -> Response:
    """The nodes: configuration, state, what is allocated (NodeRecords)."""
    state, names = api.cluster.state, _names(request.query_params.get("nodes", ""))
    unknown = [name for name in names if name not in state.nodes]
    if unknown:
        raise Refusal(Why.INVALID_NODE_NAME, f"no node {unknown[0]!r} here")
    chosen, fields, now = set(names), fields_of(request), api.now()
    caller = api.caller(request)
    viewer = api.viewer(caller)
    if viewer.hidden("nodes"):
        return answer({"nodes": [], "now": now})
    nodes = [node for node in state.nodes.values() if not chosen or node.name in chosen]
    setters = {node.out_because.by_uid if node.out_because else 0 for node in nodes if node.out_because or node.shut}
    users = await api.callers.user_names({uid for uid in setters if uid is not None}, caller.uid)
    recorded, facts = node_recorder(state, now), machine_facts() if api.cluster.engine.name == "embedded" else {}

    def records(part: Sequence[Node]) -> list[dict[str, Any]]:
        made = recorded([node for node in part if state.nodes.get(node.name) is node])  # meanwhile some may have left
        for record in made:
            record.update(facts)
            if viewer.hidden("partitions"):
                record["partitions"] = []
            uid = record["reason_uid"]
            record["reason_user"] = "" if uid is None else users.get(uid, str(uid))
        return [{name: record[name] for name in fields if name in record} for record in made] if fields else made

    return await api.in_slices(request, Recipe("nodes", lambda: nodes, records, lambda: {"now": now}))


def _names(text: str) -> list[str]:
    if not text:
        return []
    try:
        return list(expand(text))
    except ValueError as error:
        raise ProblemError(400, f"{text!r} is not a list of nodes: {error}") from error


@routes.get("/v1/partitions")
async def list_partitions(api: Context, request: Request) -> Response:
    """The partitions: limits, nodes, totals (PartitionRecords)."""
    state = api.cluster.state
    seen = () if api.viewer(api.caller(request)).hidden("partitions") else state.partitions.values()
    records = [partition_record(state, partition) for partition in seen]
    return answer({"partitions": records, "now": api.now()})


@routes.get("/v1/licenses")
async def list_licences(api: Context, request: Request) -> Response:
    """The licences that Licenses= names: how many there are, how many jobs hold, how many are free."""
    rows = licences_in_use(api.cluster.state.ledger)
    records = [{"name": name, "total": total, "used": used, "free": total - used} for name, total, used in rows]
    return answer({"licenses": records, "now": api.now()})


@routes.get("/v1/config")
async def show_config(api: Context, request: Request) -> Response:
    """The configuration in force: Slurm's keys as written, typed settings, and where it came from."""
    record = config_record(api.cluster.state)
    if api.viewer(api.caller(request)).hidden("partitions"):
        record["partitions"] = []
    return answer({**record, "bireme": api.service.extra_config})


@routes.get("/v1/topology")
async def show_topology(api: Context, request: Request) -> Response:
    """Switches or blocks, as configured."""
    return answer(codec.all_fields(api.cluster.state.config.topology))


@routes.get_waiting(
    "/v1/events",
    media="text/event-stream",
    after="Begin after this event of the journal (default: with what happens from now on).",
    job="Only events about these jobs.",
)
async def live_events(api: Context, request: Request) -> Response:
    """Events as they happen, as server-sent events.

    Users see what happens to their own jobs and to the nodes; operators see everything. `id` is the event's place in
    the journal: a reader that was cut off comes back with `after` (or the header Last-Event-ID) and misses nothing.
    """
    caller = api.caller(request)
    jobs = {int(word) for word in words(request, "job") if is_id(word)}
    after = request.headers.get("last-event-id") or request.query_params.get("after")
    if after is not None and not is_id(after):
        raise ProblemError(400, f"after={after[:80]!r} is not the number of an event")

    def wanted(recorded: Recorded) -> bool:
        job_id = getattr(recorded.event, "job_id", None)
        return (not jobs or job_id in jobs) and _may_see(api, caller, recorded, job_id)

    missed = None if after is None else _pages_after(api, request, int(after))
    stream = _server_sent(api, wanted, missed)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def _may_see(api: Context, caller: Caller, recorded: Recorded, job_id: int | None) -> bool:
    event = recorded.event
    if caller.admin:
        return True
    if isinstance(event, ServiceEvent):
        return _owner_of_service(api, event, recorded.at) == caller.uid
    if job_id is None:
        return api.viewer(caller).sees_event(event)
    job = api.cluster.state.jobs.get(job_id)
    return job is not None and job.spec.owner.uid == caller.uid


def _owner_of_service(api: Context, event: ServiceEvent, at: float) -> int | None:
    """None: it is gone, and nobody but an operator is told of it any more. Another may have its name since."""
    if isinstance(event, ServiceDeployed):
        return event.owner.uid
    service = api.cluster.state.services.get(event.name)
    return None if service is None or at < service.made_at else service.owner.uid


def _pages_after(api: Context, request: Request, seq: int) -> Missed:
    async def page() -> Sequence[Recorded]:
        nonlocal seq
        events = await api.in_thread(request, api.archive.events_after, seq, _PAGE)
        seq = events[-1].seq if events else seq
        return events

    return page


async def _server_sent(api: Context, wanted: Callable[[Recorded], bool], missed: Missed | None) -> AsyncIterator[bytes]:
    yield b": bireme\n\n"  # so that the reader knows that it is connected
    async for recorded in api.live.follow(wanted, missed):
        if recorded is None:
            yield b": still here\n\n"
        else:
            content = event_content(recorded)
            yield b"id: %d\nevent: %s\ndata: %s\n\n" % (
                recorded.seq,
                content["kind"].encode(),
                codec.dumps(content),
            )


# -- what operators change -------------------------------------------------------------------------------------------


@routes.post(
    "/v1/nodes/update", body="`nodes` (a hostlist), and of `state`, `reason`, `weight`, `features` what changes."
)
async def update_nodes(api: Context, request: Request) -> Response:
    """Take nodes out of service or bring them back, as `scontrol update nodename=...` (operators only)."""
    body, caller = await api.body(request), api.caller(request)
    names = _names(str(body.get("nodes", "")))
    if not names:
        raise Refusal(Why.INVALID_NODE_NAME)
    features = body.get("features")
    if features is not None:
        features = tuple(str(feature) for feature in features)
    state_word, note, weight = body.get("state"), body.get("reason"), body.get("weight")
    queue = api.cluster.engine.capabilities.queue
    if queue is not None and queue.takes_nodes(names):
        changes = {"state": state_word, "reason": note, "weight": weight, "features": features}
        await queue.obey(caller, Order(verb="update_nodes", target=compress(names), changes=changes))
        await api.cluster.settled()
        return answer({"nodes": names})
    await api.cluster.do(
        api.cause(request),
        lambda state, _: operators.update_nodes(state, caller, names, state_word, note, weight, features),
    )
    return answer({"nodes": names, "standing": _standing(api, names, str(state_word or ""))})


def _standing(api: Context, names: Sequence[str], word: str) -> list[str]:
    """What is found broken on nodes that are brought back, and what of them stays fenced: whoever does so may not know
    of it."""
    if word.upper() not in ("RESUME", "UNDRAIN", "IDLE"):
        return []
    state, nodes = api.cluster.state, set(names)
    known = (each for each in FINDINGS.of(state).values() if each.trouble.place.node in nodes)
    broken = [each for each in known if concerns_the_pool(each.trouble) and each.phase is FindingLife.OPEN]
    found = [f"finding {each.id} stands: {each.trouble.title} ({each.trouble.place.key})" for each in broken]
    shut = (each for each in FENCES.of(state).values() if each.of_gpu and each.place.node in nodes)
    return [*found, *(f"{each.key} stays fenced: bireme healings undo {each.healing} lifts that" for each in shut)]


@routes.post("/v1/partitions/{name}/update", body="`changes`: new values by the names of PartitionConfig.")
async def update_partition(api: Context, request: Request) -> Response:
    """Change a partition, as `scontrol update partitionname=...` (operators only)."""
    body, caller, name = await api.body(request), api.caller(request), request.path_params["name"]
    changes = body.get("changes")
    if not isinstance(changes, dict):
        raise ProblemError(400, "changes: expected an object")
    unknown = changes.keys() - operators.PARTITION_FIELDS | ({"name"} & changes.keys())
    if unknown:
        raise ProblemError(400, f"{min(unknown)}: a partition has no such field to change")
    typed = {field: codec.convert_field(PartitionConfig, field, value) for field, value in changes.items()}
    await api.cluster.do(api.cause(request), lambda state, _: operators.update_partition(state, caller, name, typed))
    return answer({"partition": name})


@routes.post("/v1/reconfigure")
async def reconfigure(api: Context, request: Request) -> Response:
    """Read the configuration files again (operators only)."""
    caller = api.caller(request)
    if not caller.admin:
        raise Refusal(Why.ACCESS_DENIED)
    if api.service.reconfigure is not None:
        await api.service.reconfigure(caller)
    return answer({"source": api.cluster.state.config.source, "notices": list(api.service.notices())})


@routes.post("/v1/shutdown", body="`end_jobs`: true to end the running jobs and the agents too.")
async def shutdown(api: Context, request: Request) -> Response:
    """End the daemon (operators only). Jobs run on unless `end_jobs` says otherwise.

    With `end_jobs` the answer says what is ended: `jobs`, how many; `agents`, the nodes whose agents are; and
    `left_agents`, nodes whose agents live and are not heard by this daemon: they and what they hold run on. `services`
    are those that the next daemon starts again: they lose their replicas and stay wanted.
    """
    if not api.caller(request).admin:
        raise Refusal(Why.ACCESS_DENIED)
    end_jobs = bool((await api.body(request)).get("end_jobs"))
    ends = await _what_ends(api) if end_jobs else {}
    if api.service.shutdown is not None:
        asyncio.get_running_loop().call_soon(api.service.shutdown, end_jobs)
    return answer({"pid": api.service.pid} | ends)


async def _what_ends(api: Context) -> dict[str, Any]:
    keeper = api.cluster.engine.capabilities.agents
    agents = await keeper.living_agents() if keeper is not None else {}
    return {
        "jobs": len(requests.cancel_all(api.cluster.state, 0)),
        "agents": [node for node, heard in agents.items() if heard],
        "left_agents": [node for node, heard in agents.items() if not heard],
        "services": sorted(
            name for name, service in api.cluster.state.services.items() if service.phase is ServiceLife.UP
        ),
    }
