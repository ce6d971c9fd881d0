"""The writer's side of the database: its connection, the numbers it gives out, and how far thinning out has come.

Used by all that writes (`compacting`, `thinning`, `held_gpus`, `store`), one at a time.
Invariant: after a transaction that was undone, nothing in memory says what was in it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from bireme.store.checks import is_row
from bireme.store.series.chunks import Book
from bireme.store.series.database import Damage, insert, open_to_write, reading, writing
from bireme.store.series.levels import LEVELS, Level
from bireme.store.series.subjects import Subjects


class Horizons:
    """How far time has been thinned out: kept with the chunks, and read with them."""

    __slots__ = ("folded", "kept_from", "thinned_at")

    def __init__(self, values: dict[str, int]) -> None:
        self.folded = [values.get(f"folded {level.no}", 0) for level in LEVELS]
        """By level: the windows before this one are in the next level too. Damaged or new: none is, and all is done
        again."""
        self.kept_from = [values.get(f"kept from {level.no}", 0) for level in LEVELS]
        """By level: what was measured earlier has been dropped."""
        self.thinned_at = values.get("thinned at", 0)

    def folded_s(self, level: Level) -> int:
        return self.folded[level.no] * level.window_s


def horizons(connection: sqlite3.Connection, damage: Damage) -> Horizons:
    values = {}
    for row in connection.execute("SELECT * FROM about"):
        if is_row(row):
            values[row[0]] = row[1]
        else:
            damage.note(f"{row[0]!r} in the series is not what was written: found out anew")
    return Horizons(values)


class Disk:
    """Opens the file, or makes one. Raises SeriesError, DamagedError."""

    def __init__(self, path: str, damage: Damage) -> None:
        self.path = path
        self.damage = damage
        self.book = Book(damage)
        self.subjects = Subjects(damage)
        self.connection = open_to_write(path)
        try:
            with reading(path):
                self._recall()
        except BaseException:
            self.connection.close()
            raise

    def _recall(self) -> None:
        self.subjects.forget()
        self.book.load(self.connection)
        self.horizons = horizons(self.connection, self.damage)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction. Raises SeriesError or DamagedError, and nothing of it was stored then."""
        try:
            with writing(self.connection, self.path):
                yield self.connection
        except BaseException:
            self._recall_if_it_can()
            raise

    def _recall_if_it_can(self) -> None:
        try:
            self._recall()
        except sqlite3.Error as error:
            self.damage.note(f"cannot read {self.path}: {error}")

    def keep(self, key: str, value: int) -> None:
        """Of horizons; within a transaction."""
        insert(self.connection, "about", key, value)
