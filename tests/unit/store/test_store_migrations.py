"""A journal of an earlier Bireme is opened, and from then on what rots in it is noticed.

`journal_schema_1.sql` is the dump of a journal that the last version without sums wrote: six events, of which a
snapshot covers five, a finished job with a step, and a script.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from bireme.core.model.events import JobReleased
from bireme.ports import HistoryQuery, StoreError
from bireme.runtime.kernel import load
from bireme.store import codec, snapshots
from bireme.store.database import SCHEMA_VERSION
from bireme.store.guard import LostEventsError, mark_path
from bireme.store.journal import SqliteStore
from bireme.store.mark import Mark, read, replace
from bireme.testing.scenario import Scenario

SCRIPT = "a7fb404762f20911f57516a96a5e1f781dc13d8fe9cd24161892eab2f6a7ab13"


@pytest.fixture
def path(tmp_path: Path) -> str:
    old = tmp_path / "journal.db"
    connection = sqlite3.connect(old)
    connection.executescript((Path(__file__).parent / "journal_schema_1.sql").read_text())
    connection.close()
    return str(old)


def test_everything_is_there_and_has_its_sum(path: str) -> None:
    store = SqliteStore(path)
    assert [told.seq for told in store.replay(0)] == [1, 2, 3, 4, 5, 6]
    state = load(store)
    assert sorted(state.jobs) == [1, 2, 3]
    assert state.seq == 6
    assert store.finished(HistoryQuery(with_steps=True))[0]["steps"][0]["state"] == "COMPLETED"
    assert store.get(SCRIPT).startswith(b"#!/bin/sh")
    assert store.append([(9.0, "x", JobReleased(2))]) == 7
    store.close()
    mark = read(mark_path(path))
    assert mark is not None
    assert (mark.seq, mark.last_job_id) == (7, 3)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT version FROM schema_version").fetchall() == [(SCHEMA_VERSION,)]
    connection.execute("UPDATE journal SET at = 4.5 WHERE seq = 4")
    connection.commit()
    connection.close()
    again = SqliteStore(path)
    with pytest.raises(StoreError, match="event 4 is not what was written"):
        list(again.replay(0))
    again.close()


def test_what_was_pruned_with_gaps_goes_on(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM journal WHERE seq IN (1, 3)")
    connection.commit()
    connection.close()
    store = SqliteStore(path)
    assert [told.seq for told in store.replay(0)] == [4, 5, 6]
    assert load(store).seq == 6
    store.close()


def test_a_migration_that_was_cut_short_is_made_again(path: str) -> None:
    replace(mark_path(path), Mark("another", 6, 1, 3))
    store = SqliteStore(path)
    assert load(store).seq == 6
    store.close()
    SqliteStore(path).close()


def test_an_old_copy_under_a_newer_mark_is_a_loss(path: str) -> None:
    replace(mark_path(path), Mark("another", 7, 1, 3))
    with pytest.raises(LostEventsError, match="ends with event 6: the newest event, 7, is lost"):
        SqliteStore(path)


def test_a_snapshot_that_counted_an_arrays_starts_knows_its_tasks() -> None:
    """`after:ARRAY` waits for tasks that never began, and not for those that run since before the upgrade."""
    world = Scenario("1x8")
    world.submit("a", array="0-2%2")
    world.settle()
    head, *rest = snapshots.encode_state(world.state).split(b"\n")
    plain = codec.loads(head)
    for tally in plain["arrays"].values():
        tally["started"] = len(tally.pop("begun"))
    state = snapshots.decode_lines(b"\n".join([codec.dumps(plain), *rest]))
    (tally,) = state.arrays.values()
    assert set(tally.begun) == {0, 1}
    assert not tally.all_begun
