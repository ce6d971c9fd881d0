"""A cluster for the API to serve that has no engine, no planner and no thread: requests are decided and journaled."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from bireme.api.app import create_app
from bireme.api.cluster import Decide, Service
from bireme.api.serving.peers import SCOPE_KEY, Peer
from bireme.api.serving.server import Server, listen
from bireme.client.transport import Transport
from bireme.core.lifecycle.apply import apply
from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig
from bireme.core.model.events import ClusterConfigured, Event, NodeRegistered, Recorded
from bireme.core.model.refusals import Refusal
from bireme.core.state.state import State
from bireme.ports import Capabilities, StepEndpoint
from bireme.store.journal import SqliteStore

NODES = tuple(NodeConfig(name=f"n{n}", cpus=4, cores_per_socket=4, memory_mib=1000) for n in (1, 2))
PARTITIONS = (
    PartitionConfig(name="main", nodes=("n1", "n2"), default=True),
    PartitionConfig(name="small", nodes=("n1",)),
)


class StandingClock:
    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time


class NoEngine:
    name = "none"
    capabilities = Capabilities()
    problem = ""
    about = ""

    def step_endpoints(self, job_id: int, step_id: int) -> tuple[StepEndpoint, ...]:
        return tuple(StepEndpoint(node.name, f"unix:/{node.name}", f"unix:/pod/{node.name}") for node in NODES)

    async def live_usage(self, job_id: int) -> dict[str, Any]:
        return {"batch": {"max_rss_kib": 7}}


class SmallCluster:
    def __init__(self, store: SqliteStore) -> None:
        self.state = State()
        self.clock = StandingClock()
        self.engine = NoEngine()
        self.store = store
        self.unwritable = ""
        self.fail_with: Exception | None = None
        self._subscribers: list[Callable[[Sequence[Recorded]], None]] = []
        self.record(
            "configuration", [ClusterConfigured(ClusterConfig(name="tiny", nodes=NODES, partitions=PARTITIONS))]
        )
        self.record("engine", [NodeRegistered(node.name, 1000.0) for node in NODES])

    async def do(self, cause: str, decide: Decide, *, own: bool = False) -> Sequence[Recorded]:
        if self.fail_with is not None:
            raise self.fail_with
        return self.record(cause, decide(self.state, self.clock.now()))

    async def do_all(self, cause: str, decides: Sequence[Decide]) -> list[Sequence[Recorded] | Refusal]:
        answers: list[Sequence[Recorded] | Refusal] = []
        for decide in decides:
            try:
                answers.append(await self.do(cause, decide))
            except Refusal as refusal:
                answers.append(refusal)
        return answers

    def record(self, cause: str, events: Sequence[Event]) -> list[Recorded]:
        recorded = []
        for event in events:
            recorded.append(Recorded(self.state.seq + 1, self.clock.now(), cause, event))
            apply(self.state, recorded[-1])
        self.store.append([(one.at, one.cause, one.event) for one in recorded], [])
        for subscriber in self._subscribers:
            subscriber(recorded)
        return recorded

    def subscribe(self, subscriber: Callable[[Sequence[Recorded]], None]) -> Callable[[], None]:
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)


class Running:
    """A served API: the cluster behind it, a transport to it, and a way to do things on its loop."""

    def __init__(self, cluster: SmallCluster, loop: asyncio.AbstractEventLoop, home: str) -> None:
        self.cluster = cluster
        self.loop = loop
        self.home = home
        self.transport = Transport(home, timeout_s=20, tool="test")
        self.shutdowns: list[bool] = []
        self.of_router: dict[str, str] = {}
        """What else is said of it."""
        self.server: Server
        self.app: Starlette

    def happen(self, *events: Event, cause: str = "engine") -> None:
        """Something happens, as if the engine had reported it."""
        done = threading.Event()

        def record() -> None:
            self.cluster.record(cause, events)
            done.set()

        self.loop.call_soon_threadsafe(record)
        assert done.wait(10)


async def ask_as(
    app: Starlette, method: str, path: str, who: int | Peer, body: Any = None, headers: Sequence[Any] = ()
) -> tuple[int, str]:
    """Asks the application without a socket: whoever asks is who the test says. (status, text)"""
    peer = who if isinstance(who, Peer) else Peer(who, who, 1)
    place, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": place, "raw_path": place.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(b"host", b"x"), *headers], "client": None, "server": None, SCOPE_KEY: peer,
    }  # fmt: skip
    said: list[dict[str, Any]] = []
    data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
    sent = [{"type": "http.request", "body": data}]

    async def receive() -> dict[str, Any]:
        return sent.pop() if sent else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        said.append(message)

    await app(scope, receive, send)
    text = b"".join(message.get("body", b"") for message in said[1:]).decode()
    return said[0]["status"], text.replace('": ', '":')


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Running]:
    home = tmp_path / "home"
    (home / "run").mkdir(parents=True)
    store = SqliteStore(str(home / "journal.db"))
    loop = asyncio.new_event_loop()
    cluster = SmallCluster(store)
    running = Running(cluster, loop, str(home))
    service = Service(
        version="1.2.3", pid=42, up_since=900.0, owner_uid=0, max_body_bytes=8_000_000,
        shutdown=running.shutdowns.append, router_url=lambda: "http://router:8600",
        router_hosts=lambda: ["chat.org", "*.models.org"], not_for_services=lambda: ["pages.org"],
        router=lambda: {"url": "http://router:8600", **running.of_router},
    )  # fmt: skip
    app = running.app = create_app(cluster, store, service)  # type: ignore[arg-type]
    server = running.server = Server(app)
    loop.run_until_complete(server.start(listen(running.transport.paths.socket, for_everyone=True)))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield running
    running.transport.close()
    loop.call_soon_threadsafe(app.state.context.live.close)
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    store.close()
