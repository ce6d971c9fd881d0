"""The gatherer's conversation with a daemon that lets it in and cuts it off again: how often that is said."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bireme.gather import link as linking
from bireme.gather import messages as m
from bireme.gather.link import LeaveError, Link
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
    talking.cancel()
    await asyncio.wait((talking,))
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


class Wire:
    """A daemon's end of connections, without a socket: what it says comes in one read."""

    def __init__(self, *said: m.Said) -> None:
        self._said = b"".join(map(m.encode, said))
        self.readers: list[asyncio.StreamReader] = []

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
        reader = asyncio.StreamReader()
        reader.feed_data(self._said)
        self.readers.append(reader)
        return reader, _Deaf(), ""  # type: ignore[return-value]


class _Deaf:
    def write(self, data: bytes) -> None:
        return None

    async def drain(self) -> None:
        return None

    def close(self) -> None:
        return None


def test_what_comes_together_with_the_welcome_is_heard(tmp_path: Path) -> None:
    async def story() -> list[float]:
        paces: list[float] = []
        wire = Wire(m.Welcome(interval_s=10.0), m.Pace(interval_s=3.0), m.Leave())
        with pytest.raises(LeaveError):
            await Link(wire.dial, Spool(tmp_path), "n1", paces.append, _nowhere).run()
        return paces

    assert asyncio.run(story()) == [10.0, 3.0]


@pytest.mark.parametrize("later", range(8))
def test_a_cancel_that_comes_with_the_end_of_a_connection_is_heard(tmp_path: Path, later: int) -> None:
    """`later`: so many turns of the loop after it."""

    async def story() -> None:
        wire = Wire(m.Welcome())
        link = Link(wire.dial, Spool(tmp_path), "n1", lambda _: None, _nowhere)
        talking = asyncio.create_task(link.run())
        while not link.is_heard:
            await asyncio.sleep(0)
        wire.readers[0].feed_eof()
        for _ in range(later):
            await asyncio.sleep(0)
        talking.cancel()
        for _ in range(100):
            await asyncio.sleep(0)
        assert talking.cancelled()

    asyncio.run(story())


def test_a_round_that_is_longer_than_is_taken_is_left_out_and_named(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    heard: list[int] = []
    spool = Spool(tmp_path)
    for no, ids in ((1, ["n1"]), (2, [f"subject {each}" for each in range(1000)]), (3, ["n1"])):
        frame = m.Frame(about="node", node="n1", ids=ids, columns={})
        spool.add(m.Round(no=no, at=1.0, interval_s=10.0, frames=[frame]))

    async def story() -> None:
        came = asyncio.Event()

        async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(m.encode(m.Welcome(most_bytes=1_000)))
            splitter = m.FrameSplitter()
            while data := await reader.read(4096):
                heard.extend(told.no for body in splitter.feed(data) if isinstance(told := m.read_told(body), m.Round))
                if 3 in heard:
                    came.set()

        async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
            return *await asyncio.open_unix_connection(str(tmp_path / "door")), ""

        server = await asyncio.start_unix_server(converse, str(tmp_path / "door"))
        talking = asyncio.create_task(Link(dial, spool, "n1", lambda _: None, _nowhere).run())
        await came.wait()
        talking.cancel()
        await asyncio.wait((talking,))
        server.close()

    run(story())
    assert heard == [1, 3]
    assert any(line.startswith("round 2 is left out: its ") for line in said())
