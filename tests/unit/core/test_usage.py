"""Usage: the closed form against many small steps, half-lives, resets, moves in the tree, billing weights."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.accounting.billing import billing
from bireme.core.accounting.book import ROOT_ID, AccountBook
from bireme.core.accounting.resets import next_reset
from bireme.core.accounting.usage import BILLING, WALL, Charge, Meter, Usages
from bireme.core.model.accounts import Association, Qos, QosFlag
from bireme.core.model.events import AccountsChanged
from bireme.slurm.conf.accounting import billing_weights, enforcement
from bireme.slurm.errors import SlurmSyntaxError

DAY_S = 86_400.0


def charge(cost: float = 4.0, associations: tuple[int, ...] = (3, 2, 1)) -> Charge:
    return Charge(associations, ("normal",), ((WALL, 1.0), (BILLING, cost), ("cpu", 4.0)))


def test_half_is_left_after_a_half_life() -> None:
    usage = Usages(half_life_s=100.0)
    usage.start(1, charge(), at=0.0)
    usage.stop(1, at=10.0)
    used = usage.raw(3, 10.0)
    assert usage.raw(3, 110.0) == pytest.approx(used / 2, rel=1e-12)
    assert usage.raw(3, 210.0) == pytest.approx(used / 4, rel=1e-12)


def test_without_decay_it_is_plain_seconds() -> None:
    usage = Usages(half_life_s=None)
    usage.start(1, charge(), at=0.0)
    assert usage.raw(3, 25.0) == 100.0
    usage.stop(1, at=25.0)
    assert usage.raw(3, 1e9) == 100.0


def test_a_job_that_runs_for_ever_reaches_the_limit_of_the_integral() -> None:
    usage = Usages(half_life_s=DAY_S)
    usage.start(1, charge(cost=1.0), at=0.0)
    assert usage.raw(1, 1e12) == pytest.approx(DAY_S / math.log(2))


@given(
    st.lists(st.tuples(st.floats(0, 500), st.floats(0, 500), st.floats(0, 64)), max_size=6),
    st.floats(10, 5_000),
    st.floats(0, 2_000),
)
def test_the_closed_form_equals_small_steps(
    jobs: list[tuple[float, float, float]], half_life_s: float, now: float
) -> None:
    """Jobs of (start, length, cost): the meter against the sum of each job's own integral."""
    usage = Usages(half_life_s=half_life_s)
    happenings = [(start, "start", number, cost) for number, (start, _, cost) in enumerate(jobs)]
    happenings += [(start + length, "stop", number, cost) for number, (start, length, cost) in enumerate(jobs)]
    for at, what, number, cost in sorted(happenings):
        if at > now:
            break
        if what == "start":
            usage.start(number, charge(cost), at)
        else:
            usage.stop(number, at)
    rate = math.log(2) / half_life_s
    expected = 0.0
    for start, length, cost in jobs:
        begin, end = min(start, now), min(start + length, now)
        expected += cost * (math.exp(-rate * (now - end)) - math.exp(-rate * (now - begin))) / rate
    assert usage.raw(3, now) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_nothing_is_left_of_rates_when_nothing_runs() -> None:
    meter = Meter()
    thirds = ((WALL, 1.0), (BILLING, 0.1))
    for _ in range(3):
        meter.add_rates(thirds, 1)
    for _ in range(3):
        meter.add_rates(thirds, -1)
    assert meter.rates == {}


def test_a_new_half_life_does_not_change_the_past() -> None:
    usage = Usages(half_life_s=100.0)
    usage.start(1, charge(), at=0.0)
    usage.stop(1, at=10.0)
    before = usage.raw(3, 60.0)
    usage.set_half_life(50.0, at=60.0)
    assert usage.raw(3, 60.0) == before
    assert usage.raw(3, 110.0) == pytest.approx(before / 2)


def tree() -> AccountBook:
    return AccountBook(
        associations={
            1: Association(id=ROOT_ID, account="root"),
            2: Association(id=2, account="a", parent="root"),
            3: Association(id=3, account="a", user="ann"),
            4: Association(id=4, account="b", parent="root"),
        }
    )


def test_an_account_that_moves_takes_its_usage_along() -> None:
    book, usage = tree(), Usages(half_life_s=None)
    usage.start(1, charge(), at=0.0)
    moved = book.changed(AccountsChanged(associations=(replace(book.associations[2], parent="b"),)))
    usage.follow(book, moved, at=10.0)
    assert usage.raw(4, 10.0) == usage.raw(2, 10.0) == usage.raw(1, 10.0) == 40.0
    usage.stop(1, at=20.0)  # the running job follows too
    assert usage.raw(4, 30.0) == 80.0


def test_deleted_associations_take_their_meters_along() -> None:
    book, usage = tree(), Usages(half_life_s=None)
    usage.start(1, charge(), at=0.0)
    smaller = book.changed(AccountsChanged(removed_associations=(3,)))
    usage.follow(book, smaller, at=10.0)
    usage.stop(1, at=20.0)
    assert 3 not in usage.associations
    assert usage.raw(2, 20.0) == 80.0


def test_a_qos_without_decay_keeps_everything() -> None:
    book, usage = tree(), Usages(half_life_s=10.0)
    lasting = book.changed(AccountsChanged(qos=(Qos(id=1, name="normal", flags=(QosFlag.NO_DECAY,)),)))
    usage.follow(book, lasting, at=0.0)
    usage.start(1, charge(), at=0.0)
    usage.stop(1, at=10.0)
    assert usage.of_qos("normal", BILLING, 1e6) == 40.0
    assert usage.raw(3, 1e6) < 1e-9


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("", 1.0),
        ("CPU=1.0,Mem=0.25G,GRES/gpu=2.0", 3.0),
        ("mem=.25", 2048.0),
        ("CPU=2,license/x=5", 2.0),
    ],
)
def test_slurms_example_of_billing(weights: str, expected: float) -> None:
    parsed = billing_weights(weights) if weights else ()
    assert billing({"cpu": 1, "mem": 8192, "node": 1}, parsed) == pytest.approx(expected)


def test_the_largest_on_a_node_and_the_sum_of_the_rest() -> None:
    weights = billing_weights("CPU=1.0,Mem=0.25G,GRES/gpu=2.0,license/x=1")
    tres = {"cpu": 4, "mem": 8192, "gres/gpu": 3, "license/x": 10}
    assert billing(tres, weights, take_largest=True) == pytest.approx(16.0)
    assert billing(tres, weights) == pytest.approx(22.0)


@pytest.mark.parametrize("text", ["cpu", "cpu=x", "=1", "cpu=1;mem=2"])
def test_weights_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(SlurmSyntaxError, match="TRES=WEIGHT"):
        billing_weights(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", ()),
        ("associations", ("associations",)),
        ("limits", ("associations", "limits")),
        ("safe,qos", ("associations", "limits", "qos", "safe")),
        ("nojobs", ("nojobs", "nosteps")),
        ("All", ("associations", "limits", "qos", "safe", "wckeys")),
    ],
)
def test_what_enforcement_implies(text: str, expected: tuple[str, ...]) -> None:
    assert enforcement(text) == expected


@pytest.mark.parametrize(
    ("period", "after", "expected"),
    [
        ("DAILY", 0.0, DAY_S),
        ("WEEKLY", 0.0, 3 * DAY_S),  # 1970 began on a Thursday
        ("MONTHLY", 0.0, 31 * DAY_S),
        ("QUARTERLY", 40 * DAY_S, 90 * DAY_S),
        ("YEARLY", 364 * DAY_S, 365 * DAY_S),
        ("NONE", 0.0, None),
    ],
)
def test_when_usage_is_reset(period: str, after: float, expected: float | None) -> None:
    assert next_reset(period, after) == expected
