"""What was answered is on disk, what was refused left nothing, and a damaged file is named."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bireme.core.model.events import ArrayTaskSplit, JobCancelled, JobHeld, JobReleased, JobSubmitted
from bireme.core.model.jobs import JobSpec, Outcome, Owner
from bireme.core.model.reasons import ReasonKind, reason
from bireme.core.state.state import State
from bireme.ports import BlobShareError, HistoryQuery, HistoryRow, JournalError, StoreError
from bireme.store import shelf
from bireme.store.checks import event_sum
from bireme.store.database import MissingBlobError, newest
from bireme.store.journal import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "journal.db")


@pytest.fixture
def store(path: str) -> Iterator[SqliteStore]:
    opened = SqliteStore(path)
    yield opened
    opened.close()


def submitted(job_id: int) -> JobSubmitted:
    spec = JobSpec(owner=Owner(uid=1, gid=1, user="ann"), name=f"job{job_id}")
    return JobSubmitted(job_id, spec, 10, None, ())


def finished(job_id: int, **record: object) -> HistoryRow:
    defaults = {"job_id": job_id, "state": "COMPLETED", "user_name": "ann", "user_id": 1, "end_time": 20.0}
    return HistoryRow(job_id, None, 1.0, 0, {**defaults, **record})


def test_jobs_that_end_alike_or_not_are_read_as_they_were_written(store: SqliteStore) -> None:
    """What those share that are cancelled together is written out once."""
    waited = reason(ReasonKind.PRIORITY, behind=3)
    odd = Outcome("CANCELLED", by_uid=1, reason=reason(ReasonKind.OTHER, word="\udcff"))
    alike, others = Outcome("CANCELLED", by_uid=1, reason=waited), (Outcome("DEADLINE"), odd)
    outcomes = (alike, replace(alike), others[0], alike, odd, odd, replace(alike, by_uid=2))
    events = [JobCancelled(number, outcome) for number, outcome in enumerate(outcomes)]
    store.append([(1.0, "x", event) for event in events])
    assert [recorded.event for recorded in store.replay(0)] == events


def test_another_program_that_looks_at_the_journal_takes_nothing_away(store: SqliteStore, path: str) -> None:
    """The last one to leave a database removes its write-ahead file: nobody may think so while the store is open."""
    store.append([(1.0, "x", submitted(1))], [])
    look = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM about').fetchall(); c.close()"
    )
    subprocess.run([sys.executable, "-c", look, path], check=True)
    assert os.path.exists(path + "-wal")
    store.append([(2.0, "x", submitted(2))], [])
    count = (
        "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT max(seq) FROM journal').fetchone()[0])"
    )
    assert subprocess.run([sys.executable, "-c", count, path], check=True, capture_output=True).stdout == b"2\n"


def test_events_come_back_in_order_after_reopening(path: str) -> None:
    store = SqliteStore(path)
    assert store.append([(1.0, "uid 1 sbatch", submitted(1)), (2.0, "x", JobHeld(1, "user"))], []) == 2
    assert store.append([(3.0, "x", JobReleased(1))], []) == 3
    store.close()
    again = SqliteStore(path)
    replayed = list(again.replay(0))
    assert [(r.seq, r.at, r.cause) for r in replayed] == [(1, 1.0, "uid 1 sbatch"), (2, 2.0, "x"), (3, 3.0, "x")]
    assert [r.event for r in replayed] == [submitted(1), JobHeld(1, "user"), JobReleased(1)]
    assert [r.seq for r in again.replay(2)] == [3]
    assert again.append([(4.0, "x", JobReleased(1))], []) == 4
    again.close()


def test_replay_of_more_than_one_page_misses_nothing(store: SqliteStore) -> None:
    store.append([(1.0, "x", JobReleased(n)) for n in range(4_500)], [])
    assert [r.seq for r in store.replay(0)] == list(range(1, 4_501))


def test_files_are_private(path: str, store: SqliteStore) -> None:
    store.append([(1.0, "x", JobReleased(1))], [])
    for name in (path, path + "-wal", path + "-shm"):
        assert stat.S_IMODE(os.stat(name).st_mode) == 0o600, name


def test_a_group_is_stored_whole_or_not_at_all(store: SqliteStore) -> None:
    store.append([(1.0, "x", submitted(1))], [])
    blob = store.put(b"#!/bin/sh\n")
    unwritable = HistoryRow(1, None, 1.0, 0, {"other": object()})
    with pytest.raises(TypeError):
        store.append([(2.0, "x", JobHeld(1, "user"))], [finished(1), unwritable])
    assert [r.seq for r in store.replay(0)] == [1]
    assert store.finished(HistoryQuery()) == []
    assert store.get(blob) == b"#!/bin/sh\n", "still waiting for a group that names it"
    assert store.append([(3.0, "x", JobReleased(1))], []) == 2


def test_a_full_disk_stores_nothing_and_later_all_works_again(path: str) -> None:
    """The kernel refuses to let any file grow: what a full disk does to SQLite, without needing root."""
    store = SqliteStore(path)
    store.append([(1.0, "x", submitted(1))], [])
    size = max(os.path.getsize(path), os.path.getsize(path + "-wal"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(JournalError, match=r"cannot write the journal .*journal\.db"):
            store.append([(2.0, "x", submitted(n)) for n in range(2, 2_000)], [finished(1)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [r.seq for r in store.replay(0)] == [1]
    assert store.finished(HistoryQuery()) == []
    assert store.append([(3.0, "x", submitted(2))], [finished(1)]) == 2
    store.close()
    reopened = SqliteStore(path)
    assert [r.event for r in reopened.replay(0)] == [submitted(1), submitted(2)]
    reopened.close()


def test_a_read_only_journal_refuses_to_be_written(path: str, store: SqliteStore) -> None:
    store._writer.execute("PRAGMA query_only=ON")
    with pytest.raises(JournalError, match="cannot write the journal"):
        store.append([(1.0, "x", submitted(1))], [])
    assert store.last_seq == 0


def test_what_was_not_committed_is_gone_after_a_crash(path: str) -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        store = SqliteStore(path)
        store.append([(1.0, "x", submitted(1))], [])
        store._writer.execute("BEGIN IMMEDIATE")
        store._writer.execute("INSERT INTO journal VALUES (2, 1, 'x', 'JobReleased', 1, '{}', 0)")
        os.write(write_end, b"!")
        signal.pause()
    os.read(read_end, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    store = SqliteStore(path)
    assert [r.event for r in store.replay(0)] == [submitted(1)]
    assert store.append([(2.0, "x", JobReleased(1))], []) == 2
    store.close()


def test_gathered_groups_are_read_as_if_they_were_written(path: str) -> None:
    store = SqliteStore(path, durable=False, gather=3)
    store.append([(1.0, "x", submitted(1))], [])
    store.append([(2.0, "x", JobHeld(1, "user"))], [finished(1)])
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT count(*) FROM journal").fetchone() == (0,), "not gathered at all"
    assert [record["job_id"] for record in store.finished(HistoryQuery())] == [1]
    assert [r.event for r in store.story(1)] == [submitted(1), JobHeld(1, "user")]
    store.append([(3.0, "x", JobReleased(1))], [])
    store.close()
    again = SqliteStore(path)
    assert [(r.seq, r.event) for r in again.replay(1)] == [(2, JobHeld(1, "user")), (3, JobReleased(1))]
    again.close()


def test_gathered_groups_that_cannot_be_written_end_it(path: str) -> None:
    """They were said to be stored: nobody may go on as if only the last one were lost."""
    store = SqliteStore(path, durable=False, gather=100)
    store.append([(1.0, "x", submitted(1))], [])
    store._writer.execute("DROP TABLE runs")
    with pytest.raises(StoreError, match="no such table: runs"):
        store.story(1)
    store.close()


def test_a_story_is_every_event_of_one_job(store: SqliteStore) -> None:
    store.append([(1.0, "a", submitted(1)), (2.0, "b", submitted(2)), (3.0, "c", JobHeld(1, "user"))], [])
    assert [r.cause for r in store.story(1)] == ["a", "c"]
    assert store.story(77) == []


def test_the_story_of_an_array_task_begins_with_its_array(store: SqliteStore) -> None:
    store.append([(1.0, "a", submitted(1)), (2.0, "b", ArrayTaskSplit(1, 0, 2)), (3.0, "c", JobHeld(1, "user"))], [])
    assert [r.cause for r in store.story(2)] == ["a", "b"]


def test_blobs_are_stored_with_the_group_that_names_them(path: str) -> None:
    store = SqliteStore(path)
    small, large = b"#!/bin/sh\n", b"export A=1\n" * 1_000
    ids = [store.put(small), store.put(large), store.put(small)]
    assert ids[0] == ids[2]
    assert store.get(ids[1]) == large
    job = named(1, ids[0])
    store.append([(1.0, "x", replace(job, spec=replace(job.spec, environment=ids[1])))], [])
    store.close()
    again = SqliteStore(path)
    assert [again.get(ids[0]), again.get(ids[1])] == [small, large]
    assert os.path.getsize(path) < 100_000
    with pytest.raises(KeyError, match="no blob"):
        again.get("0" * 64)
    again.close()


def test_the_newest_readable_snapshot_is_found(path: str, store: SqliteStore) -> None:
    assert store.latest_snapshot() is None
    store.append([(float(n), "x", JobReleased(n)) for n in range(1, 8)], [])
    for seq in (5, 6, 7):
        store.write_snapshot(seq, State(next_job_id=seq))
    found = store.latest_snapshot()
    assert found is not None
    assert (found[0], found[1].next_job_id) == (7, 7)
    store._writer.execute("UPDATE snapshots SET data = x'00ff' WHERE seq = 7")
    found = store.latest_snapshot()
    assert found is not None
    assert found[0] == 6
    assert store._writer.execute("SELECT count(*) FROM snapshots").fetchone() == (2,)


def test_a_snapshot_is_of_the_moment_at_which_it_was_taken(store: SqliteStore) -> None:
    store.append([(1.0, "x", JobReleased(1))], [])
    state = State(next_job_id=7)
    write = store.snapshot_writer(1, state)
    state.next_job_id = 8
    write()
    found = store.latest_snapshot()
    assert found is not None
    assert found[1].next_job_id == 7


def test_pruning_drops_only_old_events_that_snapshots_cover(store: SqliteStore) -> None:
    store.append([(float(n), "x", JobReleased(n)) for n in range(1, 6)], [])
    assert store.prune(older_than=100.0) == 0, "no snapshot covers anything yet"
    store.write_snapshot(3, State())
    assert store.prune(older_than=2.5) == 2
    assert store.prune(older_than=100.0) == 1
    assert [r.seq for r in store.replay(0)] == [4, 5]
    store.write_snapshot(5, State())


def test_numbering_goes_on_after_everything_was_pruned(path: str) -> None:
    store = SqliteStore(path)
    store.append([(1.0, "x", JobReleased(1)), (1.0, "x", JobReleased(2))], [])
    store.write_snapshot(2, State())
    store.prune(older_than=9.0)
    store.close()
    again = SqliteStore(path)
    assert again.append([(2.0, "x", JobReleased(3))], []) == 3
    again.close()


def test_history_is_found_by_every_condition(store: SqliteStore) -> None:
    rows = [
        finished(1, partition="gpu", account="a", name="x", end_time=10.0),
        finished(2, partition="cpu", user_name="bob", user_id=2, end_time=30.0, state="FAILED"),
        finished(10, array_job_id=10, array_task_id=0),
        finished(11, array_job_id=10, array_task_id=1),
    ]
    store.append([(1.0, "x", submitted(1))], rows)

    def found(**conditions: object) -> list[int]:
        return [record["job_id"] for record in store.finished(HistoryQuery(**conditions))]  # type: ignore[arg-type]

    assert found() == [1, 2, 10, 11]
    assert found(start=15.0) == [2, 10, 11]
    assert found(end=1.0) == []
    assert found(users=("bob",)) == [2]
    assert found(uids=(2,), users=("nobody",)) == [2]
    assert found(partitions=("gpu", "x")) == [1]
    assert found(accounts=("a",), names=("x",)) == [1]
    assert found(states=("FAILED",)) == [2]
    assert found(jobs=((10, None), (2, None))) == [2, 10, 11]
    assert found(jobs=((10, 1),)) == [11]
    assert found(limit=2) == [1, 2]


def test_only_the_last_run_of_a_requeued_job_unless_asked(store: SqliteStore) -> None:
    first, second = {"job_id": 1, "state": "NODE_FAIL"}, {"job_id": 1, "state": "COMPLETED"}
    step = {"step_id": 0, "state": "COMPLETED"}
    rows = [HistoryRow(1, None, 1.0, 0, first), HistoryRow(1, None, 1.0, 1, second), HistoryRow(1, 0, 1.0, 1, step)]
    store.append([], rows)
    assert store.finished(HistoryQuery()) == [second]
    every = store.finished(HistoryQuery(duplicates=True, with_steps=True))
    assert every == [{**first, "steps": []}, {**second, "steps": [step]}]


# ------------------------------------------------------------------------------------------------- damage


def filled(path: str) -> None:
    store = SqliteStore(path)
    store.append([(1.0, "x", submitted(n)) for n in range(2_000)], [])
    store.close()


def test_a_truncated_file_is_refused(path: str) -> None:
    filled(path)
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(StoreError, match=r"journal\.db is damaged .*its end is missing.*put a backup in its place"):
        SqliteStore(path)


def test_a_file_of_something_else_is_refused(path: str) -> None:
    Path(path).write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError, match=r"journal\.db is damaged \(it is not a database\)"):
        SqliteStore(path)


def test_overwritten_pages_are_reported(path: str) -> None:
    filled(path)
    with open(path, "r+b") as file:
        file.seek(4096 * 3)
        file.write(os.urandom(4096 * 40))
    with pytest.raises(StoreError, match=r"journal\.db is damaged"):
        list(SqliteStore(path).replay(0))


@pytest.mark.parametrize(
    ("kind", "data"), [("JobReleased", b"{"), ("JobReleased", b"[]"), ("Nonsense", b"{}"), ("JobSubmitted", b"{}")]
)
def test_a_garbage_row_is_named(path: str, store: SqliteStore, kind: str, data: bytes) -> None:
    store.append([(1.0, "x", submitted(1))], [])
    total = event_sum(newest(store._writer).sum, 2, 1.0, "x", kind, 1, data)
    store._writer.execute("INSERT INTO journal VALUES (2, 1.0, 'x', ?, 1, ?, ?)", (kind, data, total))
    with pytest.raises(StoreError, match=r"journal\.db is damaged \(event 2 cannot be read"):
        list(store.replay(0))


def test_a_newer_schema_is_refused(path: str) -> None:
    filled(path)
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO schema_version VALUES (999)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match=r"written by a newer Bireme \(schema 999; .*upgrade Bireme"):
        SqliteStore(path)


def test_another_programs_database_is_left_alone(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="not Bireme's"):
        SqliteStore(path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot open the journal .*/nowhere/journal\.db: No such file"):
        SqliteStore(str(tmp_path / "nowhere" / "journal.db"))


# -- scripts and environments ----------------------------------------------------------------------------------------


def named(job_id: int, script: str) -> JobSubmitted:
    return replace(submitted(job_id), spec=replace(submitted(job_id).spec, script=script))


def test_scripts_that_nothing_names_any_more_are_dropped(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    old, young, needed, released = (store.put(b"#!/bin/sh\n%d" % number) for number in range(4))
    store.append([(5.0, "x", named(4, released))])
    store.append([(10.0, "x", named(1, old)), (10.0, "x", named(2, needed)), (50.0, "x", named(3, young))])
    assert store.prune_blobs(40.0, {needed}) == 0, "they were put a moment ago: their jobs may be on the way"
    monkeypatch.setattr(shelf, "RECENTLY_S", 0.0)
    assert store.prune_blobs(40.0, {needed}) == 2
    assert store.get(young) == b"#!/bin/sh\n1"
    assert store.get(needed) == b"#!/bin/sh\n2"
    for gone in (old, released):
        with pytest.raises(MissingBlobError):
            store.get(gone)


def test_a_script_that_was_dropped_is_stored_again(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    name = store.put(b"#!/bin/sh\n")
    store.append([(10.0, "x", named(1, name))])
    monkeypatch.setattr(shelf, "RECENTLY_S", 0.0)
    assert store.prune_blobs(40.0, ()) == 1
    assert store.put(b"#!/bin/sh\n") == name
    store.append([(50.0, "x", named(2, name))])
    assert store.prune_blobs(40.0, ()) == 0
    assert store.get(name) == b"#!/bin/sh\n"


def test_one_users_scripts_leave_room_for_others(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "SHARE_BYTES", 100)
    first = store.put(b"a" * 60, 1)
    with pytest.raises(BlobShareError, match="60 bytes"):
        store.put(b"b" * 60, 1)
    assert store.put(b"a" * 60, 1) == first, "what is there already takes no room"
    other = store.put(b"b" * 60, 2)
    store.append([(10.0, "x", named(1, first))])
    third = store.put(b"c" * 60, 1)  # the first is on disk now
    assert stored(store) == {first}, "what no job names is not written, whoever's job is"
    monkeypatch.setattr(shelf, "ON_ITS_WAY_S", -1.0)
    store.put(b"d" * 60, 1)  # in the place of one that nobody came to name
    with pytest.raises(MissingBlobError):
        store.get(third)
    assert store.get(other) == b"b" * 60


def stored(store: SqliteStore) -> set[str]:
    return {name for (name,) in store._reader.execute("SELECT id FROM blobs")}
