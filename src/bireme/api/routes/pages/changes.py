"""What has changed, in a few words: for whoever shows something and wants to know when to look again.

Less than `/v1/events`, and for everybody: topics, not what happened. That something happens to others' jobs shows in
the queue's length and the journal's numbers as well, which nobody hides; which jobs is not said.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any
from zlib import crc32

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.privacy import WORDS_OF
from bireme.api.problems import ProblemError, answer
from bireme.api.routing import Context, Routes, is_id, number, words
from bireme.core.model import events as e
from bireme.core.model.finding.events import FINDING_EVENTS
from bireme.core.model.healing.events import HEALING_EVENTS
from bireme.core.model.healing.fences import FENCE_EVENTS
from bireme.core.model.serving.events import is_of_service

routes = Routes("pages")
LONGEST_WAIT_S = 60.0
_SAME_START_S = 30.0
"""Starts that are expected within so many seconds of each other are told as the same."""
TOPICS = ("jobs", "nodes", "services", "faults", "plan", "book", "reservations")
_FAULTS = frozenset({*FINDING_EVENTS, *HEALING_EVENTS, *FENCE_EVENTS})
_BOOK = (e.AccountsChanged, e.UsageReset)
_RESERVATIONS = (e.ReservationSet, e.ReservationRemoved)


@routes.get_waiting(
    "/v1/changes",
    after="Wait for something after this event of the journal (default: answer at once).",
    planned_at="Or for a pass over the queue after this one.",
    jobs="Jobs, by their numbers: `job:N` is a topic too, for those of them that the caller may know of.",
    timeout="Seconds to wait at most (default 25, at most 60).",
)
async def what_changed(api: Context, request: Request) -> Response:
    """Wait until something changes; answers with `seq` and `planned_at`, to ask with again, and `topics`.

    Topics: jobs, nodes, services, faults (findings, healings, fences), plan (the queue was planned anew), book
    (accounts, users, limits, usage), reservations; all of them where `after` is too long ago to know. `verdicts`: of
    those of the asked jobs that wait and that the caller may know of, a number that is another one as soon as the plan
    says something else of the job.
    """
    after, planned = _number(request, "after"), request.query_params.get("planned_at", "")
    deadline = asyncio.get_running_loop().time() + min(number(request, "timeout", 25.0), LONGEST_WAIT_S)
    while True:
        told = _told(api, request, after, planned)
        left = deadline - asyncio.get_running_loop().time()
        if told["topics"] or after is None or left <= 0 or api.live.closing:
            return answer(told)
        await api.live.changed(None, left)


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is not None and not is_id(text):
        raise ProblemError(400, f"{name}={text[:80]!r} is not the number of an event")
    return int(text) if text is not None else None


def _told(api: Context, request: Request, after: int | None, planned: str) -> dict[str, Any]:
    state = api.cluster.state
    passed = str(state.planned_at)
    topics = _topics(api, after)
    if passed != planned:
        topics.add("plan")
    shown = [topic for topic in TOPICS if topic in topics]
    asked = _asked(api, request)
    if "jobs" in topics:
        shown += _jobs(api, asked, after)
    return {"seq": state.seq, "planned_at": passed, "topics": shown, "verdicts": _verdicts(api, asked)}


def _asked(api: Context, request: Request) -> dict[str, int]:
    """The jobs that are asked for, by the word for each, less those that the caller may not know of."""
    caller, jobs = api.caller(request), api.cluster.state.jobs
    asked = {word: int(first) for word in words(request, "jobs") if is_id(first := re.split(r"[_+]", word)[0])}
    return {
        word: each
        for word, each in asked.items()
        if (job := jobs.get(each)) is None or api.sees(caller, job.spec.owner.uid, job.spec.account)
    }


def _jobs(api: Context, asked: Mapping[str, int], after: int | None) -> list[str]:
    """Of the jobs that are asked for those that something happened to; also to a task or a component of theirs."""
    touched = _touched(api, after) if asked else None
    return [f"job:{word}" for word, job in asked.items() if touched is None or job in touched]


def _verdicts(api: Context, asked: Mapping[str, int]) -> dict[str, int]:
    """What the latest pass said of each job that is asked for, as a number; starts that are nearly the same are."""
    state, found = api.cluster.state, {}
    for word, job in asked.items():
        verdict = state.verdicts.get(job)
        if verdict is not None and job in state.pending:
            start = verdict.expected_start
            said = (verdict.reasons, verdict.slot, None if start is None else round(start / _SAME_START_S))
            found[word] = crc32(repr(said).encode("utf-8", "backslashreplace"))
    return found


def _touched(api: Context, after: int | None) -> set[int | None] | None:
    """Jobs that something happened to after this event, with their arrays; None: nobody knows."""
    if after is None or _is_forgotten(api, after):
        return None
    found: set[int | None] = set()
    for recorded in reversed(api.live.recent):
        if recorded.seq <= after:
            break
        number = getattr(recorded.event, "job_id", None) or getattr(recorded.event, "array_job_id", None)
        job = api.cluster.state.jobs.get(number) if number is not None else None
        found |= {number} if job is None else {number, job.array_job_id, job.het_job_id}
    return found


def _is_forgotten(api: Context, after: int) -> bool:
    """Whether not all is known any more that happened after this event."""
    recent, seq = api.live.recent, api.cluster.state.seq
    return after > seq or (after < seq if not recent else recent[0].seq > after + 1)


def _topics(api: Context, after: int | None) -> set[str]:
    """Of what happened after this event."""
    if after is None or _is_forgotten(api, after):
        return set(TOPICS)
    recent = api.live.recent
    found = set()
    for recorded in reversed(recent):
        if recorded.seq <= after:
            break
        found.add(_topic(recorded.event))
    return found


def _topic(event: e.Event) -> str:
    if is_of_service(event):
        return "services"
    if type(event) in _FAULTS:
        return "faults"
    if isinstance(event, _BOOK):
        return "book"
    if isinstance(event, _RESERVATIONS):
        return "reservations"
    return "nodes" if type(event) in WORDS_OF else "jobs"
