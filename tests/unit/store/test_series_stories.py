"""What kept jobs waiting, and what happened to GPUs: kept beside the series, bounded, and once."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from bireme.core.telemetry.digest import Digest
from bireme.core.telemetry.waiting import Waited
from bireme.ports import Happened
from bireme.store.checks import with_sum
from bireme.store.series import database, stories
from bireme.store.series.inspection import inspect
from bireme.store.series.store import SqliteSeries

PRIORITY, RESOURCES = (("Priority", "Others."),), (("Resources", "None free."), ("Licenses", ""))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "series.db")


def test_spans_are_kept_and_a_known_one_gets_its_end(path: str) -> None:
    series = SqliteSeries(path)
    spans = [Waited(7, 10.0, 20.0, PRIORITY), Waited(7, 20.0, None, RESOURCES), Waited(8, 1.0, None, PRIORITY)]
    series.note_waits(spans)
    assert series.waits(7) == spans[:2], "before it is written"
    series.flush()
    assert series.waits(7) == spans[:2]
    assert {one.job_id for one in series.open_waits()} == {7, 8}
    series.note_waits([Waited(7, 20.0, 35.0, RESOURCES)])
    assert series.waits(7)[1].end == 35.0
    series.close()
    again = SqliteSeries(path)
    assert again.waits(7) == [spans[0], Waited(7, 20.0, 35.0, RESOURCES)]
    assert [one.job_id for one in again.open_waits()] == [8]
    again.close()
    assert inspect(path) == []


def test_what_happened_is_found_by_its_task_and_its_gpu(path: str) -> None:
    series = SqliteSeries(path)
    told = [
        Happened(10.0, "n1", "xid", "GPU-a", 79, 4711, "7.1.0.0", "fell off"),
        Happened(11.0, "n1", "gpu lost", "GPU-b"),
        Happened(12.0, "n1", "xid", "GPU-c", 31, 0, "71.1.0.0"),
        Happened(99.0, "n1", "xid", "GPU-b", 31),
    ]
    series.note_happenings(told)
    for _ in range(2):
        assert series.happenings(task_prefix="7.", uuids=("GPU-b",), start=0.0, end=50.0) == told[:2]
        series.flush()
    series.flush()
    assert series.happenings(task_prefix="7.", uuids=(), start=0.0, end=50.0) == told[:1], "once"
    series.close()


def test_the_oldest_go_when_there_are_too_many(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stories, "MOST_WAITS", 10)
    monkeypatch.setattr(stories, "MOST_HAPPENINGS", 10)
    series = SqliteSeries(path)
    series.note_waits([Waited(job_id, 100.0 + job_id, 200.0 + job_id, PRIORITY) for job_id in range(30)])
    series.note_waits([Waited(99, 1.0, None, PRIORITY)])
    series.note_happenings([Happened(100.0 + place, "n1", "xid", "GPU-a", place) for place in range(30)])
    series.flush()
    series.thin_out(1000.0)
    assert [job_id for job_id in range(100) if series.waits(job_id)] == [*range(21, 30), 99]
    left = series.happenings(task_prefix="x.", uuids=("GPU-a",), start=0.0, end=1000.0)
    assert [one.code for one in left] == list(range(20, 30))
    series.close()


def test_a_file_of_before_gets_the_new_tables_and_keeps_what_it_has(path: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in database.SCHEMAS[1]:
        connection.execute(statement)
    connection.execute("INSERT INTO about VALUES (?, ?, ?)", with_sum(("version", 1)))
    held = with_sum((7, 1, "n1", "GPU-a", 0, 10.0, 20.0))
    connection.execute(f"INSERT INTO held VALUES ({', '.join('?' * len(held))})", held)
    connection.close()
    assert inspect(path) == [], "also before it is opened"
    series = SqliteSeries(path)
    assert series.problem == ""
    assert [one.uuid for one in series.holdings(job_id=7)] == ["GPU-a"]
    digest = Digest(job_id=7, generation=1, start=10.0, end=20.0)
    series.note_waits([Waited(7, 1.0, 2.0, PRIORITY)])
    series.keep_digests([digest])
    series.close()
    assert inspect(path) == []
    again = SqliteSeries(path)
    assert again.waits(7) == [Waited(7, 1.0, 2.0, PRIORITY)]
    assert again.digests([7]) == [digest]
    again.close()


def test_a_damaged_row_is_named_and_passed_over(path: str) -> None:
    series = SqliteSeries(path)
    series.note_waits([Waited(7, 1.0, 2.0, PRIORITY), Waited(7, 2.0, 3.0, RESOURCES)])
    series.note_happenings([Happened(1.0, "n1", "xid", "GPU-a", 1)])
    series.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE waited SET reasons = '[[' WHERE since = 1.0")
    connection.execute("UPDATE happened SET code = 2")
    connection.commit()
    connection.close()
    assert len(inspect(path)) == 2
    series = SqliteSeries(path)
    assert [one.start for one in series.waits(7)] == [2.0]
    assert series.happenings(task_prefix="7.", uuids=("GPU-a",), start=0.0, end=9.0) == []
    assert "not what was written" in series.problem
    series.close()
