"""Traffic of `bireme sim serve`: curves and files of requests, and what is said of those that are none."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from bireme.sim.serving.traffic import BadTrafficError, Work, read_curve, traffic_of_curve, traffic_of_file


def rates(text: str, weekday: int = 0) -> list[float]:
    return [round(float(rate), 3) for rate in read_curve(text).rates(weekday)[::3600]]


def test_a_day_has_its_peak_at_its_hour_and_its_night_twelve_hours_later() -> None:
    found = rates("day:peak=40/s at 14:00, night=1/s")
    assert (found[14], found[2]) == (40.0, 1.0)
    assert max(found) == 40.0
    assert min(found) == 1.0


def test_steps_hold_until_the_next_one_also_over_midnight() -> None:
    found = rates("steps:08:00=20/s, 18:00=90/min")
    assert (found[0], found[8], found[17], found[18]) == (1.5, 20.0, 20.0, 1.5)


def test_a_burst_is_added_every_day_and_weekends_have_their_part() -> None:
    found = rates("flat:rate=2/s, days=7, weekend=0.5, burst=10/s at 10:00 for 2h, burst=1/s at 11:00 for 1h")
    assert found[10:13] == [12.0, 13.0, 2.0]
    assert found[5 * 24] == 1.0
    assert rates("flat:rate=2/s, days=2, weekend=0.5", weekday=4)[24] == 1.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hill:peak=1/s", "there is no shape 'hill'; there are day, flat and steps"),
        ("day:peak=40", "'40' is no rate, such as 40/s, 90/min or 500/h"),
        ("day:peak=4/s at 25:00", "'25:00' is no time of the day"),
        ("day:peak=1/s, night=2/s", "the peak is below the night"),
        ("flat:rate=1/s, dais=3", "'dais' means nothing to a curve of shape flat"),
        ("flat:rate=1/s, days=0", "days=0: a whole number from 1 to 366 is meant"),
        ("flat:rate=1/s, weekend=lots", "weekend=lots"),
        ("flat:rate=1/s, burst=3", "a burst is written burst=100/s at 10:30 for 2min"),
        ("steps:", "steps are written"),
        ("flat:5", "is no NAME=VALUE"),
        ("day", "it does not say peak=, the requests in a time, such as peak=40/s"),
        ("flat:days=2", "it does not say rate="),
        ("flat:rate=9999999/s, days=366", "requests are more than"),
    ],
)
def test_a_curve_that_is_none_is_told_what_would_be_one(text: str, words: str) -> None:
    with pytest.raises(BadTrafficError, match=words):
        traffic_of_curve(text, Work(), seed=1)


@pytest.mark.parametrize("text", ["hill:peak=1/s", "day:peak=40", "flat:", "steps:1=2", "day:peak=1/s, burst=x", ""])
def test_what_is_told_of_a_bad_curve_has_an_example_that_is_one(text: str) -> None:
    with pytest.raises(BadTrafficError) as told:
        read_curve(text)
    examples = str(told.value).partition("for example: --curve ")[2]
    for example in examples.removeprefix("'").removesuffix("'").split("', '"):
        assert read_curve(example).text == example


def test_a_seed_draws_the_same_requests_again_and_about_as_many_as_described() -> None:
    one, same, other = (traffic_of_curve("flat:rate=1/s", Work(2.0, 0.5), seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.at, same.at)
    assert np.array_equal(one.work_s, same.work_s)
    assert not np.array_equal(one.at, other.at)
    assert abs(len(one.at) - 86_400) < 5 * 86_400**0.5
    assert one.work_s.mean() == pytest.approx(2.0, rel=0.02)
    assert one.work_s.std() == pytest.approx(1.0, rel=0.05)
    assert (np.diff(one.at) >= 0).all()


def test_a_file_says_when_requests_come_and_how_long_they_take(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("Time,Duration\n105,2.5\n100,1\n")
    found = traffic_of_file(str(path), Work())
    assert (found.at.tolist(), found.work_s.tolist()) == ([0.0, 5.0], [1.0, 2.5])


def test_a_file_may_say_tokens_and_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "llm.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n")
    found = traffic_of_file(str(path), Work(token_s=0.05))
    assert found.work_s.tolist() == [0.5]


def test_rows_that_are_no_requests_are_named_or_left_out(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("time,duration\n1,2\nsoon,2\n3\n4,nan\n5,-1\n")
    with pytest.raises(BadTrafficError) as error:
        traffic_of_file(str(path), Work())
    assert f"{path}:3: 'soon' is no time" in str(error.value)
    assert f"{path}:4: the line is cut short" in str(error.value)
    assert "4 bad rows; --skip-bad leaves them out" in str(error.value)
    assert len(traffic_of_file(str(path), Work(), skip_bad=True).at) == 1


def test_a_file_without_a_column_of_times_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("when,what\n1,2\n")
    with pytest.raises(BadTrafficError, match="names no column time"):
        traffic_of_file(str(path), Work())
