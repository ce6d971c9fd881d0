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

from bireme.core.model.serving.scaling import LONGEST_WINDOW_S

HALF_LIVES = 30.0
"""In the window of a weighted average: a load that doubles is seen within two seconds of a minute's window. An even
average was rejected for it: it needs half the window to see as much."""


class Window:
    """The latest seconds of one figure."""

    __slots__ = ("_newest", "_values")

    def __init__(self, length_s: float) -> None:
        self._values: NDArray[np.float64] = np.full(_buckets(length_s, LONGEST_WINDOW_S), np.nan)
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
        newest = floor(since) - 1
        if self._newest is not None:
            newest = max(newest, self._newest)
        if last > newest:
            self.record(last, value, last - newest)

    def forget(self) -> None:
        self._values[:] = np.nan
        self._newest = None

    def resized(self, length_s: float) -> Window:
        """A window of another length with the figures of this one."""
        other = Window(length_s)
        if self._newest is not None:
            for second in range(self._newest - min(self.length, other.length) + 1, self._newest + 1):
                other.record(second, float(self._values[second % self.length]))
        return other

    def latest(self, now: float, length_s: float) -> Latest:
        """The latest `length_s` seconds before `now`. The one that `now` is in counts once something was said of it."""
        count = _buckets(length_s, self.length)
        if self._newest is None:
            return Latest(np.full(count, np.nan))
        last = floor(now)
        if self._newest < last:
            last -= 1
        seconds = last - _ages(count)
        found = self._values[seconds % self.length]
        found[(seconds > self._newest) | (seconds <= self._newest - self.length)] = np.nan
        return Latest(found)

    def _advance(self, last: int) -> None:
        """Makes room up to this second: what lies between it and the newest is missing."""
        if self._newest is None or last - self._newest >= self.length:
            self._values[:] = np.nan
        else:
            for second in range(self._newest + 1, last + 1):
                self._values[second % self.length] = np.nan
        self._newest = last if self._newest is None else max(last, self._newest)


class Latest:
    """The seconds of a window up to a moment, newest first."""

    __slots__ = ("_known", "_values")

    def __init__(self, values: NDArray[np.float64]) -> None:
        self._values = values
        self._known: NDArray[np.bool_] = ~np.isnan(values)

    def even(self, length_s: float) -> float | None:
        """The average of the newest `length_s` seconds; None: nothing is known of them."""
        count = _buckets(length_s, len(self._values))
        known = self._values[:count][self._known[:count]]
        return float(known.sum()) / known.size if known.size else None

    def weighted(self) -> float | None:
        """The average; what was measured counts half for every thirtieth of these seconds that it is older."""
        weights = _weights(len(self._values))
        if self._known.all():
            return float(weights.dot(self._values) / weights.sum())
        weights = weights[self._known]
        return float(weights.dot(self._values[self._known]) / weights.sum()) if weights.size else None

    @property
    def missing(self) -> float:
        """The part (0 to 1) that nothing is known of, up to the newest that is: gaps, not the age of what is known."""
        if not self._known.any():
            return 1.0
        up_to_newest = self._known[int(self._known.argmax()) :]
        return 1.0 - float(np.count_nonzero(up_to_newest)) / len(up_to_newest)

    @property
    def quiet(self) -> bool:
        """No figure is above zero: time alone changes no average."""
        return not np.any(self._values > 0.0)


def _buckets(length_s: float, most: int) -> int:
    return min(max(ceil(length_s), 1), most)


@lru_cache(maxsize=64)
def _ages(count: int) -> NDArray[np.int64]:
    ages: NDArray[np.int64] = np.arange(count, dtype=np.int64)
    ages.setflags(write=False)
    return ages


@lru_cache(maxsize=64)
def _weights(count: int) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = np.power(0.5, _ages(count) * (HALF_LIVES / count))
    weights.setflags(write=False)
    return weights
