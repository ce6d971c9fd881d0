"""For how long something has held without a break, as far as that is known: what most detectors wait for. Pure.

Invariant: a streak holds no look at which it was not so, and no time longer than `gap_s` of which nothing is known. So
neither a gatherer that was gone nor a clock that jumped makes anything wrong.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Streak:
    """It was so at every look from `since` to `until`."""

    since: float
    until: float

    @property
    def lasted_s(self) -> float:
        return self.until - self.since


def extended(streak: Streak | None, at: float, holds: bool | None, gap_s: float) -> Streak | None:
    """With one more look. `holds` None: there was no figure, which neither begins nor ends anything, for `gap_s`."""
    known = streak is not None and 0.0 <= at - streak.until <= gap_s
    if holds is None:
        return streak if known else None
    if not holds:
        return None
    assert streak is not None or not known
    return Streak(streak.since, at) if streak is not None and known else Streak(at, at)
