"""When a need fits on each node: for every node the times between which it has so much free, as arrays over all nodes.

The calendar keeps one `Openings` for each need that is asked about. An opening that is open now has no begin, so that
it stays true as time passes; whatever changes on a node (a start, an end, a slot) only makes that node be looked at
again. Both questions of a pass are then a few operations on arrays: which nodes hold it from now on for so long, and
from when on do so many nodes hold it at once. Called by `calendar.py` only.
Invariant: the openings of a node do not overlap and are in order of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from operator import add

import numpy as np
from numpy.typing import NDArray

from bireme.core.placement.table import BoolArray

Floats = NDArray[np.float64]
AT_MOST = 12
"""Openings kept of a node; of more, the first ones and the last, which has no end."""
Change = tuple[float, tuple[int, ...]]
"""(when, what each amount changes by)."""


class Openings:
    def __init__(self, first_fit: Floats) -> None:
        """`first_fit`: of each node without slots, from when on it fits for good; -inf: now; inf: never."""
        self._begin = np.full((len(first_fit), 1), inf)
        self._end = np.full((len(first_fit), 1), -inf)
        fits = first_fit < inf
        self._begin[fits, 0] = first_fit[fits]
        self._end[fits, 0] = inf
        self.dirty: set[int] = set()
        """Nodes to be looked at again."""

    def set(self, position: int, found: Sequence[tuple[float, float]]) -> None:
        if len(found) > AT_MOST:
            found = (*found[: AT_MOST - 1], found[-1])
        while len(found) > self._begin.shape[1]:
            rows = len(self._begin)
            self._begin = np.hstack((self._begin, np.full((rows, 1), inf)))
            self._end = np.hstack((self._end, np.full((rows, 1), -inf)))
        self._begin[position], self._end[position] = inf, -inf
        for number, (begin, end) in enumerate(found):
            self._begin[position, number], self._end[position, number] = begin, end

    def until(self, position: int) -> float:
        """Until when it fits on the node from now on; -inf: it does not."""
        return float(self._end[position, 0]) if self._begin[position, 0] == -inf else -inf

    def now(self, end: float) -> BoolArray:
        """The nodes on which it fits from now on until then."""
        found: BoolArray = np.logical_and(self._begin[:, 0] == -inf, self._end[:, 0] >= end)
        return found

    def covering(self, begin: float, end: float, soon: float) -> BoolArray:
        """The nodes on which it fits during that time. What should have come by now comes `soon`."""
        there: BoolArray = np.logical_and(_starts(self._begin, begin, soon) <= begin, self._end >= end)
        found: BoolArray = np.logical_or.reduce(there, axis=1)
        return found

    def first(self, allowed: BoolArray, duration: float, after: float, soon: float) -> float:
        """When one of the allowed nodes begins to hold it for so long; inf: none ever does."""
        starts = _starts(self._begin, after, soon)
        return float(starts[self._lasting(starts, allowed, duration)].min(initial=inf))

    def moments(self, allowed: BoolArray, nodes: int, duration: float, after: float, soon: float) -> Floats:
        """In order: when so many of the allowed nodes begin to hold it for so long."""
        starts = _starts(self._begin, after, soon)
        lasting = self._lasting(starts, allowed, duration)
        begins = np.sort(starts[lasting])
        if len(begins) < nodes:
            return begins[:0]
        moments = np.unique(begins)
        if nodes > 1:
            lasts = np.sort(self._end[lasting] - duration) if duration < inf else np.full(len(begins), inf)
            there = np.searchsorted(begins, moments, side="right") - np.searchsorted(lasts, moments, side="left")
            moments = moments[there >= nodes]
        return moments

    def _lasting(self, starts: Floats, allowed: BoolArray, duration: float) -> BoolArray:
        """Which openings of the allowed nodes are long enough, used from then on."""
        ends = self._end
        enough: BoolArray = ends - duration >= starts if duration < inf else (ends == inf) & (starts < inf)
        return enough & allowed[:, None]


def _starts(begin: Floats, after: float, soon: float) -> Floats:
    """From when on each opening can be used: what is open now after that time, what should have come by now `soon`."""
    return np.where(begin == -inf, after, np.maximum(begin, max(after, soon)))


def open_until(spare: Sequence[int], changes: Iterable[Change]) -> float:
    """How long no amount is short from now on; -inf: one is."""
    if min(spare) < 0:
        return -inf
    short_since = inf
    for at, change in sorted(changes):
        if at > short_since:
            break
        spare = list(map(add, spare, change))
        short_since = at if min(spare) < 0 else inf
    return short_since


def openings(spare: Sequence[int], changes: Iterable[Change]) -> list[tuple[float, float]]:
    """The times between which no amount is short. `spare`: what there is now beyond what is wanted.

    What is open now begins at -inf.
    """
    found: list[tuple[float, float]] = []
    since = -inf if min(spare) >= 0 else None
    ordered = sorted(changes)
    for number, (at, change) in enumerate(ordered, 1):
        spare = list(map(add, spare, change))
        if number < len(ordered) and ordered[number][0] == at:
            continue
        if min(spare) >= 0:
            if since is None:
                since = at
        elif since is not None:
            found.append((since, at))
            since = None
    if since is not None:
        found.append((since, inf))
    return found
