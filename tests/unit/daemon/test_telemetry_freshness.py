"""How old the newest round of each machine is, and who is called late."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bireme.core.model.nodes import Health
from bireme.daemon.telemetry.freshness import LATE_LEAST_S, Expected, newest_rounds
from bireme.daemon.telemetry.intake import Gatherer
from bireme.ports import NewestRound
from bireme.testing.scenario import Scenario

NOW = 1_000_000.0
NODES = Scenario("3x2").state.nodes
FIRST, SECOND, THIRD = NODES
EXPECTED = Expected(since=NOW - 10.0)


def remote(node: str, told_at: float, heard_at: float | None = None, id: str = "f") -> Gatherer:
    heard_at = told_at if heard_at is None else heard_at
    return Gatherer(f"{node}/{id}", machine=node, told_at=told_at, heard_at=heard_at)


def rounds(*gatherers: Gatherer, expected: Expected = EXPECTED, interval_s: float = 1.0) -> list[NewestRound]:
    return newest_rounds(gatherers, expected, NODES, interval_s, NOW)


def late(found: list[NewestRound]) -> list[str]:
    return [one.node for one in found if one.is_late]


def test_the_oldest_round_comes_first_and_who_is_silent_is_late() -> None:
    found = rounds(remote(FIRST, NOW - 3.0), remote(SECOND, NOW - LATE_LEAST_S - 1.0), remote(THIRD, NOW - 9.0))
    assert [one.node for one in found] == [SECOND, THIRD, FIRST]
    assert late(found) == [SECOND]


def test_who_is_asked_less_often_has_more_time() -> None:
    assert late(rounds(remote(FIRST, NOW - 290.0), interval_s=60.0)) == []
    assert late(rounds(remote(FIRST, NOW - 301.0), interval_s=60.0)) == [FIRST]


def test_who_tells_of_yesterday_now_is_old_and_not_late() -> None:
    (one,) = rounds(remote(FIRST, NOW - 86_400.0, heard_at=NOW - 1.0))
    assert (one.at, one.is_late) == (NOW - 86_400.0, False)


def test_a_gatherer_whose_place_another_took_is_not_missed() -> None:
    (one,) = rounds(remote(FIRST, NOW - 5000.0, id="old"), remote(FIRST, NOW - 2.0, id="new"))
    assert one == NewestRound(FIRST, NOW - 2.0, is_late=False)


@pytest.mark.parametrize("health", [Health.DOWN, Health.LOST, Health.UNKNOWN])
def test_of_a_node_that_is_down_that_is_said_already(health: Health) -> None:
    nodes = {FIRST: replace(NODES[FIRST], health=health)}
    (one,) = newest_rounds([remote(FIRST, NOW - 5000.0)], EXPECTED, nodes, 1.0, NOW)
    assert one == NewestRound(FIRST, NOW - 5000.0, is_late=False)


def test_a_node_that_left_the_cluster_is_not_named() -> None:
    assert rounds(remote("sold", NOW - 5000.0)) == []


def test_the_own_gatherer_is_expected_from_the_start_and_goes_by_the_name_that_it_says() -> None:
    just_now, long_ago = Expected(NOW - 10.0, "here"), Expected(NOW - 100.0, "here")
    assert rounds(expected=just_now) == [NewestRound("here", None, is_late=False)]
    assert rounds(expected=long_ago) == [NewestRound("here", None, is_late=True)]
    renamed = Gatherer("f", machine=FIRST, told_at=NOW - 1.0, heard_at=NOW - 1.0)
    assert rounds(renamed, expected=long_ago) == [NewestRound(FIRST, NOW - 1.0, is_late=False)]


def test_after_a_restart_who_told_before_is_expected() -> None:
    before = Expected(NOW - 100.0, others=(FIRST, "sold"))
    assert rounds(remote(SECOND, NOW - 1.0), expected=before) == [
        NewestRound(FIRST, None, is_late=True),
        NewestRound(SECOND, NOW - 1.0, is_late=False),
    ]


def test_who_never_told_anything_is_nobody() -> None:
    assert rounds(Gatherer(f"{FIRST}/f", kept=7), expected=EXPECTED) == []
