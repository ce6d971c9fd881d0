"""The journal on disk: events in groups, snapshots, blobs and history rows (`ports.Journal`, `ports.Blobs`).

One writing connection and one reading connection, each behind a lock: `append` runs in the runtime's commit thread
while the API reads history. Invariant: `append` stores all of its group (events, history rows and the blobs put
since the last one) or nothing, and what it stored is on disk when it returns. What is read is what was written: every
event is held against its sum and that of the one before it, every blob against its name (`checks`).

A mark beside the database (`mark`) says how far the journal had come; it is looked at before anything is opened
(`guard`).

A simulation, whose journal nobody needs after a crash, gathers many groups, which a child process then writes
(`gather`). Whoever reads sees them all: they are written first.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sqlite3
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from bireme.core.model.events import ArrayPartSplit, ArrayTaskSplit, Event, EventsLost, Recorded
from bireme.ports import HistoryQuery, HistoryRow, StoreError
from bireme.store import snapshots
from bireme.store.aside import Aside
from bireme.store.checks import Tip, event_sum, is_event, is_snapshot, snapshot_sum
from bireme.store.database import (
    OF_SERVICES,
    DamagedBlobError,
    MissingBlobError,
    begins_after,
    connect,
    connect_beside,
    damaged,
    is_marked,
    journal_id_of,
    newest,
    reading,
    set_beginning,
    set_marked,
    writing,
)
from bireme.store.events import GIVE_IDS, GIVE_IDS_KINDS, EventReader, EventWriter
from bireme.store.guard import check_whole, mark_path, read_mark
from bireme.store.history import HistoryReader, HistoryWriter, RunPlace, unused_shapes
from bireme.store.mark import Mark, MarkFile, replace
from bireme.store.shelf import Shelf

log = logging.getLogger("bireme.store")

_COMPRESS_FROM_BYTES = 512
_BLOBS_AT_ONCE = 500
_BLOB_NAME = re.compile(rb"\b[0-9a-f]{64}\b")
_SNAPSHOTS_KEPT = 2
_READ_ROWS = 2_000
_LOOKED_BACK = 200_000
"""Events that are read for what has no index."""
_LATELY = f"seq > (SELECT max(seq) FROM journal) - {_LOOKED_BACK}"
_EVENT = "seq, at, cause, kind, job_id, data"

Numbered = tuple[int, float, str, Event]
"""An event as it is written: its number, when, why, and what happened."""


class SqliteStore:
    """Opens (or makes) the journal at `path`. Raises StoreError when it cannot be used.

    `durable` False: for simulations, whose journal need not survive a crash of the machine. `gather`: nor one of the
    process; so many events are written at a time, and only by a process without threads. `marked`: with a mark beside
    it; what is durable has one.
    """

    def __init__(self, path: str, *, durable: bool = True, gather: int = 0, marked: bool | None = None) -> None:
        assert not (durable and gather), "what is durable is written at once"
        self.path = path
        marked = durable if marked is None else marked
        if marked:
            check_whole(path)
        self._gather = gather
        self._gathered: list[Numbered] = []
        self._gathered_history: list[HistoryRow] = []
        self._aside = Aside()
        self._event_writer = EventWriter()
        self._history_writer = HistoryWriter()
        self._history_reader = HistoryReader()
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._writer = connect(path, durable)
        self._reader = connect_beside(path)
        self._reader.execute("PRAGMA query_only=ON")
        self._shelf = Shelf(path)
        with reading(path):
            tip = newest(self._writer)
            (covered,) = self._writer.execute("SELECT max(seq) FROM snapshots").fetchone()
        self._last_seq: int = tip.seq
        if covered is not None and covered > tip.seq:
            self._writer.close()
            self._reader.close()
            raise damaged(path, f"its events {tip.seq + 1} to {covered} are missing")
        self._mark = self._take_mark(tip) if marked else None

    def _take_mark(self, tip: Tip) -> MarkFile:
        """The mark of this journal, made where there is none (a new journal, or one of an earlier Bireme)."""
        name, path = journal_id_of(self._writer), mark_path(self.path)
        found = read_mark(self.path)
        if found is None or found.journal_id != name:
            replace(path, Mark(name, tip.seq, tip.sum, last_job_id(self._writer)))
        if not is_marked(self._writer):
            with writing(self._writer, self.path):
                set_marked(self._writer)
        return MarkFile(path)

    @property
    def last_seq(self) -> int:
        return self._last_seq

    # ------------------------------------------------------------------------------------------- journal

    def append(self, events: Sequence[tuple[float, str, Event]], history: Sequence[HistoryRow] = ()) -> int:
        with self._write_lock:
            numbered = [(seq, *each) for seq, each in enumerate(events, self._last_seq + 1)]
            if not self._gather:
                total = self._write(self._writer, numbered, history)
                self._advance_mark(numbered, total)
            else:
                self._gathered += numbered
                self._gathered_history += history
                if len(self._gathered) >= self._gather:
                    self._leave_gathered()
            self._last_seq += len(numbered)
            return self._last_seq

    def _write(
        self, connection: sqlite3.Connection, numbered: Sequence[Numbered], history: Sequence[HistoryRow]
    ) -> int:
        """The sum of the newest event."""
        encode = self._event_writer.encode
        with self._history_writer.undone_with_errors(), writing(connection, self.path):
            tip = newest(connection)
            assert not numbered or tip.seq + 1 == numbered[0][0], "nobody else writes this journal"
            total, rows = tip.sum, []
            for seq, at, cause, event in numbered:
                row = (seq, at, cause, *encode(event))
                total = event_sum(total, *row)
                rows.append((*row, total))
            # A simulation, whose blobs are all its own, writes whatever waits: what is named was said long before.
            blobs = self._shelf.waiting(None if self._gather else _names_in(row[5] for row in rows))
            _write_blobs(connection, blobs)
            connection.executemany("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            self._history_writer.insert(connection, history)
        self._shelf.written(blobs)
        return total

    def _advance_mark(self, numbered: Sequence[Numbered], total: int) -> None:
        """After the commit: a mark that cannot be written is behind, which costs nothing but what it would notice."""
        if self._mark is None or not numbered:
            return
        given = [event.job_id for *_, event in numbered if isinstance(event, GIVE_IDS)]
        try:
            self._mark.advance(numbered[-1][0], total, max(given, default=0))
        except OSError as error:
            log.error("the mark %s cannot be written: %s", mark_path(self.path), error)

    def _leave_gathered(self) -> None:
        """To a child process, which has all of it but a connection: none outlives a fork."""
        numbered, self._gathered = self._gathered, []
        history, self._gathered_history = self._gathered_history, []
        blobs = self._shelf.waiting()
        with _nothing_lost():
            self._aside.leave(lambda: self._write_apart(numbered, history))
        self._shelf.written(blobs)

    def _write_apart(self, numbered: Sequence[Numbered], history: Sequence[HistoryRow]) -> None:
        with closing(connect_beside(self.path, durable=False)) as connection:
            self._write(connection, numbered, history)

    def _write_gathered(self) -> None:
        """All that was appended is on disk when it returns."""
        if self._gathered or self._gathered_history:
            self._leave_gathered()
        with _nothing_lost():
            self._aside.wait()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._write_lock:
            self._write_gathered()
            with writing(self._writer, self.path):
                yield

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if self._gather:
            with self._write_lock:
                self._write_gathered()
        with self._read_lock, reading(self.path):
            yield self._reader

    def replay(self, after: int) -> Iterator[Recorded]:
        """Each is held against the one before it; one that is missing, altered or misplaced raises StoreError."""
        reader = EventReader()
        tip = self._place(after)
        while True:
            with self._reading() as connection:
                query = f"SELECT {_EVENT}, sum FROM journal WHERE seq > ? ORDER BY seq LIMIT ?"
                rows = connection.execute(query, (tip.seq, _READ_ROWS)).fetchall()
            for row in rows:
                if row[0] != tip.seq + 1 and row[3] != EventsLost.__name__:
                    raise damaged(self.path, f"its events {tip.seq + 1} to {row[0] - 1} are missing")
                recorded = self._recorded(reader, row, tip.sum)
                if isinstance(recorded.event, EventsLost) and recorded.event.covered:
                    lost = f"its events {recorded.event.first} to {recorded.event.last} are lost"
                    raise damaged(self.path, f"{lost}, and no snapshot that covered them can be read")
                yield recorded
                tip = Tip(row[0], row[-1])
            if len(rows) < _READ_ROWS:
                return

    def _place(self, after: int) -> Tip:
        with self._reading() as connection:
            first = begins_after(connection)
            row = connection.execute("SELECT seq, sum FROM journal WHERE seq = ?", (after,)).fetchone()
        if row is None and after > first.seq and after < self._last_seq:
            raise damaged(self.path, f"its event {after} is missing")
        return Tip(*row) if row is not None else Tip(max(after, first.seq), first.sum)

    def story(self, job_id: int) -> list[Recorded]:
        """Every event about one job; for an array task that begins with the submission of its array."""
        story = self._events_of("job_id = ?", (job_id,))
        for recorded in story:
            if isinstance(recorded.event, ArrayTaskSplit | ArrayPartSplit) and recorded.event.array_job_id != job_id:
                array = (recorded.event.array_job_id,)
                return self._events_of("job_id = ? AND kind = 'JobSubmitted'", array) + story
        return story

    def story_of_service(self, name: str, limit: int) -> list[Recorded]:
        """The newest events about a service, its revisions and replicas, oldest first."""
        named = f'"name":{json.dumps(name)}'.encode()
        where = f"({OF_SERVICES}) AND instr(data, ?) ORDER BY seq DESC LIMIT {int(limit)}"
        story = self._events_of(where, (named,), ordered=True)
        return [recorded for recorded in reversed(story) if getattr(recorded.event, "name", None) == name]

    def story_of_node(self, node: str, limit: int) -> list[Recorded]:
        """The newest events about a node among the latest `_LOOKED_BACK`, newest first."""
        where = f"{_LATELY} AND job_id IS NULL AND kind LIKE 'Node%' AND instr(data, ?) ORDER BY seq DESC"
        story = self._events_of(where, (f'"node":{json.dumps(node)}'.encode(),), ordered=True)
        return [recorded for recorded in story if getattr(recorded.event, "node", None) == node][:limit]

    def asked_for(self, before: int, limit: int) -> list[Recorded]:
        """What people asked for that is about no job, newest first, before this event: among the `_LOOKED_BACK` events
        that came before it."""
        where = f"seq < ? AND seq > ? AND job_id IS NULL AND cause LIKE 'uid %' ORDER BY seq DESC LIMIT {int(limit)}"
        return self._events_of(where, (before, before - _LOOKED_BACK), ordered=True)

    def events_after(self, after: int, limit: int) -> list[Recorded]:
        """A page of the journal, for live events that a reader missed."""
        return self._events_of(f"seq > ? ORDER BY seq LIMIT {int(limit)}", (after,), ordered=True)

    def _events_of(self, where: str, values: tuple[Any, ...], *, ordered: bool = False) -> list[Recorded]:
        order = "" if ordered else " ORDER BY seq"
        reader = EventReader()
        with self._reading() as connection:
            before = "(SELECT sum FROM journal AS before WHERE before.seq = journal.seq - 1)"
            query = f"SELECT {_EVENT}, sum, {before} FROM journal WHERE {where}{order}"
            rows = connection.execute(query, values).fetchall()
        return [self._recorded(reader, row[:-1], row[-1]) for row in rows]

    def _recorded(self, reader: EventReader, row: tuple[Any, ...], before: int | None) -> Recorded:
        """`before`: the sum of the event before it; None: that one was dropped long ago."""
        seq, at, cause, kind, _, data, _ = row
        if before is not None and not is_event(row, before):
            raise damaged(self.path, f"event {seq} is not what was written")
        try:
            return Recorded(seq, at, cause, reader.decode(kind, data))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise damaged(self.path, f"event {seq} cannot be read: {error}") from error

    # ----------------------------------------------------------------------------------------- snapshots

    def latest_snapshot(self) -> tuple[int, Any] | None:
        with self._reading() as connection:
            found = connection.execute("SELECT seq FROM snapshots ORDER BY seq DESC").fetchall()
            first = begins_after(connection)
        for (seq,) in found:
            with self._reading() as connection:
                query = "SELECT data, sum FROM snapshots WHERE seq = ?"
                data, total = connection.execute(query, (seq,)).fetchone()
            try:
                if is_snapshot(seq, data, total):
                    return seq, snapshots.decode_state(data)
                log.error("the snapshot of event %d in %s is damaged: an older one is read", seq, self.path)
            except (ValueError, TypeError, KeyError, AttributeError, zlib.error):
                continue  # made by another version: an older one and the events do as well
        if first.seq:
            problem = f"no snapshot of it can be read, and its events up to {first.seq} were dropped"
            raise damaged(self.path, problem)
        return None

    def write_snapshot(self, seq: int, state: Any) -> None:
        self.snapshot_writer(seq, state)()

    def snapshot_writer(self, seq: int, state: Any) -> Callable[[], None]:
        data = snapshots.encode_state(state)
        return lambda: self._write_encoded_snapshot(seq, data)

    def _write_encoded_snapshot(self, seq: int, data: bytes) -> None:
        if seq > self._last_seq:
            raise StoreError(f"a snapshot of event {seq} is ahead of {self.path}, which ends with {self._last_seq}")
        packed = snapshots.pack(data)
        with self._writing():
            row = (seq, packed, snapshot_sum(seq, packed))
            self._writer.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", row)
            self._writer.execute(
                "DELETE FROM snapshots WHERE seq NOT IN (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?)",
                (_SNAPSHOTS_KEPT,),
            )

    def prune(self, older_than: float) -> int:
        """Drops events from before `older_than` that every kept snapshot covers; returns how many."""
        with self._writing():
            (covered,) = self._writer.execute("SELECT min(seq) FROM snapshots").fetchone()
            if covered is None:
                return 0
            # A clock that was set back leaves younger events among old ones. No gaps: a loss would look the same.
            query = "SELECT min(seq) FROM journal WHERE at >= ?"
            (young,) = self._writer.execute(query, (older_than,)).fetchone()
            last = covered if young is None else min(covered, young - 1)
            row = self._writer.execute("SELECT seq, sum FROM journal WHERE seq = ?", (last,)).fetchone()
            if row is None:
                return 0
            set_beginning(self._writer, Tip(*row))
            return self._writer.execute("DELETE FROM journal WHERE seq <= ?", (last,)).rowcount

    def prune_history(self, older_than: float, kept: Collection[int] = ()) -> int:
        """Drops records of jobs that ended before `older_than`; returns how many. A few at a time: others write too.

        `kept`: jobs and arrays that are still known. Usage and fair share are not counted from these records.
        """
        writer, dropped = self._history_writer, 0
        with self._writing():
            writer.keep(self._writer, kept)
        while True:
            with self._writing():
                some = writer.prune(self._writer, older_than)
            if not some:
                break
            dropped += some
        if dropped:
            self._drop_unused_shapes()
        return dropped

    def _drop_unused_shapes(self) -> None:
        """Found on a connection of its own: jobs end and `sacct` reads while every row is looked at."""
        with self._write_lock:
            self._write_gathered()
            self._history_writer.begin_sweep()
        with reading(self.path), closing(connect_beside(self.path)) as connection:
            unused = unused_shapes(connection)
        with self._history_writer.undone_with_errors(), self._writing():
            self._history_writer.end_sweep(self._writer, unused)

    # --------------------------------------------------------------------------------------------- blobs

    def put(self, data: bytes, uid: int | None = None) -> str:
        """Keeps `data` for the next `append`, which stores it with the events that refer to it: one fsync."""
        return self._shelf.put(data, uid)

    def prune_blobs(self, older_than: float, needed: Collection[str]) -> int:
        """Drops scripts and environments that no event since then names, nor `needed`; returns how many."""
        named = {*needed, *self._named_since(older_than)}
        with self._reading() as connection:
            left = [name for (name,) in connection.execute("SELECT id FROM blobs") if name not in named]
        dropped = 0
        for begin in range(0, len(left), _BLOBS_AT_ONCE):
            with self._writing():
                old = self._shelf.let_go(left[begin : begin + _BLOBS_AT_ONCE])
                self._writer.executemany("DELETE FROM blobs WHERE id = ?", [(name,) for name in old])
            dropped += len(old)
        return dropped

    def _named_since(self, at: float) -> Iterator[str]:
        """What may be the name of a blob in the events since then."""
        last = -1
        while True:
            with self._reading() as connection:
                query = "SELECT seq, data FROM journal WHERE seq > ? AND at >= ? ORDER BY seq LIMIT ?"
                rows = connection.execute(query, (last, at, _READ_ROWS)).fetchall()
            yield from _names_in(data for _, data in rows)
            if len(rows) < _READ_ROWS:
                return
            last = rows[-1][0]

    def get(self, blob_id: str) -> bytes:
        pending = self._shelf.get(blob_id)
        if pending is not None:
            return pending
        with self._reading() as connection:
            query = "SELECT compressed, data FROM blobs WHERE id = ?"
            row = connection.execute(query, (blob_id,)).fetchone()
        if row is None:
            raise MissingBlobError(f"there is no blob {blob_id} in {self.path}")
        data = unpacked(*row)
        if not is_blob(blob_id, data):
            raise DamagedBlobError(f"blob {blob_id} in {self.path} is damaged")
        assert data is not None
        return data

    # ------------------------------------------------------------------------------------------- history

    def finished(self, query: HistoryQuery) -> list[dict[str, Any]]:
        """JobRecords of finished jobs (with "steps" when asked for), oldest first. Raises for one that is damaged."""
        sound, wrong = self.sound_and_damaged(query)
        if wrong:
            raise damaged(self.path, wrong[0])
        return sound

    def sound_and_damaged(self, query: HistoryQuery) -> tuple[list[dict[str, Any]], list[str]]:
        """Finished jobs for whoever can show a part: the records that are sound, and a sentence for each that is
        not."""
        wrong: list[str] = []
        with self._reading() as connection:
            return self._history_reader.select(connection, query, wrong), list(dict.fromkeys(wrong))

    def pages(self, query: HistoryQuery, size: int) -> Iterator[tuple[list[dict[str, Any]], list[str]]]:
        """Finished jobs by their end, so many at a time, each with a sentence for those that are not sound."""
        assert query.limit is None, "a page is as long as it is said to be"
        assert query.newest is None, "the earliest come first"
        after: RunPlace | None = None
        while True:
            wrong: list[str] = []
            with self._reading() as connection:
                records, after = self._history_reader.page(connection, query, after, size, wrong)
            yield records, list(dict.fromkeys(wrong))
            if after is None:
                return

    def copy_to(self, path: str) -> None:
        """All of it as it is now, while it is in use: a backup."""
        with self._reading() as connection, closing(sqlite3.connect(path)) as copy:
            connection.backup(copy)

    def close(self, *, thrown_away: bool = False) -> None:
        """`thrown_away`: its file is removed next, so that what is still gathered need not be written."""
        with self._write_lock, self._read_lock:
            if thrown_away:
                self._gathered, self._gathered_history = [], []
            try:
                self._write_gathered()
            except StoreError:
                if not thrown_away:
                    raise
            finally:
                self._reader.close()
                self._writer.close()
                if self._mark is not None:
                    self._mark.close()
                    self._mark = None


@contextmanager
def _nothing_lost() -> Iterator[None]:
    """If groups that were said to be stored could not be, nobody can go on from here."""
    try:
        yield
    except ChildProcessError as error:
        raise StoreError(str(error)) from error


def _names_in(rows: Iterable[bytes]) -> Iterator[str]:
    """What may be the name of a blob in the data of events."""
    return (name.decode() for data in rows for name in _BLOB_NAME.findall(data))


def _write_blobs(connection: sqlite3.Connection, blobs: dict[str, bytes]) -> None:
    connection.executemany(
        "INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)", [(blob_id, *_packed(data)) for blob_id, data in blobs.items()]
    )


def last_job_id(connection: sqlite3.Connection) -> int:
    """The highest that the journal gave out."""
    marks = ", ".join("?" * len(GIVE_IDS_KINDS))
    query = f"SELECT max(job_id) FROM journal WHERE kind IN ({marks})"
    (job_id,) = connection.execute(query, GIVE_IDS_KINDS).fetchone()
    return job_id or 0


def unpacked(compressed: Any, data: Any) -> bytes | None:
    """None: it cannot be."""
    if not isinstance(data, bytes):
        return None
    try:
        return zlib.decompress(data) if compressed else data
    except zlib.error:
        return None


def is_blob(blob_id: str, data: bytes | None) -> bool:
    return data is not None and hashlib.sha256(data).hexdigest() == blob_id


def _packed(data: bytes) -> tuple[int, bytes]:
    if len(data) >= _COMPRESS_FROM_BYTES:
        smaller = zlib.compress(data, 1)
        if len(smaller) < len(data) * 0.8:
            return 1, smaller
    return 0, data
