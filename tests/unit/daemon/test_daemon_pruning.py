"""What is old is dropped once a day, whatever happened the day before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bireme.daemon.app import Daemon
from bireme.daemon.paths import Paths
from bireme.daemon.process import Lock
from bireme.daemon.settings import Settings
from bireme.ports import JournalError
from bireme.store.database import damaged
from bireme.store.journal import SqliteStore


class EnoughError(Exception):
    """Ends the test."""


class Rotten(SqliteStore):
    """Of which nothing can be dropped; says how often somebody tried."""

    tried = 0

    def prune(self, older_than: float) -> int:
        self.tried += 1
        if self.tried == 3:
            raise EnoughError
        raise damaged(self.path, "a page is bad") if self.tried == 1 else JournalError("the disk is full")


def test_a_day_on_which_nothing_could_be_dropped_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bireme.daemon.app._DAY_S", 0.0)
    store, paths = Rotten(str(tmp_path / "journal.db"), durable=False), Paths(str(tmp_path))
    paths.create()
    lock = Lock(paths)

    async def days() -> None:
        daemon = Daemon(paths, lambda: Settings(keep_events_days=1, keep_history_days=0), lock)
        await daemon._prune(store, None)  # type: ignore[arg-type]  (nothing is asked of the runtime)

    with pytest.raises(EnoughError):
        asyncio.run(days())
    lock.release()
    store.close()
    assert store.tried == 3
    assert caplog.text.count("nothing old was dropped") == 2
    assert "a page is bad" in caplog.text
