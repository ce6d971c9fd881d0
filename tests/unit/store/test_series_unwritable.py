"""What can never be written is dropped and named, and the rest is kept; a file that is removed is begun anew."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.samples import T0, Teller, gpu, means, sampled

from bireme.core.telemetry.subjects import Subject
from bireme.core.telemetry.waiting import Waited
from bireme.ports import Happened, Holding, SeriesError
from bireme.store.series import store
from bireme.store.series.compacting import compact
from bireme.store.series.database import aside_of
from bireme.store.series.disk import Disk
from bireme.store.series.fresh import Stack
from bireme.store.series.inspection import inspect
from bireme.store.series.store import COMPACTED_FROM, SqliteSeries


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "series.db")


# --- what can never be written ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("no", "name"), [(2**63, "GPU-1"), (1, "GPU-\ud800")], ids=["a number too large", "a name that is no text"]
)
def test_a_batch_that_can_never_be_written_is_dropped_and_the_others_are_kept(path: str, no: int, name: str) -> None:
    series = SqliteSeries(path)
    series.append("odd", no, [sampled(T0, Subject("gpu", "n1", name), gpu_power=1.0)])
    Teller(series).tell_values(T0, [5.0])
    assert series.flush() == {"odd": no, "g1": 1}, "it is not to be told again"
    assert "rounds of 'odd' can never be written: dropped" in series.problem
    assert series.flush() == {"odd": no, "g1": 1}
    series.close()
    again = SqliteSeries(path)
    assert (means(again, T0, T0 + 10), again.problem, inspect(path)) == ([5.0], "", [])
    again.close()


def test_rounds_that_cannot_be_compacted_do_not_stop_those_that_can(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(disk: Disk, stacks: Sequence[Stack]) -> None:
        if any(gpu(1).id in stack.names for stack in stacks):
            raise ValueError("an infinite value cannot be kept")
        compact(disk, stacks)

    monkeypatch.setattr(store, "compact", refuses)
    series = SqliteSeries(path)
    for no in range(COMPACTED_FROM):
        series.append("odd", no + 1, [sampled(T0 + no, gpu(1), gpu_power=9.0)])
        series.append("g1", no + 1, [sampled(T0 + no, gpu_power=5.0)])
        series.flush()
    for _ in range(2):  # each has had its turn
        series.flush()
    assert "rounds of 'odd' can never be kept: dropped (ValueError" in series.problem
    assert means(series, T0, T0 + 10) == [5.0]
    assert not any(series._flushed().values())
    series.close()


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e308, -1e300])
def test_a_value_that_no_figure_has_was_not_measured(path: str, value: float) -> None:
    series = SqliteSeries(path)
    Teller(series).tell(sampled(T0, [gpu(0), gpu(1)], gpu_power=[value, 7.0]))
    series.flush()
    assert (means(series, T0, T0 + 10), means(series, T0, T0 + 10, subjects=[gpu(1)])) == ([], [7.0])
    series.close()


def test_a_story_that_can_never_be_written_costs_no_other(path: str) -> None:
    series = SqliteSeries(path)
    series.note_happenings(
        [Happened(T0 + no, "n1", "xid", "GPU-1", code, 0, "", "") for no, code in enumerate((31, 2**70, 43))]
    )
    series.note_waits([Waited(2**70, T0, None, ()), Waited(7, T0, None, (("Resources", ""),))])
    series.flush()
    assert "a row of happened can never be written and was dropped" in series.problem
    series.close()
    again = SqliteSeries(path)
    told = again.happenings(task_prefix="7.", uuids=["GPU-1"], start=T0, end=T0 + 9)
    assert ([one.code for one in told], [one.job_id for one in again.open_waits()]) == ([31, 43], [7])
    again.close()


def test_what_waits_for_a_disk_that_takes_nothing_is_bounded(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_HELD", 3)
    series = SqliteSeries(path)
    for job_id in range(5):
        series.hold([Holding(job_id, 1, "n1", "GPU-1", False, T0, None)])
    assert [one.job_id for one in series.open_holdings()] == [2, 3, 4]
    series.close()


# --- a file that is removed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", [(), ("-wal", "-shm")], ids=["alone", "with what is beside it"])
def test_a_file_that_is_removed_is_begun_anew_with_what_is_in_memory(path: str, beside: tuple[str, ...]) -> None:
    series = SqliteSeries(path)
    teller = Teller(series)
    teller.tell_values(T0, [5.0])
    series.flush()
    for suffix in ("", *beside):
        os.unlink(path + suffix)
    teller.tell_values(T0 + 10, [6.0])
    assert series.flush() == {"g1": 2}
    assert f"{path} was removed or replaced while it was written to: a new one was begun" in series.problem
    assert os.stat(path).st_mode & 0o777 == 0o600
    series.close()
    again = SqliteSeries(path)
    assert (means(again, T0, T0 + 20), again.problem, inspect(path)) == ([5.0, 6.0], "", [])
    again.close()


def test_a_file_that_another_was_put_in_place_of_is_no_longer_written_to(path: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other.db")
    SqliteSeries(other).close()
    series = SqliteSeries(path)
    os.replace(other, path)
    Teller(series).tell_values(T0, [5.0])
    series.flush()
    assert "replaced" in series.problem
    series.close()
    again = SqliteSeries(path)
    assert means(again, T0, T0 + 10) == [5.0]
    again.close()


def test_where_no_new_one_can_be_made_it_is_tried_again(path: str) -> None:
    series = SqliteSeries(path)
    Teller(series).tell_values(T0, [5.0])
    folder = os.path.dirname(path)
    os.rename(folder, f"{folder}.away")
    with pytest.raises(SeriesError, match="cannot open"):
        series.flush()
    os.mkdir(folder)
    assert series.flush() == {"g1": 1}
    assert means(series, T0, T0 + 10) == [5.0]
    series.close()


def test_files_that_were_set_aside_are_found(path: str) -> None:
    for name in (path + ".damaged-1", path + ".damaged-12", path + ".damaged-1-wal", path + ".damaged-x"):
        Path(name).touch()
    assert aside_of(path) == [path + ".damaged-1", path + ".damaged-12"]
    assert aside_of("/nowhere/series.db") == []
