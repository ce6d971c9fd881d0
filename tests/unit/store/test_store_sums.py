"""What is not what was written is noticed: events, snapshots, records, blobs, and what the mark says was there."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from bireme.core.model.events import JobHeld, JobReleased, JobSubmitted
from bireme.core.model.jobs import JobSpec, Owner
from bireme.core.state.state import State
from bireme.ports import HistoryQuery, HistoryRow, StoreError
from bireme.store.database import DamagedBlobError
from bireme.store.guard import LostEventsError, mark_path
from bireme.store.journal import SqliteStore
from bireme.store.mark import Mark, MarkFile, read, replace

SCRIPT = b"#!/bin/sh\necho train\n"
SCRIPT_NAME = sha256(SCRIPT).hexdigest()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "journal.db")


def submitted(job_id: int) -> JobSubmitted:
    return JobSubmitted(
        job_id, JobSpec(owner=Owner(uid=1, gid=1, user="ann"), name=f"job{job_id}", script=SCRIPT_NAME), 10, None, ()
    )


def record(job_id: int, step_id: int | None = None) -> HistoryRow:
    return HistoryRow(job_id, step_id, 1, 0, {"job_id": job_id, "state": "COMPLETED", "user_name": "ann"})


def fill(path: str, events: int = 6) -> None:
    store = SqliteStore(path)
    store.put(SCRIPT)
    store.append([(n, "ann submit", submitted(n)) for n in range(1, events + 1)], [record(1), record(1, 0)])
    store.close()


def changed(path: str, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE journal SET data = replace(data, 'job3', 'job4') WHERE seq = 3",
        "UPDATE journal SET at = 99 WHERE seq = 3",
        "UPDATE journal SET cause = 'bob submit' WHERE seq = 3",
        "UPDATE journal SET job_id = 9 WHERE seq = 3",
        "UPDATE journal SET sum = sum + 1 WHERE seq = 3",
        "UPDATE journal SET data = (SELECT data FROM journal WHERE seq = 4) WHERE seq = 3",
        "UPDATE about SET value = value + 1 WHERE key = 'begins_with'",
    ],
)
def test_an_altered_event_is_named(path: str, statement: str) -> None:
    fill(path)
    changed(path, statement)
    store = SqliteStore(path)
    with pytest.raises(StoreError, match=r"event [13] is not what was written.*bireme store verify"):
        list(store.replay(0))
    store.close()


def test_an_altered_event_is_not_told_in_a_story(path: str) -> None:
    fill(path)
    changed(path, "UPDATE journal SET data = replace(data, 'job3', 'job4') WHERE seq = 3")
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="event 3 is not what was written"):
        store.story(3)
    assert [told.seq for told in store.story(2)] == [2]
    store.close()


def test_a_missing_event_is_named(path: str) -> None:
    fill(path)
    changed(path, "DELETE FROM journal WHERE seq IN (3, 4)")
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="its events 3 to 4 are missing"):
        list(store.replay(0))
    with pytest.raises(StoreError, match="its event 4 is missing"):
        list(store.replay(4))
    store.close()


def test_what_was_pruned_is_not_missing(path: str) -> None:
    store = SqliteStore(path)
    store.append([(float(at), "x", JobReleased(1)) for at in (1, 2, 9, 4, 5)])
    store.write_snapshot(5, State())
    assert store.prune(older_than=6.0) == 2, "what is younger keeps what comes after it"
    assert [told.seq for told in store.replay(0)] == [3, 4, 5]
    assert store.prune(older_than=100.0) == 3
    store.close()
    again = SqliteStore(path)
    again.append([(9.0, "x", JobReleased(1))])
    assert [told.seq for told in again.replay(0)] == [6]
    changed(path, "UPDATE snapshots SET data = x'00'")
    with pytest.raises(StoreError, match="no snapshot of it can be read, and its events up to 5 were dropped"):
        again.latest_snapshot()
    again.close()


def test_a_snapshot_with_another_content_is_passed_over(path: str) -> None:
    fill(path)
    store = SqliteStore(path)
    for seq in (5, 6):
        store.write_snapshot(seq, State(next_job_id=seq, seq=seq))
    store._writer.execute("UPDATE snapshots SET data = (SELECT data FROM snapshots WHERE seq = 5) WHERE seq = 6")
    found = store.latest_snapshot()
    assert found is not None
    assert found[0] == 5
    store.close()


@pytest.mark.parametrize("table", ["runs", "run_steps"])
@pytest.mark.parametrize("change", ["differs = x'8100ca'", "start = 17.0", "restarts = 3"])
def test_an_altered_record_is_told_and_not_shown(path: str, table: str, change: str) -> None:
    fill(path)
    store = SqliteStore(path)
    assert store.finished(HistoryQuery(with_steps=True))[0]["steps"] == [record(1).record]
    store._writer.execute(f"UPDATE {table} SET {change}")
    of = "job 1" if table == "runs" else "step 0 of job 1"
    with pytest.raises(StoreError, match=f"the record of {of} is not what was written"):
        store.finished(HistoryQuery(with_steps=True))
    store.close()


@pytest.mark.parametrize("change", ["record = x'00'", "state = 'FAILED'", "id = id + 10"])
def test_what_many_records_share_is_told_when_it_is_altered(path: str, change: str) -> None:
    fill(path)
    store = SqliteStore(path)
    store._writer.execute(f"UPDATE shapes SET {change}")
    with pytest.raises(StoreError, match="what many records share"):
        store.finished(HistoryQuery(with_steps=True))
    store.close()


@pytest.mark.parametrize("change", ["data = replace(data, 'train', 'steal')", "data = x'00'", "compressed = 1"])
def test_a_changed_script_is_not_given_out(path: str, change: str) -> None:
    fill(path)
    store = SqliteStore(path)
    name = store.put(SCRIPT)
    store._shelf._pending.clear()
    assert store.get(name) == SCRIPT
    store._writer.execute(f"UPDATE blobs SET {change}")
    with pytest.raises(DamagedBlobError, match=f"blob {name} in .* is damaged"):
        store.get(name)
    store.close()


# ------------------------------------------------------------------------------------------------ the mark


def test_the_mark_follows_every_group(path: str) -> None:
    store = SqliteStore(path)
    for job_id in (1, 2, 3):
        store.append([(1.0, "x", submitted(job_id)), (1.0, "x", JobHeld(job_id, "user"))])
        mark = read(mark_path(path))
        assert mark is not None
        assert (mark.seq, mark.last_job_id) == (2 * job_id, job_id)
    store.append([(1.0, "x", JobReleased(1))])
    mark = read(mark_path(path))
    assert mark is not None
    assert (mark.seq, mark.last_job_id) == (7, 3)
    store.close()
    assert os.stat(mark_path(path)).st_mode & 0o777 == 0o600


def crashed(path: str, events: int = 6) -> None:
    """A journal whose daemon was killed: all of it is in the write-ahead file."""
    source = path + ".source"
    store = SqliteStore(source)
    for n in range(1, events + 1):
        store.append([(1.0, "x", submitted(n))])
    for suffix in ("", "-wal"):
        shutil.copy(source + suffix, path + suffix)
    shutil.copy(mark_path(source), mark_path(path))
    store.close()


def cut_log(path: str) -> None:
    os.truncate(path + "-wal", os.path.getsize(path + "-wal") - 1)


def flip_log(path: str) -> None:
    with open(path + "-wal", "r+b") as file:
        file.seek(-5000, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-5000, os.SEEK_END)
        file.write(bytes([byte ^ 4]))


def remove_log(path: str) -> None:
    os.unlink(path + "-wal")


def remove_all(path: str) -> None:
    os.unlink(path)
    os.unlink(path + "-wal")


def empty(path: str) -> None:
    os.truncate(path, 0)
    os.unlink(path + "-wal")


def remove_mark(path: str) -> None:
    os.unlink(mark_path(path))


def spoil_mark(path: str) -> None:
    Path(mark_path(path)).write_bytes(b"\0" * 8192)


def swap_mark(path: str) -> None:
    other = str(Path(path).parent / "other.db")
    fill(other)
    shutil.copy(mark_path(other), mark_path(path))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut_log, r"ends with event 5: the newest event, 6, is lost"),
        (flip_log, r"ends with event \d: the newest (event, 6, is|\d events, to 6, are) lost"),
        (remove_log, r"ends with event 0: the newest 6 events, to 6, are lost"),
        (remove_all, r"journal\.db is gone, and it had 6 events"),
        (empty, r"journal\.db is empty, and it had 6 events"),
        (remove_mark, r"journal\.mark is gone: nobody can say"),
        (spoil_mark, r"journal\.mark is damaged: nobody can say"),
        (swap_mark, r"are not of one home"),
    ],
)
def test_a_journal_that_lost_something_is_not_opened(path: str, damage: Callable[[str], None], said: str) -> None:
    crashed(path)
    SqliteStore(path, durable=True).close()
    for name in Path(path).parent.glob("journal*"):
        name.unlink()
    crashed(path)
    damage(path)
    before = {name: name.read_bytes() for name in Path(path).parent.glob("journal.*") if name.suffix != ".db-shm"}
    with pytest.raises(StoreError, match=said):
        SqliteStore(path)
    after = {name: name.read_bytes() for name in Path(path).parent.glob("journal.*") if name.suffix != ".db-shm"}
    assert before == after, "what can still be had is still there"


def test_an_older_copy_of_the_journal_is_noticed(path: str) -> None:
    fill(path, 3)
    shutil.copy(path, path + ".backup")
    store = SqliteStore(path)
    store.append([(9.0, "x", JobReleased(1))])
    store.close()
    shutil.copy(path + ".backup", path)
    with pytest.raises(LostEventsError, match="ends with event 3: the newest event, 4, is lost"):
        SqliteStore(path)


def test_another_continuation_of_an_older_copy_is_noticed(path: str) -> None:
    fill(path, 3)
    shutil.copytree(Path(path).parent, Path(path).parent / "copy")
    for place, cause in ((path, "x"), (str(Path(path).parent / "copy" / "journal.db"), "y")):
        store = SqliteStore(place)
        store.append([(9.0, cause, JobReleased(1))])
        store.close()
    shutil.copy(Path(path).parent / "copy" / "journal.db", path)
    with pytest.raises(LostEventsError, match=r"event 4 .* is not the one that was written"):
        SqliteStore(path)


def test_a_mark_that_is_behind_is_no_loss(path: str) -> None:
    fill(path, 3)
    shutil.copy(mark_path(path), path + ".old-mark")
    store = SqliteStore(path)
    store.append([(9.0, "x", submitted(4))])
    store.close()
    shutil.copy(path + ".old-mark", mark_path(path))
    again = SqliteStore(path)
    again.append([(9.0, "x", submitted(5))])
    again.close()
    assert read(mark_path(path)) is not None
    SqliteStore(path).close()


def test_a_torn_write_of_the_mark_leaves_the_one_before(tmp_path: Path) -> None:
    path = str(tmp_path / "journal.mark")
    replace(path, Mark("abc", 1, 11, 1))
    marks = MarkFile(path)
    marks.advance(2, 22, 1)
    marks.advance(3, 33, 2)
    marks.close()
    whole = Path(path).read_bytes()
    for at in (0, 4096):
        Path(path).write_bytes(whole[:at] + b"bireme-mark-1 abc 9 " + whole[at + 20 :])
        found = read(path)
        assert found is not None
        assert found.seq in (2, 3)
    assert not list(tmp_path.glob("*.new"))


def test_a_simulations_journal_has_no_mark_and_can_get_one(path: str) -> None:
    store = SqliteStore(path, durable=False)
    store.append([(1.0, "x", submitted(1))])
    store.close()
    assert not os.path.exists(mark_path(path))
    SqliteStore(path).close()
    os.unlink(mark_path(path))
    with pytest.raises(LostEventsError):
        SqliteStore(path)
