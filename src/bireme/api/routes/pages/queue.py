"""The queue as people look at it: searched, filtered, sorted and cut on the daemon, with how many there are of what.

`GET /v1/jobs` answers with all that match, as squeue wants them; here a page of them is made into records, out of the
roll that all who look share (`api/roll`): a look at a hundred of ten thousand costs one walk over their texts.
Invariant: a job that the caller may not know of is in no count, and what is kept of an answer is given to those alone
who may know of every job.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.problems import ProblemError
from bireme.api.roll import BETWEEN, Entry, Order, Roll, records_of
from bireme.api.routing import Context, Routes, fields_of, number
from bireme.api.serving.slices import slices_of
from bireme.core.jobs.states import job_reasons, job_state
from bireme.core.model.jobs import Finished, Job, Pending
from bireme.core.state.state import State
from bireme.store.codec import dumps

routes = Routes("pages")

MOST_ROWS = 500
_MOST_WORDS = 20
_NEVER = 9e18
_WORD = re.compile(r'(?:(\w+):)?(?:"([^"]*)"|(\S+))')


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
    query = request.query_params
    words = tuple(_words_of(query.get("q", "")))
    wanted = frozenset(word for word in query.get("state", "").upper().split(",") if word)
    name = query.get("sort") or "start"
    if name not in _ORDERS:
        raise ProblemError(400, f"sort={query['sort'][:80]!r}: it is one of {', '.join(_ORDERS)}")
    offset = int(max(0.0, number(request, "offset", 0.0)))
    limit = int(min(max(0.0, number(request, "limit", 100.0)), MOST_ROWS))
    fields = fields_of(request)
    roll = await api.rolls.roll(api.turns, request, name, _ORDERS[name])
    found = await _found(api, request, roll, name, words, wanted)
    shown = found.first[offset : offset + limit]
    if offset + limit > MOST_ROWS:
        shown = (await _search(api, request, roll.orders[name], words, wanted, offset + limit)).first[offset:]
    rows = await records_of(roll, api.cluster.state, shown, fields, api.now(), api.turns, request)
    beside = dumps({"total": found.total, "states": found.states, "now": api.now()})
    told = b'{"jobs":[%b],%b' % (b",".join(rows), beside[1:])
    return api.alike(request, Response(told, media_type="application/json"))


@dataclass(frozen=True, slots=True)
class _Found:
    """What a search comes to: the first of those that are in one of the states, how many these are, and how many of
    all that match are in which state."""

    first: Sequence[Entry]
    total: int
    states: Mapping[str, int]


Word = tuple[str, str, bool]


async def _found(
    api: Context, request: Request, roll: Roll, name: str, words: tuple[Word, ...], wanted: frozenset[str]
) -> _Found:
    """Of who may know of every job one search does for all who ask the same."""
    question = (name, words, wanted)
    shares = not api.viewer(api.caller(request)).hidden("jobs")
    known = roll.answers.get(question) if shares else None
    if known is None:
        known = await _search(api, request, roll.orders[name], words, wanted, MOST_ROWS)
        if shares:
            roll.keep(question, known)
    assert isinstance(known, _Found)
    return known


async def _search(
    api: Context, request: Request, entries: Sequence[Entry], words: Iterable[Word], wanted: frozenset[str], most: int
) -> _Found:
    caller = api.caller(request)
    hides = api.viewer(caller).hidden("jobs")
    states, total = Counter[str](), 0
    first: list[Entry] = []
    async for some in slices_of(api.turns, request, entries):
        if hides:
            some = [each for each in some if api.sees(caller, each.job.spec.owner.uid, each.job.spec.account)]
        for word in words:
            some = _with(some, *word)
        states.update(each.state for each in some)
        if wanted:
            some = [each for each in some if not wanted.isdisjoint(each.states)]
        total += len(some)
        first += some[: max(0, most - len(first))]
    return _Found(first, total, states)


def _with(entries: Sequence[Entry], about: str, word: str, wanted: bool) -> list[Entry]:
    """Those of which the word is part, or is not."""
    if about:
        at = _NUMBER_OF[about]
        return [each for each in entries if (word in each.part(at)) == wanted]
    if wanted:
        return [each for each in entries if word in each.text]
    return [each for each in entries if word not in each.text]


def _words_of(text: str) -> Iterable[Word]:
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
        yield about, word.lower().replace(BETWEEN, " "), wanted


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
"""What of a job is searched."""
_NUMBER_OF = {name: number for number, name in enumerate(_PARTS)}


def parts_of(state: State, job: Job) -> list[str]:
    """What of a job is searched, for the roll."""
    return [part(state, job) for part in _PARTS.values()]


def _expected(state: State, job: Job) -> float:
    verdict = state.verdicts.get(job.id)
    expected = verdict.expected_start if verdict is not None else None
    return _NEVER if expected is None else expected


def _by_start(state: State, job: Job) -> tuple[float, ...]:
    if isinstance(job.phase, Pending):
        waits_for_itself = job.phase.eligible_at is None  # held, or for its time or another job: nothing starts it
        return (1, _expected(state, job), waits_for_itself, -job.priority, job.id)
    if isinstance(job.phase, Finished):
        return (2, -job.phase.ended_at, 0, -job.id)
    return (0, -job.id, 0, 0)


def _by_end(_: State, job: Job) -> tuple[Any, ...]:
    return (-job.phase.ended_at if isinstance(job.phase, Finished) else _NEVER, -job.id)


_ORDERS: dict[str, Order] = {
    "start": _by_start,
    "submitted": lambda _, job: (-job.submitted_at, -job.id),
    "priority": lambda _, job: (-job.priority, job.id),
    "ended": _by_end,
    "id": lambda _, job: (-job.id,),
    "user": lambda _, job: (job.spec.owner.user, -job.id),
}
