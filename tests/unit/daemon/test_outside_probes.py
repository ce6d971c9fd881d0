"""Replicas that no agent stands beside are asked over the network, and by a command in their job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.serving.probes import Health, Probe
from bireme.daemon.outside_probes import OutsideProbes
from bireme.daemon.service_news import ServiceNews
from bireme.runtime.service import Runtime
from bireme.testing.scenario import Scenario

SOON = Probe(path="/health", period_s=0.1)
PROBES = {"startup": SOON, "readiness": SOON}


class Around:
    """All that the probes need of a runtime: a state with one running replica elsewhere, and who is told."""

    def __init__(self, probes: dict[str, Probe], beside: Any = None) -> None:
        world = Scenario("1x8")
        world.serve("chat", "1", **probes)
        world.settle()
        self.state = world.state
        self.service = world.state.services["chat"]
        self.service.elsewhere = True
        self.job = world.job("chat/1")
        self.engine = SimpleNamespace(capabilities=SimpleNamespace(queue=object(), beside=beside))
        self.told: asyncio.Queue[o.ReplicaProbed] = asyncio.Queue()
        self.subscribers: list[Callable[[Sequence[Any]], None]] = []
        self.news = ServiceNews(cast("Runtime", self))

    def subscribe(self, subscriber: Callable[[Sequence[Any]], None]) -> Callable[[], None]:
        self.subscribers.append(subscriber)
        return lambda: self.subscribers.remove(subscriber)

    def commit(self, event: e.Event) -> None:
        for subscriber in self.subscribers:
            subscriber([e.Recorded(1, 1.0, "test", event)])

    def report(self, seen: Sequence[o.Observation]) -> None:
        for each in seen:
            self.told.put_nowait(cast("o.ReplicaProbed", each))

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[OutsideProbes]:
        self.news.begin()
        probes = OutsideProbes(cast("Runtime", self), self.news)
        probes.begin()
        try:
            yield probes
        finally:
            await probes.close()

    async def said(self, health: Health) -> o.ReplicaProbed:
        """The first report of this health."""
        while (seen := await self.told.get()).health is not health:
            pass
        return seen


@asynccontextmanager
async def answering(around: Around, answers: Callable[[], bytes]) -> AsyncIterator[None]:
    """A server where the replica is to be."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    around.job.spec = around.job.spec.revised(replica=_at(around, port))
    node = around.state.nodes["n1"]
    object.__setattr__(node, "config", node.config.__class__(**{**_fields(node.config), "address": "127.0.0.1"}))
    async with server:
        yield


def _at(around: Around, port: int) -> Any:
    of = around.job.spec.replica
    assert of is not None
    return of.__class__(of.service, of.revision, of.number, port, of.probes)


def _fields(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def test_a_replica_is_ready_when_it_answers_and_unready_when_it_does_not() -> None:
    async def story() -> None:
        around, answer = Around(PROBES), [b"HTTP/1.1 503 Busy\r\n\r\n"]
        async with answering(around, lambda: answer[0]), around.asking():
            assert (await around.said(Health.LOADING)).why == "startup probe: HTTP 503"
            answer[0] = b"HTTP/1.1 200 OK\r\n\r\n"
            ready = await around.said(Health.READY)
            assert (ready.job_id, ready.address) == (around.job.id, "127.0.0.1")
            answer[0] = b"gibberish"
            assert "does not speak HTTP" in (await around.said(Health.UNREADY)).why

    asyncio.run(asyncio.wait_for(story(), 30))


def test_who_was_ready_before_a_restart_is_not_taken_out_of_service() -> None:
    async def story() -> None:
        around = Around({"startup": SOON, "readiness": Probe(path="/health", period_s=0.1, failure_threshold=2)})
        replica = around.service.replicas[1]
        known = {**_fields(replica), "ready_at": 1.0, "health": Health.READY}
        around.service.replicas[1] = replica.__class__(**known)
        async with answering(around, lambda: b"HTTP/1.1 500 No\r\n\r\n"), around.asking():
            assert (await around.told.get()).health is Health.UNREADY, (
                "the first word is that it fails, never 'loading'"
            )

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_command_is_run_in_the_job() -> None:
    asked: list[tuple[object, ...]] = []

    class Beside:
        async def ask_beside(self, *question: object) -> str:
            asked.append(question)
            return "" if len(asked) > 1 else "exit code 3"

    async def story() -> None:
        check = Probe(command=("check", "me"), period_s=0.1, timeout_s=5.0)
        around = Around({"startup": check, "readiness": check}, Beside())
        async with around.asking():
            assert (await around.said(Health.LOADING)).why == "startup probe: exit code 3"
            await around.said(Health.READY)
        assert asked[0] == (around.job, ("check", "me"), 5.0)

    asyncio.run(asyncio.wait_for(story(), 30))


@pytest.mark.parametrize("queue", [None, object()])
def test_only_replicas_of_an_engine_with_its_own_queue_are_asked(queue: object) -> None:
    async def story() -> None:
        around = Around(PROBES)
        around.engine.capabilities.queue = queue
        around.service.elsewhere = False
        async with around.asking():
            assert len(around.news._followers) == (queue is not None)
            assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("probes of")]

    asyncio.run(story())


def test_a_replica_is_left_alone_when_its_service_says_that_it_is_over_and_others_are_not_looked_at() -> None:
    async def story() -> None:
        around = Around(PROBES)
        async with around.asking():
            assert tasks_of_probes() == 1
            around.service.replicas.clear()
            around.commit(e.ServiceScaled("other", 1, "somebody said so"))
            assert tasks_of_probes() == 1, "nobody said that this one has changed"
            around.commit(e.ReplicaGone("chat", 1))
            await asyncio.sleep(0)
            assert tasks_of_probes() == 0

    asyncio.run(asyncio.wait_for(story(), 30))


def tasks_of_probes() -> int:
    return sum(task.get_name().startswith("probes of") for task in asyncio.all_tasks())
