"""A window of measurements: one figure for each second of late, and averages of them.

Not: where figures come from (the daemon's load keeper, `bireme sim serve`), nor what follows from them (`advise`).
A second that nothing was said of is missing, not zero: an average leaves it out, and `missing` counts it.

Invariant: memory does not grow; a window has as many buckets as it is long, in seconds.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, floor, isfinite

import numpy as np
from numpy.typing import NDArray

LONGEST_S = 3600
HALF_LIVES = 20.0
"""In the window of a weighted average: a load that doubles is seen within two seconds of a minute's window. An even
average was rejected for it: it needs half the window to see as much."""


class Window:
    """The latest seconds of one figure."""

    __slots__ = ("_newest", "_values")

    def __init__(self, length_s: float) -> None:
        self._values: NDArray[np.float64] = np.full(_buckets(length_s, LONGEST_S), np.nan)
        self._newest: int | None = None
        """The latest second that something was said of. Its bucket, and those of all seconds, go round."""

    @property
    def length(self) -> int:
        return len(self._values)

    @property
    def newest_at(self) -> float | None:
        """The end of the latest second that has a figure."""
        return None if self._newest is None else self._newest + 1.0

    def record(self, at: float, value: float, seconds: float = 1.0) -> None:
        """This was the figure in the seconds before `at`. No number (NaN, infinity) is no figure; none is negative."""
        if not isfinite(value):
            return
        last = floor(at)
        if self._newest is not None and last <= self._newest - self.length:
            self.forget()  # the clock went back: what was measured is of a time that has not come
        first = last - max(round(seconds), 1) + 1
        if self._newest is not None and first == self._newest + 2:
            first -= 1  # two reports that were a little more than a second apart
        self._advance(last)
        for second in range(max(first, last - self.length + 1), last + 1):
            self._values[second % self.length] = max(value, 0.0)

    def fill(self, since: float, until: float, value: float) -> None:
        """Since the newest figure, or since then, it was this: said of what speaks only when something changes."""
        last = floor(until) - 1
        newest = self._newest if self._newest is not None else floor(since) - 1
        if last > newest:
            self.record(last, value, last - newest)

    def forget(self) -> None:
        self._values[:] = np.nan
        self._newest = None

    def resized(self, length_s: float) -> Window:
        """The same figures in a window of another length."""
        other = Window(length_s)
        if self._newest is not None:
            for second in range(self._newest - min(self.length, other.length) + 1, self._newest + 1):
                other.record(second, float(self._values[second % self.length]))
        return other

    def even(self, now: float, length_s: float) -> float | None:
        """The average of the latest `length_s` seconds before `now`; None: nothing is known of them."""
        values = self._latest(now, length_s)
        known = values[~np.isnan(values)]
        return float(known.mean()) if known.size else None

    def weighted(self, now: float, length_s: float) -> float | None:
        """The same; what was measured counts half for every twentieth of these seconds that it is older."""
        values = self._latest(now, length_s)
        known = ~np.isnan(values)
        if not known.any():
            return None
        weights = _weights(len(values))[known]
        return float(np.dot(weights, values[known]) / weights.sum())

    def missing(self, now: float, length_s: float) -> float:
        """The part (0 to 1) of the latest `length_s` seconds that nothing is known of."""
        return float(np.isnan(self._latest(now, length_s)).mean())

    def quiet(self, now: float, length_s: float) -> bool:
        """No figure of these seconds is above zero: time alone changes no average."""
        return not bool((self._latest(now, length_s) > 0.0).any())

    def _advance(self, last: int) -> None:
        """Makes room up to this second: what lies between it and the newest is missing."""
        if self._newest is None or last - self._newest >= self.length:
            self._values[:] = np.nan
        else:
            for second in range(self._newest + 1, last + 1):
                self._values[second % self.length] = np.nan
        self._newest = last if self._newest is None else max(last, self._newest)

    def _latest(self, now: float, length_s: float) -> NDArray[np.float64]:
        """Newest first. The second that `now` is in counts only once something was said of it."""
        count = _buckets(length_s, self.length)
        found = np.full(count, np.nan)
        if self._newest is None:
            return found
        last = floor(now)
        if self._newest < last:
            last -= 1
        seconds = np.arange(last, last - count, -1)
        there = (seconds <= self._newest) & (seconds > self._newest - self.length)
        found[there] = self._values[seconds[there] % self.length]
        return found


def _buckets(length_s: float, most: int) -> int:
    return min(max(ceil(length_s), 1), most)


@lru_cache(maxsize=64)
def _weights(count: int) -> NDArray[np.float64]:
    ages: NDArray[np.float64] = np.arange(count, dtype=np.float64)
    weights: NDArray[np.float64] = np.power(0.5, ages * HALF_LIVES / count)
    weights.setflags(write=False)
    return weights
