"""The keeper that looks where a job's programs stand before it is told that the job hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from bireme.agent.system.identity import Identity
from bireme.api.owner_reading import UnreadError
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Gravity, Place, Trouble
from bireme.core.state.state import State
from bireme.daemon.faults.detecting.standing import StandingKeeper
from bireme.testing.scenario import Scenario

Answer = Mapping[str, Any] | Exception | None
"""None: it never comes."""
APART = {
    "text": "rank 3 stands in read (data.py:12) while ranks 0-2 wait in a collective",
    "source": "trace",
    "rank": 3,
}
STACK = {"text": "thread MainThread stands in read (data.py:12)", "source": "trace", "rank": 3, "pid": 7, "node": "n1"}


class Stage:
    def __init__(self) -> None:
        self.world = Scenario("1x8")
        self.world.submit("train", cpus=1)
        self.world.settle()
        self.clock, self.told = self.world.clock, list[o.Observation]()

    @property
    def state(self) -> State:
        return self.world.state

    def report(self, observations: Sequence[o.Observation]) -> None:
        self.told += observations

    def subscribe(self, subscriber: Callable[[Sequence[e.Recorded]], None]) -> Callable[[], None]:
        return lambda: None

    @property
    def hang(self) -> o.TroubleSeen:
        job = self.world.job("train")
        place = Place(job_id=job.id, generation=job.generation)
        title = "The job hangs since 41 s: rank 0 was quiet first"
        return o.TroubleSeen(
            Trouble(detector="hang", place=place, gravity=Gravity.BROKEN, cause="hang", title=title, since=1.0), 42.0
        )


async def told(stage: Stage, answer: Answer, *, is_here: bool = True, gets_on: bool = False) -> list[Trouble]:
    asked: list[tuple[int, str]] = []

    async def ask(owner: Identity, program: str, request: Mapping[str, Any], limit_s: float) -> Mapping[str, Any]:
        asked.append((owner.uid, program))
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Mapping)
        return answer

    keeper = StandingKeeper(stage, lambda: is_here, ask)
    keeper.tell(stage.hang)
    keeper.tell(stage.hang)
    tasks = list(keeper._tasks.values())
    assert len(tasks) == 1, "it is looked at once"
    if gets_on:
        await asyncio.sleep(0)
        keeper.gets_on(next(iter(keeper._tasks)))
    await asyncio.wait(tasks)
    await keeper.close()
    return [each.trouble for each in stage.told if isinstance(each, o.TroubleSeen)]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(Identity, "of_user", classmethod(lambda cls, uid, gid=None: cls(uid, gid or 0)))
    return Stage()


def test_the_rank_that_stands_elsewhere_is_named_and_stacks_are_its_evidence(stage: Stage) -> None:
    (trouble,) = asyncio.run(told(stage, {"lines": [APART, STACK, "nonsense"], "problems": []}))
    assert trouble.title == f"The job hangs since 41 s: {APART['text']}"
    assert [each.text for each in trouble.quotes] == [APART["text"], f"rank 3: {STACK['text']}"]
    assert {each.source for each in trouble.quotes} == {"trace"}


@pytest.mark.parametrize(
    ("answer", "is_here", "said"),
    [
        (UnreadError("the daemon is not root"), True, "not known: the daemon is not root"),
        ({"lines": 7, "problems": ["py-spy is not installed here"]}, True, "not known: py-spy is not installed here"),
        (RuntimeError("a bug"), True, ""),
        ({}, False, ""),
    ],
)
def test_where_nobody_can_look_it_is_told_all_the_same(stage: Stage, answer: Answer, is_here: bool, said: str) -> None:
    (trouble,) = asyncio.run(told(stage, answer, is_here=is_here))
    assert trouble.title == stage.hang.trouble.title
    assert [each.text for each in trouble.quotes] == ([said] if said else [])


def test_a_look_that_hangs_does_not_keep_the_hang_from_being_told(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bireme.daemon.faults.detecting.standing.LIMIT_S", 0.01)
    (trouble,) = asyncio.run(told(stage, None))
    assert "was not found out" in trouble.quotes[0].text


def test_a_job_that_gets_on_meanwhile_does_not_hang(stage: Stage) -> None:
    assert asyncio.run(told(stage, None, gets_on=True)) == []
