"""What is held for users is counted of each and in all."""

from __future__ import annotations

import pytest

from bireme.held_by_user import HeldByUser


def test_amounts_are_counted_by_user_and_in_all() -> None:
    held = HeldByUser()
    held.add(1, 100)
    held.add(2, 30)
    held.add(1, -60)
    assert (held.of(1), held.of(2), held.of(3), held.total) == (40, 30, 0, 70)
    assert held.greediest() == 1
    held.add(1, -40)
    assert (held.of(1), held.total, held.greediest()) == (0, 30, 2)


def test_nobody_gives_back_what_they_do_not_have() -> None:
    held = HeldByUser()
    held.add(1, 10)
    with pytest.raises(AssertionError):
        held.add(1, -11)
    assert held.total == 10
