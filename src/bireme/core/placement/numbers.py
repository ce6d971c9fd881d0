"""Sets of a node's CPU or device numbers as the bits of one int: what is free, and what somebody holds.

To take, to give back and to ask are one operation each, however many numbers there are. And nodes of one make come to
look alike: which numbers are the lowest that are free is worked out once for all that have the same ones left.
Used where CPUs and devices are given out (`occupancy`, `shares`); what is given is listed, in ascending order.
"""

from __future__ import annotations

from functools import lru_cache

Bits = int
"""Number n is in the set when bit n is set."""
_KEPT = 8_192
"""Answers: as many sets as nodes of one cluster may look differently."""


def up_to(count: int) -> Bits:
    """The numbers 0 to count - 1."""
    return (1 << count) - 1


@lru_cache(_KEPT)
def bits_of(numbers: tuple[int, ...]) -> Bits:
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits


@lru_cache(_KEPT)
def lowest(bits: Bits, count: int) -> tuple[int, ...]:
    """The lowest `count` numbers of the set; all of them where there are fewer."""
    found: list[int] = []
    while bits and len(found) < count:
        least = bits & -bits
        found.append(least.bit_length() - 1)
        bits ^= least
    return tuple(found)


def numbers_of(bits: Bits) -> tuple[int, ...]:
    return lowest(bits, bits.bit_count())


@lru_cache(_KEPT)
def whole_cores(cpus: Bits, threads: int) -> tuple[int, ...]:
    """The cores of which every thread is in the set."""
    core = up_to(threads)
    return tuple(
        number for number in range(-(-cpus.bit_length() // threads)) if cpus >> number * threads & core == core
    )
