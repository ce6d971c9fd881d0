"""Windows of figures: averages, gaps, clocks that go back, and that they do not grow."""

from __future__ import annotations

import pytest

from bireme.core.model.serving.scaling import LONGEST_WINDOW_S
from bireme.core.scaling.windows import Window


def filled(values: list[float], length_s: float = 10.0) -> Window:
    window = Window(length_s)
    for second, value in enumerate(values):
        window.record(second + 0.5, value)
    return window


def test_an_even_average_counts_every_second_alike() -> None:
    assert filled([9.0, 1.0, 2.0, 3.0]).latest(4.0, 3.0).even(3.0) == 2.0


def test_a_weighted_average_of_an_even_load_is_the_load() -> None:
    assert filled([7.0] * 10).latest(10.0, 10.0).weighted() == pytest.approx(7.0)


def test_the_newest_counts_most() -> None:
    window = Window(60.0)
    window.fill(0.0, 61.0, 10.0)
    window.record(60.0, 20.0)
    window.record(61.0, 20.0)
    assert window.latest(62.0, 60.0).weighted() == pytest.approx(15.0, abs=0.1)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    window = filled([100.0] * 3 + [1.0] * 10)
    assert window.latest(13.0, 10.0).even(10.0) == 1.0


def test_a_second_of_which_nothing_was_said_is_missing_and_not_zero() -> None:
    window = Window(10.0)
    window.record(0.5, 4.0)
    window.record(5.5, 4.0)
    assert window.latest(6.0, 6.0).even(6.0) == 4.0
    assert window.latest(6.0, 6.0).missing == pytest.approx(4 / 6)


def test_the_second_that_is_not_over_yet_is_not_missing() -> None:
    assert filled([4.0] * 10).latest(10.5, 10.0).missing == 0.0


def test_reports_a_little_more_than_a_second_apart_leave_no_gap() -> None:
    window = Window(10.0)
    for number in range(30):
        window.record(number * 1.05, 1.0, 1.05)
    assert window.latest(29 * 1.05, 10.0).missing == 0.0


def test_a_report_of_many_seconds_fills_them_all() -> None:
    window = Window(10.0)
    window.record(7.5, 3.0, 5.0)
    assert window.latest(8.0, 5.0).missing == 0.0
    window.record(2000.5, 1.0, 1000.0)
    assert window.latest(2001.0, 10.0).even(10.0) == 1.0


def test_after_silence_the_old_figures_are_gone() -> None:
    window = filled([5.0] * 10)
    assert window.latest(1000.0, 10.0).even(10.0) is None
    window.record(1000.0, 1.0)
    assert window.latest(1001.0, 10.0).even(10.0) == 1.0


def test_a_clock_that_goes_far_back_begins_anew() -> None:
    window = filled([5.0] * 10)
    window.record(-1000.0, 1.0)
    assert window.latest(-999.0, 10.0).even(10.0) == 1.0


def test_a_negative_figure_is_none_at_all() -> None:
    assert filled([-3.0]).latest(1.0, 10.0).even(10.0) == 0.0


def test_another_length_keeps_the_figures() -> None:
    window = filled([float(each) for each in range(10)])
    assert window.resized(5.0).latest(10.0, 5.0).even(5.0) == 7.0
    assert window.resized(100.0).latest(10.0, 100.0).even(100.0) == 4.5


def test_it_has_no_more_buckets_than_an_hour_has_seconds() -> None:
    assert Window(1e9).length == LONGEST_WINDOW_S


def test_what_is_not_told_yet_is_no_gap() -> None:
    window = filled([4.0] * 10)
    assert window.latest(13.5, 10.0).missing == 0.0
    assert window.latest(13.5, 10.0).even(10.0) == 4.0
