"""Cells: what was measured of one metric, sparse and sorted, with the operations that make others of them. Pure.

A cell is one step of one subject. Only measured ones are there, so that a GPU of a whole day and a thousand tasks of
some seconds are the same thing, and every operation is a few calls of numpy whatever is missing.
Invariant: keys are sorted and each is there once (but for `concatenated`); `low <= mean <= high`; weights are positive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

STEP_BITS = 34
"""A key is a subject's number and, in its last bits, the number of the step since the epoch."""
STEP_MASK = (1 << STEP_BITS) - 1


@dataclass(frozen=True, slots=True)
class Cells:
    key: Ints
    mean: Floats
    low: Floats
    high: Floats
    weight: Ints
    """Of a fine cell: its samples. Of a coarser one: the fine cells of it that were measured."""

    def __len__(self) -> int:
        return len(self.key)

    @property
    def subject(self) -> Ints:
        return self.key >> STEP_BITS

    @property
    def step(self) -> Ints:
        return self.key & STEP_MASK

    def only(self, chosen: NDArray[np.bool_]) -> Cells:
        return Cells(self.key[chosen], self.mean[chosen], self.low[chosen], self.high[chosen], self.weight[chosen])


NONE = Cells(np.empty(0, np.int64), np.empty(0), np.empty(0), np.empty(0), np.empty(0, np.int64))


def of_samples(key: Ints, values: Floats) -> Cells:
    """Each sample counts once; those of one key are one cell."""
    known = ~np.isnan(values)
    if not known.all():
        key, values = key[known], values[known]
    return _united(Cells(key, values, values, values, np.ones(len(key), np.int64)))


def united(parts: Sequence[Cells]) -> Cells:
    """All of them; where one cell is in several, by their weights."""
    parts = [part for part in parts if len(part)]
    if len(parts) < 2:
        return parts[0] if parts else NONE
    return _united(concatenated(parts))


def replaced(old: Cells, new: Cells) -> Cells:
    """The cells of both; where a cell is in both, the new one."""
    if not len(old) or not len(new):
        return new if len(new) else old
    return united([old.only(~np.isin(old.key, new.key, assume_unique=True)), new])


def coarser(cells: Cells, times: int, *, fine: bool) -> Cells:
    """In cells `times` as long. `fine`: each counts the same, however many samples it has."""
    weight = np.ones(len(cells), np.int64) if fine else cells.weight
    key = (cells.subject << STEP_BITS) | (cells.step // times)
    return _united(Cells(key, cells.mean, cells.low, cells.high, weight))


def concatenated(parts: Sequence[Cells]) -> Cells:
    """One behind the other: neither sorted nor each once."""
    key = np.concatenate([part.key for part in parts])
    mean = np.concatenate([part.mean for part in parts])
    weight = np.concatenate([part.weight for part in parts])
    if all(part.low is part.mean and part.high is part.mean for part in parts):
        return Cells(key, mean, mean, mean, weight)
    low, high = np.concatenate([part.low for part in parts]), np.concatenate([part.high for part in parts])
    return Cells(key, mean, low, high, weight)


def _united(cells: Cells) -> Cells:
    """Sorted, and each key once."""
    if not len(cells):
        return NONE
    key = cells.key
    if (key[1:] < key[:-1]).any():
        order = np.argsort(key, kind="stable")
        key = key[order]
        cells = Cells(key, cells.mean[order], cells.low[order], cells.high[order], cells.weight[order])
    first = np.empty(len(key), np.bool_)
    first[0] = True
    np.not_equal(key[1:], key[:-1], out=first[1:])
    if first.all():
        return cells
    at = np.flatnonzero(first)
    weight = np.add.reduceat(cells.weight, at)
    low, high = np.minimum.reduceat(cells.low, at), np.maximum.reduceat(cells.high, at)
    with np.errstate(over="ignore"):
        mean = np.add.reduceat(cells.mean * cells.weight, at) / weight
    # A mean may come out a rounding beside what it is of, or beyond the largest float.
    return Cells(key[at], np.clip(mean, low, high), low, high, weight)
