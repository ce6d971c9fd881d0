"""The keeper of runs: who waits for a server and who does not, and what one job's trouble is to the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model.jobs import Job, JobSpec, Owner, Pending
from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.state.state import State
from bireme.daemon.experiments.keeper import AT_ONCE, RunKeeper
from bireme.daemon.experiments.policy import Policy
from bireme.ports import StoreError
from bireme.slurm.variables.experiments import NAME, Trackers

OWNER = Owner(uid=1, gid=1, user="a")
LONG_S = 60.0
Answer = tuple[int, dict[str, Any]] | None
"""Of a request's path; None: never."""


class Ticking:
    def now(self) -> float:
        return 1000.0


class Noting:
    """A runtime that does what it is told at once."""

    def __init__(self) -> None:
        self.state, self.clock = State(), Ticking()

    async def do_all(self, cause: str, decides: Sequence[Any], *, own: bool = False) -> list[Any]:
        answers = []
        for decide in decides:
            events = decide(self.state, 1000.0)
            for event in events:
                assert isinstance(event, e.JobTracked)
                self.state.jobs[event.job_id].tracked = event.run
            answers.append(events)
        return answers

    def subscribe(self, subscriber: Any) -> Callable[[], None]:
        return lambda: None


class Environments:
    """Blobs by their ids; each is counted when it is read."""

    def __init__(self) -> None:
        self.texts: dict[str, dict[str, str]] = {}
        self.read: list[str] = []

    def get(self, blob_id: str) -> bytes:
        self.read.append(blob_id)
        if blob_id not in self.texts:
            raise StoreError("the disk is broken")
        return json.dumps(self.texts[blob_id]).encode()


class World:
    """A keeper, and a server that `answers` by the request's path and its text."""

    def __init__(self, answers: Callable[[str, str], Answer], wait_s: float) -> None:
        self.answers, self.wait_s = answers, wait_s
        self.cluster, self.blobs = Noting(), Environments()
        self.open = self.most_open = 0
        self.keeper: RunKeeper

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next((line.split(":")[1] for line in head.split("\r\n") if line.startswith("Content-Length")), "0")
            text = (await reader.readexactly(int(length))).decode()
            answer = self.answers(head.split(" ")[1], text)
            if answer is None:
                await reader.read()  # until the other end leaves
                return
            body = json.dumps(answer[1]).encode()
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (answer[0], len(body), body))
            await writer.drain()
        finally:
            self.open -= 1
            writer.close()

    def launch(self, job_id: int, environment: str = "") -> c.LaunchJob:
        job = Job(job_id, JobSpec(owner=OWNER, environment=environment), 0.0, Pending(since=0.0))
        self.cluster.state.jobs[job_id] = job
        return c.LaunchJob(job, Allocation(job_id, 1, "main", (NodeShare("n1", cpus=1, memory_mib=1),)))

    def run_of(self, job_id: int) -> str:
        tracked = self.cluster.state.jobs[job_id].tracked
        return tracked.run_id if tracked is not None else ""

    def play(self, story: Callable[[RunKeeper], Awaitable[None]]) -> None:
        async def whole() -> None:
            server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            policy = Policy(Trackers(mlflow=url, experiment="e", every_job=True), self.wait_s, 0.0)
            keeper = RunKeeper(self.cluster, self.blobs, policy)  # type: ignore[arg-type]
            async with server:
                await story(keeper)
                await keeper.close()

        asyncio.run(whole())


def made(path: str, text: str) -> Answer:
    if "get-by-name" in path:
        return 200, {"experiment": {"experiment_id": "7"}}
    return 200, {"run": {"info": {"run_id": "run of " + json.loads(text)["run_name"]}}}


def never(path: str, text: str) -> Answer:
    return None


def waiting(found: Awaitable[None] | None) -> Awaitable[None]:
    assert found is not None
    return found


def test_an_array_is_asked_for_a_few_at_a_time_and_its_environment_is_read_once() -> None:
    world = World(made, LONG_S)
    world.blobs.texts["shared"] = {"PATH": "/bin"}
    count = 5 * AT_ONCE

    async def story(keeper: RunKeeper) -> None:
        launches = [world.launch(job_id, "shared") for job_id in range(1, count + 1)]
        await asyncio.gather(*(waiting(keeper.prepare(launch)) for launch in launches))

    world.play(story)
    assert all(world.run_of(job_id) for job_id in range(1, count + 1))
    assert 1 < world.most_open <= AT_ONCE
    assert world.blobs.read == ["shared"]


def test_a_server_that_hangs_costs_who_starts_first_a_moment_and_the_next_nothing() -> None:
    world = World(never, 0.01)

    async def story(keeper: RunKeeper) -> None:
        launches = [world.launch(job_id) for job_id in range(1, 3 * AT_ONCE)]
        await asyncio.gather(*(waiting(keeper.prepare(launch)) for launch in launches))
        assert "no answer" in keeper.problem
        assert keeper.prepare(world.launch(100)) is None

    world.play(story)
    assert not any(world.run_of(job_id) for job_id in world.cluster.state.jobs)


def test_a_question_that_hangs_takes_no_turn_from_later_jobs() -> None:
    hangs = [True]
    world = World(lambda path, text: None if hangs else made(path, text), 0.05)

    async def story(keeper: RunKeeper) -> None:
        await asyncio.gather(*(waiting(keeper.prepare(world.launch(job_id))) for job_id in range(1, AT_ONCE + 1)))
        hangs.clear()
        assert keeper.mlflow is not None
        keeper.policy = Policy(keeper.policy.trackers, LONG_S, 0.0)
        keeper.problem = ""  # it was asked, and answers again
        await waiting(keeper.prepare(world.launch(100)))

    world.play(story)
    assert world.run_of(100)


def test_what_the_server_says_to_one_job_is_nothing_to_the_others() -> None:
    """Whatever a user names there: the server may break over it."""
    odd = {"broken": (500, {}), "strange": (200, {"no": "experiment"}), "refused": (403, {}), "\udcff": (400, {})}

    def answers(path: str, text: str) -> Answer:
        return next((answer for name, answer in odd.items() if f"experiment_name={name}" in path), made(path, text))

    world = World(answers, LONG_S)
    world.blobs.texts = {name: {NAME: name} for name in odd}

    async def story(keeper: RunKeeper) -> None:
        for job_id, name in enumerate(odd, start=1):
            await waiting(keeper.prepare(world.launch(job_id, name)))
            assert keeper.problem == "", name
        await waiting(keeper.prepare(world.launch(9)))

    world.play(story)
    assert [bool(world.run_of(job_id)) for job_id in (1, 2, 3, 9)] == [False, False, False, True]


def test_a_job_whose_environment_cannot_be_read_goes_on_to_the_engine_which_tells_it() -> None:
    world = World(made, LONG_S)

    async def story(keeper: RunKeeper) -> None:
        assert keeper.prepare(world.launch(1, "lost")) is None

    world.play(story)
    assert world.blobs.read == ["lost"]
