"""Going on after damage: what can be had is kept, what is lost is said in the journal, no number means two things."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from bireme.core.lifecycle.apply import apply
from bireme.core.model import events as e
from bireme.core.model.jobs import JobSpec, Owner
from bireme.core.state.state import State
from bireme.ports import HistoryQuery, HistoryRow, StoreError
from bireme.runtime.kernel import load
from bireme.store.checks import snapshot_sum
from bireme.store.guard import mark_path
from bireme.store.inspection import inspect
from bireme.store.journal import SqliteStore
from bireme.store.mark import MarkFile
from bireme.store.recovery import Recovered, recover

SCRIPT = b"#!/bin/sh\necho train\n"
SCRIPT_NAME = sha256(SCRIPT).hexdigest()
NOW = 1_000.0


def submitted(job_id: int) -> e.JobSubmitted:
    return e.JobSubmitted(
        job_id, JobSpec(owner=Owner(uid=1, gid=1, user="ann"), name=f"job{job_id}", script=SCRIPT_NAME), 10, None, ()
    )


def made(path: str, *, snapshots: tuple[int, ...] = (4, 6), jobs: int = 9) -> None:
    """So many submissions, a commit each; two records; a script."""
    store, state = SqliteStore(path), State()
    store.put(SCRIPT)
    for n in range(1, jobs + 1):
        history = [HistoryRow(100 + n, None, 1.0, 0, {"job_id": 100 + n, "state": "FAILED"})] if n < 3 else []
        store.append([(float(n), "ann submit", submitted(n))], history)
        apply(state, e.Recorded(n, float(n), "ann submit", submitted(n)))
        if n in snapshots:
            store.write_snapshot(n, state)
    store.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "journal.db")


def changed(path: str, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def recovered(path: str) -> tuple[Recovered, State]:
    """Recovers, and looks that the result is sound and can be gone on with."""
    assert inspect(path).findings
    done = recover(inspect(path), NOW)
    assert inspect(path).findings == []
    store = SqliteStore(path)
    state = load(store)
    assert store.append([(NOW, "x", submitted(state.next_job_id))]) == state.seq + 1
    store.close()
    assert inspect(path).findings == []
    return done, state


def older_copy(path: str) -> None:
    changed(path, "DELETE FROM journal WHERE seq > 7")


def middle_of_the_tail(path: str) -> None:
    changed(path, "UPDATE journal SET at = 0 WHERE seq = 8")


@pytest.mark.parametrize("damage", [older_copy, middle_of_the_tail])
def test_what_is_lost_is_said_and_no_number_is_used_twice(path: str, damage: Callable[[str], None]) -> None:
    made(path)
    damage(path)
    done, state = recovered(path)
    assert done.lost is not None
    assert (done.lost.first, done.lost.last, done.lost.next_job_id, done.lost.starts) == (8, 9, 10, 2)
    assert sorted(state.jobs) == [1, 2, 3, 4, 5, 6, 7]
    assert (state.seq, state.next_job_id) == (10, 10)
    assert state.loss is not None
    store = SqliteStore(path)
    assert [told.event for told in store.events_after(7, 1)] == [done.lost]
    assert [told.seq for told in store.replay(0)] == [1, 2, 3, 4, 5, 6, 7, 10, 11]
    assert len(store.finished(HistoryQuery())) == 2
    store.close()
    assert sorted(os.listdir(done.kept_in))[:1] == ["journal.db"]


def test_the_copy_is_on_disk_before_anything_is_removed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy whose name is not on disk is none after a power cut, and the write-ahead file is removed next."""
    made(path)
    older_copy(path)
    Path(path + "-wal").touch()
    done: list[tuple[str, str]] = []
    fsync, unlink = os.fsync, os.unlink

    def synced(fd: int) -> None:
        done.append(("fsync", os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    def unlinked(name: str) -> None:
        done.append(("unlink", name))
        unlink(name)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "unlink", unlinked)
    kept_in = recover(inspect(path), NOW).kept_in
    removed = done.index(("unlink", path + "-wal"))
    before = {name for what, name in done[:removed] if what == "fsync"}
    assert before >= {*(os.path.join(kept_in, name) for name in os.listdir(kept_in)), kept_in, os.path.dirname(kept_in)}


def test_a_damaged_old_event_costs_its_story_and_nothing_else(path: str) -> None:
    made(path)
    changed(path, "UPDATE journal SET cause = 'bob submit' WHERE seq = 2", "DELETE FROM journal WHERE seq IN (4, 5)")
    done, state = recovered(path)
    assert done.lost is None
    assert state.loss is None
    assert sorted(state.jobs) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    store = SqliteStore(path)
    assert store.story(2) == []
    assert len(store.story(3)) == 1
    page = store.events_after(0, 5)
    assert [told.seq for told in page] == [1, 2, 3, 6, 7]
    assert page[1].event == e.EventsLost(2, 2, covered=True)
    assert store._writer.execute("SELECT seq FROM snapshots").fetchall() == [(6,)], "the older one cannot be followed"
    store.close()
    changed(path, "DELETE FROM snapshots")
    again = SqliteStore(path)
    with pytest.raises(StoreError, match="its events 2 to 2 are lost, and no snapshot"):
        load(again)
    again.close()
    assert inspect(path).good_to == 1


def test_damaged_records_and_scripts_are_left_behind(path: str) -> None:
    made(path)
    changed(path, "UPDATE runs SET name = 'x' WHERE job_id = 101", "UPDATE blobs SET data = x'00'")
    done, state = recovered(path)
    assert done.lost is None
    assert state.seq == 9
    store = SqliteStore(path)
    assert [row["job_id"] for row in store.finished(HistoryQuery())] == [102]
    assert store._writer.execute("SELECT count(*) FROM blobs").fetchone() == (0,)
    store.close()


def test_records_whose_shape_is_damaged_are_left_behind_too(path: str) -> None:
    made(path)
    changed(path, "UPDATE shapes SET state = 'x'")
    found = inspect(path)
    assert any("2 records are of a shape that is damaged" in finding for finding in found.findings), found.findings
    recovered(path)
    store = SqliteStore(path)
    assert store.finished(HistoryQuery()) == []
    assert store._writer.execute("SELECT count(*) FROM runs").fetchone() == (0,)
    store.close()


def test_after_everything_is_gone_numbers_go_on(path: str) -> None:
    made(path)
    os.unlink(path)
    done, state = recovered(path)
    assert done.lost is not None
    assert (done.lost.first, done.lost.last) == (1, 9)
    assert (state.jobs, state.seq, state.next_job_id) == ({}, 10, 10)


def test_without_a_mark_much_is_left_free(path: str) -> None:
    made(path)
    os.unlink(mark_path(path))
    done, state = recovered(path)
    assert done.lost is not None
    assert (done.lost.first, done.lost.last) == (10, 9)
    assert state.next_job_id > 1_000
    assert len(state.jobs) == 9


def test_the_mark_of_another_home_is_not_believed(path: str, tmp_path: Path) -> None:
    made(path)
    (tmp_path / "other").mkdir()
    other = str(tmp_path / "other" / "journal.db")
    made(other, jobs=20, snapshots=())
    shutil.copy(mark_path(other), mark_path(path))
    done, state = recovered(path)
    assert done.lost is not None
    assert done.lost.last < done.lost.first
    assert len(state.jobs) == 9


def test_bad_pages_cost_what_they_held(path: str) -> None:
    made(path, jobs=600, snapshots=())
    with open(path, "r+b") as file:
        file.seek(0, os.SEEK_END)
        file.seek(file.tell() // 4096 // 2 * 4096)
        file.write(b"\xa5" * 4096)
    found = inspect(path)
    assert found.findings
    done = recover(found, NOW)
    assert done.lost is None or done.lost.last == 600
    assert inspect(path).findings == []
    store = SqliteStore(path)
    assert len(load(store).jobs) >= 100
    store.close()


def test_a_second_loss_after_the_first(path: str) -> None:
    made(path)
    older_copy(path)
    recovered(path)
    changed(path, "DELETE FROM journal WHERE seq = 11")
    done, state = recovered(path)
    assert done.lost is not None
    assert (done.lost.first, done.lost.last) == (11, 11)
    assert state.next_job_id == 11


def test_an_old_copy_of_an_earlier_bireme_is_taken_with_its_loss(path: str) -> None:
    made(path)
    os.unlink(path)
    connection = sqlite3.connect(path)
    connection.executescript((Path(__file__).parent / "journal_schema_1.sql").read_text())
    connection.close()
    done, state = recovered(path)
    assert done.lost is not None
    assert (sorted(state.jobs), state.next_job_id >= 10) == ([1, 2, 3], True)


def snapshot_ahead(path: str) -> None:
    """As a daemon left it that failed in the middle of a turn, and wrote down at its end what it never committed."""
    connection = sqlite3.connect(path)
    (data,) = connection.execute("SELECT data FROM snapshots ORDER BY seq DESC").fetchone()
    connection.execute("INSERT INTO snapshots VALUES (12, ?, ?)", (data, snapshot_sum(12, data)))
    connection.commit()
    connection.close()


def test_a_snapshot_of_what_was_never_committed_is_named_and_left_behind(path: str) -> None:
    made(path)
    snapshot_ahead(path)
    with pytest.raises(StoreError, match="its events 10 to 12 are missing"):
        SqliteStore(path)
    assert any("events 10 to 12" in finding for finding in inspect(path).findings)
    done, state = recovered(path)
    assert done.lost is None, "the mark says that there were no more events"
    assert (state.seq, sorted(state.jobs)) == (9, list(range(1, 10)))


def test_a_snapshot_ahead_is_believed_where_the_mark_says_that_events_were_lost(path: str) -> None:
    made(path, snapshots=(4, 8))
    changed(path, "DELETE FROM journal WHERE seq > 6")
    done, state = recovered(path)
    assert done.lost is not None and (done.lost.first, done.lost.last) == (9, 9)  # noqa: PT018
    assert sorted(state.jobs) == list(range(1, 9))


def test_a_mark_ahead_of_the_journal_is_what_verify_names_and_recover_goes_on_from(path: str) -> None:
    made(path)
    mark = MarkFile(mark_path(path))
    mark.advance(14, 1, 12)
    mark.close()
    with pytest.raises(StoreError, match="the newest 5 events, to 14, are lost"):
        SqliteStore(path)
    assert any("to 14, are lost" in finding for finding in inspect(path).findings)
    done, state = recovered(path)
    assert done.lost is not None and (done.lost.first, done.lost.last) == (10, 14)  # noqa: PT018
    assert state.next_job_id == 13


def test_a_snapshot_that_alone_covered_a_loss_is_missed_by_verify_too(path: str) -> None:
    made(path, snapshots=(4, 8))
    changed(path, "DELETE FROM journal WHERE seq > 6")
    recovered(path)
    changed(path, "DELETE FROM snapshots")
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="no snapshot that covered them can be read"):
        load(store)
    store.close()
    assert any("covers events which were lost" in finding for finding in inspect(path).findings)
    recovered(path)


def test_no_snapshot_is_written_ahead_of_the_journal(path: str) -> None:
    made(path)
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="ahead"):
        store.write_snapshot(10, State())
    store.close()
    assert inspect(path).sound
