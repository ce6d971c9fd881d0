"""Fetching input into a pod: how long it is tried, and what is said when it does not come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from bireme.agent.inbox import Inbox
from bireme.agent.pod import fetcher
from bireme.agent.pod.fetcher import Fetcher
from bireme.agent.pod.gangway import Ends, RefusedError
from bireme.agent.system.loop import Loop

DEADLINE_S = 30.0
REFUSED = b""
WHOLE = b"3\nabc"
BROKEN = b"3\nab"


async def fetched(folder: Path, calls: Sequence[bytes], patience_s: float = 0.0) -> int:
    """How often a daemon was called that answers like this, the last answer again and again; until it is decided."""
    taken = 0

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(calls[min(taken, len(calls)) - 1])
        writer.close()

    async def dial(hello: dict[str, str]) -> Ends:
        nonlocal taken
        assert hello == {"as": "input", "name": "in"}
        taken += 1
        if calls[min(taken, len(calls)) - 1] == REFUSED:
            raise RefusedError("refused: no such file")
        return await asyncio.open_unix_connection(folder / "daemon")

    async with await asyncio.start_unix_server(answer, folder / "daemon"), asyncio.timeout(DEADLINE_S):
        fetching = asyncio.create_task(Fetcher(folder, dial, patience_s).run())
        while not (folder / "in").exists() and not (folder / "in.failed").exists():
            await asyncio.sleep(0.01)
        fetching.cancel()
    return taken


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fetcher, "_RETRY_S", 0.0)
    (tmp_path / "in.wanted").touch()
    return tmp_path


def test_a_transfer_that_broke_is_tried_again_however_long_it_took(folder: Path) -> None:
    assert asyncio.run(fetched(folder, [BROKEN, WHOLE])) == 2
    assert (folder / "in").read_text() == "abc"


def test_a_transfer_that_breaks_again_and_again_is_given_up(folder: Path) -> None:
    assert asyncio.run(fetched(folder, [BROKEN], patience_s=DEADLINE_S)) == 5
    assert (folder / "in.failed").read_text() == "the input file ended before its end"
    assert not (folder / "in.part").exists()


def test_after_a_break_the_daemon_has_its_time_again(folder: Path) -> None:
    assert asyncio.run(fetched(folder, [BROKEN, REFUSED, REFUSED, WHOLE], patience_s=DEADLINE_S)) == 4


def test_who_is_refused_for_too_long_is_told_why(folder: Path) -> None:
    asyncio.run(fetched(folder, [REFUSED]))
    assert (folder / "in.failed").read_text() == "no such file"


def test_a_full_disk_is_final(folder: Path) -> None:
    (folder / "in.part").symlink_to("/dev/full")
    assert asyncio.run(fetched(folder, [WHOLE], patience_s=DEADLINE_S)) == 1
    assert (folder / "in.failed").read_text() == "the pod has no room for its input file: No space left on device"


def test_a_disk_too_full_for_the_reason_still_answers(tmp_path: Path) -> None:
    (tmp_path / "in.failed").touch()
    told: list[str] = []
    loop = Loop()

    def done(problem: str) -> None:
        told.append(problem)
        loop.stop()

    Inbox(loop, str(tmp_path)).fetch(f"{tmp_path}/in", done)
    loop.run()
    assert told == ["No space left on device"]
