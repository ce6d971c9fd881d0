"""What finished, and what runs, as `sacct` shows them together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api import listing
from bireme.api.answers import Recipe
from bireme.api.problems import ProblemError
from bireme.api.reported import add_measured
from bireme.api.routing import Context, Routes, fields_of, flag, is_id, number, words
from bireme.api.serving.slices import as_of_now, slices_of
from bireme.api.targets import NamedJobs, named_jobs
from bireme.core.model.jobs import Finished
from bireme.ports import HistoryQuery
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.hostlist import expand
from bireme.slurm.records.many import Records

routes = Routes("history")

Runs = list[dict[str, Any]]
_READ = ("job_id", "array_job_id", "array_task_id", "restarts", "user_id", "account")
"""Fields by which runs are told apart, put in order and shown to whom they may be shown."""
_MOST_NAMED = 100
"""Damaged records that one answer names."""
_BEING_WRITTEN_S = 10.0
"""An end is in memory a moment before it is on disk; a slow disk makes the moment longer."""


@routes.get(
    "/v1/history",
    start="Jobs that ended at or after this time (seconds since the epoch), and those that still run.",
    end="Jobs submitted before this time.",
    user="Names or uids of owners.",
    account="Accounts.",
    partition="Partitions.",
    state="States in Slurm's words.",
    name="Job names.",
    nodes="Jobs that had one of these nodes, as a hostlist: n[1-4].",
    job="Job ids as people write them: 1,2_3,4_[1-3].",
    steps="1: with the steps of each job, under `steps`.",
    duplicates="1: also the earlier runs of requeued jobs.",
    measured="1: with what was measured of each step, under `measured` of its `usage` (with `steps`).",
    fields="Only these fields of each record.",
)
async def history(api: Context, request: Request) -> Response:
    """Finished jobs from the store and the others from memory, oldest first (JobRecords).

    `damaged`: a sentence for each record in the store that is not what was written; the others are shown all the same.
    """
    named = named_jobs(request.query_params.get("job", ""))
    query, fields = _query(request, named), fields_of(request)
    measured = query.with_steps and flag(request, "measured")
    nodes = _nodes(request)
    read = () if measured or not fields else (*fields, *_READ, "node_list")
    records, damaged = await runs_told(api, request, query, named, read)
    if nodes:
        records = [record for record in records if _had(record, nodes)]
    if measured:
        await add_measured(api, request, records)
    kept = {*fields, "steps"} if query.with_steps else set(fields)

    def shown(part: Sequence[dict[str, Any]]) -> Runs:
        if not fields:
            return list(part)
        return [{name: value for name, value in record.items() if name in kept} for record in part]

    def beside() -> dict[str, Any]:
        return {"now": api.now(), **({"damaged": _some(damaged)} if damaged else {})}

    return await api.in_slices(request, Recipe("jobs", lambda: records, shown, beside))


def _nodes(request: Request) -> frozenset[str]:
    text = request.query_params.get("nodes", "")
    try:
        return frozenset(expand(text)) if text else frozenset()
    except SlurmSyntaxError as error:
        raise ProblemError(400, f"nodes={text[:80]!r}: {error}") from error


def _had(record: dict[str, Any], nodes: frozenset[str]) -> bool:
    """Whether it ran on one of them."""
    had = record.get("node_list") or ""
    return had in nodes or (("[" in had or "," in had) and not nodes.isdisjoint(expand(had)))


async def runs_told(
    api: Context, request: Request, query: HistoryQuery, named: NamedJobs | None, fields: Sequence[str] = ()
) -> tuple[Runs, list[str]]:
    """The runs that the caller may see, oldest first, and which could not be read, in words.

    `fields`: with these at least (and `_READ`); nothing: with all.
    """
    queue = api.cluster.engine.capabilities.queue
    if queue is not None:
        await queue.catch_up(list(dict.fromkeys(job_id for job_id, _ in query.jobs)))
        await api.cluster.settled()
    # Memory first: what ends while the store is asked is then in both of them, and never in neither.
    remembered = await _remembered(api, request, query, named, fields)
    stored, damaged = await api.in_thread(request, api.archive.sound_and_damaged, query)
    caller = api.caller(request)
    if damaged and api.viewer(caller).hidden("jobs"):
        damaged = [f"{len(damaged)} records are not what was written"]
    both = _merged(stored, remembered, duplicates=query.duplicates)
    visible = [record for record in both if api.sees(caller, record["user_id"], record.get("account") or "")]
    return sorted(visible, key=_place), damaged


def _some(damaged: list[str]) -> list[str]:
    rest = len(damaged) - _MOST_NAMED
    return damaged if rest <= 0 else [*damaged[:_MOST_NAMED], f"{rest} more records are not what was written"]


def _place(record: dict[str, Any]) -> tuple[int, int, int, int]:
    """By id, an array's tasks together and in their order: the last one to start keeps the array's own id."""
    task = record.get("array_task_id")
    array = record.get("array_job_id") if task is not None else None
    return (array or record["job_id"], -1 if task is None else task, record["job_id"], record.get("restarts") or 0)


def _query(request: Request, named: NamedJobs | None) -> HistoryQuery:
    users = words(request, "user")
    start, end = request.query_params.get("start"), request.query_params.get("end")
    return HistoryQuery(
        start=number(request, "start", 0.0) if start else None,
        end=number(request, "end", 0.0) if end else None,
        users=tuple(user for user in users if not is_id(user)),
        uids=tuple(int(user) for user in users if is_id(user)),
        accounts=words(request, "account"),
        partitions=words(request, "partition"),
        states=words(request, "state"),
        names=words(request, "name"),
        jobs=() if named is None else tuple(asked_of(named)),
        with_steps=flag(request, "steps"),
        duplicates=flag(request, "duplicates"),
    )


def asked_of(named: NamedJobs) -> Iterator[tuple[int, range | None]]:
    """As the store wants it; of a component all of its job, which has a row for each."""
    for job_id in {*named.whole, *(job_id for job_id, _ in named.components)}:
        yield job_id, None
    for job_id, ranges in named.tasks.items():
        for tasks in ranges:
            yield job_id, tasks


def _merged(stored: Runs, remembered: Runs, *, duplicates: bool) -> Runs:
    """Each run of a job once, as the store tells it when it does; unless `duplicates`, only the last run."""
    told = {_run(record) for record in stored}
    rest = [record for record in remembered if _run(record) not in told]
    if not duplicates:
        again = {record["job_id"] for record in rest}
        stored = [record for record in stored if record["job_id"] not in again]
    return stored + rest


def _run(record: dict[str, Any]) -> tuple[int, int]:
    return record["job_id"], record.get("restarts") or 0


async def _remembered(
    api: Context, request: Request, query: HistoryQuery, named: NamedJobs | None, fields: Sequence[str]
) -> Runs:
    """Jobs that did not end yet, and those whose end may still be on its way to the disk."""
    now = api.now()
    wanted = listing.Filter(
        users=(*query.users, *map(str, query.uids)),
        accounts=query.accounts,
        partitions=query.partitions,
        states=query.states,
        names=query.names,
        jobs=named,
    )
    since = max(now - _BEING_WRITTEN_S, query.start or 0.0)
    made, records = Records(fields), list[dict[str, Any]]()
    async for part in slices_of(api.turns, request, as_of_now(listing.candidates(api.cluster.state, wanted))):
        state = api.cluster.state
        current = [job for job in part if not isinstance(job.phase, Finished) or job.phase.ended_at >= since]
        for job in listing.matching(state, wanted, current):
            if (query.end is not None and job.submitted_at >= query.end) or job.id not in state.jobs:
                continue
            (record,) = made.of(state, [job], now)
            if query.with_steps:
                record["steps"] = listing.step_records(state, job, now)
            records.append(record)
    return records
