"""Old samples become coarser and go, by what is to be kept; who reads sees the same through all levels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.samples import DAY, GPU, HOUR, T0, Teller, curves, listed, means, sampled

from bireme.ports import Holding
from bireme.store.series.levels import LEVELS, Keeping
from bireme.store.series.store import SqliteSeries


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "series.db")


@pytest.fixture
def series(path: str) -> Iterator[SqliteSeries]:
    made = SqliteSeries(path)
    yield made
    made.close()


def told(series: SqliteSeries, values: dict[int, float], name: str = "g1") -> None:
    """`gpu_power` by the second since T0, in one batch."""
    teller = Teller(series, name)
    for second, value in values.items():
        teller.tell(sampled(T0 + second, gpu_power=value))
    series.flush()


def levels_of(series: SqliteSeries) -> list[int]:
    """How many chunks each level has."""
    query = "SELECT (key >> 24) & 3, count(*) FROM chunks GROUP BY 1"
    there = dict(series._disk.connection.execute(query).fetchall())
    return [there.get(level.no, 0) for level in LEVELS]


def thinned(series: SqliteSeries, until: float, step_s: float = 6 * HOUR) -> None:
    """As the daemon does now and then."""
    now = float(series._disk.horizons.thinned_at or T0)
    while now < until:
        now = min(now + step_s, until)
        series.thin_out(now)


def test_what_is_kept_how_long(path: str) -> None:
    series = SqliteSeries(path, Keeping(coarse_s=20 * DAY))
    told(series, {60 * minute: float(minute % 60) for minute in range(60)})
    thinned(series, T0 + 2 * HOUR)
    assert levels_of(series) == [1, 1, 0]
    thinned(series, T0 + 23 * HOUR)
    assert levels_of(series) == [1, 1, 1]
    assert curves(series, T0, T0 + HOUR)[0].step_s == 10
    thinned(series, T0 + 26 * HOUR)
    assert levels_of(series) == [0, 1, 1], "fine ones for a day"
    assert curves(series, T0, T0 + HOUR, step_s=10)[0].step_s == 60
    assert means(series, T0, T0 + HOUR)[17] == 17.0
    thinned(series, T0 + 8 * DAY, step_s=DAY)
    assert levels_of(series) == [0, 0, 1], "minutes for a week"
    (curve,) = curves(series, T0, T0 + HOUR, step_s=10)
    assert (curve.step_s, listed(curve.mean)[0]) == (600, 4.5)
    assert (listed(curve.low)[:2], listed(curve.high)[:2]) == ([0.0, 10.0], [9.0, 19.0])
    thinned(series, T0 + 31 * DAY, step_s=DAY)
    assert levels_of(series) == [0, 0, 0], "all as long as was said"
    assert curves(series, T0, T0 + HOUR) == []
    assert series.subjects("gpu", "", T0, T0 + HOUR) == []
    series.close()


def test_without_a_setting_for_a_day_a_week_and_a_year() -> None:
    assert [Keeping().of(level) for level in LEVELS] == [DAY, 7 * DAY, 365 * DAY]


def test_how_long_is_a_setting(path: str) -> None:
    series = SqliteSeries(path, Keeping(fine_s=2 * HOUR, minutes_s=DAY, coarse_s=30 * DAY))
    told(series, {0: 5.0})
    thinned(series, T0 + 4 * HOUR)
    assert levels_of(series) == [0, 1, 0]
    thinned(series, T0 + 3 * DAY)
    assert levels_of(series) == [0, 0, 1]
    thinned(series, T0 + 36 * DAY, step_s=DAY)
    assert levels_of(series) == [0, 0, 0]
    series.close()


def test_nothing_is_dropped_before_it_is_in_the_next_level(path: str) -> None:
    series = SqliteSeries(path, Keeping(fine_s=0, minutes_s=0, coarse_s=365 * DAY))
    told(series, {0: 5.0, 3 * DAY: 7.0})
    series.thin_out(T0 + 60)
    assert means(series, T0, T0 + 600, step_s=600) == [5.0]
    thinned(series, T0 + 4 * DAY)
    assert means(series, T0, T0 + 600, step_s=600) == [5.0]
    assert means(series, T0 + 3 * DAY, T0 + 3 * DAY + 600, step_s=600) == [7.0]
    series.close()


def test_a_mean_of_means_counts_what_was_measured(series: SqliteSeries) -> None:
    """One sample of 600 in the first minute, six of 0 in the second: also after all fine ones are gone."""
    told(series, {0: 600.0, **{60 + 10 * no: 0.0 for no in range(6)}})
    expected = round(600 / 7, 6)
    assert means(series, T0, T0 + 600, step_s=600) == [expected]
    for days in (0.2, 2, 9):
        thinned(series, T0 + days * DAY)
        assert means(series, T0, T0 + 600, step_s=600) == pytest.approx([expected], abs=0.1)
    assert levels_of(series) == [0, 0, 1]


def test_a_curve_may_come_from_all_levels_at_once(series: SqliteSeries) -> None:
    hours = 6 * 24
    told(series, {600 * no: float(no // 6 % 100) for no in range(6 * hours)})
    thinned(series, T0 + hours * HOUR)
    known = series._disk.horizons
    assert 0 < known.folded_s(LEVELS[1]) < known.folded_s(LEVELS[0]) < hours * HOUR + T0
    expected = [float(hour % 100) for hour in range(hours)]
    assert means(series, T0, T0 + hours * HOUR, step_s=HOUR) == expected
    assert means(series, T0, T0 + hours * HOUR, step_s=2400)[:3] == [0.0, 0.5, 1.0]


def test_what_comes_late_is_thinned_out_when_it_comes(series: SqliteSeries) -> None:
    """A node that was cut off for days sends what its gatherer kept."""
    told(series, {10 * no: 10.0 for no in range(3 * 360)})
    thinned(series, T0 + 10 * DAY)
    told(series, {6 * HOUR + 10 * no: 50.0 for no in range(360)}, "late")
    thinned(series, T0 + 10 * DAY + 2 * HOUR)
    assert means(series, T0, T0 + 7 * HOUR, step_s=HOUR) == [10.0, 10.0, 10.0, None, None, None, 50.0]


def test_what_comes_late_into_a_window_that_is_still_there_counts_once(series: SqliteSeries) -> None:
    told(series, {10 * no: 10.0 for no in range(0, 360, 2)})
    thinned(series, T0 + 8 * HOUR)
    for turn in range(3):
        told(series, {10 * no: 40.0 for no in range(1 + 120 * turn, 120 * turn + 120, 2)}, f"late {turn}")
        thinned(series, T0 + 8 * HOUR + turn)
    assert means(series, T0, T0 + HOUR, step_s=HOUR) == [25.0]
    thinned(series, T0 + 3 * DAY)
    assert means(series, T0, T0 + HOUR, step_s=HOUR) == [25.0]


def test_a_clock_that_is_years_ahead_for_a_moment_costs_a_day(series: SqliteSeries) -> None:
    told(series, {0: 5.0})
    series.thin_out(T0 + 2 * HOUR)
    series.thin_out(T0 + 3000 * DAY)
    series.thin_out(T0 + 3 * HOUR)
    assert means(series, T0, T0 + 600, step_s=600) == [5.0]
    assert levels_of(series)[1] == 1


def test_a_thinning_that_was_cut_short_is_done_again(series: SqliteSeries, path: str) -> None:
    """All chunks are folded, and the crash comes before it is written down how far."""
    told(series, {10 * no: float(no) for no in range(360)})
    series.thin_out(T0 + 2 * HOUR)
    before = means(series, T0, T0 + HOUR, step_s=240)
    series._disk.connection.execute("DELETE FROM about WHERE key LIKE 'folded%'")
    series.close()
    again = SqliteSeries(path)
    assert means(again, T0, T0 + HOUR, step_s=240) == before
    again.thin_out(T0 + 2 * HOUR)
    assert means(again, T0, T0 + HOUR, step_s=240) == before
    again.close()


def test_whose_gpu_it_was_is_known_as_long_as_its_figures(path: str) -> None:
    series = SqliteSeries(path, Keeping(coarse_s=20 * DAY))
    held = Holding(7, 1, "n1", GPU.id, False, T0, T0 + HOUR)
    series.hold([held, Holding(8, 1, "n1", GPU.id, False, T0, None)])
    series.flush()
    thinned(series, T0 + 20 * DAY, step_s=DAY)
    assert series.holdings(job_id=7) == [held]
    thinned(series, T0 + 27 * DAY, step_s=DAY)
    assert series.holdings(job_id=7) == []
    assert len(series.holdings(job_id=8)) == 1, "it still has it"
    series.close()


@settings(max_examples=8)
@given(st.dictionaries(st.integers(0, 3 * 360 - 1), st.integers(0, 600).map(float), min_size=1, max_size=60))
def test_means_are_the_same_at_every_age(tmp_path_factory: pytest.TempPathFactory, values: dict[int, float]) -> None:
    series = SqliteSeries(str(tmp_path_factory.mktemp("series") / "series.db"))
    told(series, {10 * step: value for step, value in values.items()})
    there = [[value for step, value in values.items() if step // 360 == hour] for hour in range(3)]
    for days in (0, 1, 3, 9):
        thinned(series, T0 + days * DAY, step_s=DAY)
        for curve in curves(series, T0, T0 + 3 * HOUR, step_s=HOUR):
            for hour, mine in enumerate(there):
                assert np.isnan(curve.mean[hour]) == (not mine)
                if mine:
                    assert curve.mean[hour] == pytest.approx(sum(mine) / len(mine), abs=0.1)
                    assert (curve.low[hour], curve.high[hour]) == (min(mine), max(mine))
    series.close()
