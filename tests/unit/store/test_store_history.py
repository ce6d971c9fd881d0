"""Rows of the history: small, complete, and the same records as were written, whatever they have in common."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.cli.store import main
from bireme.core.jobs.submission import submit
from bireme.core.model.jobs import ArrayTask, Finished, JobSpec, Outcome, Owner
from bireme.core.model.reasons import ReasonKind, reason
from bireme.core.model.resources import Usage
from bireme.daemon.paths import Paths
from bireme.ports import HistoryQuery, HistoryRow, JournalError, StoreError
from bireme.slurm.records.steps import history_rows
from bireme.store import codec
from bireme.store.history import HistoryReader, HistoryWriter, repack, unused_shapes
from bireme.store.journal import SqliteStore
from bireme.testing.scenario import Scenario, caller_named
from bireme.testing.worlds import build_spec

BYTES_A_ROW = 400
ARRAY_TASK = ArrayTask(0, 0, 1000, 0, 999)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(str(tmp_path / "journal.db"), durable=False)
    yield opened
    opened.close()


def bytes_of(store: SqliteStore, *tables: str) -> int:
    """On disk, with their indexes and everything that rows share."""
    store._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    wanted = {*tables, *(f"{table}_by_{index}" for table in tables for index in ("end", "array", "het"))}
    sizes = dict(store._writer.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name"))
    return sum(size for name, size in sizes.items() if name in wanted)


def spec_of(number: int, spec: JobSpec) -> JobSpec:
    return replace(
        spec, name=f"train-{number}", work_dir="/home/alice/project", command="/home/alice/project/train.sh",
        submit_line=f"sbatch --time=10:00 train.sh --seed={number}", std_out="logs/%x-%j.out", comment="a sweep",
    )  # fmt: skip


def cancelled_rows(count: int, *, array: bool) -> list[HistoryRow]:
    """Of jobs that waited for different times and were then cancelled."""
    world = Scenario("1x8")
    world.submit("block", cpus=8)
    world.submit("a", **({"array": "0-999"} if array else {}))
    world.settle()
    job = world.job("a_0" if array else "a")
    rows: list[HistoryRow] = []
    for number in range(count):
        outcome = Outcome("CANCELLED", by_uid=1001, reason=reason(ReasonKind.PRIORITY))
        own = replace(job, id=number + 10, submitted_at=world.now + number / 7, priority=10_000 - number)
        if array:
            own.array = replace(ARRAY_TASK, array_job_id=job.id, task_id=number)
        else:
            own.spec = spec_of(number, job.spec)
        rows += history_rows(world.state, own, Finished(outcome, world.now + 5_000 + number / 3), world.now)
    return rows


def ended_rows(count: int) -> list[HistoryRow]:
    world = Scenario("4x8")
    rows: list[HistoryRow] = []
    for number in range(count):
        name = f"j{number}"
        world.submit(name, cpus=1 + number % 3)
        world.wait(1.0 + number / 9)
        job = world.job(name)
        assert job.allocation is not None
        done = Finished(Outcome("COMPLETED"), world.now + 7.25 + number / 3, world.now, job.allocation)
        rows += history_rows(world.state, job, done, world.now)
        world.finish(name)
        world.settle()
    return rows


@pytest.mark.parametrize("array", [False, True])
def test_a_cancelled_job_takes_less_than_so_many_bytes(store: SqliteStore, array: bool) -> None:
    rows = cancelled_rows(1_000, array=array)
    for begin in range(0, len(rows), 100):
        store.append([], rows[begin : begin + 100])
    assert bytes_of(store, "runs", "shapes") / len(rows) < BYTES_A_ROW
    assert store.finished(HistoryQuery()) == [codec.loads(codec.dumps(row.whole)) for row in rows]


def test_the_tasks_of_an_array_have_one_shape_however_their_runs_and_the_digits_of_their_ids_differ(
    store: SqliteStore,
) -> None:
    world = Scenario("4x8")
    world.submit("a", cpus=1, array="0-29", std_out="/data/out/%a.txt")
    world.settle()
    rows: list[HistoryRow] = []
    for job in world.state.holding.values():
        used = Usage(user_cpu_s=job.id / 7, system_cpu_s=job.id / 3, max_rss_kib=1000 + job.id, max_rss_node="n1")
        own = replace(job, batch_usage=used, usage=used)
        assert job.allocation is not None
        done = Finished(Outcome("COMPLETED"), world.now + job.id / 3, world.now, job.allocation)
        rows += history_rows(world.state, own, done, world.now)
    for row in rows:
        store.append([], [row])
    assert len(rows) == 60
    (shapes,) = store._writer.execute("SELECT count(*) FROM shapes").fetchone()
    assert shapes == 2, "one for all tasks, one for their scripts"
    jobs = sorted((row for row in rows if row.step_id is None), key=lambda row: row.job_id)
    assert store.finished(HistoryQuery()) == [codec.loads(codec.dumps(row.whole)) for row in jobs]


def test_a_job_that_ran_takes_less_than_so_many_bytes_and_so_does_its_script(store: SqliteStore) -> None:
    rows = ended_rows(200)
    for row in rows:
        store.append([], [row])
    jobs = [row for row in rows if row.step_id is None]
    assert bytes_of(store, "runs", "shapes") / len(jobs) < BYTES_A_ROW
    assert bytes_of(store, "run_steps") / (len(rows) - len(jobs)) < BYTES_A_ROW
    read = store.finished(HistoryQuery(with_steps=True))
    steps = [codec.loads(codec.dumps(row.whole)) for row in rows if row.step_id is not None]
    assert [step for record in read for step in record.pop("steps")] == steps
    assert read == [codec.loads(codec.dumps(row.whole)) for row in jobs]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.just(2**70) | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["/a/slurm-7.out", "7_3", "\0j", "\udcff/x", "\0"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip
RECORDS = st.lists(
    st.fixed_dictionaries(
        {"job_id": st.integers(1, 30), "state": st.sampled_from(["COMPLETED", "FAILED"])},
        optional={
            "name": st.none() | st.text(max_size=5) | st.just("\udcff"), "std_out": VALUES, "usage": VALUES,
            "array_job_id": st.none() | st.just(7), "array_task_id": st.none() | st.just(3), "comment": VALUES,
            "submit_time": VALUES, "end_time": st.none() | st.floats(0, 9),
            "shares": VALUES, "user_id": st.integers(0, 2),
        },
    ),
    min_size=1, max_size=12,
)  # fmt: skip


OWN = {
    "std_out": VALUES, "usage": VALUES, "submit_time": VALUES, "end_time": st.none() | st.floats(0, 9) | st.just(5),
    "array_task_id": st.none() | st.just(3),
}  # fmt: skip


@given(records=RECORDS)
def test_whatever_records_have_in_common_they_come_back_as_they_were(records: list[dict[str, Any]]) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    _make_tables(connection)
    writer = HistoryWriter()
    for number, record in enumerate(records):
        writer.insert(connection, [HistoryRow(record["job_id"], None, float(number), 0, record)])
    read = HistoryReader().select(connection, HistoryQuery(duplicates=True), [])
    key = codec.dumps
    assert sorted(read, key=key) == sorted((codec.loads(key(record)) for record in records), key=key)
    connection.close()


@given(records=RECORDS, others=st.lists(st.fixed_dictionaries({}, optional=OWN), min_size=2, max_size=6))
def test_records_that_are_like_one_come_back_as_they_were(
    records: list[dict[str, Any]], others: list[dict[str, Any]]
) -> None:
    """They are held against it in their own fields alone, whatever was written before and between them."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    _make_tables(connection)
    writer, written = HistoryWriter(), []
    for like in records:
        for other in others:
            own = {name: like[name] for name in OWN if name in like}
            own |= {name: value for name, value in other.items() if name in like}
            row = HistoryRow(len(written), None, 1.0, 0, {**own, "job_id": len(written)}, like)
            writer.insert(connection, [row])
            written.append(row.whole)
    read = HistoryReader().select(connection, HistoryQuery(duplicates=True), [])
    assert read == [codec.loads(codec.dumps(record)) for record in written]
    connection.close()


def _make_tables(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE jobs (job_id, submitted_at, restarts, record)")
    connection.execute("CREATE TABLE steps (job_id, submitted_at, restarts, step_id, record)")
    repack(connection)


def test_a_transaction_that_is_undone_takes_its_shapes_with_it(store: SqliteStore) -> None:
    first, second = cancelled_rows(2, array=False)

    class Full(list[HistoryRow]):
        def __iter__(self) -> Iterator[HistoryRow]:
            yield first
            raise JournalError("the disk is full")

    with pytest.raises(JournalError):
        store.append([], Full())
    assert store.finished(HistoryQuery()) == []
    store.append([], [second])
    assert [record["job_id"] for record in store.finished(HistoryQuery())] == [second.job_id]


def test_a_task_is_found_in_the_row_of_those_that_were_cancelled_with_it(store: SqliteStore) -> None:
    world = Scenario("1x8")
    world.submit("block", cpus=8)
    array = world.submit("a", array="0-99")
    world.settle()
    world.cancel("a_[10-40]")
    part = world.job("a_10")
    assert isinstance(part.phase, Finished)
    store.append([], history_rows(world.state, part, part.phase, world.now))
    assert [record["array_tasks"] for record in store.finished(HistoryQuery(jobs=((array, 20),)))] == ["10-40"]
    assert store.finished(HistoryQuery(jobs=((array, 41),))) == []
    assert len(store.finished(HistoryQuery(jobs=((array, None),)))) == 1


def test_the_history_of_an_older_file_is_packed(tmp_path: Path) -> None:
    rows = ended_rows(20)
    old = sqlite3.connect(str(tmp_path / "old.db"), isolation_level=None)
    old.execute("CREATE TABLE jobs (job_id, submitted_at, restarts, record)")
    old.execute("CREATE TABLE steps (job_id, submitted_at, restarts, step_id, record)")
    for row in rows:
        key, data = (row.job_id, row.submitted_at, row.restarts), codec.dumps(row.whole)
        if row.step_id is None:
            old.execute("INSERT INTO jobs VALUES (?, ?, ?, ?)", (*key, data))
        else:
            old.execute("INSERT INTO steps VALUES (?, ?, ?, ?, ?)", (*key, row.step_id, data))
    repack(old)
    read = HistoryReader().select(old, HistoryQuery(with_steps=True), [])
    steps = [step for record in read for step in record.pop("steps")]
    assert read == [codec.loads(codec.dumps(row.whole)) for row in rows if row.step_id is None]
    assert steps == [codec.loads(codec.dumps(row.whole)) for row in rows if row.step_id is not None]
    assert {name for (name,) in old.execute("SELECT name FROM sqlite_master WHERE type = 'table'")} == {
        "shapes", "runs", "run_steps",
    }  # fmt: skip
    old.close()


def test_a_script_that_is_submitted_again_and_again_is_one_specification_in_memory() -> None:
    world = Scenario("1x8")
    spec = build_spec("same", {"cpus": 8}, Owner(uid=1001, gid=1001, user="alice"))
    for _ in range(3):
        world.record(submit(world.state, caller_named("alice"), [replace(spec)], world.now))
    assert len({id(job.spec) for job in world.state.jobs.values()}) == 1


def test_what_ended_long_ago_is_dropped_and_nothing_that_is_still_known(store: SqliteStore) -> None:
    rows = ended_rows(30)
    store.append([], rows)
    ends = {row.job_id: row.record["end_time"] for row in rows if row.step_id is None}
    middle = sorted(ends.values())[15]
    assert store.prune_history(middle, kept={1, 2}) == 13
    left = store.finished(HistoryQuery(with_steps=True))
    assert {record["job_id"] for record in left} == {1, 2} | {job for job, end in ends.items() if end >= middle}
    assert all(len(record["steps"]) == 1 for record in left)
    assert store.prune_history(middle, kept={1, 2}) == 0
    assert store.prune_history(max(ends.values()) + 1) == len(left)
    tables = {
        table: store._writer.execute(f"SELECT count(*) FROM {table}").fetchone() for table in ("runs", "run_steps")
    }
    assert tables == {"runs": (0,), "run_steps": (0,)}
    store.append([], rows)
    expected = [codec.loads(codec.dumps(row.whole)) for row in rows if row.step_id is None]
    assert store.finished(HistoryQuery()) == expected, "shapes that were dropped are made again"


def test_shapes_that_nobody_uses_are_looked_for_after_something_was_dropped_and_not_by_the_writer(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To find them is to look at every row of the history: nobody's commit waits for that."""
    monkeypatch.setattr("bireme.store.history._PRUNED_AT_ONCE", 7)
    store.append([], [*ended_rows(30), *cancelled_rows(3, array=False)])
    said: list[str] = []
    store._writer.set_trace_callback(said.append)
    assert store.prune_history(0.0, kept={1, 2}) == 0
    assert [each for each in said if "shape" in each] == []
    said.clear()
    assert store.prune_history(1e12, kept={1}) > 20
    assert sum(each.startswith("INSERT OR IGNORE INTO kept") for each in said) == 1, "what is kept is said once"
    assert [each for each in said if "shape" in each and not each.startswith("DELETE FROM shapes")] == []
    assert len(store.finished(HistoryQuery(with_steps=True))) == 1


def test_a_shape_that_comes_into_use_while_unused_ones_are_looked_for_stays(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = cancelled_rows(2, array=False)
    others = ended_rows(1)
    store.append([], [first])
    store.append([], others)  # of these is the newest shape, which stays in any case
    found: list[int] = []

    def then_one_more_ends(connection: sqlite3.Connection) -> list[int]:
        found.extend(unused_shapes(connection))
        store.append([], [second])
        return found

    monkeypatch.setattr("bireme.store.journal.unused_shapes", then_one_more_ends)
    assert store.prune_history(1e12) == 2
    assert found, "that of the first, which the second has too"
    assert [record["job_id"] for record in store.finished(HistoryQuery())] == [second.job_id]


@pytest.mark.parametrize(
    ("damage", "said", "left"),
    [
        ('UPDATE runs SET "end" = "end" + 1 WHERE job_id = 102', "the record of job 102 is not what was written", 2),
        ("UPDATE runs SET name = CAST(x'ff6b' AS TEXT) WHERE job_id = 102", "the record of job 102 is not what", 2),
        ("UPDATE runs SET differs = x'00' WHERE job_id = 103", "the record of job 103 is not what was written", 2),
        ("UPDATE shapes SET record = x'00'", "what many records share (shape ", 0),
    ],
)
def test_a_damaged_record_is_named_and_hides_no_other(store: SqliteStore, damage: str, said: str, left: int) -> None:
    rows = [
        HistoryRow(number, None, 1.0, 0, {"job_id": number, "name": "n", "state": "FAILED", "end_time": 5.0})
        for number in (101, 102, 103)
    ]
    store.append([], rows)
    store._writer.execute(damage)
    store._history_reader.forget()
    sound, damaged = store.sound_and_damaged(HistoryQuery())
    assert len(sound) == left
    assert len(damaged) == 1
    assert damaged[0].startswith(said)
    with pytest.raises(StoreError, match="damaged"):
        store.finished(HistoryQuery())


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 100])
def test_pages_have_every_run_once_by_its_end_whatever_ended_together(store: SqliteStore, size: int) -> None:
    ends = {101: 5.0, 102: 4.0, 103: 5.0, 104: 5.0, 105: 9.0, 106: 4.5, 107: 1.0}
    rows = [HistoryRow(job, None, 1.0, 0, {"job_id": job, "end_time": end}) for job, end in ends.items()]
    store.append([], rows)
    pages = list(store.pages(HistoryQuery(start=4.0, ended_before=9.0, duplicates=True), size))
    assert [record["job_id"] for records, _ in pages for record in records] == [102, 106, 101, 103, 104]
    assert all(len(records) <= size for records, _ in pages)


def test_a_page_of_damaged_runs_is_passed_over_and_each_is_named_once(store: SqliteStore) -> None:
    rows = [HistoryRow(job, None, 1.0, 0, {"job_id": job, "end_time": 5.0}) for job in range(101, 107)]
    store.append([], rows)
    store._writer.execute("UPDATE runs SET differs = x'00' WHERE job_id IN (102, 103, 104)")
    pages = list(store.pages(HistoryQuery(start=0.0), 2))
    assert [record["job_id"] for records, _ in pages for record in records] == [101, 105, 106]
    assert [sentence.split()[4] for _, damaged in pages for sentence in damaged] == ["102", "103", "104"]


@pytest.mark.parametrize("damage", ["record = x'00'", "record = CAST(record AS TEXT)", "sum = 7"])
def test_jobs_that_end_after_a_shape_rotted_get_another(store: SqliteStore, damage: str) -> None:
    """What finds a shape for a record stands in the way of every commit: it must not fail for what was written once."""
    before, *after = cancelled_rows(3, array=False)
    store.append([], [before])
    store._writer.execute(f"UPDATE shapes SET {damage}")
    store._history_writer = HistoryWriter()  # the daemon was started anew
    store.append([], after)
    sound, damaged = store.sound_and_damaged(HistoryQuery())
    assert [record["job_id"] for record in sound] == [row.job_id for row in after]
    assert len(damaged) == 1


def test_a_damaged_step_leaves_its_job(store: SqliteStore) -> None:
    record = {"job_id": 7, "name": "n", "state": "FAILED"}
    store.append([], [HistoryRow(7, None, 1.0, 0, record), HistoryRow(7, 0, 1.0, 0, {"step_id": 0, "job_id": 7})])
    store._writer.execute("UPDATE run_steps SET start = 3")
    sound, damaged = store.sound_and_damaged(HistoryQuery(with_steps=True))
    assert [(row["job_id"], row["steps"]) for row in sound] == [(7, [])]
    assert damaged == ["the record of step 0 of job 7 is not what was written"]


def test_the_command_drops_what_is_old_and_keeps_the_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = Paths(str(tmp_path / "home"))
    paths.create()
    made = SqliteStore(paths.journal)
    made.append([], ended_rows(5))
    made.close()
    assert main(["prune", "--older-than", "30", "--home", paths.home]) == 0
    assert capsys.readouterr().out == (
        "Dropped the records of 5 jobs that ended more than 30 days ago.\n"
        "Dropped 0 scripts and environments that nothing names since then.\n"
    )
    again = SqliteStore(paths.journal)
    assert again.finished(HistoryQuery()) == []
    again.close()
