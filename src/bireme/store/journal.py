"""The journal on disk: events in groups, snapshots, blobs and history rows (`ports.Journal`, `ports.Blobs`).

One writing connection and one reading connection, each behind a lock: `append` runs in the runtime's commit thread
while the API reads history. Invariant: `append` stores all of its group (events, history rows and the blobs put
since the last one) or nothing, and what it stored is on disk when it returns.

A simulation, whose journal nobody needs after a crash, gathers many groups, which a child process then writes
(`gather`). Whoever reads sees them all: they are written first.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from bireme.core.model.events import ArrayTaskSplit, Event, Recorded
from bireme.ports import HistoryRow, JournalError
from bireme.store import snapshots
from bireme.store.aside import Aside
from bireme.store.database import StoreError, connect, damaged, reading, writing
from bireme.store.events import EventReader, EventWriter
from bireme.store.history import Query, insert, select

_COMPRESS_FROM_BYTES = 512
_PENDING_AT_MOST_BYTES = 256 * 1024 * 1024
_REMEMBERED_BLOBS = 200_000
_SNAPSHOTS_KEPT = 2
_READ_ROWS = 2_000

Numbered = tuple[int, float, str, Event]
"""An event as it is written: its number, when, why, and what happened."""


class SqliteStore:
    """Opens (or makes) the journal at `path`. Raises StoreError when it cannot be used.

    `durable` False: for simulations, whose journal need not survive a crash of the machine. `gather`: nor one of the
    process; so many events are written at a time, and only by a process without threads.
    """

    def __init__(self, path: str, *, durable: bool = True, gather: int = 0) -> None:
        assert not (durable and gather), "what is durable is written at once"
        self.path = path
        self._gather = gather
        self._gathered: list[Numbered] = []
        self._gathered_history: list[HistoryRow] = []
        self._aside = Aside()
        self._event_writer = EventWriter()
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._writer = connect(path, durable)
        self._reader = connect(path)
        self._reader.execute("PRAGMA query_only=ON")
        self._pending_blobs: dict[str, bytes] = {}
        self._pending_bytes = 0
        self._stored_blobs: set[str] = set()
        with reading(path):
            (last,) = self._writer.execute("SELECT max(seq) FROM journal").fetchone()
            (covered,) = self._writer.execute("SELECT max(seq) FROM snapshots").fetchone()
        # Pruning may have dropped every event that the newest snapshot covers.
        self._last_seq: int = max(last or 0, covered or 0)

    @property
    def last_seq(self) -> int:
        return self._last_seq

    # ------------------------------------------------------------------------------------------- journal

    def append(self, events: Sequence[tuple[float, str, Event]], history: Sequence[HistoryRow] = ()) -> int:
        with self._write_lock:
            numbered = [(seq, *each) for seq, each in enumerate(events, self._last_seq + 1)]
            if not self._gather:
                self._write(self._writer, numbered, history)
            else:
                self._gathered += numbered
                self._gathered_history += history
                if len(self._gathered) >= self._gather:
                    self._leave_gathered()
            self._last_seq += len(numbered)
            return self._last_seq

    def _write(
        self, connection: sqlite3.Connection, numbered: Sequence[Numbered], history: Sequence[HistoryRow]
    ) -> None:
        blobs, encode = dict(self._pending_blobs), self._event_writer.encode
        rows = [(seq, at, cause, *encode(event)) for seq, at, cause, event in numbered]
        with writing(connection, self.path):
            _write_blobs(connection, blobs)
            connection.executemany("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?)", rows)
            insert(connection, history)
        self._forget_pending(blobs)

    def _leave_gathered(self) -> None:
        """To a child process, which has all of it but a connection: none outlives a fork."""
        numbered, self._gathered = self._gathered, []
        history, self._gathered_history = self._gathered_history, []
        blobs = dict(self._pending_blobs)
        with _nothing_lost():
            self._aside.leave(lambda: self._write_apart(numbered, history))
        self._forget_pending(blobs)

    def _write_apart(self, numbered: Sequence[Numbered], history: Sequence[HistoryRow]) -> None:
        with closing(connect(self.path, durable=False)) as connection:
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
        reader = EventReader()
        while True:
            with self._reading() as connection:
                rows = connection.execute(
                    "SELECT seq, at, cause, kind, data FROM journal WHERE seq > ? ORDER BY seq LIMIT ?",
                    (after, _READ_ROWS),
                ).fetchall()
            for row in rows:
                yield self._recorded(reader, row)
            if len(rows) < _READ_ROWS:
                return
            after = rows[-1][0]

    def story(self, job_id: int) -> list[Recorded]:
        """Every event about one job; for an array task that begins with the submission of its array."""
        story = self._events_of("job_id = ?", (job_id,))
        for recorded in story:
            if isinstance(recorded.event, ArrayTaskSplit) and recorded.event.array_job_id != job_id:
                array = (recorded.event.array_job_id,)
                return self._events_of("job_id = ? AND kind = 'JobSubmitted'", array) + story
        return story

    def events_after(self, after: int, limit: int) -> list[Recorded]:
        """A page of the journal, for live events that a reader missed."""
        return self._events_of(f"seq > ? ORDER BY seq LIMIT {int(limit)}", (after,), ordered=True)

    def _events_of(self, where: str, values: tuple[Any, ...], *, ordered: bool = False) -> list[Recorded]:
        order = "" if ordered else " ORDER BY seq"
        reader = EventReader()
        with self._reading() as connection:
            query = f"SELECT seq, at, cause, kind, data FROM journal WHERE {where}{order}"
            rows = connection.execute(query, values).fetchall()
        return [self._recorded(reader, row) for row in rows]

    def _recorded(self, reader: EventReader, row: tuple[Any, ...]) -> Recorded:
        seq, at, cause, kind, data = row
        try:
            return Recorded(seq, at, cause, reader.decode(kind, data))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise damaged(self.path, f"event {seq} cannot be read: {error}") from error

    # ----------------------------------------------------------------------------------------- snapshots

    def latest_snapshot(self) -> tuple[int, Any] | None:
        with self._reading() as connection:
            found = connection.execute("SELECT seq FROM snapshots ORDER BY seq DESC").fetchall()
        for (seq,) in found:
            with self._reading() as connection:
                (data,) = connection.execute("SELECT data FROM snapshots WHERE seq = ?", (seq,)).fetchone()
            try:
                return seq, snapshots.decode_state(data)
            except (ValueError, TypeError, KeyError, AttributeError, zlib.error):
                continue  # made by another version, or damaged: an older one and the events do as well
        return None

    def write_snapshot(self, seq: int, state: Any) -> None:
        self.snapshot_writer(seq, state)()

    def snapshot_writer(self, seq: int, state: Any) -> Callable[[], None]:
        data = snapshots.encode_state(state)
        return lambda: self._write_encoded_snapshot(seq, data)

    def _write_encoded_snapshot(self, seq: int, data: bytes) -> None:
        packed = snapshots.pack(data)
        with self._writing():
            self._writer.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", (seq, packed))
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
            query = "DELETE FROM journal WHERE seq <= ? AND at < ?"
            return self._writer.execute(query, (covered, older_than)).rowcount

    # --------------------------------------------------------------------------------------------- blobs

    def put(self, data: bytes) -> str:
        """Keeps `data` for the next `append`, which stores it with the events that refer to it: one fsync."""
        blob_id = hashlib.sha256(data).hexdigest()
        if blob_id not in self._stored_blobs and blob_id not in self._pending_blobs:
            if self._pending_bytes + len(data) > _PENDING_AT_MOST_BYTES:
                raise JournalError(f"too much waits to be written to {self.path}: is its disk full?")
            self._pending_blobs[blob_id] = data
            self._pending_bytes += len(data)
        return blob_id

    def get(self, blob_id: str) -> bytes:
        pending = self._pending_blobs.get(blob_id)
        if pending is not None:
            return pending
        with self._reading() as connection:
            query = "SELECT compressed, data FROM blobs WHERE id = ?"
            row = connection.execute(query, (blob_id,)).fetchone()
        if row is None:
            raise KeyError(f"no blob {blob_id} in {self.path}")
        try:
            return zlib.decompress(row[1]) if row[0] else bytes(row[1])
        except zlib.error as error:
            raise damaged(self.path, f"blob {blob_id} cannot be unpacked") from error

    def _forget_pending(self, blobs: dict[str, bytes]) -> None:
        if len(self._stored_blobs) > _REMEMBERED_BLOBS:
            self._stored_blobs.clear()
        for blob_id, data in blobs.items():
            self._stored_blobs.add(blob_id)
            del self._pending_blobs[blob_id]
            self._pending_bytes -= len(data)

    # ------------------------------------------------------------------------------------------- history

    def finished(self, query: Query) -> list[dict[str, Any]]:
        """JobRecords of finished jobs (with "steps" when asked for), oldest first."""
        with self._reading() as connection:
            return select(connection, query)

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


@contextmanager
def _nothing_lost() -> Iterator[None]:
    """If groups that were said to be stored could not be, nobody can go on from here."""
    try:
        yield
    except ChildProcessError as error:
        raise StoreError(str(error)) from error


def _write_blobs(connection: sqlite3.Connection, blobs: dict[str, bytes]) -> None:
    connection.executemany(
        "INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)", [(blob_id, *_packed(data)) for blob_id, data in blobs.items()]
    )


def _packed(data: bytes) -> tuple[int, bytes]:
    if len(data) >= _COMPRESS_FROM_BYTES:
        smaller = zlib.compress(data, 1)
        if len(smaller) < len(data) * 0.8:
            return 1, smaller
    return 0, data


__all__ = ["SqliteStore", "StoreError"]
