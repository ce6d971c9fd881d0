"""Sets of CPU and device numbers as bits: the same answers as sets of ints give."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bireme.core.placement.numbers import bits_of, lowest, numbers_of, up_to, whole_cores

numbers = st.frozensets(st.integers(0, 300))


@given(numbers, numbers)
def test_what_is_taken_and_given_back_is_as_with_sets(free: frozenset[int], taken: frozenset[int]) -> None:
    bits, others = bits_of(tuple(sorted(free))), bits_of(tuple(sorted(taken)))
    assert numbers_of(bits & ~others) == tuple(sorted(free - taken))
    assert numbers_of(bits | others) == tuple(sorted(free | taken))
    assert bits.bit_count() == len(free)


@given(numbers, st.integers(0, 20))
def test_the_lowest_are_given_first(free: frozenset[int], count: int) -> None:
    assert lowest(bits_of(tuple(sorted(free))), count) == tuple(sorted(free)[:count])


def test_a_core_is_whole_when_all_of_its_threads_are_free() -> None:
    assert whole_cores(up_to(8), 2) == (0, 1, 2, 3)
    assert whole_cores(bits_of((0, 2, 3, 5, 6, 7)), 2) == (1, 3)
    assert whole_cores(bits_of((4,)), 2) == ()
