"""How much of what was asked for was used: of a job, with advice (`bireme report JOB`, `seff`), and of users and
accounts over a time.

What another time limit would change is planned beside the loop (`asides`), in the queue as it is now, for a job of the
same kind that waits. Where none does, the answer says that it was not planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api import reported
from bireme.api.measured import NOT_MEASURED
from bireme.api.problems import ProblemError, answer
from bireme.api.reported import Record
from bireme.api.routes.history import asked_of, runs_told
from bireme.api.routing import Context, Routes, is_id, number, words
from bireme.api.targets import NamedJobs, named_jobs
from bireme.core.jobs.due import time_limit_s
from bireme.core.model.jobs import Job
from bireme.core.model.refusals import Refusal, Why
from bireme.core.plan.trial import Trial, try_jobs
from bireme.core.state.state import State
from bireme.core.telemetry.advice import advice
from bireme.core.telemetry.digest import Digest
from bireme.core.telemetry.efficiency import Efficiency, Sum, Tally, efficiency
from bireme.ports import HistoryQuery, Series
from bireme.slurm.formats.identity import job_label
from bireme.store.codec import all_fields

routes = Routes("reports")

MOST_JOBS = 50
"""Of an array, so many are told of: the latest."""
MOST_STARTS = 20
"""Of a job that was requeued, so many earlier starts are listed: the latest. All are in the sum."""
MOST_ALIKE = 20
_ALIKE_S = 30 * 86_400.0
_DAY_S = 86_400.0
_MOST_DAYS = 366 * 2
_LIST_MOST = 1_000
_PAGE = 500
"""Records that a report of many has in memory at once."""
_OF_RECORD = (
    "job_id", "array_job_id", "array_task_id", "het_job_id", "het_offset", "generation", "restarts", "name", "cluster",
    "user_name", "group_name", "account", "partition", "state", "exit_code", "exit_signal", "submit_time",
    "eligible_time", "start_time", "end_time", "elapsed_s", "time_limit_s", "node_list", "node_count", "num_tasks",
    "memory_per", "memory_mib",
)  # fmt: skip


@routes.get("/v1/jobs/{job}/report", plan="0: leave out what another time limit would change, which is planned.")
async def report_job(api: Context, request: Request) -> Response:
    """What a job had, what it used of that, and what would have been enough, each with its numbers.

    `jobs` has an element for each record: of an array its tasks, of a heterogeneous job its components. It is of the
    latest start; `starts` has the earlier ones of a job that was requeued, and `sum` adds up all of them.
    In `efficiency` and `digest` what was not measured is null; `digest` is null, and `unmeasured` says why, where
    nothing was.
    `kept`: it was put together when the job was over; else it is of what was measured until now.
    """
    named = named_jobs(request.path_params["job"])
    if named is None:
        raise Refusal(Why.INVALID_JOB_ID)
    query = HistoryQuery(jobs=tuple(asked_of(named)), with_steps=True, duplicates=True)
    records, _ = await runs_told(api, request, query, named)
    records, earlier = _latest([record for record in records if _is_meant(named, record)])
    if not records:
        raise Refusal(Why.INVALID_JOB_ID)
    shown, now, series = records[-MOST_JOBS:], api.now(), reported.series_of(api)
    digests = await api.in_thread(request, _digests_of_jobs, series, shown, now)
    kept = await api.in_thread(request, reported.kept_digests, series, shown)
    told = []
    for record in shown:
        name = record["job_id"], int(record.get("generation") or 0)
        alike = await _alike(api, request, record)
        one = {**_told(api, record, digests.get(name), alike, now), "kept": name in kept}
        starts = [*earlier[_run_of(record)], record]
        told.append({**one, **await api.in_thread(request, _starts_told, series, starts, digests.get(name), now)})
    if request.query_params.get("plan") != "0":
        await _plan_limits(api, request, told, shown)
    return answer({"jobs": told, "left_out": len(records) - len(shown), "now": now})


def _run_of(record: Record) -> tuple[int, float]:
    """Ids may be given again: with the time of its submission it is one job."""
    return record["job_id"], float(record.get("submit_time") or 0.0)


def _latest(records: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[tuple[int, float], list[Record]]]:
    """Of each job its latest record, and those of its earlier starts, oldest first. An id that was given again means
    the newest job."""
    newest = {record["job_id"]: _run_of(record) for record in sorted(records, key=_run_of)}
    by_run: dict[tuple[int, float], list[dict[str, Any]]] = {}
    for record in records:
        if newest[record["job_id"]] == _run_of(record):
            by_run.setdefault(_run_of(record), []).append(record)
    sorted_runs = {run: sorted(found, key=lambda one: one.get("restarts") or 0) for run, found in by_run.items()}
    earlier = {run: [one for one in found[:-1] if one.get("start_time")] for run, found in sorted_runs.items()}
    return [found[-1] for found in sorted_runs.values()], dict(earlier)


def _starts_told(series: Series | None, records: Sequence[Record], latest: Digest | None, now: float) -> dict[str, Any]:
    """Of all starts of one job: the earlier ones, each with what it used, and the sum of all that began."""
    *earlier, last = records
    digests = reported.kept_digests(series, earlier)
    total, starts = Sum(), []
    for record in records:
        had = reported.had_of(record, now)
        digest = latest if record is last else digests.get((had.job_id, had.generation))
        if had.start is None:
            continue
        used = efficiency(had, digest)
        total.add(had, used, measured=digest is not None)
        if record is not last:
            starts.append({"state": had.state, "had": all_fields(had), "efficiency": _efficiency_told(used)})
    return {"starts": starts[-MOST_STARTS:], "starts_left_out": max(0, len(starts) - MOST_STARTS),
            "sum": _efficiency_told(total)}  # fmt: skip


def _is_meant(named: NamedJobs, record: Record) -> bool:
    """The history tells of a component with all of its job."""
    component = record.get("het_job_id"), record.get("het_offset")
    others = not named.components or {record["job_id"], component[0]} & named.whole
    return bool(others) or component in named.components


def _digests_of_jobs(series: Any, records: Sequence[Record], now: float) -> dict[tuple[int, int], Digest]:
    """As of a list, but who asks for few has their curves looked at however long ago they ran."""
    found = reported.digests_of(series, records, now, reported.Looks())
    for record in records[: 0 if series is None or len(records) > 1 else 1]:
        made = None if found else reported.live_digest(series, record, now)
        if made is not None:
            found[made.job_id, made.generation] = made
    return found


def _told(api: Context, record: Record, digest: Digest | None, alike_s: Sequence[float], now: float) -> dict[str, Any]:
    had = reported.had_of(record, now)
    used = efficiency(had, digest)
    told = {name: record.get(name) for name in _OF_RECORD}
    return {
        **told,
        "job": job_label(record, 0),
        "over": reported.is_over(record),
        "had": all_fields(had),
        "efficiency": _efficiency_told(used),
        "digest": None if digest is None else all_fields(digest),
        "unmeasured": "" if digest is not None else _why_unmeasured(api, record),
        "advice": [all_fields(each) for each in advice(had, digest, used, alike_s)],
    }


def _efficiency_told(used: Efficiency | Sum) -> dict[str, Any]:
    derived = {name: getattr(used, name) for name in ("gpu_unused_s", "gpu_unmeasured_s", "gpu_use", "cpu_use")}
    return {**all_fields(used), **derived}


def _why_unmeasured(api: Context, record: Record) -> str:
    if record.get("start_time") is None:
        return "it has not started"
    telemetry = api.service.telemetry()
    if telemetry is None:
        return NOT_MEASURED
    return telemetry.problem or "no sample of it was taken: it was too short, or nobody gathers on its nodes"


async def _alike(api: Context, request: Request, record: Record) -> list[float]:
    """How long the latest runs of the same name, owner and partition took that completed, without this one."""
    if record.get("state") != "COMPLETED" or record.get("time_limit_s") is None:
        return []
    query = HistoryQuery(
        start=api.now() - _ALIKE_S,
        uids=(record["user_id"],),
        names=(str(record.get("name") or ""),),
        partitions=(str(record.get("partition") or ""),),
        states=("COMPLETED",),
        newest=MOST_ALIKE + 1,
    )
    found, _ = await api.in_thread(request, api.archive.sound_and_damaged, query)
    others = [one for one in found if one["job_id"] != record["job_id"] and one.get("start_time") is not None]
    return [float(one.get("elapsed_s") or 0) for one in others[:MOST_ALIKE]]


# --- another time limit, planned ------------------------------------------------------------------------------------


async def _plan_limits(
    api: Context, request: Request, told: Sequence[dict[str, Any]], records: Sequence[Record]
) -> None:
    """Adds to the advice about limits what the planner says of it. One is planned: the first that can be."""
    worth = [
        (each, record)
        for job, record in zip(told, records, strict=True)
        for each in job["advice"]
        if each["kind"] == "shorter_limit"
    ]
    planned = False
    for each, record in worth:
        waiting = None if planned else _waiting_like(api.cluster.state, record, each["facts"]["enough_s"])
        if waiting is None:
            each["text"] += " (not planned: no job of this name waits)" if not planned else ""
            continue
        planned = True
        now, enough_s = api.now(), int(each["facts"]["enough_s"])
        found = await api.aside(request, partial(_tried, api.cluster.state, waiting.id, enough_s, now))
        each["text"] += f" ({found['text']})"
        each["planned"] = found


def _waiting_like(state: State, record: Record, enough_s: float) -> Job | None:
    """A job of the same owner, name and partition that waits with a longer limit, and is planned here."""
    for job in state.pending.values():
        same = job.spec.owner.uid == record["user_id"] and job.spec.name == record.get("name")
        if not same or job.mirrored or job.het_job_id is not None or record.get("partition") not in job.spec.partitions:
            continue
        limit = time_limit_s(state, job)
        if limit is None or limit > enough_s:
            return job
    return None


def _tried(state: State, job_id: int, enough_s: int, now: float) -> dict[str, Any]:
    """In a forked child: what the waiting job gets, with its limit and with the shorter one."""
    job = state.jobs[job_id]
    spec = replace(job.spec, time_limit_s=enough_s, time_limit_given=True, time_min_s=None)
    as_is, shorter = try_jobs(state, [job], now), try_jobs(state, [replace(job, spec=spec)], now)
    return {
        "job": job.label,
        "start": as_is.start,
        "start_with": shorter.start,
        "text": f"planned: job {job.label}, which waits, {_sooner(as_is, shorter, now)}",
    }


def _sooner(as_is: Trial, shorter: Trial, now: float) -> str:
    if shorter.start is None:
        return "is promised no start with it either"
    when = "now" if shorter.starts_now else f"in {_span(shorter.start - now)}"
    if as_is.start is None:
        return f"would start {when}; as it is, no start is promised"
    if as_is.start - shorter.start < 60.0:
        return "would start no sooner with it"
    return f"would start {when}, {_span(as_is.start - shorter.start)} sooner"


def _span(seconds: float) -> str:
    minutes = int(seconds // 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


# --- of many --------------------------------------------------------------------------------------------------------


@routes.get(
    "/v1/report",
    user="Names or uids of owners.",
    account="Accounts.",
    start="Runs that ended at or after this time (seconds since the epoch). Without: a week ago.",
    end="Runs that ended before this time. Without: now, and what still runs is told of too.",
    jobs="So many of the worst runs are listed (default 20, at most 1000).",
)
async def report_group(api: Context, request: Request) -> Response:
    """How much of what they had users and accounts used: in all, by user, account and day or week, and the worst runs.

    Worst first: by measured GPU time without use, then by CPU time.

    What the caller may not see is left out; `whole`: nothing is hidden from them.
    """
    now = api.now()
    start, end = number(request, "start", now - 7 * _DAY_S), number(request, "end", now)
    if end < start:
        raise ProblemError(400, "end is before start")
    if end - start > _MOST_DAYS * _DAY_S:
        raise ProblemError(400, f"at most {_MOST_DAYS} days at once")
    most = int(min(max(number(request, "jobs", 20.0), 0.0), _LIST_MOST))
    period_s = _DAY_S if end - start <= 14 * _DAY_S else 7 * _DAY_S
    counted = _Counted(Tally(start, period_s, most), now)
    query, damaged = replace(_group_query(request), start=start, ended_before=end), 0
    pages = api.archive.pages(query, _PAGE)
    while (page := await api.in_thread(request, next, pages, None)) is not None:
        records, broken = page
        damaged += len(broken)
        await _count(api, request, counted, records)
    if end >= now:
        await _count(api, request, counted, await _running(api, request))
    whole = not api.viewer(api.caller(request)).hidden("jobs", "usage")
    return answer({**_group_told(counted, end, damaged), "whole": whole})


def _group_query(request: Request) -> HistoryQuery:
    users = words(request, "user")
    return HistoryQuery(
        users=tuple(user for user in users if not is_id(user)),
        uids=tuple(int(user) for user in users if is_id(user)),
        accounts=words(request, "account"),
        duplicates=True,
    )


async def _running(api: Context, request: Request) -> list[dict[str, Any]]:
    """Runs that go on, by the same conditions."""
    records, _ = await runs_told(api, request, replace(_group_query(request), start=api.now()), None)
    return [record for record in records if not reported.is_over(record) and record.get("start_time") is not None]


@dataclass(slots=True)
class _Counted:
    """What a report of many has come to so far."""

    tally: Tally
    now: float
    names: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Of the worst, what people call them."""
    looks: reported.Looks = field(default_factory=reported.Looks)

    def add(self, series: Series | None, records: Sequence[Record]) -> None:
        """In a thread: a page of them takes tens of milliseconds."""
        all_had = [reported.had_of(record, self.now) for record in records]
        # Steps say what CPU time they took where the accounting does not; else they need not be read.
        uncounted = any(had.cpu_s is None for had in all_had)
        digests = reported.digests_of(series, records, self.now, self.looks, steps=uncounted)
        for record, had in zip(records, all_had, strict=True):
            digest = digests.get((had.job_id, had.generation))
            self.tally.add(had, efficiency(had, digest), measured=digest is not None)
            self.names[had.job_id] = {"job": job_label(record, 0), "name": record.get("name")}
        listed = {had.job_id for had, _, _ in self.tally.worst()}
        self.names = {job_id: name for job_id, name in self.names.items() if job_id in listed}


async def _count(api: Context, request: Request, counted: _Counted, records: Sequence[dict[str, Any]]) -> None:
    """Those that the caller may see."""
    caller = api.caller(request)
    viewer = api.viewer(caller)
    seen = [
        record
        for record in records
        if record.get("start_time") is not None
        and api.sees(caller, record["user_id"], record.get("account") or "")
        and viewer.sees_user(str(record.get("user_name") or ""), record.get("account") or "", "usage")
    ]
    await api.in_thread(request, counted.add, reported.series_of(api), seen)


def _group_told(counted: _Counted, end: float, damaged: int) -> dict[str, Any]:
    tally, names = counted.tally, counted.names

    def rows(by: str, sums: dict[Any, Sum]) -> list[dict[str, Any]]:
        return [{by: key, **_efficiency_told(total)} for key, total in sums.items()]

    return {
        "start": tally.start,
        "end": end,
        "now": counted.now,
        "period_s": tally.period_s,
        "total": _efficiency_told(tally.total),
        "users": rows("user", tally.by_user()),
        "accounts": rows("account", tally.by_account()),
        "periods": rows("start", tally.by_period()),
        "jobs": [
            {**names[had.job_id], "had": all_fields(had), "efficiency": _efficiency_told(used), "measured": measured}
            for had, used, measured in tally.worst()
        ],
        "damaged": damaged,
    }
