"""A gatherer that hangs is known by many looks in a row at which it told nothing."""

from __future__ import annotations

from bireme.daemon.telemetry.stillness import Stillness


def looks_until_it_hangs(still: Stillness, told: object) -> int:
    return next(no for no in range(1, 1000) if still.hangs(told, 10))


def test_it_hangs_after_so_many_looks_without_anything_new() -> None:
    still = Stillness()
    assert not any(still.hangs(told, 10) for told in range(100)), "it tells something each time"
    assert looks_until_it_hangs(still, 99) == 10


def test_looks_at_one_that_cannot_be_heard_count_for_nothing() -> None:
    still = Stillness()
    still.hangs(1, 10)
    assert not any(still.hangs(1, 10) for _ in range(9))
    still.forget()
    assert looks_until_it_hangs(still, 1) == 10


def test_where_new_ones_do_not_help_they_come_ever_later_and_at_once_when_one_did() -> None:
    still = Stillness()
    still.hangs(1, 10)
    assert [looks_until_it_hangs(still, 1) for _ in range(6)] == [10, 20, 40, 80, 160, 160]
    assert not still.hangs(2, 10)
    assert looks_until_it_hangs(still, 2) == 10
