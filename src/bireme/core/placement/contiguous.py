"""Nodes next to each other (`--contiguous`): which windows of the configuration's order to try, the best first.

Columns only; called by the search. Knows nothing of switches but where along the order a leaf ends.
Invariant: the positions of a window are consecutive numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bireme.core.placement.table import IntArray


def windows(able: IntArray, worth: IntArray, needed: int, nodes_min: int, leaf_of: IntArray) -> Iterator[IntArray]:
    """The shortest windows worth `needed`, then whole runs, for demands that need more than their worth says.

    `able` in any order, `worth` of each. Windows that touch few leaves come first, then those in the shortest runs:
    they leave the long ones whole.
    """
    order = np.argsort(able)
    runs = _runs(able[order], worth[order])
    found: list[tuple[int, int, IntArray]] = []
    for positions, worths in runs:
        found.extend(
            (_leaves(leaf_of[window]), len(positions), window)
            for window in _shortest(positions, worths, needed, nodes_min)
        )
    for _, _, window in sorted(found, key=lambda each: (each[0], each[1], int(each[2][0]))):
        yield window
    for positions, _ in sorted(runs, key=lambda run: len(run[0])):
        yield positions


def is_contiguous(positions: Sequence[int]) -> bool:
    return max(positions) - min(positions) + 1 == len(positions)


def _runs(positions: IntArray, worth: IntArray) -> list[tuple[IntArray, IntArray]]:
    ends = np.flatnonzero(np.diff(positions) != 1) + 1
    pairs = zip(np.split(positions, ends), np.split(worth, ends))
    return [(run, worths) for run, worths in pairs if len(run)]


def _shortest(run: IntArray, worth: IntArray, needed: int, nodes_min: int) -> Iterator[IntArray]:
    """From each node on, as few as are enough."""
    total = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(worth)))
    for start, before in enumerate(total[:-1]):
        end = max(int(np.searchsorted(total, before + needed)), start + nodes_min)
        if end > len(run):
            return
        yield run[start:end]


def _leaves(leaves: IntArray) -> int:
    return len(np.unique(leaves))
