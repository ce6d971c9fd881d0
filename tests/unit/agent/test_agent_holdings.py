"""What users' clients have begun and not finished is counted, by user and in all."""

from __future__ import annotations

from bireme.agent.stdio.holdings import Holding, Holdings


def opened(holdings: Holdings, uid: int, name: str, told: list[str]) -> Holding:
    holding = holdings.open(uid)
    holding.cut_off = lambda _why: told.append(name)
    return holding


def test_who_holds_too_much_loses_its_largest_frame() -> None:
    told: list[str] = []
    holdings = Holdings(most_of_one=100, most=1000)
    small, large = opened(holdings, 1, "small", told), opened(holdings, 1, "large", told)
    large.keep(90)
    small.keep(11)
    assert told == ["large"]
    assert holdings.bytes == 11


def test_nobody_is_cut_off_for_what_others_hold() -> None:
    told: list[str] = []
    holdings = Holdings(most_of_one=100, most=250)
    for uid in (1, 2):
        opened(holdings, uid, f"greedy {uid}", told).keep(100)
    honest = opened(holdings, 3, "honest", told)
    honest.keep(60)
    assert told == ["greedy 1"]
    assert holdings.bytes == 160
    honest.keep(0)
    assert holdings.bytes == 100


def test_what_is_finished_is_no_longer_counted() -> None:
    told: list[str] = []
    holdings = Holdings(most_of_one=100, most=100)
    holding = opened(holdings, 1, "it", told)
    for _ in range(10):
        holding.keep(100)
        holding.keep(0)
    assert (told, holdings.bytes) == ([], 0)
