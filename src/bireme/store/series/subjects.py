"""The subjects that were measured, by number, and when: a row for each stay of a subject.

One that was away for more than an hour gets a new number when it comes back, so that the times of a row are times in
which something was measured. Chunks name subjects by these numbers.
Invariant: the numbers in memory are those on disk; after a transaction that was undone, `forget` is called.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from bireme.core.telemetry.metrics import About
from bireme.core.telemetry.subjects import Subject
from bireme.store.checks import is_row
from bireme.store.series.database import Damage, DamagedError, insert

AWAY_S = 3600.0
_FEWEST_KEPT = 5_000
"""So many in memory are no trouble; with more, those that nobody told of lately make way."""
_LATELY_S = 900.0
MOST = 1 << 28
"""More subjects than a year has; their numbers have to fit into keys of cells."""

_Stay = tuple[int, float, float]
"""Number, first and last time."""


class Subjects:
    """The writer's side."""

    def __init__(self, damage: Damage) -> None:
        self._damage = damage
        self._latest: dict[Subject, _Stay] = {}
        self._most = _FEWEST_KEPT

    def forget(self) -> None:
        self._latest.clear()

    def number(self, connection: sqlite3.Connection, subject: Subject, first: float, last: float) -> int:
        """Of the subject, measured from `first` to `last`. Within a transaction."""
        stay = self._latest.get(subject)
        if stay is None or not _touch(stay, first, last):
            stay = self._near(connection, subject, first, last)
        if stay is None:
            stay = (_next(connection), first, last)
        number, begin, end = stay
        begin, end = min(begin, first), max(end, last)
        insert(connection, "subjects", number, subject.about, subject.node, subject.id, float(begin), float(end))
        self._latest[subject] = number, begin, end
        if len(self._latest) > self._most:
            self._make_room(last)
        return number

    def _make_room(self, now: float) -> None:
        """Tasks come and go by the thousand: only who is there stays in memory. Who comes back is found on disk."""
        self._latest = {subject: stay for subject, stay in self._latest.items() if stay[2] >= now - _LATELY_S}
        self._most = max(_FEWEST_KEPT, 2 * len(self._latest))

    def _near(self, connection: sqlite3.Connection, subject: Subject, first: float, last: float) -> _Stay | None:
        query = "SELECT * FROM subjects WHERE about = ? AND name = ? AND node = ?"
        rows = connection.execute(query, (subject.about, subject.id, subject.node)).fetchall()
        stays = [(row[0], row[4], row[5]) for row in rows if self._is_sound(row)]
        return next((stay for stay in reversed(stays) if _touch(stay, first, last)), None)

    def _is_sound(self, row: tuple[object, ...]) -> bool:
        return is_sound(row, self._damage)


def _next(connection: sqlite3.Connection) -> int:
    (highest,) = connection.execute("SELECT max(id) FROM subjects").fetchone()
    if (highest or 0) >= MOST:
        raise DamagedError(f"it has a subject with the number {highest}")
    return (highest or 0) + 1


def is_sound(row: tuple[object, ...], damage: Damage) -> bool:
    if is_row(row):
        return True
    damage.note(f"subjects {row[0]!r} in the series is not what was written: what was measured of it is not shown")
    return False


def _touch(stay: _Stay, first: float, last: float) -> bool:
    return first <= stay[2] + AWAY_S and last >= stay[1] - AWAY_S


def numbers(connection: sqlite3.Connection, subjects: Iterable[Subject], damage: Damage) -> dict[int, Subject]:
    """All that these have had."""
    query = "SELECT * FROM subjects WHERE about = ? AND name = ? AND node = ?"
    found = {}
    for subject in subjects:
        for row in connection.execute(query, (subject.about, subject.id, subject.node)):
            if is_sound(row, damage):
                found[row[0]] = subject
    return found


def measured(
    connection: sqlite3.Connection, about: About, prefix: str, start: float, end: float, damage: Damage
) -> list[Subject]:
    query = "SELECT * FROM subjects WHERE about = ? AND name >= ? AND name < ? AND since <= ? AND until >= ?"
    rows = connection.execute(query, (about, prefix, prefix + "\U0010ffff", end, start))
    return [Subject(row[1], row[2], row[3]) for row in rows if is_sound(row, damage)]
