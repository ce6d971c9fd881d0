"""The roll of all jobs: made once for all who look, of what has changed alone, never older than the question."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from starlette.requests import Request

from bireme.api.roll import Roll, Rolls
from bireme.api.serving.peers import SCOPE_KEY, Peer
from bireme.api.serving.turns import Turns
from bireme.core.model.jobs import Job, JobSpec, Owner, Pending
from bireme.core.model.reasons import ReasonKind, reason
from bireme.core.state.state import State, Verdict

OWNER = Owner(uid=4001, gid=1, user="ann")
MANY = 2_000
"""More than are looked at in one slice."""


class Queue:
    """A state, how often each of its jobs was looked at, and the rolls of it."""

    def __init__(self) -> None:
        self.state = State()
        self.looked: dict[int, int] = {}
        self.turns = Turns()
        self.rolls = Rolls(lambda: self.state, lambda: (self.state.seq, self.state.planned_at), self._parts)
        for number in range(1, MANY + 1):
            self.add(number)

    def add(self, number: int) -> None:
        self.state.seq += 1
        job = Job(number, JobSpec(owner=OWNER, name=f"Run\x1f{number}"), 1.0, Pending(1.0), priority=number * 7 % 100)
        self.state.jobs[number] = job

    def _parts(self, _: State, job: Job) -> list[str]:
        self.looked[job.id] = self.looked.get(job.id, 0) + 1
        return [job.label, job.spec.name]

    async def roll(self, uid: int = 1) -> Roll:
        request = Request({"type": "http", SCOPE_KEY: Peer(uid, uid, 1)})
        return await self.rolls.roll(self.turns, request, "priority", lambda _, job: (-job.priority, job.id))


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_all_who_ask_at_once_read_one_roll_in_order(queue: Queue) -> None:
    async def scene() -> None:
        rolls = await asyncio.gather(*(queue.roll(uid) for uid in range(20)))
        assert all(roll is rolls[0] for roll in rolls)
        ids = [entry.job.id for entry in rolls[0].orders["priority"]]
        assert ids == sorted(queue.state.jobs, key=lambda each: (-queue.state.jobs[each].priority, each))
        assert await queue.roll() is rolls[0], "nothing has changed"
        assert rolls[0].entries[7].text == "7\x1frun 7", "what stands between two parts is in none of them"

    asyncio.run(scene())
    assert set(queue.looked.values()) == {1}


def test_only_what_has_changed_is_looked_at_again(queue: Queue) -> None:
    async def scene() -> Roll:
        await queue.roll()
        queue.add(MANY + 1)
        queue.state.jobs[3].spec = replace(queue.state.jobs[3].spec, name="other")
        queue.state.verdicts[4] = Verdict((reason(ReasonKind.PRIORITY),))
        del queue.state.jobs[5]
        queue.state.planned_at = 2.0
        return await queue.roll()

    roll = asyncio.run(scene())
    assert {number for number, times in queue.looked.items() if times > 1} == {3, 4}
    assert 5 not in roll.entries
    assert roll.entries[MANY + 1].text.startswith(f"{MANY + 1}")
    assert roll.entries[3].part(1) == "other"


def test_who_asks_after_a_change_does_not_get_what_was_begun_before_it(queue: Queue) -> None:
    async def scene() -> None:
        early = asyncio.create_task(queue.roll(1))
        await asyncio.sleep(0)  # it is being made
        queue.add(MANY + 1)
        assert MANY + 1 in (await queue.roll(2)).entries
        await early

    asyncio.run(scene())


def test_a_roll_whose_maker_has_left_is_made_by_another_who_waits(queue: Queue) -> None:
    async def scene() -> None:
        maker = asyncio.create_task(queue.roll(1))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(queue.roll(uid)) for uid in range(2, 5)]
        await asyncio.sleep(0)
        maker.cancel()
        assert {len((await each).entries) for each in waiting} == {MANY}
        with pytest.raises(asyncio.CancelledError):
            await maker

    asyncio.run(scene())
