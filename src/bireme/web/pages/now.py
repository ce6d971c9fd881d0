"""Now: every GPU on a map, the queue beside it, what starts next, services with traffic, what is broken."""

from __future__ import annotations

from typing import Any

from bireme.web.asking import Asking
from bireme.web.paging import FAULTS, JOBS, MEASURED, NODES, PLAN, SERVICES, Pages, Part

pages = Pages()

_ROW = "job_id,array_task_id,array_tasks,name,user_name,state,expected_start,node_count,tres_requested,reasons"
_NEXT = 12
_WORST = 8
_BROKEN = ("broken", "degraded")
_PARTS = {
    "map": Part((JOBS, NODES, FAULTS, MEASURED), every_s=5.0),
    "figures": Part((JOBS, NODES, FAULTS, MEASURED)),
    "next": Part((JOBS, PLAN)),
    "services": Part((SERVICES, JOBS, MEASURED), every_s=3.0),
    "broken": Part((FAULTS, NODES)),
}


@pages.page("/now", "now.html", title="Now", nav="now", parts=_PARTS)
async def now(ask: Asking) -> dict[str, Any]:
    wants_map = ask.wants("map") or ask.wants("figures") or ask.wants("broken")
    wants_next = ask.wants("next") or ask.wants("figures")
    gpus, queue, services, findings, healings = await ask.together(
        ask.get("/v1/gpus") if wants_map else _nothing(),
        ask.get("/v1/queue", {"state": "PENDING", "limit": str(_NEXT), "fields": _ROW}) if wants_next else _nothing(),
        ask.get_or({"services": []}, "/v1/services") if ask.wants("services") else _nothing(),
        ask.get_or({"findings": []}, "/v1/findings") if ask.wants("broken") else _nothing(),
        ask.get_or({"healings": [], "fences": []}, "/v1/healings") if ask.wants("broken") else _nothing(),
    )
    return {
        "gpus": gpus,
        "figures_of": _figures(gpus),
        "queue": queue,
        "services": services.get("services", ()),
        "findings": [each for each in findings.get("findings", ()) if each["gravity"] in _BROKEN][:_WORST],
        "more_findings": max(0, len(findings.get("findings", ())) - _WORST),
        "suggested": [each for each in healings.get("healings", ()) if each["state"] == "suggested"],
        "fences": healings.get("fences", ()),
        "out": [node for node in gpus.get("nodes", ()) if node[1] in ("down", "drained", "draining", "unknown")],
        "colour": ask.query.get("colour", ""),
    }


def _figures(gpus: dict[str, Any]) -> dict[str, Any]:
    """How many GPUs there are of what."""
    if not gpus:
        return {}
    health, job = gpus["health"], gpus["job"]
    used = [use for use, has in zip(gpus.get("use", ()), job) if has != -1 and use is not None]
    return {
        "gpus": len(job),
        "taken": sum(each != -1 for each in job),
        "free": sum(each == -1 and well in ".d" for each, well in zip(job, health)),
        "out": sum(each in "xo" for each in health),
        "use": sum(used) / len(used) if used else None,
    }


async def _nothing() -> dict[str, Any]:
    """Of a part that is not drawn now."""
    return {}
