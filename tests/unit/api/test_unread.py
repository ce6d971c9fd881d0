"""Long answers that nobody reads: the daemon keeps so much of them for each user and in all, and no more."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from tests.unit.api.conftest import Running

from bireme.api.routes import commands
from bireme.api.serving import unread
from bireme.api.serving.unread import SHORT, Unread
from bireme.commands import parcels
from bireme.commands.surroundings import around

SIZE = 8 * SHORT
SQUEUE = b"POST /v1/commands/squeue HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
SCRIPT = b"GET /v1/jobs/1/script HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@contextmanager
def asking(api: Running, request: bytes) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(30)
        sock.connect(api.transport.paths.socket)
        sock.sendall(request)
        yield sock


def squeue(*words: bytes) -> bytes:
    said = b"".join(parcels.pack(parcels.ARGUMENT, word) for word in words)
    return SQUEUE % (len(said), said)


def read(sock: socket.socket) -> tuple[int, bytes]:
    """The status and the body of the answer."""
    received = b""
    while piece := sock.recv(1 << 20):
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head[9:12]), body


def until_unread(api: Running, size: int) -> None:
    async def look() -> None:
        while api.app.state.unread.total != size:
            await asyncio.sleep(0)

    asyncio.run_coroutine_threadsafe(look(), api.loop).result(30)


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    def says_much(argv: list[str]) -> int:
        around().write_bytes(b"x" * SIZE)
        return 0

    monkeypatch.setitem(commands.COMMANDS, "squeue", says_much)
    monkeypatch.setattr(unread, "MOST_EACH", 2 * SIZE)


@pytest.mark.usefixtures("talkative")
def test_who_does_not_read_what_commands_said_is_sent_back(api: Running) -> None:
    with ExitStack() as open_ones:
        said = parcels.pack(parcels.OUTPUT, b"x" * SIZE) + parcels.pack(parcels.EXIT, b"0")
        deaf = [open_ones.enter_context(asking(api, squeue(b"%d" % number))) for number in range(2)]
        until_unread(api, 2 * len(said))
        for number in range(5):
            with asking(api, squeue(b"more", b"%d" % number)) as another:
                assert read(another) == (200, parcels.pack(parcels.NEAR, b""))
        assert read(deaf[0]) == read(deaf[1]) == (200, said)
        until_unread(api, 0)
        with asking(api, squeue(b"again")) as again:
            assert read(again) == (200, said)


@pytest.mark.usefixtures("talkative")
def test_what_many_read_is_kept_once(api: Running) -> None:
    with ExitStack() as open_ones:
        said = parcels.pack(parcels.OUTPUT, b"x" * SIZE) + parcels.pack(parcels.EXIT, b"0")
        readers = [open_ones.enter_context(asking(api, squeue())) for _ in range(10)]
        until_unread(api, len(said))
        assert [read(reader) for reader in readers] == [(200, said)] * 10


def test_who_does_not_read_long_answers_is_refused_further_ones(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "#!/bin/sh\n" + "#" * SIZE
    api.transport.post("/v1/jobs", {"spec": {"script": ""}, "script": script})
    monkeypatch.setattr(unread, "MOST_EACH", 2 * SIZE)
    with ExitStack() as open_ones:
        deaf = [open_ones.enter_context(asking(api, SCRIPT)) for _ in range(2)]
        until_unread(api, 2 * len(script))
        with asking(api, SCRIPT) as another:
            status, body = read(another)
        assert (status, json.loads(body)["error"]["message"]) == (429, "Too many large answers at once")
        assert api.transport.get("/v1/ping")["cluster"] == "tiny"
        assert read(deaf[0]) == (200, script.encode())
    until_unread(api, 0)
    with asking(api, SCRIPT) as again:
        assert read(again) == (200, script.encode())


def test_all_together_leave_one_answer_to_each() -> None:
    kept, answers = Unread(), [bytes([number]) * (unread.MOST_EACH // 2) for number in range(17)]
    with ExitStack() as held:
        for uid, answer in enumerate(answers):
            assert not kept.is_full(uid)
            held.enter_context(kept.held(uid, answer))
        assert kept.total > unread.MOST
        assert kept.is_full(3)
        assert not kept.is_full(99)
    assert (kept.total, kept.is_full(3)) == (0, False)
