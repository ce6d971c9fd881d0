"""How much of something one user may have under way, and all of them together: what is too much is refused.

For what may last as long as who asked likes (answers without an end, requests to services, plans): none of it may keep
others' pages from being drawn. Invariant: whatever is counted is given back, however it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class TooMuchError(Exception):
    """This user, or all together, have as much under way as may be. The text says so."""


class Bound:
    """Counts one thing. `what`: its name, in the plural."""

    def __init__(self, what: str, most: int, each: int) -> None:
        assert 0 < each < most, "one user may not have all of it"
        self._what, self._most, self._each = what, most, each
        self._of = Counter[int]()

    @contextmanager
    def held(self, uid: int) -> Iterator[None]:
        """Raises TooMuchError."""
        if self._of[uid] >= self._each:
            raise TooMuchError(
                f"{self._each} {self._what} of yours are under way: wait for one of them, or close pages"
            )
        if self._of.total() >= self._most:
            raise TooMuchError(f"{self._most} {self._what} are under way, of all users: try again in a moment")
        self._of[uid] += 1
        try:
            yield
        finally:
            self._of[uid] -= 1
            if not self._of[uid]:
                del self._of[uid]
