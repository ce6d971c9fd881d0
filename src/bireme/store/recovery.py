"""Going on with what can still be had of a damaged journal: never by itself, only when an operator said so.

`plan` says what would be kept and what is lost; `recover` makes a new journal of what is kept, beside a folder with the
damaged files as they were. The new one says in an event of its own what was lost (`EventsLost`); numbers of events and
of jobs go on behind those that were lost, so that none means two things.
Invariant: the copy is on disk before anything is changed, and is never removed here. Until the new journal is complete
and on disk, the old one stays in its place; one of an earlier Bireme is brought to this one's schema there.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from bireme.core.model.events import EventsLost
from bireme.store import codec, mark
from bireme.store.checks import Tip, beginning, event_sum, is_row, is_snapshot
from bireme.store.database import (
    SCHEMA_VERSION,
    connect,
    connect_to_read,
    make_schema,
    set_beginning,
    set_marked,
    writing,
)
from bireme.store.guard import FIRST_WITH_SUMS, mark_path
from bireme.store.history import OF_A_SHAPE
from bireme.store.inspection import (
    EVENTS_LOST,
    Inspection,
    all_rows,
    inspect,
    is_blob_row,
    rows,
    tables_with_sums,
)
from bireme.store.journal import last_job_id
from bireme.store.mark import Mark

UNKNOWN_STARTS = 1_000
"""Where nobody knows how many events were lost: so many starts of a job, and so many job ids, are passed over."""
BESIDE = ("-wal", "-shm")


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was made."""

    kept_in: str
    """The folder with the damaged files."""
    lost: EventsLost | None
    """What the new journal says of it; None: nothing that mattered was lost."""


def next_job_id(found: Inspection) -> int:
    """The first that no job can have had."""
    known = max(found.last_job_id, found.own_mark.last_job_id if found.own_mark is not None else 0)
    return known + 1 + (UNKNOWN_STARTS if found.unsure else 0)


def loss_of(found: Inspection) -> EventsLost | None:
    lost = found.lost
    if lost is None and not found.unsure:
        return None
    first, last = lost if lost is not None else (found.good_to + 1, found.good_to)
    starts = UNKNOWN_STARTS if found.unsure else last - first + 1
    return EventsLost(first, last, next_job_id(found), starts, note="; ".join(found.findings)[:2_000])


def recover(found: Inspection, now: float) -> Recovered:
    """Replaces the journal that was inspected. Nobody else may use it meanwhile. Raises OSError or StoreError."""
    kept_in = _keep(found.path, now)
    if 0 < found.schema < SCHEMA_VERSION:  # of an earlier Bireme: it is made one of this first
        connect(found.path).close()
        found = inspect(found.path)
    fresh = found.path + ".new"
    for suffix in ("", *BESIDE):
        if os.path.exists(fresh + suffix):
            os.unlink(fresh + suffix)
    lost = loss_of(found)
    os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    journal_id = secrets.token_hex(8)
    with closing(sqlite3.connect(fresh, isolation_level=None)) as made:
        with writing(made, fresh):
            make_schema(made, journal_id)
            tip = _fill(made, found, journal_id, lost, now)
            set_marked(made)
        given = max(last_job_id(made), lost.next_job_id - 1 if lost is not None else 0)
    for suffix in BESIDE:  # not to be taken for those of the new file
        if os.path.exists(found.path + suffix):
            os.unlink(found.path + suffix)
    os.replace(fresh, found.path)
    mark.replace(mark_path(found.path), Mark(journal_id, tip.seq, tip.sum, given))
    return Recovered(kept_in, lost)


def _keep(path: str, now: float) -> str:
    """The damaged files, as they are."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    folder = os.path.join(os.path.dirname(path), f"damaged-{stamp}-{secrets.token_hex(2)}")
    os.mkdir(folder, 0o700)
    for name in (path, *(path + suffix for suffix in BESIDE), mark_path(path)):
        if os.path.exists(name):
            shutil.copy2(name, folder)
            with open(os.path.join(folder, os.path.basename(name)), "rb") as copy:
                os.fsync(copy.fileno())
    mark.sync_folder(folder)
    mark.sync_folder(os.path.dirname(path))
    return folder


def _fill(made: sqlite3.Connection, found: Inspection, journal_id: str, lost: EventsLost | None, now: float) -> Tip:
    if found.schema < FIRST_WITH_SUMS or not os.path.exists(found.path):
        tip = beginning(journal_id)
    else:
        with closing(connect_to_read(found.path)) as source:
            source.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
            tip = _copy_events(made, source, found, journal_id)
            _copy_snapshots(made, source, found)
            _copy_tables(made, source)
    if lost is None:
        return tip
    return _append(made, tip, (max(lost.last, tip.seq) + 1, now, "operator recover"), lost)


def _append(made: sqlite3.Connection, tip: Tip, place: tuple[int, float, str], lost: EventsLost) -> Tip:
    row = (*place, EVENTS_LOST, None, codec.encode(lost))
    total = event_sum(tip.sum, *row)
    made.execute("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, total))
    return Tip(place[0], total)


def _copy_events(made: sqlite3.Connection, source: sqlite3.Connection, found: Inspection, journal_id: str) -> Tip:
    """Those up to the end of what can be had, each with a new sum; what is missing among them is named in its place."""
    tip = Tip(found.first, beginning(journal_id).sum)
    set_beginning(made, tip)
    bad = set(found.bad)
    for row in _kept(source, found):
        seq, at = row[0], row[1]
        if seq in bad:
            continue
        if seq != tip.seq + 1 and row[3] != EVENTS_LOST:
            tip = _append(made, tip, (seq - 1, at, "operator recover"), EventsLost(tip.seq + 1, seq - 1, covered=True))
        total = event_sum(tip.sum, *row)
        made.execute("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, total))
        tip = Tip(seq, total)
    if tip.seq < found.good_to:  # a snapshot says more than the events do
        gone = EventsLost(tip.seq + 1, found.good_to, covered=True)
        tip = _append(made, tip, (found.good_to, 0.0, "operator recover"), gone)
    return tip


def _kept(source: sqlite3.Connection, found: Inspection) -> Iterator[tuple[Any, ...]]:
    for row in rows(source, "journal", "seq, at, cause, kind, job_id, data"):
        if row[1] > found.good_to:
            return
        yield row[1:]


def _copy_snapshots(made: sqlite3.Connection, source: sqlite3.Connection, found: Inspection) -> None:
    """Not those from which the events cannot be followed any more."""
    gaps = [*found.bad, *(last for _, last in (*found.covered, *found.missing))]
    since = max((seq for seq in gaps if seq <= found.good_to), default=0)
    for seq, data, total in rows(source, "snapshots", "data, sum"):
        if seq in found.snapshots and since <= seq <= found.good_to and is_snapshot(seq, data, total):
            made.execute("INSERT INTO snapshots VALUES (?, ?, ?)", (seq, data, total))


def _copy_tables(made: sqlite3.Connection, source: sqlite3.Connection) -> None:
    for table in tables_with_sums(made):
        for row in all_rows(source, table, []):
            if is_row(row):
                made.execute(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    for table in OF_A_SHAPE:
        made.execute(f"DELETE FROM {table} WHERE shape NOT IN (SELECT id FROM shapes)")
    for _, *blob in rows(source, "blobs", "id, compressed, data"):
        if is_blob_row(*blob):
            made.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)", blob)
