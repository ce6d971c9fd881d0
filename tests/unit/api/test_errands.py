"""Commands in the daemon's threads: who waits for them, for whom they give way, and who is left alone with theirs."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from tests.unit.api.conftest import Running

from bireme.api import errands
from bireme.api.errands import THREADS, Errands, GoneError, Stay, Told
from bireme.api.routes import commands
from bireme.commands import parcels, sacct
from bireme.commands.surroundings import NearError, around
from bireme.slurm.hostlist import expand

TOLD = Told(b"told", personal=False)


def request(command: str, *words: bytes) -> bytes:
    said = b"".join(parcels.pack(parcels.ARGUMENT, word) for word in words)
    head = f"POST /v1/commands/{command} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(said)}"
    return head.encode() + b"\r\n\r\n" + said


@contextmanager
def asking(api: Running, sent: bytes) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(30)
        sock.connect(api.transport.paths.socket)
        sock.sendall(sent)
        yield sock


def read(sock: socket.socket) -> list[tuple[str, bytes]]:
    received = b""
    while piece := sock.recv(1 << 20):
        received += piece
    return parcels.unpack(received.partition(b"\r\n\r\n")[2])


def until_connections(api: Running, count: int) -> None:
    """The daemon has noticed that the others are closed."""

    async def look() -> None:
        while sum(not each.transport.is_closing() for each in api.server._state.connections) != count:  # type: ignore[union-attr]
            await asyncio.sleep(0)

    asyncio.run_coroutine_threadsafe(look(), api.loop).result(30)


# -- for how long ----------------------------------------------------------------------------------------------------


def goes_on(stay: Stay) -> Told:
    """Until it may not."""
    stay.begin()
    while True:
        stay.go_on()
        threading.Event().wait(0.001)


def test_who_takes_long_gives_way_when_others_have_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errands, "LONG_S", 0.0)

    async def crowd() -> None:
        made = Errands(lambda: 1)
        heavy = [asyncio.ensure_future(made.run(uid, goes_on)) for uid in (1, 1, 2, 2, 3, 4)]
        assert len(heavy) == THREADS
        while made._slots._free:
            await asyncio.sleep(0)
        assert await made.run(99, lambda stay: TOLD) == TOLD
        done, going_on = await asyncio.wait(heavy, return_when=asyncio.FIRST_COMPLETED)
        assert {type(each.exception()) for each in done} == {NearError}
        monkeypatch.setattr(errands, "MOST_COMPUTED_S", 0.0)
        assert {type(each) for each in await asyncio.gather(*going_on, return_exceptions=True)} <= {NearError}

    asyncio.run(asyncio.wait_for(crowd(), 60))


def test_two_users_leave_threads_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long theirs run: nobody has to give way."""

    async def crowd() -> None:
        made, end = Errands(lambda: 1), threading.Event()

        def waits(stay: Stay) -> Told:
            end.wait(60)
            return TOLD

        heavy = [asyncio.ensure_future(made.run(uid, waits)) for uid in (1, 2) for _ in range(8)]
        await asyncio.sleep(0)
        assert await asyncio.gather(*(made.run(uid, lambda stay: TOLD) for uid in (3, 4, 5, 3))) == [TOLD] * 4
        end.set()
        assert await asyncio.gather(*heavy) == [TOLD] * 16

    asyncio.run(asyncio.wait_for(crowd(), 60))


def test_who_computes_for_long_is_sent_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errands, "MOST_COMPUTED_S", 0.001)

    async def alone() -> None:
        with pytest.raises(NearError):
            await Errands(lambda: 1).run(1, goes_on)

    asyncio.run(asyncio.wait_for(alone(), 60))


def test_memory_is_given_back_when_commands_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back = threading.Event()
    monkeypatch.setattr(errands, "SETTLE_S", 0.0)
    monkeypatch.setattr(errands.memory, "give_back", given_back.set)

    async def look() -> None:
        await Errands(lambda: 1).run(1, lambda stay: TOLD)
        assert await asyncio.to_thread(given_back.wait, 30)

    asyncio.run(look())


def test_memory_can_be_given_back() -> None:
    errands.memory.give_back()


# -- for whom --------------------------------------------------------------------------------------------------------


def test_a_command_ends_when_its_client_has_left(
    api: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def endless(argv: list[str]) -> int:
        begun.set()
        try:
            while True:
                around().go_on()
                threading.Event().wait(0.001)
        finally:
            ended.set()

    monkeypatch.setitem(commands.COMMANDS, "sstat", endless)
    with asking(api, request("sstat")):
        assert begun.wait(30)
    assert ended.wait(30)
    assert caplog.text == ""


def test_a_command_ends_when_its_client_leaves_while_it_waits_for_an_answer(
    api: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def never() -> dict[str, object]:
        begun.set()
        await asyncio.Event().wait()
        return {}

    def waiting(argv: list[str]) -> int:
        try:
            around().wait_for(never())  # type: ignore[attr-defined]
        finally:
            ended.set()
        return 0

    monkeypatch.setitem(commands.COMMANDS, "sstat", waiting)
    with asking(api, request("sstat")):
        assert begun.wait(30)
    assert ended.wait(30)
    assert caplog.text == ""


def test_what_nobody_waits_for_is_not_begun(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Semaphore(0), threading.Event()
    ran: list[str] = []

    def slow(argv: list[str]) -> int:
        ran.append(argv[0])
        begun.release()
        go.wait(60)
        return 0

    monkeypatch.setitem(commands.COMMANDS, "sstat", slow)
    with ExitStack() as open_ones:
        first = [open_ones.enter_context(asking(api, request("sstat", b"first"))) for _ in range(2)]
        assert begun.acquire(timeout=30)
        assert begun.acquire(timeout=30)
        for _ in range(5):
            with asking(api, request("sstat", b"left")):
                until_connections(api, 3)
            until_connections(api, 2)
        last = open_ones.enter_context(asking(api, request("sstat", b"last")))
        go.set()
        assert [read(sock)[-1] for sock in (*first, last)] == [(parcels.EXIT, b"0")] * 3
    assert ran == ["first", "first", "last"]


def test_who_asked_first_and_left_spoils_nobodys_squeue(
    api: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = {"name": "x" * 900, "comment": "y" * 900}
    api.transport.post("/v1/jobs", {"jobs": [{"spec": spec}] * 300, "script": "x"})
    api.transport.close()
    begun, go = threading.Event(), threading.Event()

    def lists(argv: list[str]) -> int:
        begun.set()
        go.wait(60)
        around().write(str(len(around().port().get("/v1/jobs")["jobs"])))
        return 0

    monkeypatch.setitem(commands.COMMANDS, "squeue", lists)
    with ExitStack() as left:
        left.enter_context(asking(api, request("squeue")))
        assert begun.wait(30)
        with asking(api, request("squeue")) as second:
            until_connections(api, 2)
            left.close()
            until_connections(api, 1)
            go.set()
            assert read(second) == [(parcels.OUTPUT, b"300"), (parcels.EXIT, b"0")]
    assert caplog.text == ""


def test_who_comes_when_the_first_has_just_left_is_answered() -> None:
    async def look() -> None:
        made, gone = Errands(lambda: 1), False

        def first(stay: Stay) -> Told:
            raise GoneError

        task = asyncio.ensure_future(made.look("squeue", 1, first, lambda: gone))
        await asyncio.sleep(0)
        assert await made.look("squeue", 2, lambda stay: TOLD) == TOLD
        with pytest.raises(GoneError):
            await task

    asyncio.run(look())


# -- once ------------------------------------------------------------------------------------------------------------


def test_a_hostlist_is_expanded_once_for_all_jobs(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        api.transport.post("/v1/jobs", {"spec": {"script": ""}, "script": "#!/bin/sh\n"})
    expanded: list[str] = []

    def counting(text: str) -> list[str]:
        expanded.append(text)
        return expand(text)

    monkeypatch.setattr(sacct, "expand", counting)
    with asking(api, request("sacct", b"-a", b"-D", b"-n", b"-S", b"1970-01-01", b"-N", b"n[1-2]")) as sock:
        assert read(sock)[-1] == (parcels.EXIT, b"0")
    assert expanded.count("n[1-2]") == 1
    assert len(expanded) == 4, "and what each job has"


def test_a_job_named_again_and_again_is_asked_for_once(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    made = commands.Errand.ask

    def counting(self: commands.Errand, method: str, path: str, *more: object) -> commands.Asked:
        asked.append(path)
        return made(self, method, path, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(commands.Errand, "ask", counting)
    with asking(api, request("sstat", b"-j", b",".join([b"7"] * 300))) as sock:
        assert read(sock)[-1] == (parcels.EXIT, b"0")
    assert asked == ["/v1/jobs/7/steps"]


def test_a_name_given_again_and_again_is_looked_up_once(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def counting(self: commands.Errand, name: str) -> int | None:
        looked.append(name)
        return None

    monkeypatch.setattr(commands.Errand, "user_id", counting)
    with asking(api, request("squeue", b"-u", b",".join([b"x", b"y"] * 300))) as sock:
        assert read(sock)[-1] == (parcels.EXIT, b"0")
    assert looked == ["x", "y"]
