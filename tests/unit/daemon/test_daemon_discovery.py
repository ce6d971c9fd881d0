"""This machine as a cluster of its own: what is counted there."""

from __future__ import annotations

import pytest

from bireme.core.model.refusals import Refusal
from bireme.daemon.discovery import discover
from bireme.testing.scenario import Scenario


def test_memory_that_was_asked_for_is_counted_and_what_was_not_is_not() -> None:
    world = Scenario("1x8", memory_mib=24_000, settings=discover("here").settings)
    world.submit("any")
    world.submit("most", mem=20_000)
    world.submit("rest", mem=20_000)
    world.submit("none")
    world.expect(any="runs n1", most="runs n1", rest="waits Resources", none="runs n1")
    with pytest.raises(Refusal):
        world.submit("more", mem=900_000)


def test_what_is_shown_is_what_is_done() -> None:
    assert discover("here").raw["SelectTypeParameters"] == "CR_CPU_MEMORY"
