"""Cells as bytes and back, and cells made of cells: whatever was measured, whatever is missing."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bireme.store.series import cells as c
from bireme.store.series.cells import STEP_BITS, Cells, coarser, of_samples, replaced, united
from bireme.store.series.columns import ColumnsError, decode, encode, quantised

GRAINS = st.sampled_from([1.0, 0.1, 0.01, 0.001, 64.0])
FIGURES = st.one_of(
    st.just(float("nan")),
    st.integers(-100, 100).map(float),
    st.floats(-1e6, 1e6),
    st.sampled_from([0.0, 2.0**63, -(2.0**63), 1e18 + 7, 1.8446744073709552e19, 5e-324, -0.0]),
    st.floats(allow_nan=False, allow_infinity=False),
)
SAMPLES = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 400), FIGURES), max_size=60)
Samples = list[tuple[int, int, float]]
BEGIN = 60 * 3_000_000


def made(samples: Samples) -> Cells:
    key = np.array([(subject << STEP_BITS) | (BEGIN + step) for subject, step, _ in samples], np.int64)
    return of_samples(key, np.array([value for *_, value in samples], np.float64))


def within_the_grain(values: np.ndarray, back: np.ndarray, grain: float) -> bool:
    """Half a grain, and what floats cannot tell apart."""
    return bool((np.abs(values - back) <= grain / 2 + np.abs(values) * 1e-15).all())


@given(SAMPLES, GRAINS, st.booleans())
@example([(1, step, float(step)) for step in range(300)], 1.0, False)
@example([(1, step, 5.0) for step in range(300)], 1.0, True)
@example([], 1.0, False)
def test_what_comes_back_is_within_the_grain(samples: Samples, grain: float, finer: bool) -> None:
    cells = made(samples)
    back = decode(encode(cells, grain, finer_means=finer))
    assert back.key.tolist() == cells.key.tolist()
    assert back.weight.tolist() == cells.weight.tolist()
    for name in ("mean", "low", "high"):
        assert within_the_grain(getattr(cells, name), getattr(back, name), grain), name
    assert (back.low <= back.mean).all()
    assert (back.mean <= back.high).all()


@given(SAMPLES, GRAINS)
def test_what_came_back_once_stays(samples: Samples, grain: float) -> None:
    once = decode(encode(made(samples), grain, finer_means=False))
    twice = decode(encode(once, grain, finer_means=False))
    assert twice.mean.tolist() == once.mean.tolist()
    assert twice.low.tolist() == once.low.tolist()


@given(st.lists(FIGURES, max_size=50), GRAINS)
def test_what_is_quantised_comes_back_as_it_is(values: list[float], grain: float) -> None:
    rounded = quantised(np.array(values, np.float64), grain)
    assert np.isnan(rounded).tolist() == np.isnan(values).tolist()
    back = decode(encode(of_samples(np.arange(len(values)), rounded), grain, finer_means=False))
    assert back.mean.tolist() == rounded[~np.isnan(rounded)].tolist()


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinities_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="infinite"):
        encode(made([(1, 0, 1.0), (1, 1, value)]), 1.0, finer_means=False)


def test_a_day_of_a_constant_takes_no_room() -> None:
    cells = made([(subject, step, 700.0) for subject in range(8) for step in range(360)])
    assert len(encode(cells, 1.0, finer_means=False)) < 100


@given(st.binary(max_size=60))
def test_other_bytes_are_no_chunk(data: bytes) -> None:
    with pytest.raises(ColumnsError):
        decode(data)


@given(SAMPLES.filter(lambda samples: len(made(samples)) > 0), st.data())
def test_a_changed_chunk_is_refused_or_a_chunk(samples: Samples, data: st.DataObject) -> None:
    """Sums tell damage; what decodes in spite of it must not bring anybody down."""
    whole = bytearray(encode(made(samples), 1.0, finer_means=False))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(ColumnsError):
        decode(bytes(whole))


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 50), st.integers(-99, 99).map(float)), max_size=60))
def test_samples_of_one_cell_are_one(samples: Samples) -> None:
    cells = made(samples)
    there: dict[int, list[float]] = {}
    for subject, step, value in samples:
        there.setdefault((subject << STEP_BITS) | (BEGIN + step), []).append(value)
    assert cells.key.tolist() == sorted(there)
    for key, mean, low, high, weight in zip(cells.key, cells.mean, cells.low, cells.high, cells.weight):
        mine = there[int(key)]
        assert (weight, low, high) == (len(mine), min(mine), max(mine))
        assert mean == pytest.approx(sum(mine) / len(mine), abs=1e-9)


@given(SAMPLES, st.integers(0, 60))
def test_it_is_all_one_in_how_many_parts_samples_come(samples: Samples, cut: int) -> None:
    whole, parts = made(samples), united([made(samples[:cut]), made(samples[cut:])])
    assert parts.key.tolist() == whole.key.tolist()
    assert parts.weight.tolist() == whole.weight.tolist()
    assert parts.low.tolist() == whole.low.tolist()


def test_means_of_means_count_what_was_measured() -> None:
    """A minute with one sample of 60 and one with six of 0 are 60 / 7 together, not 30."""
    fine = made([(1, 0, 60.0), *((1, step, 0.0) for step in range(6, 12))])
    minutes = coarser(fine, 6, fine=True)
    assert minutes.mean.tolist() == [60.0, 0.0]
    assert minutes.weight.tolist() == [1, 6]
    (ten,) = (coarser(minutes, 10, fine=False),)
    direct = coarser(fine, 60, fine=True)
    assert ten.mean.tolist() == pytest.approx(direct.mean.tolist())
    assert ten.mean.tolist()[0] == pytest.approx(60 / 7)
    assert (ten.low.tolist(), ten.high.tolist()) == ([0.0], [60.0])


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 300), st.integers(-99, 99).map(float)), max_size=60))
def test_thinned_out_twice_is_as_thinned_out_at_once(samples: Samples) -> None:
    fine = made(samples)
    twice, once = coarser(coarser(fine, 6, fine=True), 10, fine=False), coarser(fine, 60, fine=True)
    assert twice.key.tolist() == once.key.tolist()
    assert twice.weight.tolist() == once.weight.tolist()
    assert twice.mean.tolist() == pytest.approx(once.mean.tolist(), abs=1e-9)


def test_cells_that_are_quick_to_look_do_not_count_more() -> None:
    """Ten samples in one ten seconds and one in the next are as long."""
    fine = made([*((1, 0, 100.0) for _ in range(10)), (1, 1, 0.0)])
    assert coarser(fine, 6, fine=True).mean.tolist() == [50.0]


def test_replacing_keeps_what_is_not_told_anew() -> None:
    old, new = made([(1, 0, 1.0), (1, 1, 2.0), (2, 0, 3.0)]), made([(1, 1, 9.0), (3, 0, 4.0)])
    both = replaced(old, new)
    assert both.mean.tolist() == [1.0, 9.0, 3.0, 4.0]
    assert replaced(c.NONE, new) is new
    assert replaced(old, c.NONE) is old
