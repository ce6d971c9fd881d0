"""One job: what it is, why it waits or how it ended, all of it on one axis, its log, its diagnosis, its efficiency.

The record is on the page when it comes; what takes the daemon a planning pass or a process (why, diagnosis, report) is
drawn a moment later, as a live part of its own.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from bireme.web.asking import Asking
from bireme.web.paging import JOB, MEASURED, PLAN, VERDICT, Pages, Part
from bireme.web.upstream import RefusedError

pages = Pages()

_MOST_TASKS = 200
_WAITS, _RUNS = (
    ("PENDING", "REQUEUED", "REQUEUE_HOLD"),
    ("RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "STOPPED"),
)
_BLANK: dict[str, Any] = {
    **dict.fromkeys(
        ("array_tasks", "array_task_id", "comment", "dependency", "expected_start", "held_by", "kind", "node_count",
         "qos", "required_nodes", "reservation", "restarts", "std_err", "std_out", "submit_host", "submit_line")
    ),
    "node_list": "", "num_cpus": "", "shares": (), "time_limit_s": None, "tres_requested": {}, "work_dir": "",
}  # fmt: skip
"""What a record of long ago, or of another scheduler's queue, may not have."""
_PARTS = {
    "job_head": Part((JOB,), every_s=1.0),
    "why_part": Part((JOB, VERDICT), every_s=4.0, seldom=(PLAN,)),
    "diagnosis_part": Part((JOB,), every_s=5.0),
    "timeline_part": Part((JOB, MEASURED), every_s=5.0),
    "report_part": Part((JOB,), every_s=30.0),
}


@pages.page("/jobs/{job}", "job.html", title="Job", nav="queue", parts=_PARTS)
async def job(ask: Asking) -> dict[str, Any]:
    name = ask.path["job"]
    path = f"/v1/jobs/{quote(name, safe='')}"
    records = await _records(ask, name, path)
    first = records[0]
    is_one = len(records) == 1 and not first["array_tasks"]
    shown = {
        "job": name, "path": path, "record": first, "tasks": _tasks(records) if not is_one else [],
        "more_tasks": max(0, len(records) - _MOST_TASKS), "is_one": is_one, "title": f"{name} {first['name']}",
        "waits": first["state"] in _WAITS, "runs": first["state"] in _RUNS, "kind": _kind(first["state"]),
        "own": ask.visitor.admin or first["user_id"] == ask.visitor.uid,
        "why": None, "diagnosis": None, "timeline": None, "report": None, "refused": "",
    }  # fmt: skip
    return {**shown, **await _later(ask, path, shown)}


def _tasks(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of an array in order, the record of those that wait last."""
    order = sorted(records, key=lambda each: (bool(each["array_tasks"]), each["array_task_id"] or 0, each["job_id"]))
    return order[:_MOST_TASKS]


async def _records(ask: Asking, name: str, path: str) -> list[dict[str, Any]]:
    """Of a job that was forgotten, what the history has. Raises RefusedError."""
    try:
        found = await ask.get(path)
    except RefusedError as error:
        if error.status != 404:
            raise
        found = await ask.get_or({"jobs": []}, "/v1/history", {"job": name})
        if not found["jobs"]:
            raise
    return [_BLANK | record for record in found["jobs"]]


async def _later(ask: Asking, path: str, shown: dict[str, Any]) -> dict[str, Any]:
    """What a part needs that is not drawn with the page."""
    try:
        if ask.part == "why_part":
            told = await ask.get(f"{path}/why")
            return {"why": told["jobs"][0]}
        if ask.part == "timeline_part":
            told = await ask.get(f"{path}/timeline", {"points": "1000"})
            return {"timeline": told["timelines"][0] if told["timelines"] else {}}
        if ask.part == "diagnosis_part" and shown["own"] and shown["kind"] == "bad":
            return {"diagnosis": await ask.get(f"{path}/diagnosis")}
        if ask.part == "report_part" and not shown["waits"]:
            told = await ask.get(f"{path}/report", {"plan": "0"})
            return {"report": told["jobs"][0] if told["jobs"] else None}
    except RefusedError as error:
        return {"refused": f"{error.message} {error.hint}".strip()}
    return {}


def _kind(state: str) -> str:
    """Whether it waits, runs, ended well or badly."""
    if state in _WAITS:
        return "wait"
    return "run" if state in _RUNS else "good" if state == "COMPLETED" else "bad"
