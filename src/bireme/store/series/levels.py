"""The three levels of detail, and how long each is kept. Pure.

A level has cells of equal length, and chunks that hold the cells of one window. Steps and windows are part of what is
on disk and never change; how long a level is kept is a setting.
Invariant: a window holds whole windows of the level below it, and a cell whole cells of that level.
"""

from __future__ import annotations

from dataclasses import dataclass

HOUR_S = 3600
DAY_S = 24 * HOUR_S
MOST_WINDOWS = 1 << 24
"""Of fine ones, since the epoch; what is measured later than that is not of this world."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level of detail."""

    no: int
    step_s: int
    window_s: int

    @property
    def cells(self) -> int:
        """Of a window."""
        return self.window_s // self.step_s


LEVELS = (Level(0, 10, HOUR_S), Level(1, 60, 12 * HOUR_S), Level(2, 600, 5 * DAY_S))
FINE = LEVELS[0]
COARSEST = LEVELS[-1]


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long the samples of each level are kept."""

    fine_s: float = DAY_S
    minutes_s: float = 7 * DAY_S
    coarse_s: float = 365 * DAY_S
    digests_s: float = 5 * 365 * DAY_S
    """Digests of starts (`digests`), which take little room."""

    def of(self, level: Level) -> float:
        return (self.fine_s, self.minutes_s, self.coarse_s)[level.no]
