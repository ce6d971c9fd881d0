"""Healings: what Bireme decided about findings, approved, refused and taken back by operators; fences by hand.

Who may know of a healing: of one about a job, who may know of the job; of one about a node or a GPU, who may see nodes.
Who may read its evidence: `quoting`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.problems import ProblemError, answer
from bireme.api.routes.faults.quoting import placed, quoted
from bireme.api.routing import Context, Routes, is_id
from bireme.core.faults.fences import requests as fencing
from bireme.core.faults.fences.shelves import FENCES
from bireme.core.faults.healings import requests
from bireme.core.faults.healings.shelves import HEALINGS, policy_of
from bireme.core.model import events as e
from bireme.core.model.healing.healings import Healing, HealingAct, HealingLife
from bireme.core.model.jobs import Finished
from bireme.core.model.refusals import Caller, Refusal, Why

routes = Routes("healings")
_LONGEST = 400


def counted(api: Context, request: Request) -> dict[str, int]:
    """What is fenced, and how many decisions wait for people: what `bireme status` says in a line."""
    caller, state = api.caller(request), api.cluster.state
    fences = () if api.viewer(caller).hidden("nodes") else FENCES.of(state).values()
    suggested = (each for each in HEALINGS.of(state).values() if each.phase is HealingLife.SUGGESTED)
    return {
        "fenced_gpus": sum(each.of_gpu for each in fences),
        "fenced_nodes": sum(not each.of_gpu for each in fences),
        "suggested": sum(_sees(api, caller, each) for each in suggested),
    }


@routes.get(
    "/v1/healings",
    all="1: those that are over too (of jobs that are, refused, failed, undone, lapsed), the latest thousand.",
)
async def list_healings(api: Context, request: Request) -> Response:
    """What was decided about findings, newest first: observed, suggested, being done, done; and what is fenced.

    `trail` is the audit of each: what became of it, when, by whom (empty: Bireme), and why. `mode`: how far Bireme goes
    by itself; `modes`: partitions where another mode holds.
    """
    caller, state = api.caller(request), api.cluster.state
    everything = request.query_params.get("all", "") in ("1", "true", "yes")
    shown = (each for each in HEALINGS.of(state).values() if everything or _stands(api, each))
    seen = [each for each in shown if _sees(api, caller, each)]
    policy = policy_of(state)
    fences = FENCES.of(state).values() if not api.viewer(caller).hidden("nodes") else ()
    return answer(
        {
            "healings": [_record(api, caller, each) for each in sorted(seen, key=lambda each: -each.id)],
            "fences": [
                {
                    "place": fence.key, "node": fence.place.node, "gpu": fence.place.gpu, "uuid": fence.place.uuid,
                    "why": fence.why, "healing": fence.healing, "since": fence.raised_at, "by": fence.by,
                }
                for fence in fences
            ],
            "mode": policy.mode.value,
            "modes": {name: mode.value for name, mode in policy.partitions},
            "breaker_percent": policy.breaker_percent,
            "now": api.now(),
        }
    )  # fmt: skip


@routes.get("/v1/healings/{healing}")
async def show_healing(api: Context, request: Request) -> Response:
    """One healing, by its number, with its evidence and its audit."""
    caller, found = api.caller(request), requests.found(api.cluster.state, _number(request))
    if not _sees(api, caller, found):
        raise requests.no_healing(found.id)
    return answer({"healing": _record(api, caller, found), "now": api.now()})


@routes.post(
    "/v1/healings",
    body="`fence`: a node (`n1`) or a GPU of one (`n1:gpu2`, `n1:GPU-UUID`); `reason`: a sentence; `last_too`: also "
    "the last node of a partition.",
)
async def fence_by_hand(api: Context, request: Request) -> Response:
    """Take a node or a GPU out of service by hand: a healing as any other, with its undo. For operators."""
    body, caller = await api.body(request), api.caller(request)
    where, why = _text(body, "fence"), _text(body, "reason")
    if not isinstance(body.get("last_too", False), bool):
        raise ProblemError(400, "last_too: is true or false")
    last_too = bool(body.get("last_too", False))
    events = await api.cluster.do(
        api.cause(request), lambda state, _: fencing.fence(state, caller, where, why, last_too=last_too), own=True
    )
    number = next(each.event.id for each in events if isinstance(each.event, e.HealingProposed))
    return answer({"healing": _record(api, caller, requests.found(api.cluster.state, number)), "now": api.now()})


@routes.post("/v1/healings/{healing}/approve", body="`why`: may be left out.")
async def approve_healing(api: Context, request: Request) -> Response:
    """Have a suggestion carried out. For operators."""
    return await _answered(api, request, requests.approve)


@routes.post("/v1/healings/{healing}/refuse", body="`why`: may be left out.")
async def refuse_healing(api: Context, request: Request) -> Response:
    """Say that a suggestion is not to be done: it does not come again for the same findings. For operators."""
    return await _answered(api, request, requests.refuse)


@routes.post("/v1/healings/{healing}/undo", body="`why`: may be left out.")
async def undo_healing(api: Context, request: Request) -> Response:
    """Take back what was done, as its `undo` says. For operators."""
    return await _answered(api, request, requests.undo)


async def _answered(api: Context, request: Request, ask: requests.Ask) -> Response:
    number, caller = _number(request), api.caller(request)
    why = _text(await api.body(request), "why")
    await api.cluster.do(api.cause(request), lambda state, _: ask(state, caller, number, why), own=True)
    return await show_healing(api, request)


def _stands(api: Context, healing: Healing) -> bool:
    """Whether something may still become of it. What was done about a job is over with the start that it brought."""
    place = healing.proposal.place
    if healing.phase is not HealingLife.DONE or not place.job_id:
        return healing.phase.stands
    job = api.cluster.state.jobs.get(place.job_id)
    goes_on = job is not None and not isinstance(job.phase, Finished)
    return goes_on and healing.proposal.act is HealingAct.RESTART_JOB


def _sees(api: Context, caller: Caller, healing: Healing) -> bool:
    place = healing.proposal.place
    if place.job_id:
        job = api.cluster.state.jobs.get(place.job_id)
        return caller.admin if job is None else api.sees(caller, job.spec.owner.uid, job.spec.account)
    return not api.viewer(caller).hidden("nodes")


def _record(api: Context, caller: Caller, healing: Healing) -> dict[str, Any]:
    proposal, place = healing.proposal, healing.proposal.place
    return {
        "id": healing.id,
        "act": proposal.act.value,
        "state": healing.phase.value,
        "title": proposal.title,
        "reason": proposal.reason,
        **placed(api, place),
        "findings": list(proposal.findings),
        **quoted(api, caller, place, proposal.quotes),
        "undo": proposal.undo,
        "by": proposal.by,
        "said": healing.latest.text,
        "changed_at": healing.latest.at,
        "trail": [{**asdict(mark), "phase": mark.phase.value} for mark in healing.trail],
    }


def _number(request: Request) -> int:
    text = request.path_params["healing"]
    if not is_id(text):
        raise Refusal(Why.INVALID_HEALING, f"{text[:80]!r} is not the number of a healing: `bireme healings`")
    return int(text)


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str):
        raise ProblemError(400, f"{name}: is not a text")
    if len(value) > _LONGEST:
        raise ProblemError(400, f"{name}: at most {_LONGEST} characters")
    return value.strip()
