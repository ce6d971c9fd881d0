"""Thinning out: what is complete is folded into the next level, what is old is dropped.

A level's chunks stay after they were folded, until they are too old for it: whoever looks closely finds them. How far
folding has come is one time for each level (`Horizons`), moved after all series are folded; a crash in between costs
nothing but doing some of it again, since a fold replaces what an earlier one of the same window made.
Invariant: nothing is dropped from a level before it is in the next one.
"""

from __future__ import annotations

from collections.abc import Iterator

from bireme.store.series import chunks, stories
from bireme.store.series.cells import NONE, Cells, coarser, replaced, united
from bireme.store.series.chunks import SeriesName, chunk_key
from bireme.store.series.disk import Disk
from bireme.store.series.levels import COARSEST, DAY_S, FINE, LEVELS, Keeping, Level

LATE_S = 1800
"""So long after its end a window counts as complete; what comes later is folded when it comes."""
AT_ONCE = 200
"""Series in one transaction."""
BELIEVED_S = DAY_S


def thin_out(disk: Disk, keeping: Keeping, now: float) -> None:
    """Raises SeriesError, DamagedError."""
    now = _believed(disk, now)
    for level in LEVELS[:-1]:
        _fold_all(disk, level, now)
    for level in LEVELS:
        _drop_old(disk, level, now - keeping.of(level))
    oldest = now - keeping.coarse_s - COARSEST.window_s
    with disk.writing() as connection:
        connection.execute("DELETE FROM subjects WHERE until < ?", (oldest,))
        connection.execute("DELETE FROM held WHERE until < ?", (oldest,))
        connection.execute("DELETE FROM gatherers WHERE at < ?", (oldest,))
        stories.drop_old(connection, oldest)
        connection.execute("DELETE FROM digests WHERE until < ?", (now - keeping.digests_s,))
        disk.keep("thinned at", int(now))
    disk.horizons.thinned_at = int(now)


def _believed(disk: Disk, now: float) -> float:
    """A clock that is years ahead for a moment is not to drop all that there is: a day at a time."""
    last = disk.horizons.thinned_at
    return min(now, last + BELIEVED_S) if last else now


def _fold_all(disk: Disk, level: Level, now: float) -> None:
    complete = now - LATE_S
    if level != FINE:
        complete = min(complete, disk.horizons.folded_s(LEVELS[level.no - 1]))
    begin, end = disk.horizons.folded[level.no], int(complete // level.window_s)
    if end <= begin:
        return
    for group in _groups(disk):
        with disk.writing():
            for (_, _, metric), series in group:
                _fold_series(disk, series, metric, level, range(begin, end))
    with disk.writing():
        disk.keep(f"folded {level.no}", end)
    disk.horizons.folded[level.no] = end


def _groups(disk: Disk) -> Iterator[list[tuple[SeriesName, int]]]:
    every = list(disk.book.numbers.items())
    return (every[at : at + AT_ONCE] for at in range(0, len(every), AT_ONCE))


def _fold_series(disk: Disk, series: int, metric: str, level: Level, windows: range) -> None:
    """Several windows at once where they are one of the next level."""
    above = LEVELS[level.no + 1]
    parts: dict[int, list[Cells]] = {}
    for window, cells in chunks.all_decoded(chunks.rows(disk.connection, series, level, windows), disk.damage):
        parts.setdefault(window * level.window_s // above.window_s, []).append(cells)
    for target, found in parts.items():
        _put_above(disk, series, metric, level, target, united(found))


def fold(disk: Disk, series: int, metric: str, level: Level, window: int, cells: Cells) -> None:
    """One chunk that has changed, into all levels that had it already. Within a transaction."""
    above = LEVELS[level.no + 1]
    target = window * level.window_s // above.window_s
    made = _put_above(disk, series, metric, level, target, cells)
    if above != COARSEST and target < disk.horizons.folded[above.no]:
        fold(disk, series, metric, above, target, made)


def _put_above(disk: Disk, series: int, metric: str, level: Level, target: int, cells: Cells) -> Cells:
    """The chunk above, as it is then."""
    above = LEVELS[level.no + 1]
    key = chunk_key(series, above, target)
    before = chunks.read(disk.connection, key, disk.damage) or NONE
    made = replaced(before, coarser(cells, above.step_s // level.step_s, fine=level == FINE))
    chunks.write(disk.connection, key, above, metric, made)
    return made


def _drop_old(disk: Disk, level: Level, oldest: float) -> None:
    """Windows that ended before, and are in the next level."""
    end = int(oldest // level.window_s)
    if level != COARSEST:
        end = min(end, disk.horizons.folded[level.no])
    if end * level.window_s <= disk.horizons.kept_from[level.no]:
        # Late rounds may have made chunks in the dropped time: they are few, and go when this moves on.
        return
    for group in _groups(disk):
        with disk.writing() as connection:
            for _, series in group:
                chunks.drop(connection, series, level, range(end))
    with disk.writing():
        disk.keep(f"kept from {level.no}", end * level.window_s)
    disk.horizons.kept_from[level.no] = end * level.window_s
