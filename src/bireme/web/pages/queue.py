"""The queue: search and filter by anything, saved in the address; why each job waits; a Gantt of the plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from bireme.web.asking import Asking
from bireme.web.paging import JOBS, PLAN, Pages, Part

pages = Pages()

_ROWS = 100
_BARS = 200
_FIELDS = (
    "job_id,array_job_id,array_task_id,array_tasks,het_job_id,name,user_name,account,partition,qos,state,submit_time,"
    "start_time,end_time,expected_start,elapsed_s,time_limit_s,node_count,node_list,planned_nodes,tres_requested,"
    "priority,reasons"
)
_PLANNED = (
    "job_id,array_task_id,array_tasks,name,user_name,state,start_time,end_time,expected_start,time_limit_s,node_list,"
    "planned_nodes,tres_requested"
)
_ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")
)
_PARTS = {"jobs": Part((JOBS, PLAN)), "plan": Part((JOBS, PLAN), every_s=5.0)}


@pages.page("/queue", "queue.html", title="Queue", nav="queue", parts=_PARTS)
async def queue(ask: Asking) -> dict[str, Any]:
    asked = {name: ask.query.get(name, "") for name in ("q", "state", "sort", "offset")}
    asked["state"] = ask.query.get("state", "active")
    state = "" if asked["state"] == "all" else asked["state"]
    jobs: dict[str, Any] = {}
    planned: dict[str, Any] = {}
    if ask.wants("jobs"):
        jobs = await ask.get("/v1/queue", {**asked, "state": state, "limit": str(_ROWS), "fields": _FIELDS})
    if ask.wants("plan"):
        query = {"q": asked["q"], "state": "active", "limit": str(_BARS), "fields": _PLANNED}
        planned = await ask.get("/v1/queue", query)
    offset = int(asked["offset"]) if asked["offset"].isascii() and asked["offset"].isdigit() else 0

    def to(**changes: Any) -> str:
        """The address with these words instead."""
        words = {**asked, "offset": "", **{name: str(value) for name, value in changes.items()}}
        return f"?{urlencode({name: value for name, value in words.items() if value})}"

    return {
        "asked": asked, "told": jobs, "tabs": _tabs(asked["state"], jobs, to), "to": to, "offset": offset,
        "rows": _ROWS, "bars": [bar for job in planned.get("jobs", ()) if (bar := _bar(job)) is not None],
        "now": planned.get("now"),
    }  # fmt: skip


def _tabs(state: str, jobs: dict[str, Any], to: Callable[..., str]) -> list[dict[str, Any]]:
    """States to choose from, with how many jobs are in each; those that somebody looks at, and what there is."""
    states: dict[str, int] = jobs.get("states", {})
    active = sum(count for name, count in states.items() if name not in _ENDED)
    fixed = ["PENDING", "RUNNING"]
    names = ["active", *fixed, *sorted(name for name in states if name not in fixed), "all"]
    counts = {**states, "active": active, "all": sum(states.values())}
    return [
        {"words": name.capitalize().replace("_", " "), "to": to(state=name),
         "count": counts.get(name, 0), "current": name == state}
        for name in names
    ]  # fmt: skip


def _bar(job: dict[str, Any]) -> list[Any] | None:
    """[id, label, from, until (null: no limit), whether it runs, nodes, GPUs, who] of a job whose start is known."""
    runs = job["start_time"] is not None and job["state"] != "PENDING"
    begin = job["start_time"] if runs else job["expected_start"]
    if begin is None:
        return None
    limit = job["time_limit_s"]
    end = job["end_time"] if runs and job["end_time"] else begin + limit if limit else None
    label = f"{job['job_id']} {job['name']}"
    gpus = job["tres_requested"].get("gres/gpu", 0)
    return [job["job_id"], label, begin, end, runs, job["node_list"] or job["planned_nodes"], gpus, job["user_name"]]
