"""Schedules: which shift holds when, over weeks, midnights and changes of summer time."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from bireme.core.model.serving.scaling import Scaling, Shift
from bireme.core.scaling.schedule import bounds_at, utc

WEEKDAYS = (0, 1, 2, 3, 4)
ALWAYS = (0, 1, 2, 3, 4, 5, 6)
OFFICE = Scaling(
    replicas_min=1,
    replicas_max=8,
    shifts=(Shift(WEEKDAYS, 8 * 60, replicas_min=4), Shift(WEEKDAYS, 20 * 60, replicas_min=0, replicas_max=2)),
)
BERLIN = ZoneInfo("Europe/Berlin")


def berlin(at: float) -> float:
    offset = datetime.fromtimestamp(at, BERLIN).utcoffset()
    assert offset is not None
    return offset.total_seconds()


def at(text: str, zone: ZoneInfo | None = None) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone or UTC).timestamp()


def lower_and_upper(text: str) -> tuple[int, int]:
    bounds = bounds_at(OFFICE, at(text), utc)
    return bounds.lower, bounds.upper


def test_without_shifts_the_policys_bounds_hold_for_ever() -> None:
    bounds = bounds_at(Scaling(replicas_min=1, replicas_max=3), 0.0, utc)
    assert (bounds.lower, bounds.upper, bounds.until) == (1, 3, None)


def test_a_shift_holds_from_its_minute_until_the_next() -> None:
    assert lower_and_upper("2027-01-13T07:59:59") == (0, 2)
    assert lower_and_upper("2027-01-13T08:00:00") == (4, 8)
    assert lower_and_upper("2027-01-13T19:59:59") == (4, 8)
    assert lower_and_upper("2027-01-13T20:00:00") == (0, 2)


def test_fridays_last_shift_holds_over_the_weekend() -> None:
    assert lower_and_upper("2027-01-17T12:00:00") == (0, 2)
    assert bounds_at(OFFICE, at("2027-01-16T12:00:00"), utc).until == at("2027-01-18T08:00:00")


def test_one_shift_a_week_holds_all_week() -> None:
    policy = Scaling(replicas_max=9, shifts=(Shift((2,), 0, replicas_min=5),))
    assert bounds_at(policy, at("2027-01-12T23:59:59"), utc).lower == 5
    assert bounds_at(policy, at("2027-01-13T00:00:00"), utc).until == at("2027-01-20T00:00:00")


def test_of_two_shifts_at_once_the_later_said_wins() -> None:
    policy = Scaling(replicas_max=9, shifts=(Shift(ALWAYS, 60, replicas_min=2), Shift((2,), 60, replicas_min=7)))
    assert bounds_at(policy, at("2027-01-13T02:00:00"), utc).lower == 7
    assert bounds_at(policy, at("2027-01-14T02:00:00"), utc).lower == 2


def test_hours_are_those_of_the_clusters_wall_clock() -> None:
    assert bounds_at(OFFICE, at("2027-01-13T08:00:00", BERLIN), berlin).lower == 4
    assert bounds_at(OFFICE, at("2027-07-14T08:00:00", BERLIN), berlin).lower == 4
    assert bounds_at(OFFICE, at("2027-07-14T07:59:00", BERLIN), berlin).lower == 0


def test_the_next_shift_after_a_change_of_summer_time_begins_by_the_new_time() -> None:
    friday = at("2027-03-26T21:00:00", BERLIN)
    assert bounds_at(OFFICE, friday, berlin).until == at("2027-03-29T08:00:00", BERLIN)


def test_an_hour_that_summer_time_leaves_out_is_the_one_after_it() -> None:
    policy = Scaling(replicas_max=9, shifts=(Shift((6,), 2 * 60 + 30, replicas_min=5),))
    assert bounds_at(policy, at("2027-03-28T00:00:00", BERLIN), berlin).until == at("2027-03-28T03:30:00", BERLIN)


def test_a_minimum_above_the_maximum_is_the_maximum() -> None:
    policy = Scaling(replicas_max=3, shifts=(Shift(ALWAYS, 0, replicas_min=5),))
    bounds = bounds_at(policy, at("2027-01-13T02:00:00"), utc)
    assert (bounds.lower, bounds.upper) == (3, 3)
