"""The store of series: what was told is read back, before and after it is compacted, across restarts, once."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.samples import DAY, GPU, HOUR, T0, Teller, curves, gpu, listed, means, sampled, task

from bireme.core.telemetry.curves import Asked
from bireme.core.telemetry.subjects import Subject
from bireme.ports import Holding, SeriesError
from bireme.store.series import store as store_module
from bireme.store.series import subjects as subjects_module
from bireme.store.series.store import COMPACTED_FROM, SqliteSeries

Open = Callable[[], SqliteSeries]


@pytest.fixture
def reopen(tmp_path: Path) -> Iterator[Open]:
    """Opens the file of this test; the one that was open before is left as a killed process leaves it."""
    opened: list[SqliteSeries] = []

    def open_it() -> SqliteSeries:
        for one in opened:
            killed(one)
        opened.append(SqliteSeries(str(tmp_path / "series.db"), clock=lambda: float(T0)))
        return opened[-1]

    yield open_it
    for one in opened:
        killed(one)


def killed(series: SqliteSeries) -> None:
    """Closes its connections and writes nothing."""
    series._reader.close()
    series._disk.connection.close()


def compacted(series: SqliteSeries) -> None:
    """Has everything in chunks."""
    series.flush()
    for gatherer in series._flushed():
        series._compact(gatherer)
    assert not any(series._batches.values())


def test_what_was_told_is_read_at_once_and_after_all_that_happens_to_it(reopen: Open) -> None:
    series = reopen()
    Teller(series).tell_values(T0, [300.0, 310.52, np.nan, 290.1])
    expected = [300.0, 310.5, None, 290.1]
    assert means(series, T0, T0 + 40) == expected
    assert series.flush() == {"g1": 4}
    assert means(series, T0, T0 + 40) == expected
    series = reopen()
    assert means(series, T0, T0 + 40) == expected
    compacted(series)
    assert means(series, T0, T0 + 40) == expected
    assert means(reopen(), T0, T0 + 40) == expected


def test_tasks_that_are_gone_leave_memory_and_keep_their_numbers(reopen: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty thousand short jobs are sixty thousand subjects."""
    monkeypatch.setattr(subjects_module, "_FEWEST_KEPT", 50)
    disk = reopen()._disk
    disk.subjects = subjects_module.Subjects(disk.damage)
    tasks = [Subject("task", "n1", f"{number}.1.0.0") for number in range(1_000)]
    with disk.writing() as connection:
        numbers = [
            disk.subjects.number(connection, each, T0 + 60.0 * at, T0 + 60.0 * at) for at, each in enumerate(tasks)
        ]
        assert len(disk.subjects._latest) <= 51
        again = [
            disk.subjects.number(connection, each, T0 + 60.0 * at, T0 + 60.0 * at) for at, each in enumerate(tasks)
        ]
    assert numbers == again


def test_a_crash_loses_what_was_not_flushed_and_nothing_else(reopen: Open) -> None:
    series = reopen()
    teller = Teller(series)
    teller.tell_values(T0, [1.0, 2.0])
    series.flush()
    teller.tell_values(T0 + 20, [3.0])
    series = reopen()
    assert means(series, T0, T0 + 30) == [1.0, 2.0, None]
    assert series.flush() == {"g1": 2}
    series.append("g1", 3, [sampled(T0 + 20, gpu_power=3.0)])
    assert means(series, T0, T0 + 30) == [1.0, 2.0, 3.0]


def test_a_round_that_comes_twice_counts_once(reopen: Open) -> None:
    series = reopen()
    for _ in range(2):
        series.append("g1", 1, [sampled(T0, gpu_power=10.0)])
        series.append("g1", 2, [sampled(T0 + 3, gpu_power=40.0)])
    assert means(series, T0, T0 + 10) == [25.0]
    compacted(series)
    series = reopen()
    series.append("g1", 2, [sampled(T0, gpu_power=1000.0)])
    series.append("g2", 1, [sampled(T0 + 10, gpu_power=7.0)])
    assert means(series, T0, T0 + 20) == [25.0, 7.0]
    assert series.flush() == {"g1": 2, "g2": 1}


def test_metrics_that_nobody_knows_times_that_cannot_be_and_infinities_are_not_kept(reopen: Open) -> None:
    series = reopen()
    series.append("g1", 1, [sampled(T0, gpu_colour=3.0), sampled(-5.0, gpu_power=1.0), sampled(1e300, gpu_power=1.0),
                            sampled(float("nan"), gpu_power=1.0), sampled(T0, gpu_power=np.inf, gpu_util=50.0),
                            sampled(T0, memory=12.0)])  # fmt: skip
    compacted(series)
    assert curves(series, 0, T0 + 10) == []
    assert curves(series, T0, T0 + 10, metric="memory") == []
    assert means(series, T0, T0 + 10, metric="gpu_util") == [50.0]
    assert not series.problem


def test_several_samples_in_a_step_have_least_mean_and_most(reopen: Open) -> None:
    """Somebody watches, and the gatherer looks every second."""
    series = reopen()
    teller = Teller(series)
    for second in range(20):
        teller.tell(sampled(T0 + second, interval_s=1.0, gpu_power=float(second)))
        if second == 3:
            compacted(series)  # in the middle of a step
    for _ in range(2):
        (curve,) = curves(series, T0, T0 + 20)
        assert listed(curve.low) == [0.0, 10.0]
        assert listed(curve.high) == [9.0, 19.0]
        assert listed(curve.mean)[1] == 14.5
        compacted(series)
    assert means(series, T0, T0 + 20) == [4.5, 14.5], "by how many there were before and after"


def test_curves_of_several_subjects_nodes_and_metrics(reopen: Open) -> None:
    series = reopen()
    for node in ("n1", "n2"):
        teller = Teller(series, node)
        both = [gpu(0, node), gpu(1, node)]
        teller.tell(sampled(T0, both, gpu_power=[1.0, np.nan], gpu_util=[5.0, 6.0]))
        teller.tell(sampled(T0 + 10, both, gpu_power=[2.0, np.nan], gpu_util=[7.0, 8.0]))
    asked = [gpu(0, "n1"), gpu(1, "n1"), gpu(0, "n2"), gpu(0, "n3")]
    for _ in range(2):
        told = {one.subject.id: listed(one.mean) for one in curves(series, T0, T0 + 20, subjects=asked)}
        assert told == {"GPU-n1-0": [1.0, 2.0], "GPU-n2-0": [1.0, 2.0]}, "of which nothing was measured is not there"
        assert len(curves(series, T0, T0 + 20, metric="gpu_util", subjects=asked)) == 3
        compacted(series)


def test_one_round_may_tell_of_several_nodes_and_sorts(reopen: Open) -> None:
    series = reopen()
    mixed = [gpu(0, "n1"), task("7.1.0.0", "n1"), gpu(0, "n2")]
    series.append("g1", 1, [sampled(T0, mixed, gpu_power=[1.0, np.nan, 3.0], memory=[np.nan, 64.0, np.nan])])
    compacted(series)
    assert means(series, T0, T0 + 10, subjects=[gpu(0, "n2")]) == [3.0]
    assert means(series, T0, T0 + 10, metric="memory", subjects=[task("7.1.0.0")]) == [64.0]


def test_steps_are_as_long_as_was_asked_or_a_little_longer(reopen: Open) -> None:
    series = reopen()
    Teller(series).tell_values(T0, [float(no) for no in range(30)])
    (curve,) = curves(series, T0 + 5, T0 + 300, step_s=86.4)
    assert (curve.start, curve.step_s) == (T0 - T0 % 90, 90.0)
    assert listed(curve.mean)[-1] is not None
    assert means(series, T0, T0 + 300, step_s=100) == [4.5, 14.5, 24.5]
    assert curves(series, T0 + 300, T0 + 300) == []
    (long,) = curves(series, 0.0, T0 + 300, step_s=1.0)
    assert len(long) <= 50_001


def test_rounds_that_come_hours_late_land_where_they_belong(reopen: Open) -> None:
    series = reopen()
    now, late = Teller(series, "now"), Teller(series, "late")
    now.tell(sampled(T0 + 5 * HOUR, gpu(1), gpu_power=1.0))
    compacted(series)
    late.tell_values(T0, [5.0] * 720)
    compacted(series)
    assert means(series, T0, T0 + 2 * HOUR, step_s=HOUR) == [5.0, 5.0]


def test_a_clock_that_is_set_back(reopen: Open) -> None:
    series = reopen()
    teller = Teller(series)
    teller.tell_values(T0 + 1000, [10.0, 20.0])
    teller.tell_values(T0, [1.0, 2.0])
    compacted(series)
    teller.tell_values(T0 + 10, [4.0])
    assert means(series, T0, T0 + 20) == [1.0, 3.0]
    assert means(series, T0 + 1000, T0 + 1020) == [10.0, 20.0]


def test_gatherers_are_compacted_in_turns(reopen: Open) -> None:
    series = reopen()
    tellers = [Teller(series, f"g{no}") for no in range(16)]
    for minute in range(COMPACTED_FROM + 8):
        for no, teller in enumerate(tellers):
            teller.tell(sampled(T0 + 60 * minute, gpu(0, f"n{no}"), gpu_power=float(minute)))
        before = sum(map(len, series._flushed().values()))
        series.flush()
        assert before + 16 - sum(map(len, series._flushed().values())) <= 2 * (COMPACTED_FROM + 8)
    assert all(len(mine) < COMPACTED_FROM for mine in series._flushed().values())
    (rows,) = series._disk.connection.execute("SELECT count(*) FROM rounds").fetchone()
    assert rows == sum(map(len, series._flushed().values())), "what is in chunks has no row"
    for no in range(16):
        found = means(series, T0, T0 + 600, step_s=60, subjects=[gpu(0, f"n{no}")])
        assert found == [float(minute) for minute in range(10)]


def test_days_at_once_are_written_as_they_come(reopen: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not hold them; nobody has to flush in between."""
    monkeypatch.setattr(store_module, "MOST_WAITING", 5)
    series = reopen()
    Teller(series).tell_values(T0, [1.0] * 16)
    assert series._figures <= 5
    assert means(series, T0, T0 + 160) == [1.0] * 16
    assert series.flush() == {"g1": 16}


def test_while_the_disk_takes_nothing_so_much_is_taken_and_no_more(
    reopen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MOST_WAITING", 600)
    series = reopen()
    connection = series._disk.connection
    connection.execute(f"PRAGMA max_page_count={connection.execute('PRAGMA page_count').fetchone()[0]}")
    many = [gpu(no) for no in range(300)]
    values = np.random.default_rng(1).uniform(0, 700, (3, 300))
    for no in (1, 2):
        series.append("g1", no, [sampled(T0 + 10 * no, many, gpu_power=values[no])])
    for _ in range(2):
        with pytest.raises(SeriesError, match="full"):
            series.append("g1", 3, [sampled(T0 + 30, many, gpu_power=values[0])])
    connection.execute("PRAGMA max_page_count=1000000")
    series.append("g1", 3, [sampled(T0 + 30, many, gpu_power=values[0])])
    assert series.flush() == {"g1": 3}
    assert means(series, T0 + 10, T0 + 40, subjects=[gpu(7)]) == pytest.approx(
        [values[1, 7], values[2, 7], values[0, 7]], abs=0.05
    )


def test_the_latest_figures(reopen: Open) -> None:
    series = reopen()
    teller = Teller(series)
    both = [gpu(0), gpu(1)]
    teller.tell(sampled(T0 - 20, both, gpu_power=[1.0, 2.0]), sampled(T0 - 20, task("7.1.0.0"), memory=5.0))
    teller.tell(sampled(T0 - 10, both, gpu_power=[3.0, np.nan], gpu_util=[50.0, 60.0]))
    Teller(series, "old").tell(sampled(T0 - 300, gpu(0, "n2"), gpu_power=9.0))
    expected = [(gpu(0), T0 - 10, {"gpu_power": 3.0, "gpu_util": 50.0}), (gpu(1), T0 - 10, {"gpu_util": 60.0})]
    assert series.latest("gpu") == expected
    assert series.latest("task") == [], "the newest round says nothing of it"
    series.flush()
    assert reopen().latest("gpu") == expected


def test_which_subjects_were_measured_when(reopen: Open) -> None:
    series = reopen()
    teller = Teller(series)
    teller.tell(sampled(T0, [task("7.1.0.0"), task("7.1.0.1"), task("70.1.0.0")], memory=[1.0, np.nan, 2.0]))
    teller.tell(sampled(T0 + HOUR / 2, task("7.1.0.0"), memory=1.0))
    teller.tell(sampled(T0 + 5 * HOUR, task("7.1.0.0"), memory=1.0))
    for _ in range(2):
        assert series.subjects("task", "7.", T0, T0 + 10) == [task("7.1.0.0")]
        assert {one.id for one in series.subjects("task", "", T0, T0 + 10)} == {"7.1.0.0", "70.1.0.0"}
        assert series.subjects("task", "7.", T0 + 2 * HOUR, T0 + 4 * HOUR) == [], "it was away"
        assert series.subjects("task", "7.", T0 + 4 * HOUR, T0 + 6 * HOUR) == [task("7.1.0.0")]
        assert series.subjects("gpu", "", T0, T0 + HOUR) == []
        compacted(series)
    assert means(series, T0, T0 + 6 * HOUR, step_s=HOUR, metric="memory", subjects=[task("7.1.0.0")]) == [
        1.0, None, None, None, None, 1.0,
    ]  # fmt: skip


def test_thousands_of_short_tasks(reopen: Open) -> None:
    series = reopen()
    teller = Teller(series)
    for no in range(180):
        mine = [task(f"{10 * no + one}.1.0.0") for one in range(10)]
        teller.tell(sampled(T0 + 20 * no, mine, memory=[float(no)] * 10))
    compacted(series)
    assert means(series, T0, T0 + HOUR, step_s=HOUR, metric="memory", subjects=[task("1234.1.0.0")]) == [123.0]
    (size,) = series._disk.connection.execute("SELECT sum(length(data)) FROM chunks").fetchone()
    assert size < 1800 * 4, "also what lives for one sample takes a few bytes"


def test_whose_gpus_they_were(reopen: Open) -> None:
    series = reopen()
    first = Holding(7, 1, "n1", "GPU-a", False, 100.0, None)
    other = Holding(8, 1, "n1", "GPU-a", True, 500.0, None)
    series.hold([first, other])
    ended = Holding(7, 1, "n1", "GPU-a", False, 0.0, 400.0)
    for _ in range(2):
        assert series.holdings(job_id=7) == [first]
        assert series.holdings(uuid="GPU-a") == [first, other]
        assert series.holdings(uuid="GPU-a", start=0.0, end=200.0) == [first]
        assert series.open_holdings() == [first, other]
        series.flush()
        series = reopen()
    series.hold([ended])
    for _ in range(2):
        assert series.holdings(job_id=7) == [Holding(7, 1, "n1", "GPU-a", False, 100.0, 400.0)]
        assert series.holdings(uuid="GPU-a", start=450.0) == [other]
        assert series.open_holdings() == [other]
        series.flush()
    series.hold([first])
    series.flush()
    assert series.holdings(job_id=7) == [first], "a GPU that was lost for a while and is the job's again"
    assert series.holdings(job_id=9) == []


@pytest.mark.parametrize("step_s", [10.0, 60.0, 600.0, 3600.0])
@pytest.mark.parametrize("age_s", [0, 2 * DAY, 20 * DAY])
def test_a_job_has_nothing_of_another_jobs_time_on_its_gpu(reopen: Open, step_s: float, age_s: int) -> None:
    """Whatever steps are asked for, and however coarse what is left of that time has become."""
    series = reopen()
    teller = Teller(series)
    mine, another = Holding(7, 1, "n1", GPU.id, False, T0 + 1203.0, T0 + 3012.0), 99.0
    others = [
        Holding(6, 1, "n1", GPU.id, False, T0, T0 + 1202.0),
        Holding(8, 1, "n1", GPU.id, False, T0 + 3015.0, None),
    ]
    teller.tell_values(T0, [5.0 if mine.start <= T0 + at < T0 + 3012 else another for at in range(0, 7200, 10)])
    series.hold([mine, *others])
    series.flush()
    for day in range(age_s // DAY + 1):
        series.thin_out(T0 + 7200 + day * DAY)
    asked = Asked(subjects=(), metrics=("gpu_power",), start=T0, end=T0 + 7200, step_s=step_s)
    (curve,) = series.read_held([mine], asked)
    assert np.nanmax(curve.high) == 5.0
    assert np.nansum(curve.mean) > 0


def test_the_file_is_its_users_alone(reopen: Open, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        series = reopen()
        Teller(series).tell_values(T0, [1.0])
        series.flush()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes["series.db"] == 0o600
    assert set(modes.values()) == {0o600}


def test_a_flush_leaves_nothing_in_the_log(reopen: Open, tmp_path: Path) -> None:
    series = reopen()
    Teller(series).tell_values(T0, [1.0])
    series.flush()
    assert (tmp_path / "series.db-wal").stat().st_size == 0


def test_reading_goes_on_beside_writing(reopen: Open) -> None:
    """Each round is seen once, whether it is in memory, in a row, or in chunks."""
    series = reopen()
    teller = Teller(series)
    teller.tell_values(T0, [1.0] * 60)
    wrong: list[list[float | None]] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            found = means(series, T0, T0 + 600, step_s=600)
            if found != [1.0]:
                wrong.append(found)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for no in range(COMPACTED_FROM * 3):
        teller.tell_values(T0 + 600 + 10 * no, [5.0])
        series.flush()
        series.thin_out(T0 + 10 * HOUR + no)
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []


Round = tuple[int, int, float]
ROUNDS = st.lists(
    st.tuples(st.integers(0, 3 * 360), st.integers(0, 2), st.one_of(st.just(np.nan), st.integers(0, 500).map(float))),
    min_size=1, max_size=40,
)  # fmt: skip


@settings(max_examples=25)
@given(ROUNDS, st.lists(st.sampled_from(["flush", "compact", "reopen"]), max_size=6), st.data())
def test_it_is_all_one_what_happens_between_rounds(
    tmp_path_factory: pytest.TempPathFactory,
    rounds: list[tuple[int, int, float]],
    turns: list[str],
    data: st.DataObject,
) -> None:
    path = str(tmp_path_factory.mktemp("series") / "series.db")
    series = SqliteSeries(path)
    cuts = {data.draw(st.integers(0, len(rounds))): turn for turn in turns}
    for no, (step, which, value) in enumerate(rounds, 1):
        series.append("g1", no, [sampled(T0 + 10 * step, gpu(which), gpu_power=value)])
        if cuts.get(no) == "compact":
            compacted(series)
        elif cuts.get(no) == "flush":
            series.flush()
        elif cuts.get(no) == "reopen":
            series.close()
            series = SqliteSeries(path)
    for which in range(3):
        there: dict[int, list[float]] = {}
        for step, whose, value in rounds:
            if whose == which and not np.isnan(value):
                there.setdefault(step, []).append(value)
        found = curves(series, T0, T0 + 4 * HOUR, subjects=[gpu(which)])
        assert bool(found) == bool(there)
        for curve in found:
            mean = {step: value for step, value in enumerate(listed(curve.mean)) if value is not None}
            assert mean.keys() == there.keys()
            for step, values in there.items():
                assert mean[step] == pytest.approx(sum(values) / len(values), abs=0.11 * len(values))
                assert (curve.low[step], curve.high[step]) == (min(values), max(values))
    killed(series)
