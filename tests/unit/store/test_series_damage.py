"""Rot in `series.db`, and a disk that is full: noticed or harmless, and never the end of it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.samples import DAY, GPU, HOUR, T0, Teller, curves, gpu, listed, means, sampled

from bireme.ports import Holding, SeriesError
from bireme.store.series.inspection import inspect
from bireme.store.series.store import SqliteSeries

STEP = 4096


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "series.db")


def lived_in(path: str, *, killed: bool = False) -> None:
    """Of all tables and levels something; at the end rounds that are not compacted yet."""
    series = SqliteSeries(path)
    for node in ("n1", "n2"):
        teller = Teller(series, node)
        for no in range(3 * 60):
            both = [gpu(0, node), gpu(1, node)]
            teller.tell(sampled(T0 + 60 * no, both, gpu_power=[no * 1.7, 300.0], gpu_util=[no % 101, no % 7]))
    series.hold([Holding(7, 1, "n1", GPU.id, False, T0, None), Holding(6, 1, "n2", "GPU-x", True, T0, T0 + 60)])
    series.flush()
    for hours in (5, 18):
        series.thin_out(T0 + hours * HOUR)
    teller.tell(sampled(T0 + 4 * HOUR, both, gpu_power=[5.0, 6.0]))
    series.flush()
    if killed:
        series._reader.close()
        series._disk.connection.close()
    else:
        series.close()


def content(series: SqliteSeries) -> Any:
    """All that can be asked of it."""
    subjects = [gpu(no, node) for node in ("n1", "n2") for no in (0, 1)]
    found = [
        (one.subject, metric, listed(one.low), listed(one.mean), listed(one.high))
        for metric in ("gpu_power", "gpu_util")
        for step_s in (10, 240, 3000)
        for one in curves(series, T0, T0 + 5 * HOUR, step_s, metric=metric, subjects=subjects)
    ]
    known = [sorted(series.subjects("gpu", "", T0, T0 + DAY), key=str), series.holdings(), series.open_holdings()]
    return found, known, dict(series.flush())


def looked_at(path: str) -> tuple[Any, str]:
    """What a daemon would find, and what it would say of it."""
    series = SqliteSeries(path)
    try:
        return content(series), series.problem
    finally:
        series.close()


def places(size: int) -> list[int]:
    """Every 4 KiB, a little behind each, a page's header, the file's and its end."""
    around = [at + more for at in range(0, size, STEP) for more in (3, 1_111, STEP - 40)]
    return sorted({at for at in (*around, 16, 18, 24, 28, 40, 60, 92, size // 2, size - 1) if 0 <= at < size})


def flip(path: str, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << at % 8)]))


class Rot:
    """Damages copies of one file, and collects what was neither noticed nor harmless."""

    def __init__(self, folder: Path) -> None:
        self.whole = folder / "whole" / "series.db"
        self._copy = folder / "copy"
        self.whole.parent.mkdir()
        lived_in(str(self.whole))
        assert inspect(str(self.whole)) == []
        self.tried, self.told, self.silent = 0, 0, list[str]()
        self._expected, problem = looked_at(self._fresh())
        assert problem == ""
        assert len(self._expected[0]) == 24

    def _fresh(self) -> str:
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.whole.parent, self._copy)
        return str(self._copy / "series.db")

    def try_out(self, what: str, damage: Callable[[str], None]) -> None:
        path = self._fresh()
        damage(path)
        self.tried += 1
        named = bool(inspect(path))
        found, problem = looked_at(path)
        if named or problem:
            self.told += 1
        elif found != self._expected:
            self.silent.append(what)


def test_a_flipped_bit_is_noticed_or_harmless(tmp_path: Path) -> None:
    rot = Rot(tmp_path)
    for at in places(os.path.getsize(rot.whole)):
        rot.try_out(f"bit at {at}", lambda path, at=at: flip(path, at))  # type: ignore[misc]
    assert rot.silent == []
    assert rot.told > rot.tried // 4, "many pages hold something"


def test_a_cut_file_is_noticed_or_harmless(tmp_path: Path) -> None:
    rot = Rot(tmp_path)
    size = os.path.getsize(rot.whole)
    for length in sorted({*range(STEP, size, STEP), size - 1, 1, 100}):
        rot.try_out(f"cut to {length}", lambda path, to=length: os.truncate(path, to))  # type: ignore[misc]
    assert rot.silent == []
    assert rot.told == rot.tried


def test_a_file_that_is_none_is_set_aside_and_a_new_one_begun(path: str) -> None:
    Path(path).write_bytes(b"not a database\n" * 1000)
    for no in (1, 2):
        series = SqliteSeries(path)
        assert f"set aside as {path}.damaged-{no}" in series.problem
        assert Path(f"{path}.damaged-{no}").read_bytes().startswith(b"not a database")
        Teller(series).tell_values(T0, [5.0])
        series.close()
        assert means(SqliteSeries(path), T0, T0 + 10) == [5.0]
        Path(path).write_bytes(b"not a database again\n" * 1000)
        Path(f"{path}-wal").unlink(missing_ok=True)


def test_a_database_of_somebody_else_is_set_aside(path: str) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE mine (x)")
    other.close()
    series = SqliteSeries(path)
    assert "set aside" in series.problem
    series.close()


def test_one_of_a_newer_bireme_is_left_as_it_is(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bireme.store.series.database.SCHEMA_VERSION", 9)
    SqliteSeries(path).close()
    monkeypatch.undo()
    with pytest.raises(SeriesError, match="newer Bireme: upgrade"):
        SqliteSeries(path)


def test_what_cannot_be_opened_is_told(tmp_path: Path) -> None:
    with pytest.raises(SeriesError, match=r"cannot open .*none/series.db: No such file"):
        SqliteSeries(str(tmp_path / "none" / "series.db"))


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE chunks SET data = zeroblob(10) WHERE key = (SELECT min(key) FROM chunks)", "chunk"),
        ("UPDATE chunks SET sum = sum + 1", "chunk"),
        ("UPDATE subjects SET name = 'GPU-n1-9' WHERE name = 'GPU-n1-0'", "subjects"),
        ("UPDATE held SET since = 0", "a GPU of job"),
        ("UPDATE rounds SET data = zeroblob(10)", "rounds"),
        ("UPDATE about SET value = value + 1 WHERE key LIKE 'folded%'", "folded"),
        ("UPDATE gatherers SET no = 1000", "gatherers"),
    ],
)
def test_damage_is_named_and_passed_over(path: str, statement: str, named: str) -> None:
    lived_in(path)
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    series = SqliteSeries(path)
    content(series)
    assert named in series.problem
    teller = Teller(series, "n3")
    teller.tell_values(T0 + 20 * HOUR, [5.0], subject=gpu(0, "n3"))
    series.thin_out(T0 + 22 * HOUR)
    assert means(series, T0 + 20 * HOUR, T0 + 20 * HOUR + 10, subjects=[gpu(0, "n3")]) == [5.0]
    series.close()


def test_a_file_that_rots_while_it_is_open_is_set_aside_with_all_that_is_in_memory_kept(path: str) -> None:
    lived_in(path)
    series = SqliteSeries(path)
    with open(path, "r+b") as file:  # every page but the first, which says what it is
        file.seek(8192)
        file.write(os.urandom(os.path.getsize(path) - 8192))
    teller = Teller(series)
    teller.tell_values(T0 + 20 * HOUR, [5.0])
    with pytest.raises(SeriesError, match="set aside as"):  # noqa: PT012  (whichever meets it first)
        for hours in range(24, 48):
            series.flush()
            series.thin_out(T0 + hours * HOUR)
    assert series.flush()["g1"] == 1
    assert means(series, T0 + 20 * HOUR, T0 + 20 * HOUR + 10) == [5.0]
    series.close()
    assert means(SqliteSeries(path), T0 + 20 * HOUR, T0 + 20 * HOUR + 10) == [5.0]


def test_no_room_for_a_new_file_beside_the_damaged_one(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    series = SqliteSeries(path)
    Teller(series).tell_values(T0, [5.0])

    def full(path: str, damage: object) -> None:
        raise SeriesError(f"cannot write {path}: database or disk is full")

    monkeypatch.setattr("bireme.store.series.store.Disk", full)
    with pytest.raises(SeriesError):
        series._begin_anew(lambda: series._new_beside("rotten"))
    for _ in range(3):
        with pytest.raises(SeriesError, match="full"):
            series.flush()
        assert means(series, T0, T0 + 10) == [5.0]
    monkeypatch.undo()
    assert series.flush() == {"g1": 1}
    assert sorted(os.listdir(os.path.dirname(path))) == [
        "series.db", "series.db-shm", "series.db-wal", "series.db.damaged-1",
    ]  # fmt: skip
    series.close()


def test_a_full_disk_is_told_and_nothing_is_lost_once_there_is_room(path: str) -> None:
    series = SqliteSeries(path)
    connection = series._disk.connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count={pages}")
    teller = Teller(series)
    for no in range(200):
        many = [gpu(one) for one in range(50)]
        teller.tell(sampled(T0 + 10 * no, many, gpu_power=[1.0 * no * one for one in range(50)]))
    with pytest.raises(SeriesError, match=r"cannot write .*full: free some space"):
        series.flush()
    assert "full" in series.problem
    assert means(series, T0 + 10, T0 + 20, subjects=[gpu(2)]) == [2.0], "what is in memory is shown"
    teller.tell(sampled(T0 + 2000, gpu(2), gpu_power=77.0))
    series.thin_out(T0 + 3 * HOUR)
    assert "full" in series.problem, "until what waits is written"
    connection.execute("PRAGMA max_page_count=1000000")
    assert series.flush() == {"g1": 201}
    assert series.problem == ""
    series.close()
    again = SqliteSeries(path)
    assert means(again, T0, T0 + 2010, subjects=[gpu(2)]) == [2.0 * no for no in range(200)] + [77.0]
    again.close()


def test_a_full_disk_in_the_middle_of_compacting_leaves_rounds_as_they_were(path: str) -> None:
    series = SqliteSeries(path)
    teller = Teller(series)
    for no in range(20):
        many = [gpu(one) for one in range(200)]
        teller.tell(sampled(T0 + 10 * no, many, gpu_power=[7.3 * no * one % 501 for one in range(200)]))
    series.flush()
    before = means(series, T0, T0 + 200, subjects=[gpu(111)])
    connection = series._disk.connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(SeriesError, match="full"):
        series.thin_out(T0 + 3 * HOUR)
    assert means(series, T0, T0 + 200, subjects=[gpu(111)]) == before
    connection.execute("PRAGMA max_page_count=1000000")
    series.thin_out(T0 + 3 * HOUR)
    assert means(series, T0, T0 + 200, subjects=[gpu(111)]) == before
    assert len(series.subjects("gpu", "", T0, T0 + HOUR)) == 200
    series.close()
