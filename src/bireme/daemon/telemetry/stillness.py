"""Whether this machine's gatherer hangs: it lives, could be heard, and tells nothing for many looks in a row. Pure.

Counted and not timed: a daemon that slept, or a clock that was set, makes no gatherer hang. Asked by `station` at each
of its looks, which are some seconds apart.
Invariant: of one process it says once that it hangs, and of those that take its place ever later.
"""

from __future__ import annotations

_MOST_FACTOR = 16
"""Where new ones do not help either, so many times the first patience passes until the next."""


class Stillness:
    """Judges whether the gatherer of this machine hangs, by what it told between two looks."""

    def __init__(self) -> None:
        self._told: object = None
        self._looks = 0
        self._factor = 1

    def hangs(self, told: object, patience: int) -> bool:
        """At a look. `told`: something that is another whenever it told of anything; `patience`: so many looks."""
        if told != self._told:
            self._told, self._looks, self._factor = told, 0, 1
            return False
        self._looks += 1
        if self._looks < patience * self._factor:
            return False
        self._looks, self._factor = 0, min(2 * self._factor, _MOST_FACTOR)
        return True

    def forget(self) -> None:
        """Forgets the looks at one that could not be heard: they count for nothing."""
        self._looks = 0
