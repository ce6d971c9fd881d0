"""Reading: what is asked for, from every level that has some of it, as curves.

The level is the coarsest that still has four cells in each step that is asked for, but no finer than what is left of
that time. What has not been folded into it yet is taken from the finer ones, and the newest from memory.
Invariant: each measured cell counts once, by how much of its time was measured.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bireme.core.telemetry.curves import Asked, Curve, Own
from bireme.core.telemetry.subjects import Subject
from bireme.store.series import chunks
from bireme.store.series.cells import NONE, STEP_BITS, Cells, Floats, Ints, concatenated, of_samples
from bireme.store.series.database import Damage
from bireme.store.series.disk import Horizons, horizons
from bireme.store.series.fresh import Stack
from bireme.store.series.levels import FINE, LEVELS, Level
from bireme.store.series.subjects import numbers

CELLS_A_STEP = 4
AT_ONCE = 30_000
"""Cells: few enough to stay in the processor's cache, many enough that numpy's calls do not count."""
MOST_STEPS = 50_000
"""Of a curve: a longer time has longer steps."""

Span = tuple[int, int]
"""From this second to before that."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The steps of the curves that are asked for, and the level they are made of."""

    level: Level
    start: int
    step_s: int
    steps: int

    @property
    def end(self) -> int:
        return self.start + self.steps * self.step_s


def grid(asked: Asked, known: Horizons) -> Grid:
    """Steps begin at whole multiples of their length since the epoch, so that curves of different times agree."""
    begin = max(asked.start, 0.0)
    least = max(asked.step_s, (asked.end - begin) / MOST_STEPS)
    left = [level for level in LEVELS if known.kept_from[level.no] <= begin] or [LEVELS[-1]]
    level = [each for each in left if each == left[0] or each.step_s * CELLS_A_STEP <= least][-1]
    step_s = max(1, math.ceil(least / level.step_s)) * level.step_s
    start = int(begin // step_s) * step_s
    return Grid(level, start, step_s, max(0, math.ceil((asked.end - start) / step_s)))


@dataclass(slots=True)
class Found:
    """What a look into the database brought: chunks that are not decoded yet, with where their cells may lie."""

    grid: Grid
    numbers: dict[int, Subject]
    rows: dict[tuple[str, Level, Span], list[chunks.Row]] = field(default_factory=dict)
    """By metric, level, and the time that is read from that level."""


def look(connection: sqlite3.Connection, asked: Asked, damage: Damage) -> Found:
    """Within one read transaction."""
    known = horizons(connection, damage)
    found = Found(grid(asked, known), numbers(connection, asked.subjects, damage))
    for about, node in dict.fromkeys((subject.about, subject.node) for subject in asked.subjects):
        for metric in dict.fromkeys(asked.metrics):
            query = "SELECT id FROM series WHERE node = ? AND about = ? AND metric = ?"
            row = connection.execute(query, (node, about, metric)).fetchone()
            for level, span in _spans(found.grid, known) if row is not None else ():
                windows = range(span[0] // level.window_s, -(-span[1] // level.window_s))
                try:
                    rows = chunks.rows(connection, row[0], level, windows)
                except sqlite3.DatabaseError as error:
                    damage.note(f"{metric} of {node} in the series cannot be read ({error}): passed over")
                    continue
                found.rows.setdefault((metric, level, span), []).extend(rows)
    return found


def _spans(grid: Grid, known: Horizons) -> Iterator[tuple[Level, Span]]:
    """From which level which time is taken."""
    end = grid.end
    for level in LEVELS[: grid.level.no + 1]:
        begin = grid.start
        if level != grid.level:
            begin = max(begin, min(end, known.folded_s(level)))
        if begin < end:
            yield level, (begin, end)
        end = begin


class Sheet:
    """Collects cells for curves, and adds them up at the end."""

    def __init__(self, grid: Grid, asked: Asked) -> None:
        self._grid, self._own = grid, asked.own
        subjects, metrics = dict.fromkeys(asked.subjects), dict.fromkeys(asked.metrics)
        self._rows = {
            pair: no for no, pair in enumerate((metric, subject) for metric in metrics for subject in subjects)
        }
        self._parts: list[tuple[Ints, Floats, Floats, Floats, Floats]] = []

    def add_kept(
        self, metric: str, level: Level, span: Span, parts: Sequence[Cells], owners: dict[int, Subject]
    ) -> None:
        """Cells as they are on disk: of those that are partly of another's time nothing is known of the rest."""
        cells = concatenated(parts) if parts else NONE
        if self._own and len(cells):
            cells = cells.only(self._owned(cells, level, owners))
        self.add(metric, level, span, [cells], owners)

    def add(self, metric: str, level: Level, span: Span, parts: Sequence[Cells], owners: dict[int, Subject]) -> None:
        """Those cells of the subjects that are asked for, in that time."""
        if not parts:
            return
        cells = concatenated(parts)
        at, row = cells.step * level.step_s, self._rows_of(metric, cells.subject, owners)
        fits = (row >= 0) & (at >= max(span[0], self._grid.start)) & (at < min(span[1], self._grid.end))
        if not fits.all():
            cells, at, row = cells.only(fits), at[fits], row[fits]
        place = row * self._grid.steps + (at - self._grid.start) // self._grid.step_s
        if len(place):
            self._parts.append(_gathered(place, cells, fine=level == FINE))

    def _owned(self, cells: Cells, level: Level, owners: dict[int, Subject]) -> NDArray[np.bool_]:
        """Which cells are not of another's time, in whole or in part."""
        owned = np.ones(len(cells), np.bool_)
        subject, begins = cells.subject, (cells.step * level.step_s).astype(np.float64)
        first = np.flatnonzero(np.diff(subject, prepend=-1)).tolist()
        for begin, end in zip(first, [*first[1:], len(cells)], strict=True):
            own = self._own.get(owners[int(subject[begin])]) if int(subject[begin]) in owners else None
            if own is not None:
                owned[begin:end] = own.holds(begins[begin:end], begins[begin:end] + level.step_s)
        return owned

    def _rows_of(self, metric: str, subject: Ints, owners: dict[int, Subject]) -> Ints:
        """Of each cell the curve that it belongs to, or -1. Cells of one subject stand together for long."""
        first = np.flatnonzero(np.diff(subject, prepend=-1))
        rows = [self._rows.get((metric, owners[no]), -1) if no in owners else -1 for no in subject[first].tolist()]
        return np.repeat(np.array(rows, np.int64), np.diff(first, append=len(subject)))

    def curves(self) -> list[Curve]:
        if not self._parts or not self._grid.steps:
            return []
        place, total, low, high, weight = (np.concatenate(columns) for columns in zip(*self._parts))
        size = len(self._rows) * self._grid.steps
        counted = np.bincount(place, weight, size)
        lows, highs = np.full(size, np.inf), np.full(size, -np.inf)
        np.minimum.at(lows, place, low)
        np.maximum.at(highs, place, high)
        empty = counted == 0
        lows[empty] = highs[empty] = np.nan
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.clip(np.bincount(place, total, size) / counted, lows, highs)
        return list(self._cut(lows, means, highs))

    def _cut(self, *columns: Floats) -> Iterator[Curve]:
        steps = self._grid.steps
        for (metric, subject), no in self._rows.items():
            low, mean, high = (column[no * steps : (no + 1) * steps] for column in columns)
            if not np.isnan(mean).all():
                yield Curve(subject, metric, float(self._grid.start), float(self._grid.step_s), low, mean, high)


def _gathered(place: Ints, cells: Cells, *, fine: bool) -> tuple[Ints, Floats, Floats, Floats, Floats]:
    """Place, sum, least, most and weight: cells of one place, where they stand together, are one."""
    first = np.flatnonzero(np.diff(place, prepend=-1))
    if fine:
        weight = np.diff(first, append=len(place)).astype(np.float64)
        total = np.add.reduceat(cells.mean, first)
    else:
        weight = np.add.reduceat(cells.weight, first).astype(np.float64)
        total = np.add.reduceat(cells.mean * cells.weight, first)
    return place[first], total, np.minimum.reduceat(cells.low, first), np.maximum.reduceat(cells.high, first), weight


def curves(asked: Asked, found: Found, stacks: Sequence[Stack], damage: Damage) -> list[Curve]:
    """Decodes what was found; needs the database no more."""
    sheet = Sheet(found.grid, asked)
    for (metric, level, span), rows in found.rows.items():
        for parts in _groups(cells for _, cells in chunks.all_decoded(rows, damage)):
            sheet.add_kept(metric, level, span, parts, found.numbers)
    for stack in stacks:
        for metric, cells, owners in _fresh_cells(stack, asked):
            sheet.add(metric, FINE, (found.grid.start, found.grid.end), [cells], owners)
    return sheet.curves()


def _groups(parts: Iterable[Cells]) -> Iterator[list[Cells]]:
    group: list[Cells] = []
    for part in parts:
        group.append(part)
        if sum(map(len, group)) >= AT_ONCE:
            yield group
            group = []
    if group:
        yield group


def _fresh_cells(stack: Stack, asked: Asked) -> Iterator[tuple[str, Cells, dict[int, Subject]]]:
    places = {name: no for no, name in enumerate(stack.names)}
    asked_here = (one for one in asked.subjects if (one.node, one.about) == (stack.node, stack.about))
    owners = {places[one.id]: one for one in asked_here if one.id in places}
    if not owners:
        return
    steps = (stack.at // FINE.step_s).astype(np.int64)
    mine = np.array(list(owners), np.int64)
    keys = ((mine[:, np.newaxis] << STEP_BITS) | steps).ravel()
    another = np.array([_not_owned(asked.own.get(one), stack) for one in owners.values()]).ravel()
    for metric in dict.fromkeys(asked.metrics):
        if metric in stack.metrics:
            values = stack.values[:, stack.metrics.index(metric), :][:, mine].T.ravel()
            yield metric, of_samples(keys, np.where(another, np.nan, values)), owners


def _not_owned(own: Own | None, stack: Stack) -> NDArray[np.bool_]:
    """Which rounds are of another's time."""
    if own is None:
        return np.zeros(len(stack.at), np.bool_)
    return ~own.has_sample(stack.at, stack.interval_s)
