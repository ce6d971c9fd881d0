"""`POST /v1/jobs/JOB/foresee`: an order to a job (hold, release, update ...), planned and not given.

The order is judged against the state as it is, with the caller's rights, as if it were given; then the queue is planned
twice in a fork, without and with it. Nothing is changed. Invariant: who may not see others' jobs is told of this job
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.privacy import WORDS
from bireme.api.problems import answer
from bireme.api.routes.orders import read_order
from bireme.api.routing import Context, Routes
from bireme.api.targets import one_target
from bireme.core.jobs import requests
from bireme.core.lifecycle.apply import apply
from bireme.core.model import events as e
from bireme.core.plan.trial import foresee
from bireme.core.priority.order import reprioritise
from bireme.core.state.state import State
from bireme.store.planning_input import decode_input, encode_input

routes = Routes("planning")
_SAME_S = 1.0


@routes.post("/v1/jobs/{job}/foresee", body="`verb`, and what the order of this name takes: `changes` of an update ...")
async def foresee_order(api: Context, request: Request) -> Response:
    """Plan what an order to a job would do to its start and to others', without giving it.

    `before` and `after`: when the job would start (null: it runs, or no start is known). `earlier` and `later`: how
    many other waiting jobs start before and after they would have; null for who may not see them.
    """
    body, caller, state, now = await api.body(request), api.caller(request), api.cluster.state, api.now()
    target = one_target(request.path_params["job"])
    change, _ = read_order(str(body.get("verb", "")), body, now)
    events = change(state, caller, target)
    own = {job.id for job in requests.find(state, target)}
    version, sees_all = api.service.version, not api.viewer(caller).hidden(*WORDS)
    told = await api.aside(request, lambda: _compared(state, now, version, events, own))
    hidden = {} if sees_all else {"earlier": None, "later": None}
    return answer({**told, **hidden, "now": now})


def _compared(state: State, now: float, version: str, events: Sequence[e.Event], own: set[int]) -> dict[str, Any]:
    """In a forked child, which others' questions may share: it plans copies."""
    data = encode_input(state, now, version)
    as_is, changed = decode_input(data).state, decode_input(data).state
    for event in events:
        apply(changed, e.Recorded(changed.seq + 1, now, "foresee", event))
    reprioritise(changed, now)
    before, after = foresee(as_is, now).starts, foresee(changed, now).starts
    moved = [
        after.get(each, float("inf")) - before.get(each, float("inf"))
        for each in before.keys() | after.keys()
        if each not in own and before.get(each) != after.get(each)
    ]
    return {
        "before": min((at for each, at in before.items() if each in own), default=None),
        "after": min((at for each, at in after.items() if each in own), default=None),
        "earlier": sum(by < -_SAME_S for by in moved),
        "later": sum(by > _SAME_S for by in moved),
    }
