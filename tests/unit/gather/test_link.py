"""The gatherer's conversation with a daemon that lets it in and cuts it off again: how often that is said."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bireme.gather import link as linking
from bireme.gather import messages as m
from bireme.gather.link import Link
from bireme.gather.spool import Spool

Answer = Callable[[int, asyncio.StreamWriter], None]


async def spoken(folder: Path, answer: Answer, times: int) -> None:
    """Until the gatherer has come so many times."""
    came, enough = 0, asyncio.Event()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        await reader.read(4)
        came += 1
        answer(came, writer)
        await writer.drain()
        writer.close()
        if came == times:
            enough.set()

    async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
        return *await asyncio.open_unix_connection(str(folder / "door")), ""

    server = await asyncio.start_unix_server(converse, str(folder / "door"))
    talking = asyncio.create_task(Link(dial, Spool(folder), "n1", lambda _: None, _nowhere).run())
    await asyncio.wait((talking, asyncio.create_task(enough.wait())), return_when=asyncio.FIRST_COMPLETED)
    assert not talking.done()
    while not talking.done():  # one that comes together with the end of a connection is not heard
        talking.cancel()
        await asyncio.sleep(0)
    server.close()


async def _nowhere(_: str) -> None:
    return None


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    monkeypatch.setattr(linking, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(linking, "_MOST_PAUSE_S", 0.0)
    caplog.set_level(logging.INFO, "bireme.gather")
    return lambda: [record.getMessage() for record in caplog.records]


def run(told: Awaitable[None]) -> None:
    async def whole() -> None:
        await told

    asyncio.run(whole())


def test_a_daemon_that_cuts_off_after_every_welcome_is_told_of_once(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    def answer(came: int, writer: asyncio.StreamWriter) -> None:
        writer.write(m.encode(m.Welcome(kept=0)))

    run(spoken(tmp_path, answer, 6))
    assert len(said()) == 2, said()
