"""The hook of the idle policy: facts in, no shell, a time limit, and never in the way."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from bireme.daemon.hooks import Hook, variables

FACTS = {"what": "notice", "job_id": 42, "user": "alice; rm -rf $HOME", "to": None, "percent": 0.5}


def program(folder: Path, text: str) -> str:
    path = folder / "hook"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


async def called(hook: Hook) -> None:
    hook.call(FACTS)
    await asyncio.gather(*hook.under_way)


def test_facts_come_as_variables_and_as_json(tmp_path: Path) -> None:
    shown = f'echo "$BIREME_IDLE_JOB_ID $BIREME_IDLE_USER" > {tmp_path}/user\nenv > {tmp_path}/env'
    path = program(tmp_path, f"cat > {tmp_path}/json\n{shown}")
    asyncio.run(called(Hook(lambda: path, lambda: 60.0)))
    assert json.loads((tmp_path / "json").read_text()) == FACTS
    assert (tmp_path / "user").read_text() == "42 alice; rm -rf $HOME\n"
    assert "BIREME_IDLE_TO" not in (tmp_path / "env").read_text()
    assert variables(FACTS)["BIREME_IDLE_PERCENT"] == "0.5"


def test_one_that_takes_too_long_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = program(tmp_path, "sleep 600 & wait")
    asyncio.run(called(Hook(lambda: path, lambda: 1.0)))
    assert "took longer than 1 s for job 42: killed" in caplog.text


@pytest.mark.parametrize(
    ("text", "says"), [("exit 3", "ended with exit code 3 for job 42"), ("cat > /dev/null", "")], ids=["fails", "well"]
)
def test_what_it_ends_with_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, says: str) -> None:
    path = program(tmp_path, text)
    with caplog.at_level(logging.WARNING):
        asyncio.run(called(Hook(lambda: path, lambda: 60.0)))
    assert says in caplog.text
    assert bool(says) is bool(caplog.text)


def test_one_that_is_not_there_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(called(Hook(lambda: str(tmp_path / "none"), lambda: 60.0)))
    assert "cannot be run" in caplog.text


def test_without_a_program_nothing_is_called() -> None:
    async def play() -> int:
        hook = Hook(str, lambda: 60.0)
        hook.call(FACTS)
        return len(hook.under_way)

    assert asyncio.run(play()) == 0
