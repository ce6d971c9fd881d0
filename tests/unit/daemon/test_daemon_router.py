"""The daemon's link with a real router: started when it is needed, found again, told every change, and heard."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import Callable, Container, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bireme.daemon.paths import Paths
from bireme.daemon.router import process
from bireme.daemon.router.link import RouterLink, summary
from bireme.daemon.router.process import RouterPlan
from bireme.daemon.settings import Settings, SettingsError
from bireme.router import messages
from bireme.router.census import living

DEADLINE_S = 60.0


class Heard:
    """What the router told, in its order."""

    def __init__(self) -> None:
        self.woken: list[str] = []
        self.all_drained: list[str] = []
        self.loads = 0
        self.all_routed: list[Container[str]] = []

    def routed(self, replicas: Container[str]) -> None:
        self.all_routed.append(replicas)

    def load(self, load: messages.Load) -> None:
        self.loads += 1

    def wake(self, service: str) -> None:
        self.woken.append(service)

    def drained(self, replica: str) -> None:
        self.all_drained.append(replica)

    def trouble(self, told: messages.Trouble) -> None:
        pass


class Daemon:
    """What the daemon does with its link, without the rest of it."""

    def __init__(self, plan: RouterPlan, *services: messages.Service) -> None:
        self.plan = plan
        self.services = services
        self.heard = Heard()
        self.link = RouterLink(lambda: self.plan, lambda: self.services, self.heard)
        self.link.begin()

    def route(self, *services: messages.Service) -> None:
        self.services = services
        self.link.changed()

    @property
    def address(self) -> tuple[str, int]:
        assert self.link.welcome is not None
        return self.link.welcome.host, self.link.welcome.port


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[RouterPlan]:
    paths = Paths(str(tmp_path))
    paths.create()
    plan = RouterPlan(paths.router, paths.router_log, "127.0.0.1", 0, workers=1)
    yield plan
    process.end(plan.folder, patience_s=10.0)


async def until(condition: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def chat(*replicas: messages.Replica) -> messages.Service:
    return messages.Service(name="chat", replicas=replicas)


async def get(address: tuple[str, int], path: str) -> bytes:
    """The whole answer to a GET."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


async def backend(text: bytes) -> tuple[asyncio.Server, int]:
    """A replica that says this to whatever it is asked."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(text), text))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


def test_no_router_is_started_before_there_is_a_service(plan: RouterPlan) -> None:
    async def story() -> None:
        daemon = Daemon(plan)
        await asyncio.sleep(0)
        daemon.route()
        await until(lambda: daemon.link._pushing is None, "the table to be looked at")
        assert not os.path.exists(plan.folder)
        assert summary(daemon.link) == {}
        daemon.route(chat())
        await until(lambda: daemon.link.welcome, "a router")
        await daemon.link.close()

    run(story())


def test_requests_reach_what_the_table_says(plan: RouterPlan) -> None:
    async def story() -> None:
        server, port = await backend(b"hello")
        daemon = Daemon(plan, chat(messages.Replica(id="1.1", host="127.0.0.1", port=port)))
        assert not daemon.link.routes("chat")
        await until(lambda: daemon.link.routes("chat"), "the table to be taken")
        assert not daemon.link.routes("other")
        assert (await get(daemon.address, "/chat/x")).endswith(b"hello")
        assert summary(daemon.link)["url"] == "http://{}:{}".format(*daemon.address)
        daemon.route(chat(messages.Replica(id="1.1", host="127.0.0.1", port=port, state="draining")))
        await until(lambda: daemon.heard.all_drained == ["1.1"], "the replica to be drained")
        await daemon.link.close()
        server.close()

    run(story())


def test_the_router_goes_on_without_its_daemon_and_is_found_by_the_next(plan: RouterPlan) -> None:
    async def story() -> None:
        server, port = await backend(b"hello")
        service = chat(messages.Replica(id="1.1", host="127.0.0.1", port=port))
        daemon = Daemon(plan, service)
        await until(lambda: daemon.link._took, "the table to be taken")
        address, pid = daemon.address, summary(daemon.link)["pid"]
        await daemon.link.close()
        assert (await get(address, "/chat/")).endswith(b"hello")
        after = Daemon(plan, service)
        await until(lambda: after.link.welcome, "the router to be found")
        assert summary(after.link)["pid"] == pid
        after.route()
        await until(lambda: after.link._took >= after.link._serial and after.link._told == (), "the table to be taken")
        assert b" 404 " in (await get(address, "/chat/")).partition(b"\r\n")[0]
        await after.link.close()
        server.close()

    run(story())


def test_a_killed_router_comes_back_and_serves(plan: RouterPlan) -> None:
    async def story() -> None:
        server, port = await backend(b"hello")
        daemon = Daemon(plan, chat(messages.Replica(id="1.1", host="127.0.0.1", port=port)))
        await until(lambda: daemon.link._took, "the table to be taken")
        first = daemon.link.welcome
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: daemon.link.welcome and daemon.link.welcome.pid != first.pid, "another router")
        await until(lambda: daemon.link._took, "the table to be taken")
        assert (await get(daemon.address, "/chat/")).endswith(b"hello")
        await daemon.link.close()
        server.close()

    run(story())


def test_one_that_does_not_answer_is_told_of_and_replaced_and_no_request_fails(plan: RouterPlan) -> None:
    """Its supervisor is stopped, as by a debugger: its workers go on by the table that they have."""

    async def story() -> None:
        server, port = await backend(b"hello")
        replica = messages.Replica(id="1.1", host="127.0.0.1", port=port)
        daemon = Daemon(plan, chat(replica))
        await until(lambda: daemon.link.routes("chat"), "the table to be taken")
        first = daemon.link.welcome
        assert first is not None
        os.kill(first.pid, signal.SIGSTOP)
        told = len(daemon.heard.all_routed)
        daemon.route(chat(messages.Replica(id="1.1", host="127.0.0.1", port=port, state="draining")))
        await until(lambda: f"the router does not answer (pid {first.pid})" in daemon.link.warning, "the warning")
        assert (await get(daemon.address, "/chat/")).endswith(b"hello")
        assert len(daemon.heard.all_routed) == told, "nobody has taken it out of the table"
        await until(lambda: not daemon.link.welcome, "its end")
        assert summary(daemon.link) == {"warning": "the router is being started"}
        await until(lambda: daemon.heard.all_routed[-1] == frozenset(), "the next one to take the table")
        assert daemon.address == (first.host, first.port)
        assert process.pid_of(plan.folder) != first.pid
        await daemon.link.close()
        server.close()

    run(story())


def test_replicas_are_said_to_be_routed_when_the_table_is_taken_and_nobody_when_there_is_no_router(
    plan: RouterPlan,
) -> None:
    async def story() -> None:
        replicas = [messages.Replica(id=f"{number}.1", host="127.0.0.1", port=1) for number in (1, 2)]
        daemon = Daemon(plan, chat(*replicas))
        await until(lambda: len(daemon.heard.all_routed) > 1, "the table to be taken, and looked at again")
        assert all(each == {"1.1", "2.1"} for each in daemon.heard.all_routed)
        await daemon.link.end()
        with closing(socket.create_server(("127.0.0.1", 0))) as other:
            port = other.getsockname()[1]
            after = Daemon(RouterPlan(plan.folder, plan.log, "127.0.0.1", port, workers=1), chat(*replicas))
            await until(lambda: after.heard.all_routed, "that nobody routes")
            assert after.heard.all_routed[0] == ()
            await after.link.close()

    run(story())


def test_a_port_that_is_taken_is_told_and_tried_again(plan: RouterPlan) -> None:
    async def story() -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as other:
            port = other.getsockname()[1]
            daemon = Daemon(RouterPlan(plan.folder, plan.log, "127.0.0.1", port, workers=1), chat())
            await until(lambda: daemon.link.problem, "the problem")
            assert f"127.0.0.1:{port} is taken by another program" in str(summary(daemon.link)["problem"])
        await until(lambda: daemon.link.welcome, "the router")
        assert "problem" not in summary(daemon.link)
        await daemon.link.close()

    run(story())


def test_a_router_that_listens_elsewhere_than_the_settings_say_is_told_where_to(plan: RouterPlan) -> None:
    async def story() -> None:
        daemon = Daemon(plan, chat())
        await until(lambda: daemon.link.welcome, "the router")
        pid = summary(daemon.link)["pid"]
        await daemon.link.close()
        after = Daemon(RouterPlan(plan.folder, plan.log, "127.0.0.2", 0, workers=1), chat())
        await until(lambda: after.link.welcome and after.link.welcome.host == "127.0.0.2", "the other address")
        assert summary(after.link)["pid"] == pid
        assert b" 200 " in (await get(after.address, "/-/health")).partition(b"\r\n")[0]
        await after.link.close()

    run(story())


def test_one_that_runs_becomes_what_the_settings_say_when_they_change(plan: RouterPlan) -> None:
    async def story() -> None:
        daemon = Daemon(plan, chat())
        await until(lambda: daemon.link.welcome, "the router")
        before = daemon.link.welcome
        daemon.link.reconsider()
        assert daemon.link.welcome is before
        daemon.plan = RouterPlan(plan.folder, plan.log, "127.0.0.2", 0, workers=2)
        daemon.link.reconsider()
        await until(lambda: daemon.link.welcome and daemon.link.welcome.host == "127.0.0.2", "the other address")
        assert daemon.link.welcome is not None
        assert daemon.link.welcome.workers == 2
        await daemon.link.close()

    run(story())


def test_what_the_settings_say_and_cannot_be_is_told_and_the_router_goes_on(plan: RouterPlan) -> None:
    async def story() -> None:
        server, port = await backend(b"hello")
        daemon = Daemon(plan, chat(messages.Replica(id="1.1", host="127.0.0.1", port=port)))
        await until(lambda: daemon.link._took, "the table to be taken")
        address = daemon.address
        with closing(socket.create_server(("127.0.0.1", 0))) as other:
            taken = other.getsockname()[1]
            daemon.plan = RouterPlan(plan.folder, plan.log, "127.0.0.1", taken, workers=1)
            daemon.link.reconsider()
            await until(lambda: daemon.link.warning, "the warning")
            assert f"still listens at http://127.0.0.1:{address[1]}" in daemon.link.warning
            assert f"127.0.0.1:{taken} is taken by another program" in daemon.link.warning
            assert (await get(address, "/chat/")).endswith(b"hello")
            daemon.route()
            await until(lambda: daemon.link._took == daemon.link._serial and not daemon.link._told, "another table")
        await until(lambda: daemon.address[1] == taken, "the other address, when it is free")
        assert not daemon.link.warning
        await daemon.link.close()
        server.close()

    run(story())


def test_workers_without_a_supervisor_are_ended_with_the_router(plan: RouterPlan) -> None:
    async def story() -> None:
        daemon = Daemon(plan, chat())
        await until(lambda: daemon.link._took, "the table to be taken")
        address, pid = daemon.address, process.pid_of(plan.folder)
        assert pid is not None
        await daemon.link.close()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not process.is_running(plan.folder), "its end")
        assert b" 200 " in (await get(address, "/-/health")).partition(b"\r\n")[0]
        assert process.end(plan.folder) is not None
        with pytest.raises(ConnectionRefusedError):
            await get(address, "/-/health")

    run(story())


def test_a_router_whose_folder_is_gone_is_found_and_ended_by_the_process_table(plan: RouterPlan) -> None:
    """It is stopped too, so that it cannot make its folder again."""

    async def story() -> None:
        daemon = Daemon(plan, chat())
        await until(lambda: daemon.link._took, "the table to be taken")
        assert daemon.link.welcome is not None
        pid = daemon.link.welcome.pid
        await daemon.link.close()
        os.kill(pid, signal.SIGSTOP)
        shutil.rmtree(plan.folder)
        assert process.pid_of(plan.folder) == pid
        assert len(living(plan.folder).pids) == 2
        assert process.end(plan.folder) == pid
        await until(lambda: not living(plan.folder), "its workers' end")

    run(story())


def test_a_request_for_a_service_without_replicas_wakes_it(plan: RouterPlan) -> None:
    async def story() -> None:
        server, port = await backend(b"hello")
        daemon = Daemon(plan, chat())
        await until(lambda: daemon.link._took, "the table to be taken")
        asking = asyncio.create_task(get(daemon.address, "/chat/"))
        await until(lambda: daemon.heard.woken == ["chat"], "the service to be woken")
        daemon.route(chat(messages.Replica(id="1.1", host="127.0.0.1", port=port)))
        assert (await asking).endswith(b"hello")
        await until(lambda: daemon.heard.loads, "the load")
        await daemon.link.close()
        server.close()

    run(story())


def test_nobody_else_may_come_near_the_router(plan: RouterPlan) -> None:
    async def story() -> None:
        daemon = Daemon(plan, chat())
        await until(lambda: daemon.link.welcome, "the router")
        assert os.stat(plan.folder).st_mode & 0o777 == 0o700
        assert os.stat(plan.socket).st_mode & 0o077 == 0
        assert os.stat(plan.log).st_mode & 0o077 == 0
        await daemon.link.close()

    run(story())


def test_end_ends_it(plan: RouterPlan) -> None:
    async def story() -> None:
        daemon = Daemon(plan, chat())
        await until(lambda: daemon.link.welcome, "the router")
        assert process.pid_of(plan.folder) == summary(daemon.link)["pid"]
        await daemon.link.end()
        assert not process.is_running(plan.folder)
        assert process.end(plan.folder) is None

    run(story())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Settings(router_address="8600"), "is no IP address with a port"),
        (Settings(router_address="localhost:8600"), "is no IP address with a port"),
        (Settings(router_address="127.0.0.1:86000"), "is no IP address with a port"),
        (Settings(router_tls_key="/key.pem"), "are given together"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_a_sentence(settings: Settings, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        RouterPlan.of(Paths("/h"), settings)


def test_the_settings_say_how_it_is_started() -> None:
    settings = Settings(router_address="[::1]:8443", router_tls_certificate="/c", router_tls_key="/k")
    plan = RouterPlan.of(Paths("/h"), settings)
    assert (plan.folder, plan.host, plan.port) == ("/h/router", "::1", 8443)
    assert plan.command()[-4:] == ["--tls-certificate", "/c", "--tls-key", "/k"]


def test_a_full_disk_stops_no_routing_and_is_told_until_it_is_over(plan: RouterPlan) -> None:
    """`/dev/full` in the place of the table's file: every write to it is answered as by a disk without room."""

    async def story() -> None:
        server, port = await backend(b"hello")
        daemon = Daemon(plan, chat())
        await until(lambda: daemon.link._took, "the table to be taken")
        table = Path(plan.folder) / "table"
        before = table.read_bytes()
        fresh = Path(f"{table}.new")
        fresh.symlink_to("/dev/full")
        daemon.route(chat(messages.Replica(id="1.1", host="127.0.0.1", port=port)))
        await until(lambda: daemon.link.warning, "the warning")
        assert str(summary(daemon.link)["warning"]) == (
            f"the router answers, but its table cannot be written to {table}: No space left on device"
        )
        await until(lambda: daemon.link._took == daemon.link._serial, "the table to be taken")
        assert (await get(daemon.address, "/chat/")).endswith(b"hello")
        assert table.read_bytes() == before
        await daemon.link.close()
        after = Daemon(plan, *daemon.services)
        await until(lambda: after.link.warning, "the next daemon to hear of it")
        fresh.unlink()
        await until(lambda: not after.link.warning, "the table to be written")
        assert "warning" not in summary(after.link)
        assert b"1.1" in table.read_bytes()
        assert Path(plan.log).read_text().count("cannot be written") == 1
        await after.link.close()
        server.close()

    run(story())
