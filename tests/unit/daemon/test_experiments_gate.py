"""The gate before the engine: what waits, what goes on together, and what never begins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bireme.core.model import commands as c
from bireme.core.model.jobs import Job, JobSpec, Owner, Pending
from bireme.core.model.resources import Allocation, NodeShare
from bireme.daemon.experiments.gate import Gate

OWNER = Owner(uid=1, gid=1, user="a")


class Sent:
    """An engine that notes what it is sent."""

    name = "noting"

    def __init__(self) -> None:
        self.sends: list[list[c.Command]] = []

    def send(self, commands: Sequence[c.Command]) -> None:
        if commands:
            self.sends.append(list(commands))

    async def stop(self) -> None: ...


def launch(job_id: int, het: int | None = None) -> c.LaunchJob:
    job = Job(job_id, JobSpec(owner=OWNER), 0.0, Pending(since=0.0), het_job_id=het)
    return c.LaunchJob(job, Allocation(job_id, 1, "main", (NodeShare("n1", cpus=1, memory_mib=1),)))


def end(job_id: int) -> c.TerminateJob:
    return c.TerminateJob(job_id, 1, ("n1",), 0)


def played(story: Callable[[Gate, Sent, dict[int, asyncio.Future[None]]], Awaitable[None]], *waiting: int) -> Sent:
    """`waiting`: jobs whose start waits until the story says otherwise."""
    engine = Sent()

    async def play() -> None:
        gate: Any = Gate(engine)  # type: ignore[arg-type]
        waits = {job_id: asyncio.get_running_loop().create_future() for job_id in waiting}
        gate.prepare = lambda launched: waits.get(launched.job.id)
        await story(gate, engine, waits)

    asyncio.run(play())
    return engine


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_start_waits_and_the_others_do_not() -> None:
    one, two = launch(1), launch(2)

    async def story(gate: Gate, engine: Sent, waits: dict[int, asyncio.Future[None]]) -> None:
        gate.send([one, two])
        assert engine.sends == [[two]]
        waits[1].set_result(None)
        await turns()

    assert played(story, 1).sends == [[two], [one]]


def test_what_is_ended_while_it_waits_never_begins() -> None:
    one = launch(1)

    async def story(gate: Gate, engine: Sent, waits: dict[int, asyncio.Future[None]]) -> None:
        gate.send([one])
        gate.send([end(1)])
        waits[1].set_result(None)
        await turns()

    assert played(story, 1).sends == [[end(1)]]


def test_components_of_one_job_go_on_together() -> None:
    leader, other = launch(1, het=1), launch(2, het=1)

    async def story(gate: Gate, engine: Sent, waits: dict[int, asyncio.Future[None]]) -> None:
        gate.send([leader, other])
        waits[1].set_result(None)
        await turns()
        assert engine.sends == []
        waits[2].set_result(None)
        await turns()

    assert played(story, 1, 2).sends == [[leader, other]]


def test_an_order_that_is_repeated_while_it_waits_is_one() -> None:
    one = launch(1)

    async def story(gate: Gate, engine: Sent, waits: dict[int, asyncio.Future[None]]) -> None:
        gate.send([one])
        gate.send([launch(1)])
        waits[1].set_result(None)
        await turns()

    assert played(story, 1).sends == [[one]]


def test_nothing_begins_after_the_daemon_has_let_go() -> None:
    async def story(gate: Gate, engine: Sent, waits: dict[int, asyncio.Future[None]]) -> None:
        gate.send([launch(1)])
        await gate.stop()
        waits[1].set_result(None)
        await turns()

    assert played(story, 1).sends == []
