"""How much is held for each user, and for all of them together: bytes of bodies, of answers, of unfinished frames.

The daemon and the agents bound what users leave with them. Each of those that do (`api/problems`, `api/serving/unread`,
`agent/stdio/holdings`) says for itself how much is too much, and who gives way; the counting is here.
Invariant: `total` is the sum of what all users hold; a user who holds nothing is not remembered.
"""

from __future__ import annotations


class HeldByUser:
    """Amounts by uid."""

    __slots__ = ("_of", "total")

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        self.total = 0

    def of(self, uid: int) -> int:
        return self._of.get(uid, 0)

    def add(self, uid: int, amount: int) -> None:
        """Counts so much more as held for this user; less, where it is below 0."""
        held = self._of.get(uid, 0) + amount
        assert held >= 0, "nobody gives back what they do not have"
        self.total += amount
        if held:
            self._of[uid] = held
        else:
            self._of.pop(uid, None)

    def greediest(self) -> int:
        """The user who holds the most; somebody must hold something."""
        return max(self._of, key=self._of.__getitem__)
