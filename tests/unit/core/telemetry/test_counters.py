"""What a counter grew by, whatever happens to counters."""

from __future__ import annotations

import pytest

from bireme.core.telemetry.counters import Reading, growth
from bireme.core.telemetry.metrics import BY_NAME

ENERGY = BY_NAME["gpu_energy"]
REPLAYS = BY_NAME["gpu_pcie_replays"]


def test_millijoules_become_watts() -> None:
    assert growth(ENERGY, Reading(100.0, 5_000_000), Reading(110.0, 8_000_000)) == pytest.approx(300.0)


@pytest.mark.parametrize("before", [None, Reading(110.0, 0), Reading(111.0, 0)])
def test_nothing_is_known_without_an_earlier_reading(before: Reading | None) -> None:
    assert growth(ENERGY, before, Reading(110.0, 1)) is None


def test_a_counter_that_was_set_back_says_nothing() -> None:
    assert growth(ENERGY, Reading(0.0, 500), Reading(10.0, 20)) is None
    assert growth(REPLAYS, Reading(0.0, 500), Reading(10.0, 20)) is None


def test_a_counter_that_wrapped_goes_on() -> None:
    assert growth(REPLAYS, Reading(0.0, (1 << 32) - 6), Reading(10.0, 4)) == pytest.approx(1.0)
