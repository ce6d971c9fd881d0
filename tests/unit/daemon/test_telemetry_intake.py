"""Rounds of gatherers become samples, whatever their clocks, order and release."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from bireme.core.telemetry.subjects import Subject
from bireme.daemon.telemetry.arriving import Came
from bireme.daemon.telemetry.intake import FRESH_S, Gatherer, newest, take
from bireme.gather.messages import Frame, Happening, ProtocolError, Round, Value
from bireme.ports import Sampled

GPU = Subject("gpu", "n1", "GPU-1")
NOON = 1_800_000_000.0


def a_round(no: int, at: float, *, sent: float | None = None, **columns: list[Value]) -> Round:
    frame = Frame(about="gpu", node="n1", ids=["GPU-1"], columns=dict(columns))
    return Round(no=no, at=at, interval_s=10.0, frames=[frame], sent=at if sent is None else sent)


def values(samples: list[Sampled]) -> dict[str, float]:
    (sample,) = samples
    return {name: float(column[0]) for name, column in sample.values.items() if not math.isnan(column[0])}


def test_a_counter_is_kept_as_its_growth_and_told_as_its_total() -> None:
    gatherer = Gatherer("g")
    first, _ = take(gatherer, a_round(1, NOON, gpu_energy=[1_000_000], gpu_util=[50]), NOON)
    assert values(first) == {"gpu_util": 50.0}
    second, _ = take(gatherer, a_round(2, NOON + 10, gpu_energy=[4_000_000]), NOON + 10)
    assert values(second) == {"gpu_energy": pytest.approx(300.0)}
    assert gatherer.latest[GPU].values == {"gpu_energy": 4_000_000.0}


def of_tasks(no: int, at: float, cpu_s: float, ages: list[float | None]) -> Round:
    frame = Frame(about="task", node="n1", ids=["7.1.-5.0"], columns={"cpu_user": [cpu_s]}, ages=ages)
    return Round(no=no, at=at, interval_s=10.0, frames=[frame], sent=at)


@pytest.mark.parametrize(
    ("age", "rate"), [(4.0, 0.3), (15.0, 0.2), (21.0, None), (None, None), (-1.0, None), (math.nan, None)]
)
def test_what_a_young_task_used_before_it_was_first_seen_counts(age: float | None, rate: float | None) -> None:
    """Over the interval that the sample stands for, so that their sum is what was used. Of an older one, which a
    gatherer that begins anew sees for the first time, only what it uses from now on."""
    gatherer = Gatherer("g")
    (first, in_all), _ = take(gatherer, of_tasks(1, NOON, 3.0, [age]), NOON)
    assert values([first]).get("cpu_user") == (None if rate is None else pytest.approx(rate))
    assert values([in_all]) == {"cpu_total": 3.0}
    (second, _), _ = take(gatherer, of_tasks(2, NOON + 10, 5.0, []), NOON + 10)
    assert values([second])["cpu_user"] == pytest.approx(0.2)


@pytest.mark.parametrize("restarted", [False, True])
def test_what_a_task_used_in_all_is_put_where_it_was_seen_last(restarted: bool) -> None:
    gatherer = Gatherer("g")
    take(gatherer, of_tasks(1, NOON, 3.0, [4.0]), NOON)
    over = Frame(about="task", node="n1", ids=["7.1.-5.0"], columns={"cpu_user": [3.0], "io_read": [2048]}, ended=True)
    told = Round(no=2, at=NOON + 10, interval_s=10.0, frames=[over], sent=NOON + 10)
    if restarted:
        gatherer = Gatherer("g", taken=1)
    (sample,), _ = take(gatherer, told, NOON + 10)
    assert (sample.at, values([sample])) == (NOON, {"cpu_total": 3.0, "io_read_total": 2.0})
    assert not gatherer.latest.keys() | gatherer.totals.keys(), "it is over: nothing is remembered"


def test_totals_of_a_task_that_runs_are_kept_the_less_often_the_older_it_is() -> None:
    gatherer = Gatherer("g")
    looks = range(0, 3_000, 10)
    rounds = [of_tasks(no, NOON + at, at, []) for no, at in enumerate(looks, 1)]
    kept = [at for at, told in zip(looks, rounds, strict=True) if len(take(gatherer, told, told.at)[0]) == 2]
    assert kept[:8] == [0, 10, 20, 30, 40, 50, 70, 90]
    assert len(kept) < 30
    assert max(later - one for one, later in pairwise(kept)) <= 610


def test_ages_of_others_than_the_subjects_are_refused() -> None:
    with pytest.raises(ProtocolError):
        take(Gatherer("g"), of_tasks(1, NOON, 3.0, [1.0, 2.0]), NOON)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1e300, None])
@pytest.mark.parametrize("metric", ["gpu_util", "gpu_energy"])
def test_a_number_that_cannot_be_was_not_measured(metric: str, value: float | None) -> None:
    gatherer = Gatherer("g")
    take(gatherer, a_round(1, NOON, gpu_energy=[1_000_000]), NOON)
    samples, _ = take(gatherer, a_round(2, NOON + 10, **{metric: [value]}), NOON + 10)
    assert (values(samples), gatherer.latest[GPU].values) == ({}, {})


def test_what_happened_is_told_without_control_characters_and_is_no_book() -> None:
    said = "\x1b[2Jpid=7,\x00 name=\u202eevil\r\n" + "x" * 5000
    told = Round(no=1, at=NOON, interval_s=10.0, frames=[], sent=NOON,
                 happenings=[Happening(at=NOON, node="n1", kind="kernel", text=said)])  # fmt: skip
    _, (happening,) = take(Gatherer("g"), told, NOON)
    assert happening.text.isprintable()
    assert happening.text.startswith("[2Jpid=7,  name= evil")
    assert len(happening.text) <= 1000


def test_a_round_that_comes_twice_counts_once() -> None:
    gatherer = Gatherer("g")
    told = a_round(1, NOON, gpu_util=[50])
    assert take(gatherer, told, NOON)[0]
    assert take(gatherer, told, NOON + 1) == ([], [])


def test_a_round_that_was_kept_back_is_put_where_it_was_made() -> None:
    (sample,), _ = take(Gatherer("g"), a_round(1, NOON, sent=NOON + 3600, gpu_util=[50]), NOON + 3600)
    assert sample.at == NOON


@pytest.mark.parametrize("off_s", [-86_400.0, 300.0])
def test_a_clock_that_is_wrong_puts_nothing_elsewhere(off_s: float) -> None:
    told = a_round(1, NOON + off_s, gpu_util=[50])
    told = Round(
        no=1, at=told.at, interval_s=10.0, frames=told.frames, sent=told.at + 1.0,
        happenings=[Happening(at=NOON + off_s - 5, node="n1", kind="xid", code=43)],
    )  # fmt: skip
    gatherer = Gatherer("g", machine="n1")
    (sample, clock), (happening,) = take(gatherer, told, NOON + 1.0)
    assert (sample.at, happening.at, gatherer.offset_s) == (NOON, NOON - 5, off_s)
    assert (clock.subjects, values([clock])) == (
        (Subject("node", "n1", "n1"),),
        {"node_clock_offset": 1000 * off_s},
    )


def test_a_round_that_waited_to_be_read_is_put_where_it_was_made() -> None:
    gatherer = Gatherer("g")
    (sample,), _ = take(gatherer, a_round(1, NOON, gpu_util=[50]), NOON + 30, Came(NOON - 10, NOON + 30).at(NOON, 0.0))
    assert (sample.at, gatherer.offset_s) == (NOON, 0.0)


@pytest.mark.parametrize(
    ("sent", "offset_s", "at"),
    [
        (NOON + 1, 0.0, NOON + 1),
        (NOON + 301, 300.0, NOON + 1),
        (NOON + 301, 0.0, NOON + 5),
        (NOON - 301, 0.0, NOON),
        (0.0, 0.0, NOON + 5),
    ],
    ids=["right", "known to be wrong", "set forward", "set back", "does not say"],
)
def test_a_message_came_when_it_was_sent_within_what_is_known(sent: float, offset_s: float, at: float) -> None:
    assert Came(NOON, NOON + 5).at(sent, offset_s) == at


def test_a_clock_that_is_a_second_off_is_left_alone() -> None:
    (sample,), _ = take(Gatherer("g"), a_round(1, NOON + 1, gpu_util=[50]), NOON)
    assert sample.at == NOON + 1


def test_what_was_not_measured_is_absent() -> None:
    samples, _ = take(
        Gatherer("g"), a_round(1, NOON, gpu_util=[None], gpu_power=[math.inf], gpu_temperature=[40]), NOON
    )
    assert values(samples) == {"gpu_temperature": 40.0}


def test_metrics_of_a_later_release_are_passed_over() -> None:
    samples, _ = take(Gatherer("g"), a_round(1, NOON, gpu_dreams=[1], node_load=[2], gpu_util=[3]), NOON)
    assert values(samples) == {"gpu_util": 3.0}


def test_columns_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ProtocolError, match="2 values of gpu_util for 1"):
        take(Gatherer("g"), a_round(1, NOON, gpu_util=[1, 2]), NOON)


def test_tasks_that_are_gone_are_forgotten_and_silent_gpus_are_not() -> None:
    gatherer = Gatherer("g")
    task = Frame(about="task", node="n1", ids=["7.1.0.0"], columns={"cpu_user": [5.0]})
    gpu = Frame(about="gpu", node="n1", ids=["GPU-1"], columns={"gpu_util": [5]})
    take(gatherer, Round(no=1, at=NOON, interval_s=10.0, frames=[task, gpu]), NOON)
    take(gatherer, Round(no=2, at=NOON + 10, interval_s=10.0, frames=[]), NOON + 10)
    assert list(gatherer.latest) == [GPU]
    assert not gatherer.readings


def test_the_newest_figures_have_counters_as_they_count() -> None:
    gatherer = Gatherer("g")
    take(gatherer, a_round(1, NOON, gpu_util=[50], gpu_energy=[7_000]), NOON)
    take(gatherer, a_round(2, NOON + 10, gpu_util=[60], gpu_energy=[None]), NOON + 10)
    (figures,) = newest(gatherer, NOON + 11).values()
    assert figures == {"gpu_util": 60.0, "gpu_energy": 7_000.0}, "energy is not read in every round"


def test_figures_of_a_gatherer_that_went_silent_are_nobodys() -> None:
    gatherer = Gatherer("g")
    take(gatherer, a_round(1, NOON, gpu_util=[50]), NOON)
    assert newest(gatherer, NOON + FRESH_S + 1) == {}
