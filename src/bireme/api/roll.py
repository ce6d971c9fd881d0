"""The roll: all jobs in order, each with the text that is searched, made once a change for all who look at the queue.

Two hundred open pages search ten thousand jobs whenever something happens, each for something else. What a job can be
found by, its place in an order and its record are the same for all of them: they are worked out once, and only of jobs
that are no longer as they were. Asked by `routes/pages/queue`, which knows what words mean and who may know of a job.

Invariants: a roll shows nothing that had changed before it was asked for. Nobody makes one while another is made. It
shows all jobs: whoever reads it leaves out what the caller may not know of.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from operator import is_
from typing import Any

from starlette.requests import Request

from bireme.api.answers import FRESH_S
from bireme.api.serving.peers import SCOPE_KEY
from bireme.api.serving.slices import slices_of
from bireme.api.serving.turns import Turns
from bireme.core.jobs.states import base_state, job_state
from bireme.core.model.jobs import Finished, Job
from bireme.core.state.state import State
from bireme.slurm.records.many import Records
from bireme.store.codec import dumps

BETWEEN = "\x1f"
"""Stands between two parts of a text: in a job's own words it is read as a blank."""
ACTIVE = "ACTIVE"
KEPT_S = 60.0
"""So long after the last look at it a roll is kept."""
_AT_ONCE = 128
"""Places in the order that are found in one turn."""
_MOST_FIELDS, _MOST_ANSWERS = 8, 64
"""Sets of fields of which records, and questions of which answers, are kept with a roll."""

Order = Callable[[State, Job], tuple[Any, ...]]
"""A job's place, which no other has."""
Parts = Callable[[State, Job], Iterable[str]]


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A job as it was when it was last looked at."""

    job: Job
    told: tuple[object, ...]
    """What all of it is worked out from, each of which is replaced and never changed."""
    state: str
    states: frozenset[str]
    """The words that it can be asked for by: its state, what it is going to be, and ACTIVE until it has ended."""
    text: str
    """All that it can be found by, in lower case."""

    def part(self, number: int) -> str:
        return self.text.split(BETWEEN)[number]


@dataclass(slots=True, eq=False)
class Roll:
    """All jobs at one moment."""

    number: int
    version: Hashable
    entries: Mapping[int, Entry]
    orders: Mapping[str, Sequence[Entry]]
    """By the name of the order, as far as it was asked for."""
    answers: dict[Hashable, Any] = field(default_factory=dict)
    """What was found in it, by question: of who may know of every job."""
    _records: dict[tuple[str, ...], tuple[float, dict[int, bytes]]] = field(default_factory=dict)

    def keep(self, question: Hashable, found: Any) -> None:
        if len(self.answers) < _MOST_ANSWERS:
            self.answers[question] = found

    def records(self, fields: tuple[str, ...]) -> dict[int, bytes]:
        """Records with these fields, as JSON, by job, as far as somebody has made them within the last moment."""
        now = time.monotonic()
        made_at, records = self._records.get(fields, (0.0, {}))
        if now - made_at > FRESH_S:
            if len(self._records) >= _MOST_FIELDS:
                self._records.clear()
            made_at, records = self._records[fields] = (now, {})
        return records


class Rolls:
    """Makes the roll of now, out of the one before."""

    def __init__(self, state: Callable[[], State], version: Callable[[], Hashable], parts: Parts) -> None:
        """`version` changes with whatever a roll shows; `parts`: what a job can be found by, always as many."""
        self._state, self._version, self._parts = state, version, parts
        self._latest: Roll | None = None
        self._orders: dict[str, Order] = {}
        self._begun = 0
        self._making: asyncio.Future[None] | None = None
        self._asked_at = 0.0
        self._forgetting: asyncio.TimerHandle | None = None

    async def roll(self, turns: Turns, request: Request, name: str, order: Order) -> Roll:
        """One that is as things are now, or were since this was asked; has its jobs in this order."""
        first = self._begun + 1
        self._note_asked()
        while True:
            self._orders.setdefault(name, order)
            known = self._latest
            is_new = known is not None and (known.version == self._version() or known.number >= first)
            if known is not None and is_new and name in known.orders:
                return known
            if self._making is None:
                await self._make(turns, request)
            else:
                await asyncio.wait([self._making])
                await turns.mine(request.scope[SCOPE_KEY].uid)

    async def _make(self, turns: Turns, request: Request) -> None:
        making = self._making = asyncio.get_running_loop().create_future()
        try:
            self._latest = await self._made(turns, request)
        finally:  # who asked may have left: another of those who wait makes it
            self._making = None
            making.set_result(None)

    async def _made(self, turns: Turns, request: Request) -> Roll:
        self._begun += 1
        number, version, state = self._begun, self._version(), self._state()
        before = self._latest.entries if self._latest is not None else {}
        runs: dict[str, list[list[tuple[tuple[Any, ...], Entry]]]] = {name: [] for name in self._orders}
        entries: dict[int, Entry] = {}
        async for part in slices_of(turns, request, list(state.jobs.values())):
            some = [self._entry(state, job, before) for job in part if job.id in state.jobs]
            entries.update((entry.job.id, entry) for entry in some)
            for name, found in runs.items():
                order = self._orders[name]
                found.append(sorted((order(state, entry.job), entry) for entry in some))
        uid = request.scope[SCOPE_KEY].uid
        return Roll(number, version, entries, {name: await _merged(found, turns, uid) for name, found in runs.items()})

    def _entry(self, state: State, job: Job, before: Mapping[int, Entry]) -> Entry:
        known = before.get(job.id)
        told = (job.spec, job.phase, job.array, state.verdicts.get(job.id))
        if known is not None and known.job is job and all(map(is_, known.told, told)):
            return known
        parts = (part.lower().replace(BETWEEN, " ") for part in self._parts(state, job))
        state_word = job_state(job)
        states = _states_of(state_word, base_state(job.phase), isinstance(job.phase, Finished))
        return Entry(job, told, state_word, states, BETWEEN.join(parts))

    def _note_asked(self) -> None:
        loop = asyncio.get_running_loop()
        self._asked_at = loop.time()
        if self._forgetting is None:
            self._forgetting = loop.call_later(KEPT_S, self._forget)

    def _forget(self) -> None:
        """Where nobody looks at the queue, nothing is kept for those who do."""
        loop, until = asyncio.get_running_loop(), self._asked_at + KEPT_S
        self._forgetting = loop.call_at(until, self._forget) if loop.time() < until else None
        if self._forgetting is None:
            self._latest = None
            self._orders.clear()


@cache
def _states_of(state: str, base: str, has_ended: bool) -> frozenset[str]:
    return frozenset((state, base) if has_ended else (state, base, ACTIVE))


async def _merged(runs: Sequence[list[tuple[tuple[Any, ...], Entry]]], turns: Turns, uid: int) -> list[Entry]:
    merged = heapq.merge(*runs)
    order: list[Entry] = []
    while some := list(islice(merged, _AT_ONCE)):
        order += [entry for _, entry in some]
        await turns.mine(uid)
    return order


async def records_of(
    roll: Roll,
    state: State,
    shown: Sequence[Entry],
    fields: tuple[str, ...],
    now: float,
    turns: Turns,
    request: Request,
) -> list[bytes]:
    """Records of these jobs as JSON: each made once for all who want these fields of it."""
    known, writer = roll.records(fields), Records(fields)
    told: list[bytes] = []
    async for part in slices_of(turns, request, shown):
        for entry in part:
            number = entry.job.id
            if number in state.jobs and number not in known:
                known[number] = dumps(writer.of(state, [entry.job], now))[1:-1]
            told += [known[number]] if number in known else []
    return told
