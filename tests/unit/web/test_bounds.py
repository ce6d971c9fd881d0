"""What one user may have under way, and all together: refused beyond it, and given back however it ends."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import pytest

from bireme.web.bounds import Bound, TooMuchError


def test_one_user_does_not_take_what_others_may_have() -> None:
    bound = Bound("requests", 5, 2)
    with ExitStack() as held:
        for uid in (1, 1, 2, 2):
            held.enter_context(bound.held(uid))
        with pytest.raises(TooMuchError, match="2 requests of yours"):
            held.enter_context(bound.held(1))
        held.enter_context(bound.held(3))
        with pytest.raises(TooMuchError, match="5 requests are under way, of all users"):
            held.enter_context(bound.held(4))
    for _ in range(3):
        with suppress(ValueError), bound.held(1), bound.held(1):
            raise ValueError
