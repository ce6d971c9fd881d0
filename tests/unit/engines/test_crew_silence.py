"""When an agent is called silent: it was asked and did not answer, and the daemon was there to hear it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bireme.agent.messages.lines import encode_typed
from bireme.agent.messages.told import Welcome
from bireme.engines.crew import link as crew_link
from bireme.engines.crew.link import AgentLink

PING_S = 0.02


class Clock:
    """The machine's, and what it slept through."""

    def __init__(self) -> None:
        self.slept_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.slept_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(crew_link, "time", made)
    monkeypatch.setattr(crew_link, "_PING_S", PING_S)
    return made


async def _until(path: Path, over: Callable[[int, list[str]], bool], asked: Callable[[int], None]) -> list[str]:
    """A link to an agent that says welcome and nothing more, until it is `over` (questions, complaints)."""
    questions, silent, done = 0, list[str](), asyncio.Event()

    def look() -> None:
        if over(questions, silent):
            done.set()

    def on_silent(node: str, reason: str) -> None:
        silent.append(reason)
        look()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal questions
        writer.write(encode_typed(Welcome(node="n1", version="0.1.0")))
        await reader.readline()
        while await reader.readline():
            questions += 1
            asked(questions)
            look()
        writer.close()

    async def start_agent(node: str) -> None:
        raise AssertionError("there is one")

    server = await asyncio.start_unix_server(mute, str(path))
    link = AgentLink(
        "n1",
        f"unix:{path}",
        start_agent=start_agent,
        on_welcome=lambda node, message: None,
        on_events=lambda node, events: None,
        on_silent=on_silent,
    )
    link.open()
    await done.wait()
    await link.close()
    server.close()
    return silent


def test_an_agent_that_does_not_answer_is_silent(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_link, "_DEAF_AFTER_S", 5 * PING_S)
    silent = asyncio.run(_until(tmp_path / "s", lambda _, silent: bool(silent), lambda _: None))
    assert silent[0] == "its agent does not answer"


def test_that_this_daemon_stood_still_is_no_silence_of_an_agent(clock: Clock, tmp_path: Path) -> None:
    """It was stopped, or its machine slept: all agents at once had no chance to be heard."""

    def sleep(asked: int) -> None:
        clock.slept_s += 100.0 if asked == 1 else 0.0

    assert asyncio.run(_until(tmp_path / "s", lambda asked, _: asked == 4, sleep)) == []
    assert clock.slept_s > crew_link._DEAF_AFTER_S
