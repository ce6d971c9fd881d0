"""Chunks: the rows that hold all cells of one metric of one node's subjects of one sort, in one window of one level.

A chunk's key says which: the series (node, sort of subject, metric) by its number, the level, the window. So the chunks
of a series stand together and in order, and one look finds those of a day.
Invariant: a chunk that is not what was written is named, and counts as not there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from bireme.core.telemetry.metrics import BY_NAME, About
from bireme.store.checks import is_row
from bireme.store.series import columns
from bireme.store.series.cells import Cells
from bireme.store.series.columns import ColumnsError
from bireme.store.series.database import Damage, DamagedError, insert, sound_rows
from bireme.store.series.levels import FINE, MOST_WINDOWS, Level

WINDOW_BITS = 24
LEVEL_BITS = 2
MOST_SERIES = 1 << 32
assert MOST_WINDOWS == 1 << WINDOW_BITS

SeriesName = tuple[str, About, str]
"""Node, sort of subject, metric."""
Row = tuple[int, bytes, int]


def chunk_key(series: int, level: Level, window: int) -> int:
    assert 0 <= window < MOST_WINDOWS, window
    return ((series << LEVEL_BITS | level.no) << WINDOW_BITS) | window


def window_of(key: int) -> int:
    return key & (MOST_WINDOWS - 1)


class Book:
    """The numbers of series. After a transaction that was undone, `load` is called again."""

    def __init__(self, damage: Damage) -> None:
        self._damage = damage
        self.numbers: dict[SeriesName, int] = {}
        self._next = 1

    def load(self, connection: sqlite3.Connection) -> None:
        rows = sound_rows(connection, "series", self._damage)
        self.numbers = {(node, about, metric): number for number, about, node, metric in rows}
        # A series whose row is damaged keeps its number: its chunks are not to become another's.
        (highest,) = connection.execute("SELECT max(id) FROM series").fetchone()
        (newest,) = connection.execute("SELECT max(key) FROM chunks").fetchone()
        self._next = 1 + max(highest or 0, (newest or 0) >> (WINDOW_BITS + LEVEL_BITS))
        if self._next >= MOST_SERIES:
            raise DamagedError(f"it has a series with the number {self._next - 1}")

    def number(self, connection: sqlite3.Connection, name: SeriesName) -> int:
        """Within a transaction."""
        found = self.numbers.get(name)
        if found is None:
            found, self._next = self._next, self._next + 1
            node, about, metric = name
            insert(connection, "series", found, about, node, metric)
            self.numbers[name] = found
        return found


def read(connection: sqlite3.Connection, key: int, damage: Damage) -> Cells | None:
    row = connection.execute("SELECT key, data, sum FROM chunks WHERE key = ?", (key,)).fetchone()
    return decoded(row, damage) if row is not None else None


def rows(connection: sqlite3.Connection, series: int, level: Level, windows: range) -> list[Row]:
    query = "SELECT key, data, sum FROM chunks WHERE key BETWEEN ? AND ?"
    return connection.execute(query, _span(series, level, windows)).fetchall() if windows else []


def all_decoded(found: Iterable[Row], damage: Damage) -> Iterator[tuple[int, Cells]]:
    """With their windows, the sound ones."""
    for row in found:
        cells = decoded(row, damage)
        if cells is not None:
            yield window_of(row[0]), cells


def decoded(row: Row, damage: Damage) -> Cells | None:
    try:
        if not is_row(row):
            raise ColumnsError("its sum is another")
        return columns.decode(row[1])
    except ColumnsError as error:
        damage.note(f"chunk {row[0]} of the series is damaged ({error}): what it held is not shown")
        return None


def write(connection: sqlite3.Connection, key: int, level: Level, metric: str, cells: Cells) -> None:
    """Within a transaction."""
    coarse = level != FINE
    # What is coarse stays for long and is written seldom.
    data = columns.encode(cells, BY_NAME[metric].grain, finer_means=coarse, effort=6 if coarse else 1)
    insert(connection, "chunks", key, data)


def drop(connection: sqlite3.Connection, series: int, level: Level, windows: range) -> None:
    """Within a transaction."""
    if windows:
        connection.execute("DELETE FROM chunks WHERE key BETWEEN ? AND ?", _span(series, level, windows))


def _span(series: int, level: Level, windows: range) -> tuple[int, int]:
    return chunk_key(series, level, windows.start), chunk_key(series, level, windows.stop - 1)
