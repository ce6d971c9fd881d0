"""What the daemon says of settings that come to nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bireme.daemon.app import Daemon
from bireme.daemon.paths import Paths
from bireme.daemon.process import Lock
from bireme.daemon.settings import Settings


@pytest.mark.parametrize(("mode", "is_said"), [("off", False), ("dry-run", True), ("notify", True), ("act", True)])
def test_a_policy_for_idle_gpus_that_nobody_measures_is_said_to_do_nothing(
    tmp_path: Path, mode: str, is_said: bool
) -> None:
    paths = Paths(str(tmp_path))
    paths.create()
    lock = Lock(paths)

    async def notices() -> tuple[str, ...]:
        return Daemon(paths, lambda: Settings(telemetry="off", idle_mode=mode), lock)._notices()

    said = asyncio.run(notices())
    lock.release()
    assert [notice.split(",")[0] for notice in said] == (
        [f"idle.mode={mode}: telemetry.gather is off"] if is_said else []
    )
