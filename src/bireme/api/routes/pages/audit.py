"""What people asked for, and what happened to a node: the journal, read backwards.

`GET /v1/audit` is for operators: changes of nodes, partitions, accounts, reservations, services, findings and healings,
with who asked and when. What is asked of a job is in that job's story (`/v1/jobs/JOB/events`). What happened to a node
is told to whoever may see nodes. Both look back over the latest events only, as far as is read quickly; the journal has
all of them.
"""

from __future__ import annotations

import sys

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.live import event_content
from bireme.api.problems import answer
from bireme.api.routing import Context, Routes, is_id, number
from bireme.core.model.refusals import Refusal, Why

routes = Routes("cluster")
_MOST, _USUAL = 1_000, 200


@routes.get(
    "/v1/audit",
    before="Only what came before this event of the journal: the `seq` of the last one of a page asks for the next.",
    limit="So many at most (default 200, at most 1000).",
)
async def what_was_asked(api: Context, request: Request) -> Response:
    """What people asked for, newest first: events with `cause` (whose request, and by which program) and `user`."""
    caller = api.caller(request)
    if not caller.admin:
        raise Refusal(Why.ACCESS_DENIED, "who asked for what is told to operators")
    before = int(number(request, "before", 0.0)) or sys.maxsize
    before = min(before, api.cluster.state.seq + 1)
    events = await api.in_thread(request, api.archive.asked_for, before, _limit(request))
    asked = {uid for each in events if (uid := _uid(each.cause)) is not None}
    users = await api.callers.user_names(asked, caller.uid)
    told = []
    for each in events:
        uid = _uid(each.cause)
        told.append({**event_content(each), "user": "" if uid is None else users.get(uid, str(uid))})
    return answer({"events": told, "now": api.now()})


def _uid(cause: str) -> int | None:
    """Of `uid 1000 scontrol`."""
    words = cause.split(" ", 2)
    return int(words[1]) if len(words) > 1 and words[0] == "uid" and is_id(words[1]) else None


@routes.get("/v1/nodes/{node}/events", limit="So many at most (default 200, at most 1000).")
async def what_befell(api: Context, request: Request) -> Response:
    """What happened to a node of late, newest first: it came, was lost, drained, resumed, closed."""
    node, caller = request.path_params["node"], api.caller(request)
    if api.viewer(caller).hidden("nodes"):
        raise Refusal(Why.ACCESS_DENIED)
    if node not in api.cluster.state.nodes:
        raise Refusal(Why.INVALID_NODE_NAME, f"no node {node[:80]!r} here")
    events = await api.in_thread(request, api.archive.story_of_node, node, _limit(request))
    return answer({"events": [event_content(each) for each in events], "now": api.now()})


def _limit(request: Request) -> int:
    return int(min(max(number(request, "limit", float(_USUAL)), 1.0), _MOST))
