"""The load keeper on a real runtime: what the router tells becomes `ServiceScaled`, at once, once, and for a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.ports import free_port

from bireme.core.model.cluster import PartitionState, Settings
from bireme.core.model.events import Recorded, ServiceScaled
from bireme.core.model.jobs import Owner, Running
from bireme.core.model.observations import ReplicaProbed
from bireme.core.model.refusals import Caller
from bireme.core.model.serving.probes import Health
from bireme.core.model.serving.scaling import Measure, ScalingTarget
from bireme.core.nodes.operators import update_partition
from bireme.core.services import requests
from bireme.core.services.standing import standing
from bireme.core.state.state import State
from bireme.daemon.scaling.keeper import LoadKeeper
from bireme.daemon.service_news import ServiceNews
from bireme.engines.simulated.clock import VirtualClock
from bireme.engines.simulated.engine import Script, SimulatedEngine
from bireme.router import messages
from bireme.runtime.service import Runtime
from bireme.slurm.records.steps import rows_of
from bireme.store.journal import SqliteStore
from bireme.testing.worlds import build_cluster, build_service

ALICE = Caller(uid=1001, gid=1001, user="alice", admin=False)
ROOT = Caller(uid=0, gid=0, user="root", admin=True)
OWNER = Owner(uid=1001, gid=1001, user="alice")
BEGAN = 1_800_014_400.0
TEN = (ScalingTarget(Measure.CONCURRENCY, 10.0),)
PATIENCE_S = 20.0


class Clock:
    """Goes on when the test says so, and by a hair at every look."""

    def __init__(self) -> None:
        self.at = BEGAN

    def now(self) -> float:
        self.at += 1e-6
        return self.at


class Stage:
    """A runtime with one service, its keeper, and what was journaled of its number."""

    def __init__(self, runtime: Runtime, clock: Clock, prometheus: str = "") -> None:
        self.runtime, self.clock = runtime, clock
        self.hears = True
        news = ServiceNews(runtime)
        news.begin()
        self.keeper = LoadKeeper(runtime, news, lambda: self.hears, lambda at: 0.0, lambda: prometheus)
        self.scaled: list[tuple[int, str]] = []
        self.changed = asyncio.Event()
        self.arrived = 0
        runtime.subscribe(self._committed)

    def _committed(self, events: Any) -> None:
        for recorded in events:
            if isinstance(recorded, Recorded) and isinstance(recorded.event, ServiceScaled):
                self.scaled.append((recorded.event.wanted, recorded.event.why))
        self.changed.set()

    @property
    def service(self) -> Any:
        return self.runtime.state.services["chat"]

    async def until(self, good: Callable[[State], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not good(self.runtime.state):
                self.changed.clear()
                await self.changed.wait()

    async def deploy(self, replicas: str = "0-8", **options: Any) -> None:
        spec = build_service("chat", replicas, {"cpus": 1, "targets": TEN, "drain_s": 0.0} | options, OWNER)
        await self.runtime.do("test", lambda state, now: requests.deploy(state, ALICE, spec, now))

    async def ready(self, address: str = "127.0.0.1") -> None:
        """All replicas that run say that they are ready."""
        await self.until(lambda state: all(isinstance(job.phase, Running) for job in self._jobs()))
        for job in self._jobs():
            self.runtime.report([ReplicaProbed(job.id, job.generation, Health.READY, "", self.clock.now(), address)])
        await self.until(lambda state: self._ready() == self.service.wanted)

    def _jobs(self) -> list[Any]:
        return [self.runtime.state.jobs[each.job_id] for each in self.service.replicas.values() if each.job_id]

    def _ready(self) -> int:
        return sum(each.ready for each in standing(self.runtime.state, self.service))

    async def second(self, concurrency: float, arrived: int = 0) -> None:
        """What the router says of one more second, and a turn of the keeper."""
        self.clock.at += 1.0
        self.arrived += arrived
        load = messages.ServiceLoad(
            name="chat",
            in_flight=round(concurrency),
            concurrency=concurrency,
            rate=float(arrived),
            arrived=self.arrived,
        )
        self.keeper.load(messages.Load(serial=1, at=self.clock.at, seconds=1.0, services=(load,)))
        await self.turn()

    async def turn(self) -> None:
        """Until the keeper has asked, and what it wished is on disk."""
        for _ in range(3):
            await asyncio.sleep(0)
        await self.runtime.settled()
        await asyncio.sleep(0)

    async def seconds(self, count: int, concurrency: float) -> None:
        for _ in range(count):
            await self.second(concurrency)


@asynccontextmanager
async def staged(folder: Path, clock: Clock, prometheus: str = "") -> Any:
    store = SqliteStore(str(folder / "journal.db"), durable=False)
    engine = SimulatedEngine(VirtualClock(BEGAN), lambda job, allocation: Script())
    port = free_port()
    rules = Settings(memory_is_consumable=False, service_ports=(port, min(port + 999, 65_535)))
    config = build_cluster("4x8", settings=rules)
    engine.reconfigure(config)
    runtime = Runtime(store, engine, clock, rows_of)
    await runtime.start(config)
    stage = Stage(runtime, clock, prometheus)
    stage.keeper.begin()
    try:
        yield stage
    finally:
        await stage.keeper.close()
        await runtime.stop()
        store.close()


def play(tmp_path: Path, scenario: Callable[[Stage], Awaitable[None]], prometheus: str = "") -> None:
    async def run() -> None:
        async with staged(tmp_path, Clock(), prometheus) as stage:
            await scenario(stage)

    asyncio.run(run())


def test_a_load_that_doubles_asks_for_another_replica_within_two_reports(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.deploy("1-8")
        await stage.ready()
        await stage.seconds(30, 9.0)
        assert stage.service.wanted == 1
        await stage.seconds(2, 18.0)
        assert stage.service.wanted == 2
        assert "requests at once, one replica for each 10" in stage.scaled[-1][1]
        await stage.ready()

    play(tmp_path, scenario)


def test_an_even_load_writes_nothing_into_the_journal(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.deploy("1-8")
        await stage.ready()
        await stage.seconds(10, 25.0)
        assert stage.service.wanted == 3
        before = stage.runtime.state.seq, len(stage.scaled)
        await stage.seconds(60, 25.0)
        assert len(stage.scaled) == before[1]

    play(tmp_path, scenario)


def test_a_service_that_nobody_wants_sleeps_and_a_call_wakes_it_at_once(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.deploy("0-4")
        await stage.ready()
        await stage.second(5.0)
        await stage.second(0.0)
        stage.clock.at += 400.0  # silence of the router: no requests
        await stage.until(lambda state: stage.service.wanted == 0)
        assert stage.scaled[-1] == (0, "no request for 300 s")
        stage.keeper.wake("chat")
        await stage.until(lambda state: stage.service.wanted == 1)
        assert stage.scaled[-1] == (1, "a request came, and it had no replica")

    play(tmp_path, scenario)


def test_a_service_that_loads_is_not_idle_and_has_its_time_when_it_is_ready(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.deploy("0-4")
        await stage.until(lambda state: any(isinstance(job.phase, Running) for job in stage._jobs()))
        await stage.until(lambda state: "chat" in stage.keeper._watched)
        for _ in range(20):
            stage.clock.at += 100.0
            stage.keeper._ask_soon(stage.keeper._watched["chat"])
            await stage.turn()
        assert stage.service.wanted == 1, "nobody could ask it anything yet"
        await stage.ready()
        stage.clock.at += 200.0
        stage.keeper._ask_soon(stage.keeper._watched["chat"])
        await stage.turn()
        assert stage.service.wanted == 1
        stage.clock.at += 400.0
        await stage.until(lambda state: stage.service.wanted == 0)

    play(tmp_path, scenario)


def test_while_the_router_is_not_heard_nothing_gets_fewer(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.deploy("0-8", down_delay_s=0.0, panic_threshold=1000.0)
        await stage.ready()
        await stage.seconds(70, 35.0)
        assert stage.service.wanted == 4
        stage.hears = False
        for _ in range(20):
            stage.clock.at += 100.0
            stage.keeper._ask_soon(stage.keeper._watched["chat"])
            await stage.turn()
        assert stage.service.wanted == 4
        told = stage.keeper.explained("chat")
        assert told["cause"] == "missing"
        assert "nothing was measured for" in told["figures"][0]["missing"]
        stage.hears = True
        await stage.seconds(70, 5.0)
        assert stage.service.wanted < 4

    play(tmp_path, scenario)


def test_after_a_restart_nothing_gets_fewer_before_a_whole_window_was_seen(tmp_path: Path) -> None:
    async def run() -> None:
        clock = Clock()
        async with staged(tmp_path, clock) as stage:
            await stage.deploy("0-8", down_delay_s=0.0, panic_threshold=1000.0)
            await stage.seconds(5, 35.0)
            assert stage.service.wanted == 4
        async with staged(tmp_path, clock) as stage:
            await stage.seconds(58, 5.0)
            assert stage.service.wanted == 4
            assert stage.keeper.explained("chat")["cause"] == "unseen"
            await stage.seconds(5, 5.0)
            assert stage.service.wanted < 4

    asyncio.run(run())


def test_a_number_that_somebody_said_is_left_alone(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.deploy("0-8")
        await stage.runtime.do("test", lambda state, now: requests.scale(state, ALICE, "chat", 2))
        await stage.seconds(10, 60.0)
        assert stage.service.wanted == 2
        assert stage.keeper.explained("chat")["wanted"] == 6

    play(tmp_path, scenario)


def test_a_service_whose_number_cannot_change_is_not_watched(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.deploy("2")
        await stage.seconds(3, 100.0)
        assert not stage.keeper.explained("chat")
        assert not stage.scaled

    play(tmp_path, scenario)


def test_a_new_revision_changes_the_policy_and_keeps_what_was_seen(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.deploy("1-8")
        await stage.seconds(20, 25.0)
        assert stage.service.wanted == 3
        await stage.deploy("1-8", targets=(ScalingTarget(Measure.CONCURRENCY, 5.0),))
        await stage.until(lambda state: stage.service.wanted == 5)

    play(tmp_path, scenario)


def test_a_service_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.deploy("1-8")
        await stage.second(5.0)
        await stage.runtime.do("test", lambda state, now: requests.stop(state, ALICE, "chat"))
        await stage.second(50.0)
        assert not stage.keeper.explained("chat")

    play(tmp_path, scenario)


# --- figures that are asked for ---------------------------------------------------------------------------------------


@asynccontextmanager
async def answering(body: Callable[[bytes], bytes], port: int = 0) -> Any:
    """An HTTP server on loopback: its address."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body(head))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", port) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_a_query_of_prometheus_scales_and_its_failures_are_said(tmp_path: Path) -> None:
    said = b'{"status":"success","data":{"resultType":"vector","result":[{"value":[1,"430"]}]}}'
    asked: list[bytes] = []

    def body(head: bytes) -> bytes:
        asked.append(head)
        return said

    async def run() -> None:
        async with answering(body) as address, staged(tmp_path, Clock(), f"http://{address}/prom") as stage:
            await stage.deploy("0-8", targets=(ScalingTarget(Measure.QUERY, 100.0, 'sum(q{a="b"})'),))
            await stage.until(lambda state: stage.service.wanted == 5)
            assert '430 query sum(q{a="b"}), one replica for each 100' in stage.scaled[-1][1]
            assert b"GET /prom/api/v1/query?query=sum%28q%7Ba%3D%22b%22%7D%29&timeout=5s HTTP/1.0" in asked[0]

    asyncio.run(run())


def test_without_a_prometheus_it_says_so_and_keeps_its_number(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.deploy("0-8", targets=(ScalingTarget(Measure.QUERY, 100.0, "up"),))
        async with asyncio.timeout(PATIENCE_S):
            while "services.prometheus" not in str(stage.keeper.explained("chat")):
                await asyncio.sleep(0.01)
        assert stage.service.wanted == 1

    play(tmp_path, scenario)


def test_what_ready_replicas_export_is_added_up_over_them(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        target = ScalingTarget(Measure.METRIC, 4.0, "vllm:num_requests_waiting")
        await stage.deploy("1-8", targets=(target,))
        (replica,) = stage.service.replicas.values()
        async with answering(lambda head: b"vllm:num_requests_waiting 9\n", replica.port):
            await stage.ready()
            await stage.until(lambda state: stage.service.wanted == 3)
            assert "9 vllm:num_requests_waiting, one replica for each 4" in stage.scaled[-1][1]

    play(tmp_path, scenario)


def test_a_replica_that_exports_nothing_is_said_to(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.deploy("1-8", targets=(ScalingTarget(Measure.METRIC, 4.0, "depth"),))
        await stage.ready()
        async with asyncio.timeout(PATIENCE_S):
            while "1 of 1 replicas did not tell it" not in str(stage.keeper.explained("chat")):
                await asyncio.sleep(0.01)

    play(tmp_path, scenario)


@pytest.mark.parametrize("services", [100])
def test_many_idle_services_are_not_asked_about(tmp_path: Path, services: int) -> None:
    """Once all has been said of them, they wait for a word."""

    async def scenario(stage: Stage) -> None:
        shut = {"state": PartitionState.DOWN}
        await stage.runtime.do("test", lambda state, now: update_partition(state, ROOT, "main", shut))
        for number in range(services):
            spec = build_service(f"s{number}", "0-3", {"cpus": 1}, OWNER)
            await stage.runtime.do("test", lambda state, now, spec=spec: requests.deploy(state, ALICE, spec, now))
        await stage.until(lambda state: len(stage.keeper._watched) == services)
        stage.clock.at += 1000.0
        await stage.until(lambda state: all(each.wanted == 0 for each in state.services.values()))
        await stage.turn()
        assert all(watched.due > stage.clock.at + 1e6 for watched in stage.keeper._watched.values())

    play(tmp_path, scenario)
