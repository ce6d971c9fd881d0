"""The queue as people look at it: searched, filtered, sorted and cut on the daemon, with how many there are of what.

`GET /v1/jobs` answers with all that match, as squeue wants them; here a page of them is made into records, so that a
look at a hundred of ten thousand costs a hundred records and one walk over the queue.
Invariant: a job that the caller may not know of is in no count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from heapq import nsmallest
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.problems import ProblemError, answer
from bireme.api.routing import Context, Routes, fields_of, number
from bireme.api.serving.slices import slices_of
from bireme.core.jobs.states import base_state, job_reasons, job_state
from bireme.core.model.jobs import Finished, Job, Pending
from bireme.core.state.state import State
from bireme.slurm.records.many import Records

routes = Routes("pages")

MOST_ROWS = 500
_MOST_WORDS = 20
_ACTIVE = "ACTIVE"
_NEVER = 9e18
_WORD = re.compile(r'(?:(\w+):)?(?:"([^"]*)"|(\S+))')

Test = Callable[[Job], bool]


@routes.get(
    "/v1/queue",
    q="What is searched: words that are all found somewhere in a job (its number, name, user, account, partition, QOS, "
    "nodes, comment, state or reason), or `user:`, `account:`, `partition:`, `state:`, `name:`, `node:`, `qos:`, "
    "`reason:`, `job:` with what that is to have in it; `-` before one: what must not be.",
    state="Of this state alone, in Slurm's words; `active`: all that have not ended.",
    sort="start (default: running ones first, then as they are going to start), submitted, priority, ended, id, user.",
    offset="So many are passed over.",
    limit="At most so many (default 100, at most 500).",
    fields="Only these fields of each record.",
)
async def search_queue(api: Context, request: Request) -> Response:
    """Search the jobs that wait, run, or ended a short while ago.

    Answered with `jobs` (JobRecords), `total`: how many match, and `states`: how many of them are in which state.
    """
    state, caller, query = api.cluster.state, api.caller(request), request.query_params
    tests = [_test(state, *word) for word in _words_of(query.get("q", ""))]
    wanted = frozenset(word for word in query.get("state", "").upper().split(",") if word)
    order = _ORDERS.get(query.get("sort") or "start")
    if order is None:
        raise ProblemError(400, f"sort={query['sort'][:80]!r}: it is one of {', '.join(_ORDERS)}")
    states, found = Counter[str](), []
    async for part in slices_of(api.turns, request, list(state.jobs.values())):
        for job in api.seen(caller, [job for job in part if job.id in state.jobs]):
            if all(test(job) for test in tests):
                states[job_state(job)] += 1
                if _is_in(job, wanted):
                    found.append((order(state, job), job.id))
    offset = int(max(0.0, number(request, "offset", 0.0)))
    limit = int(min(max(0.0, number(request, "limit", 100.0)), MOST_ROWS))
    shown = [state.jobs[each] for _, each in nsmallest(offset + limit, found)[offset:] if each in state.jobs]
    rows = Records(fields_of(request)).of(state, shown, api.now())
    return answer({"jobs": rows, "total": len(found), "states": states, "now": api.now()})


def _is_in(job: Job, wanted: Collection[str]) -> bool:
    """Whether it is in one of these states; in any, where none is named."""
    if not wanted:
        return True
    if _ACTIVE in wanted:
        return not isinstance(job.phase, Finished)
    return job_state(job) in wanted or base_state(job.phase) in wanted


def _words_of(text: str) -> Iterable[tuple[str, str, bool]]:
    """(what it is about or empty, the word, whether it must be there)"""
    found = _WORD.findall(text)
    if len(found) > _MOST_WORDS:
        raise ProblemError(400, f"q: at most {_MOST_WORDS} words are searched")
    for about, quoted, plain in found:
        word, wanted = quoted or plain, True
        if not about and word.startswith("-") and len(word) > 1:
            about, _, rest = word[1:].rpartition(":")
            word, wanted = rest, False
        if about and about not in _PARTS:
            about, word = "", f"{about}:{word}"  # a time, a name with a colon
        yield about, word.lower(), wanted


def _test(state: State, about: str, word: str, wanted: bool) -> Test:
    parts = [_PARTS[about]] if about else list(_PARTS.values())

    def test(job: Job) -> bool:
        return any(word in part(state, job).lower() for part in parts) == wanted

    return test


def _nodes(_: State, job: Job) -> str:
    return " ".join(job.allocation.node_names) if job.allocation is not None else ""


def _reasons(state: State, job: Job) -> str:
    if not isinstance(job.phase, Pending):
        return ""
    return " ".join(str(each.kind.value) for each in job_reasons(state, job))


_PARTS: dict[str, Callable[[State, Job], str]] = {
    "job": lambda _, job: job.label,
    "name": lambda _, job: job.spec.name,
    "user": lambda _, job: job.spec.owner.user,
    "account": lambda _, job: job.spec.account,
    "partition": lambda _, job: ",".join(job.spec.partitions),
    "state": lambda _, job: job_state(job),
    "qos": lambda _, job: job.spec.qos,
    "node": _nodes,
    "comment": lambda _, job: job.spec.comment,
    "reason": _reasons,
}
"""What of a job is searched, the cheapest first."""


def _expected(state: State, job: Job) -> float:
    verdict = state.verdicts.get(job.id)
    expected = verdict.expected_start if verdict is not None else None
    return _NEVER if expected is None else expected


def _by_start(state: State, job: Job) -> tuple[float, ...]:
    if isinstance(job.phase, Pending):
        return (1, _expected(state, job), -job.priority, job.id)
    if isinstance(job.phase, Finished):
        return (2, -job.phase.ended_at, 0, -job.id)
    return (0, -job.id, 0, 0)


def _by_end(_: State, job: Job) -> tuple[Any, ...]:
    return (-job.phase.ended_at if isinstance(job.phase, Finished) else _NEVER, -job.id)


_ORDERS: dict[str, Callable[[State, Job], Any]] = {
    "start": _by_start,
    "submitted": lambda _, job: (-job.submitted_at, -job.id),
    "priority": lambda _, job: (-job.priority, job.id),
    "ended": _by_end,
    "id": lambda _, job: -job.id,
    "user": lambda _, job: (job.spec.owner.user, -job.id),
}
