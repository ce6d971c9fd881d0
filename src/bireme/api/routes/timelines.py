"""`bireme timeline`: one job over time. What is gathered for it, and how, is `api/looking_back/timelines`."""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.agent.system.identity import Identity
from bireme.api import listing
from bireme.api.looking_back import known, timelines
from bireme.api.looking_back.logged import logged_by
from bireme.api.looking_back.timelines import Waits, Whose
from bireme.api.owner_reading import UnreadError, ask_owner
from bireme.api.problems import ProblemError, answer
from bireme.api.routes.faults.findings import Reader
from bireme.api.routing import Context, Routes, number
from bireme.api.serving.peers import is_gone
from bireme.commands.scancel import label
from bireme.core.faults.findings.concerning import concerning
from bireme.core.model.finding.findings import Finding
from bireme.core.model.jobs import Finished, Pending
from bireme.core.model.refusals import Caller
from bireme.core.telemetry.lanes import Logged
from bireme.core.telemetry.log_lines import Raw, dated
from bireme.evidence.whereabouts import utc_offset_s

routes = Routes("telemetry")

MOST_LOG = 2_000
READING_S = 20.0
MOST_RECORDS = 8
"""Of an array, so many are shown: those that run first, then those that wait, then the newest that ended."""
_FIELDS = (
    "job_id,array_job_id,array_task_id,array_tasks,het_job_id,het_offset,name,user_id,user_name,state,submit_time,start_time,end_time,"
    "expected_start,node_list,std_out,std_err"
)


@routes.get("/v1/jobs/{job}/timeline", points="Steps of each curve, at most 2000 (default 600).")
async def show_timeline(api: Context, request: Request) -> Response:
    """One job over time: states, reasons it waited for, places, steps, checkpoints, faults and curves on one axis.

    `timelines` has one element for each record of the job: several of an array (`left_out` says how many more there
    are). A lane has `spans`, `marks` and `lines`; `absent` says what is not known and why; `outputs` how many bytes of
    each output file had been written when.
    """
    found, left_out = await _found(api, request)
    found.sort(key=lambda whose: [int(part) for part in re.findall(r"\d+", whose.job)])
    points = int(min(max(number(request, "points", 600.0), 1.0), timelines.MOST_POINTS))
    sources, waits = await known.sources(api), _waits(api, request)
    now = api.now()

    logged = await asyncio.gather(*(_logged(api, whose) for whose in found))

    def made() -> list[dict[str, Any]]:
        return [timelines.timeline_of(whose, sources, waits, now, points, run) for whose, run in zip(found, logged)]

    return answer({"timelines": await api.in_thread(request, made), "left_out": left_out, "now": now})


@routes.get(
    "/v1/jobs/{job}/log",
    stream="out (default) or err.",
    lines="So many lines at most (default 400, at most 2000): a quarter of them the first ones, the others the last.",
    around="Those beside the line of this number instead.",
)
async def read_log(api: Context, request: Request) -> Response:
    """Lines of a job's output and when they were written, read as who asks: by a process with their rights.

    `lines`: number (0: not known), text, start and end of the time in which it was written, and how that is known
    (`own`: by the line itself, `offset`: by how long the file was when, `none`). `skipped`: bytes that were passed
    over; `problem`: why there are no lines. Of an array its first record; ask for a task by its number.
    """
    found, _ = await _found(api, request)
    whose, caller, now = found[0], api.caller(request), api.now()
    stream, most = request.query_params.get("stream") or "out", int(number(request, "lines", 400.0))
    if stream not in whose.outputs:
        raise ProblemError(404, f"job {whose.job} has no file of its own for {stream[:20]!r}")
    sources, waits = await known.sources(api), _waits(api, request)
    told = await api.in_thread(
        request, lambda: timelines.timeline_of(whose, sources, waits, now, timelines.MOST_POINTS, None)
    )
    asked = {
        "uid": caller.uid, "owner_uid": whose.uid, "path": whose.outputs[stream],
        "most": min(max(most, 1), MOST_LOG), "around": int(max(0.0, number(request, "around", 0.0))),
    }  # fmt: skip
    reader = Identity(caller.uid, caller.gid, tuple(caller.groups))
    answered: dict[str, Any] = {"lines": [], "skipped": 0, "problem": ""}
    try:
        async with api.readers.held_by(caller.uid):
            read = await ask_owner(reader, "bireme.evidence.excerpt", asked, READING_S, lambda: is_gone(request.scope))
        answered |= {"skipped": read["skipped"], "problem": read["problem"], "lines": _dated(read, told, stream)}
    except UnreadError as error:
        answered["problem"] = f"{error}: bireme logs {whose.job} reads it as you"
    return answer({"job": whose.job, "stream": stream, "path": whose.outputs[stream], **answered, "now": now})


def _dated(read: dict[str, Any], told: dict[str, Any], stream: str) -> list[dict[str, Any]]:
    looks = [tuple(look) for each in told["outputs"] if each["stream"] == stream for look in each["looks"]]
    spans = [span for lane in told["lanes"] if lane["name"] == "state" for span in lane["spans"]]
    began = min((span["start"] for span in spans if span["text"] == "runs"), default=told["start"])
    life = (began, told["end"] if told["is_over"] else told["now"])
    lines = [Raw(*line) for line in read["lines"]]
    return [asdict(line) for line in dated(lines, looks, life, utc_offset_s(life[1]))]


async def _logged(api: Context, whose: Whose) -> Logged | None:
    experiments = api.service.experiments()
    if experiments is None or not whose.reads_run:
        return None
    return await logged_by(experiments, api.cluster.state.jobs.get(whose.job_id), whose.job_id, whose.submitted_at)


async def _found(api: Context, request: Request) -> tuple[list[Whose], int]:
    """Records that the caller may see."""
    caller, state = api.caller(request), api.cluster.state
    jobs, past = await known.found(api, request)
    jobs.sort(key=lambda job: (isinstance(job.phase, Finished), isinstance(job.phase, Pending), -job.id))
    records = listing.records_of(state, jobs[:MOST_RECORDS], api.now(), _FIELDS.split(","))
    if jobs:
        ends = [job.phase.ended_at if isinstance(job.phase, Finished) else None for job in jobs]
        reader = Reader(api, caller)
        found = [tuple(each for each in concerning(state, job) if not each.trouble.place.job_id and reader.sees(each))
                 for job in jobs]  # fmt: skip
        told = [_whose(record, end, caller, wrong) for record, end, wrong in zip(records, ends, found)]
        return told, len(jobs) - len(records)
    return [_whose(record, record["end_time"], caller) for record in past[:MOST_RECORDS]], max(
        0, len(past) - MOST_RECORDS
    )


def _whose(record: dict[str, Any], ended_at: float | None, caller: Caller, findings: tuple[Finding, ...] = ()) -> Whose:
    return Whose(
        job=label(record),
        job_id=record["job_id"],
        array_job_id=record.get("array_job_id"),
        name=record.get("name") or "",
        user=record.get("user_name") or "",
        state=record["state"],
        submitted_at=float(record["submit_time"]),
        started_at=record.get("start_time"),
        ended_at=ended_at,
        nodes=record.get("node_list") or "",
        expected_start=record.get("expected_start") if record["state"] == "PENDING" else None,
        uid=record["user_id"],
        findings=findings,
        is_own=record["user_id"] == caller.uid,
        reads_run=caller.may_change(record["user_id"]),
        outputs=_outputs(record),
    )


def _outputs(record: dict[str, Any]) -> dict[str, str]:
    out, err = record.get("std_out") or "", record.get("std_err") or ""
    found = {"out": out} if out else {}
    return found | ({"err": err} if err and err != out else {})


def _waits(api: Context, request: Request) -> Waits:
    telemetry = api.service.telemetry()
    return Waits(
        now=telemetry.waits_now if telemetry is not None else lambda job_id: None,
        hides_reservations=api.viewer(api.caller(request)).hidden("reservations"),
    )
