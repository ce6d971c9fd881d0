"""How often each thing is asked of Slurm: slow answers put off themselves and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bireme.core.model import observations as o
from bireme.core.model.cluster import ClusterConfig
from bireme.engines.slurm import mirror as mirror_module
from bireme.engines.slurm import rounds
from bireme.engines.slurm.commands import Silent
from bireme.engines.slurm.mirror import Mirror, Pace
from bireme.engines.slurm.rounds import Round


class Clock:
    """A monotonic clock that tests set."""

    def __init__(self) -> None:
        self.at = 1000.0

    def monotonic(self) -> float:
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(rounds, "time", made)
    return made


def test_an_answer_that_cannot_be_read_is_told_once_and_asked_for_less_and_less(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm answers, and what it says is not understood: that is no success."""
    asked, waits = Round("nodes", usual_s=5.0, most_s=30.0), []

    async def look() -> None:
        async with asked.asking():
            clock.at += 0.1
        waits.append(0.0)
        if len(waits) == 4:
            raise asyncio.CancelledError
        raise ValueError("what is this?")

    async def skip(_: Round) -> None:
        if waits:
            waits[-1] = asked.due - clock.at
        clock.at = max(clock.at, asked.due)

    monkeypatch.setattr(Round, "_until_due", skip)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(asked.repeat(look))
    assert waits[:3] == pytest.approx([1.0, 2.0, 4.0])
    assert sum("trying again" in line for line in caplog.messages) == 1


async def answered(asked: Round, clock: Clock, took_s: float) -> None:
    async with asked.asking():
        clock.at += took_s


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.1, 5.0), (1.0, 10.0), (11.0, 30.0)])
def test_what_took_slurm_long_is_asked_later_but_not_for_ever(clock: Clock, took_s: float, pause_s: float) -> None:
    asked = Round("queue", usual_s=5.0, most_s=30.0)
    asyncio.run(answered(asked, clock, took_s))
    assert asked.due == clock.at + pause_s


def test_what_we_do_with_an_answer_is_not_slurms_time(clock: Clock) -> None:
    async def look() -> None:
        async with asked.asking():
            clock.at += 0.1
        clock.at += 100.0  # reading it

    asked = Round("queue", usual_s=5.0, most_s=300.0)
    asyncio.run(look())
    assert asked.due == 1000.1 + 5.0


def test_an_answer_is_out_of_date_when_it_is_much_older_than_meant(clock: Clock) -> None:
    asked = Round("queue", usual_s=5.0, most_s=30.0)
    assert "not seen yet" in asked.out_of_date
    asyncio.run(answered(asked, clock, 0.1))
    clock.at += 14.0
    assert asked.out_of_date == ""
    clock.at += 86.0
    asked.problem = "slurmctld does not answer"
    assert asked.out_of_date == "the queue of Slurm as it was 100 s ago: slurmctld does not answer"


@pytest.fixture
def no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever Slurm says of its nodes, there are none."""
    monkeypatch.setattr(mirror_module, "read_cluster", lambda _: ClusterConfig())


class Slow:
    """A Slurm without jobs whose `late` calls never return."""

    def __init__(self, *late: str) -> None:
        self.late = late
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def ask(*_: Any) -> Any:
            self.asked.append(name)
            if name in self.late:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            return {"version": "22.05.8", "nodes": [], "steps": "", "jobs": []}.get(name, ())

        return ask


@pytest.mark.parametrize("late", ["ended", "steps"])
@pytest.mark.usefixtures("no_nodes")
def test_a_database_that_does_not_answer_delays_nothing_else(late: str) -> None:
    async def looks() -> int:
        source, seen = Slow(late), 0
        mirror = Mirror(source, Pace(jobs_s=0.0, jobs_most_s=0.0))
        enough = asyncio.Event()

        def report(observed: Any) -> None:
            nonlocal seen
            seen += sum(isinstance(each, o.QueueSeen) for each in observed)
            if seen >= 5:
                enough.set()

        mirror.report = report
        following = asyncio.create_task(mirror.follow())
        await enough.wait()
        following.cancel()
        await asyncio.wait([following])
        return seen

    assert asyncio.run(asyncio.wait_for(looks(), 60)) >= 5


@pytest.mark.usefixtures("no_nodes")
def test_a_problem_of_the_history_is_told_while_the_queue_is_followed() -> None:
    class NoDatabase(Slow):
        async def ended(self, *_: Any) -> Any:
            raise Silent("slurmdbd: no answer")

    async def told() -> str:
        mirror = Mirror(NoDatabase(), Pace())
        following = asyncio.create_task(mirror.follow())
        await mirror.looked.wait()
        while not mirror.problem:
            await asyncio.sleep(0)
        following.cancel()
        await asyncio.wait([following])
        assert mirror.queue.out_of_date == ""
        return mirror.problem

    assert asyncio.run(told()) == "slurmdbd: no answer"
