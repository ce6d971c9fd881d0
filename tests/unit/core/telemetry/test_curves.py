"""Curves in longer steps."""

from __future__ import annotations

import math

import numpy as np

from bireme.core.telemetry.curves import Own, coarser, plain

nan = math.nan


def test_least_mean_and_most_of_longer_steps() -> None:
    column = np.array([1.0, 2.0, 3.0, nan, 8.0])
    low, mean, high = coarser((column, column, column), 2)
    assert (plain(low), plain(mean), plain(high)) == ([1.0, 3.0, 8.0], [1.5, 3.0, 8.0], [2.0, 3.0, 8.0])


def test_a_step_without_a_measurement_stays_empty() -> None:
    column = np.array([nan, nan, 4.0, 5.0])
    assert [plain(each) for each in coarser((column, column, column), 2)] == [[None, 4.0], [None, 4.5], [None, 5.0]]


def test_peaks_survive_every_step() -> None:
    mean = np.array([1.0, 1.0, 1.0, 1.0])
    high = np.array([1.0, 9.0, 1.0, 1.0])
    first = coarser((mean, mean, high), 2)
    assert plain(coarser(first, 2)[2]) == [9.0]


def test_spans_are_somebodys_where_they_touch_his_time_and_nobody_elses() -> None:
    own = Own(mine=((10.0, 20.0), (40.0, math.inf)), others=((22.0, 38.0), (0.0, 4.0)))
    begin = np.arange(0.0, 60.0, 5.0)
    held = [int(at) for at, is_own in zip(begin, own.holds(begin, begin + 5.0), strict=True) if is_own]
    assert held == [10, 15, 40, 45, 50, 55]
    assert not Own(mine=()).holds(begin, begin + 5.0).any()


def test_a_sample_is_somebodys_where_it_tells_of_nobody_else() -> None:
    own = Own(mine=((20.0, 60.0),), others=((0.0, 18.0), (60.0, 90.0)))
    at = np.array([10.0, 20.0, 28.0, 30.0, 59.0, 60.0, 70.0])
    assert own.has_sample(at, 10.0).tolist() == [False, False, True, True, True, False, False]
