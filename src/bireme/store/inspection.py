"""Everything in a journal held against its sums: what is damaged, by name, and what can still be had.

Reads only, tolerantly, row by row where a page is bad; while a daemon runs too. Behind `bireme store verify`, and the
first half of `recovery`. Not at a start, which looks at the mark and at what it reads anyway (`guard`, `journal`).
Invariant: what is not named here is what was written, or does not matter to anybody.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from bireme.core.model.events import EventsLost
from bireme.ports import StoreError
from bireme.store import codec, snapshots
from bireme.store import mark as marks
from bireme.store.checks import Tip, is_event, is_row, is_snapshot
from bireme.store.database import begins_after, connect_to_read, is_marked, journal_id_of, schema_of
from bireme.store.events import GIVE_IDS_KINDS
from bireme.store.guard import FIRST_WITH_SUMS, mark_path, problem_with
from bireme.store.history import OF_A_SHAPE
from bireme.store.journal import is_blob, unpacked
from bireme.store.mark import DamagedMarkError, Mark

SLICE_ROWS = 500
_NAMED_AT_MOST = 20
EVENTS_LOST = EventsLost.__name__
_UNREADABLE = (sqlite3.DatabaseError, StoreError)


@dataclass(slots=True)
class Inspection:
    """What was found in one journal."""

    path: str
    findings: list[str] = field(default_factory=list)
    """What is damaged, each in a sentence that names it."""
    schema: int = 0
    journal_id: str | None = None
    mark: Mark | None = None
    first: int = 0
    """The place before the oldest event."""
    highest: int = 0
    """The newest event that is there at all."""
    bad: list[int] = field(default_factory=list)
    """Events that are there and are not what was written."""
    missing: list[tuple[int, int]] = field(default_factory=list)
    """Events that are not there, first and last."""
    covered: list[tuple[int, int]] = field(default_factory=list)
    """Events that are lost and that a snapshot covered, first and last, where the last says so: the state cannot be
    followed over them."""
    snapshots: list[int] = field(default_factory=list)
    """Those that can be read."""
    good_to: int = 0
    """The newest event up to which the state can be had."""
    last_job_id: int = 0
    events: int = 0
    records: int = 0
    blobs: int = 0
    damaged_rows: int = 0
    """Of history and blobs."""

    @property
    def sound(self) -> bool:
        return not self.findings

    @property
    def lost(self) -> tuple[int, int] | None:
        """The events that nobody can have any more, first and last; None: no newer ones are known of."""
        newest = max(self.highest, self.own_mark.seq if self.own_mark is not None else 0)
        return (self.good_to + 1, newest) if newest > self.good_to else None

    @property
    def unsure(self) -> bool:
        """Nobody knows how far it had come."""
        return self.own_mark is None

    @property
    def own_mark(self) -> Mark | None:
        """The mark, unless it is another journal's."""
        foreign = self.mark is not None and self.journal_id not in (None, self.mark.journal_id)
        return None if foreign else self.mark

    def can_be_had(self) -> str:
        """What can still be had, in words."""
        if self.schema < FIRST_WITH_SUMS:
            return "nothing of the journal" if not self.schema else f"{self.events} events, of an earlier Bireme"
        state = f"the state as of event {self.good_to}" if self.good_to else "no state"
        return f"{state}, {self.records} records of jobs and steps, {self.blobs} scripts and environments"


def inspect(path: str) -> Inspection:
    """Never raises for what is damaged: it is in the findings."""
    found = Inspection(path)
    marked_badly = _look_at_mark(found)
    if not os.path.exists(path):
        if found.mark is not None or marked_badly:
            found.findings.append(f"{path} is gone")
        return found
    if not os.path.isfile(path):
        found.findings.append(f"{path} is not a file: move it away")
        return found
    try:
        with closing(connect_to_read(path)) as connection:
            connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
            _look_inside(found, connection, marked_badly)
    except _UNREADABLE as error:
        found.findings.append(_said(error))
    return found


def _look_at_mark(found: Inspection) -> bool:
    """Before the database: the daemon writes it after. True: it cannot be read."""
    path = mark_path(found.path)
    try:
        found.mark = marks.read(path)
    except (DamagedMarkError, OSError) as error:
        found.findings.append(str(error))
        return True
    return False


def _look_inside(found: Inspection, connection: sqlite3.Connection, marked_badly: bool) -> None:
    connection.execute("BEGIN")  # one view of it, whatever a daemon writes meanwhile
    found.schema = schema_of(connection, found.path)
    if found.schema < FIRST_WITH_SUMS:
        if found.mark is not None:
            found.findings.append(f"{found.path} has {'nothing in it' if not found.schema else 'no sums yet'}")
        return
    _look_at_pages(found, connection)
    for look in (_look_at_events, _look_at_snapshots, _look_at_history, _look_at_shapes, _look_at_blobs):
        try:
            look(found, connection)
        except _UNREADABLE as error:
            found.findings.append(_said(error))
    _hold_snapshots_against_events(found)
    _find_good_end(found)
    _hold_against_mark(found, connection, marked_badly)


def _look_at_pages(found: Inspection, connection: sqlite3.Connection) -> None:
    """What SQLite itself finds: indexes that do not fit their tables, pages that nobody or two own."""
    try:
        said = [row[0] for row in connection.execute(f"PRAGMA integrity_check({_NAMED_AT_MOST})")]
    except sqlite3.DatabaseError as error:
        said = [str(error)]
    if said != ["ok"]:
        text = "; ".join(" ".join(str(line).split()) for line in said[:3])
        found.findings.append(f"{found.path}: its pages are damaged: {text}{' ...' if len(said) > 3 else ''}")


def rows(
    connection: sqlite3.Connection, table: str, columns: str, unreadable: list[int] | None = None
) -> Iterator[tuple[Any, ...]]:
    """(rowid, columns ...) in order; where a slice cannot be read, each of its rows by itself."""
    try:
        (last,) = connection.execute(f"SELECT max(rowid) FROM {table}").fetchone()
    except sqlite3.DatabaseError:
        last = None
    at, query = -1, f"SELECT rowid, {columns} FROM {table}"
    while last is None or at < last:
        try:
            ordered = f"{query} WHERE rowid > ? ORDER BY rowid LIMIT {SLICE_ROWS}"
            found = connection.execute(ordered, (at,)).fetchall()
        except sqlite3.DatabaseError:
            found = list(_one_by_one(connection, query, range(at + 1, at + 1 + SLICE_ROWS), unreadable))
            if last is None and not found:
                return  # not even its end is known: nothing more comes
            yield from found
            at += SLICE_ROWS
            continue
        yield from found
        if len(found) < SLICE_ROWS:
            return
        at = found[-1][0]


def _one_by_one(
    connection: sqlite3.Connection, query: str, wanted: range, unreadable: list[int] | None
) -> Iterator[tuple[Any, ...]]:
    for rowid in wanted:
        try:
            yield from connection.execute(f"{query} WHERE rowid = ?", (rowid,)).fetchall()
        except sqlite3.DatabaseError:
            if unreadable is not None:
                unreadable.append(rowid)


def _look_at_events(found: Inspection, connection: sqlite3.Connection) -> None:
    tip, unproven = _look_at_beginning(found, connection)
    found.first = found.highest = tip.seq
    for _, *row in rows(connection, "journal", "seq, at, cause, kind, job_id, data, sum"):
        seq, total = row[0], row[-1]
        explained = row[3] == EVENTS_LOST
        if seq != tip.seq + 1 and not explained:
            found.missing.append((tip.seq + 1, seq - 1))
            unproven = True
        if unproven or not is_event(row, tip.sum):
            found.bad.append(seq)
        elif explained and covered_only(row[5]):
            found.covered.append((tip.seq + 1, seq))
        elif row[3] in GIVE_IDS_KINDS:
            found.last_job_id = max(found.last_job_id, row[4] or 0)
        unproven = False
        found.events += 1
        tip = Tip(seq, total if isinstance(total, int) else 0)
    found.highest = tip.seq
    for seq in found.bad[:_NAMED_AT_MOST]:
        found.findings.append(f"event {seq} of {found.path} is not what was written")
    if len(found.bad) > _NAMED_AT_MOST:
        found.findings.append(f"so are {len(found.bad) - _NAMED_AT_MOST} other events")
    for first, last in found.missing:
        found.findings.append(f"events {first} to {last} of {found.path} are missing")


def covered_only(data: bytes) -> bool:
    return codec.decode(EventsLost, data).covered


def _look_at_beginning(found: Inspection, connection: sqlite3.Connection) -> tuple[Tip, bool]:
    """True: it is not known with which sum the first event begins."""
    try:
        found.journal_id = journal_id_of(connection)
        return begins_after(connection), False
    except sqlite3.DatabaseError as error:
        found.findings.append(f"{found.path}: {error}")
        return Tip(0, 0), True


def _look_at_snapshots(found: Inspection, connection: sqlite3.Connection) -> None:
    unreadable: list[int] = []
    for seq, data, total in rows(connection, "snapshots", "data, sum", unreadable):
        if is_snapshot(seq, data, total) and _decodes(data):
            found.snapshots.append(seq)
        else:
            unreadable.append(seq)
    found.findings.extend(f"the snapshot of event {seq} in {found.path} is damaged" for seq in sorted(unreadable))


def _hold_snapshots_against_events(found: Inspection) -> None:
    """A snapshot ahead of the events says that some are missing, unless the mark says that there never were any."""
    newest = max(found.snapshots, default=0)
    if newest <= found.highest:
        return
    gone = f"events {found.highest + 1} to {newest} of {found.path} are missing"
    found.findings.append(f"{gone}: there is a snapshot of event {newest}")
    mark = found.own_mark
    if mark is not None and mark.seq <= found.highest:  # what a daemon that failed had decided and never committed
        found.snapshots = [seq for seq in found.snapshots if seq <= found.highest]


def _decodes(data: bytes) -> bool:
    try:
        snapshots.decode_state(data)
    except (ValueError, TypeError, KeyError, AttributeError, zlib.error):
        return False
    return True


def _look_at_history(found: Inspection, connection: sqlite3.Connection) -> None:
    """Every other table whose last column is a sum of the rest."""
    for table in tables_with_sums(connection):
        unreadable: list[Any] = []
        for row in all_rows(connection, table, unreadable):
            if is_row(row):
                found.records += table in OF_A_SHAPE
            else:
                unreadable.append(row[0])
        found.damaged_rows += len(unreadable)
        for key in unreadable[:_NAMED_AT_MOST]:
            of = f"job {key}" if isinstance(key, int) else f"some jobs ({key})"
            of = of if table in OF_A_SHAPE else f"all jobs of one kind (shape {key})"
            found.findings.append(f"the record of {of} in {found.path} ({table}) is not what was written")
        if len(unreadable) > _NAMED_AT_MOST:
            found.findings.append(f"so are {len(unreadable) - _NAMED_AT_MOST} other rows of {table}")


def _look_at_shapes(found: Inspection, connection: sqlite3.Connection) -> None:
    """A record says only what differs from its shape: the damage of one costs all of its records."""
    good = {row[0] for row in all_rows(connection, "shapes", []) if is_row(row)}
    for table in OF_A_SHAPE:
        column = next(row[0] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] == "shape")
        lost = sum(1 for row in all_rows(connection, table, []) if row[column] not in good)
        if lost:
            found.damaged_rows += lost
            found.findings.append(f"{lost} records are of a shape that is damaged or gone in {found.path} ({table})")


def tables_with_sums(connection: sqlite3.Connection) -> list[str]:
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    columns = {name: [row[1] for row in connection.execute(f"PRAGMA table_info({name})")] for name in names}
    return [name for name in names if columns[name][-1:] == ["sum"] and name not in ("journal", "snapshots")]


def all_rows(connection: sqlite3.Connection, table: str, unreadable: list[Any]) -> Iterator[tuple[Any, ...]]:
    """All columns; of a table without row numbers from both ends, to where its pages are damaged."""
    try:
        connection.execute(f"SELECT rowid FROM {table} LIMIT 0")
    except sqlite3.OperationalError:
        yield from _from_both_ends(connection, table, unreadable)
        return
    for row in rows(connection, table, "*", unreadable):
        yield row[1:]


def _from_both_ends(connection: sqlite3.Connection, table: str, unreadable: list[Any]) -> Iterator[tuple[Any, ...]]:
    keys = [row for row in connection.execute(f"PRAGMA table_info({table})") if row[5]]
    places = [row[0] for row in sorted(keys, key=lambda row: row[5])]
    seen: set[tuple[Any, ...]] = set()
    for way in ("", " DESC"):
        order = ", ".join(f"{place + 1}{way}" for place in places)
        try:
            for row in connection.execute(f"SELECT * FROM {table} ORDER BY {order}"):
                key = tuple(row[place] for place in places)
                if key in seen:  # the other way has come as far
                    return
                if not way:
                    seen.add(key)
                yield row
            return
        except sqlite3.DatabaseError as error:
            if not way:
                unreadable.append(str(error))


def _look_at_blobs(found: Inspection, connection: sqlite3.Connection) -> None:
    unreadable: list[int] = []
    for rowid, name, compressed, data in rows(connection, "blobs", "id, compressed, data", unreadable):
        if is_blob_row(name, compressed, data):
            found.blobs += 1
        else:
            unreadable.append(rowid)
            found.findings.append(f"blob {name} (a script or an environment) in {found.path} is not what was stored")
    found.damaged_rows += len(unreadable)


def is_blob_row(name: Any, compressed: Any, data: Any) -> bool:
    return is_blob(str(name), unpacked(compressed, data))


def _find_good_end(found: Inspection) -> None:
    """The newest snapshot, and the unbroken events after it; without a snapshot all of them are needed."""
    base = max(found.snapshots, default=0)
    if not base and found.first:
        found.findings.append(
            f"no snapshot in {found.path} can be read, and its events up to {found.first} were dropped"
        )
        return
    uncovered = [first for first, last in found.covered if last > base]
    if uncovered:
        found.findings.append(f"no snapshot in {found.path} can be read that covers events which were lost before")
    broken = [seq for seq in found.bad if seq > base] + uncovered
    broken += [first for first, last in found.missing if last > base]
    found.good_to = min([max(found.highest, base), *(max(base, seq - 1) for seq in broken)])


def _hold_against_mark(found: Inspection, connection: sqlite3.Connection, marked_badly: bool) -> None:
    if found.mark is None:
        if not marked_badly and is_marked(connection):
            found.findings.append(f"{mark_path(found.path)} is gone")
        return
    row = connection.execute("SELECT sum FROM journal WHERE seq = ?", (found.mark.seq,)).fetchone()
    tip = Tip(found.highest, 0)
    if problem := problem_with(found.path, found.mark, tip, found.journal_id, row[0] if row else None):
        found.findings.append(problem)


def _said(error: Exception) -> str:
    return " ".join(str(error).split()).partition(": put a backup")[0]
