"""The SQLite file: opening, schema, and what its errors mean in words.

Every row carries a sum (`checks`), and the journal a name of its own and the place where its events begin (`about`):
what is dropped on purpose is told from what is missing.

WAL with synchronous=FULL: a commit is on disk when it returns, and readers never wait for the writer. A simulation asks
for less: its journal is as complete, but a crash of the machine may lose its end.
Invariant: every failure leaves here as `StoreError` (cannot be used: says which file and what to do about it) or
`JournalError` (cannot be written now: nothing of the group was stored).
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import struct
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager

from bireme.ports import JournalError, LostBlobError, StoreError
from bireme.store.checks import Tip, beginning
from bireme.store.history import HISTORY_SCHEMA
from bireme.store.migrations import MIGRATIONS

SCHEMA_VERSION = 4
OF_SERVICES = "kind GLOB 'Service*' OR kind GLOB 'Revision*' OR kind GLOB 'Replica*'"
"""Which events are about services, as the index of them says it: a query must say it in the same words."""

_SCHEMA = f"""
CREATE TABLE schema_version (version INTEGER NOT NULL);
CREATE TABLE about (key TEXT PRIMARY KEY, value NOT NULL);
CREATE TABLE journal (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, cause TEXT NOT NULL, kind TEXT NOT NULL, job_id INTEGER,
    data BLOB NOT NULL, sum INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX journal_by_job ON journal (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX journal_of_services ON journal (seq) WHERE {OF_SERVICES};
CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, data BLOB NOT NULL, sum INTEGER NOT NULL DEFAULT 0);
CREATE TABLE blobs (id TEXT PRIMARY KEY, compressed INTEGER NOT NULL, data BLOB NOT NULL);
"""


class DamagedBlobError(StoreError, LostBlobError):
    """A blob is not what was stored."""


class MissingBlobError(KeyError, LostBlobError):
    def __str__(self) -> str:
        return str(self.args[0])


def connect(path: str, durable: bool = True) -> sqlite3.Connection:
    """Opens `path`, creating it (mode 0600) if need be. `durable` False: no commit waits for the disk.

    Only as the first connection of a process; the others are made by `connect_beside`.
    """
    try:
        # SQLite would create it with the umask's mode; the -wal and -shm files take after this one.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreError(f"cannot open the journal {path}: {error.strerror}") from error
    _refuse_truncated(path)
    return connect_beside(path, durable)


def connect_beside(path: str, durable: bool = True) -> sqlite3.Connection:
    """Opens what this process has a connection to already.

    Nothing but SQLite may open the file then: to close any descriptor of a file drops all locks that this process has
    on it. The next program that looked at the database would take itself for the last one and remove its write-ahead
    file, with all that is written there from then on.
    """
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
    try:
        with reading(path):
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
            connection.execute("PRAGMA temp_store=MEMORY")
            _ensure_schema(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_read(path: str) -> sqlite3.Connection:
    """Opens what is there and changes nothing: neither the file nor its write-ahead file. Raises StoreError."""
    _refuse_truncated(path)
    # Without a write-ahead file nobody writes, and SQLite need not make one to read.
    alone = not os.path.exists(path + "-wal")
    where = f"file:{urllib.parse.quote(os.path.abspath(path))}?{'immutable=1' if alone else 'mode=ro'}"
    try:
        connection = sqlite3.connect(where, uri=True, isolation_level=None, check_same_thread=False, timeout=10.0)
    except sqlite3.Error as error:
        raise StoreError(f"cannot open the journal {path}: {error}") from error
    connection.execute("PRAGMA query_only=ON")
    return connection


def make_schema(connection: sqlite3.Connection, journal_id: str) -> None:
    """Within a transaction."""
    for statement in f"{_SCHEMA}{HISTORY_SCHEMA}".split(";"):
        connection.execute(statement)
    connection.execute("INSERT INTO schema_version VALUES (?)", (SCHEMA_VERSION,))
    connection.execute("INSERT INTO about VALUES ('journal_id', ?)", (journal_id,))
    set_beginning(connection, beginning(journal_id))


def _ensure_schema(connection: sqlite3.Connection, path: str) -> None:
    version = schema_of(connection, path)
    if version == 0:
        with writing(connection, path):
            make_schema(connection, secrets.token_hex(8))
    elif version < SCHEMA_VERSION:
        with writing(connection, path):
            for step in range(version, SCHEMA_VERSION):
                MIGRATIONS[step](connection, path)
            connection.execute("UPDATE schema_version SET version = ?", (SCHEMA_VERSION,))


def schema_of(connection: sqlite3.Connection, path: str) -> int:
    """The version; 0 of an empty file. Raises StoreError where it is not ours, or too new."""
    known = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    if not known:
        return 0
    if ("schema_version",) not in known:
        raise StoreError(f"{path} is an SQLite database, but not Bireme's: name another BIREME_HOME")
    (version,) = connection.execute("SELECT max(version) FROM schema_version").fetchone()
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise StoreError(
            f"the journal {path} was written by a newer Bireme (schema {version}; this one knows {SCHEMA_VERSION}): "
            "upgrade Bireme, or name another BIREME_HOME"
        )
    return version


def journal_id_of(connection: sqlite3.Connection) -> str:
    return str(_about(connection, "journal_id"))


def _about(connection: sqlite3.Connection, key: str) -> object:
    row = connection.execute("SELECT value FROM about WHERE key = ?", (key,)).fetchone()
    if row is None:
        raise sqlite3.DatabaseError(f"it no longer says its {key}")
    return row[0]


def begins_after(connection: sqlite3.Connection) -> Tip:
    """The place before the oldest event that was not dropped on purpose."""
    seq, total = _about(connection, "begins_after"), _about(connection, "begins_with")
    if not isinstance(seq, int) or not isinstance(total, int):
        raise sqlite3.DatabaseError("it no longer says where it begins")
    return Tip(seq, total)


def set_beginning(connection: sqlite3.Connection, tip: Tip) -> None:
    rows = [("begins_after", tip.seq), ("begins_with", tip.sum)]
    connection.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", rows)


def is_marked(connection: sqlite3.Connection) -> bool:
    """Whether a mark was made for it, so that there must be one."""
    return connection.execute("SELECT 1 FROM about WHERE key = 'marked'").fetchone() is not None


def set_marked(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT OR REPLACE INTO about VALUES ('marked', 1)")


def newest(connection: sqlite3.Connection) -> Tip:
    """The number of the newest event: where the journal stands."""
    row = connection.execute("SELECT seq, sum FROM journal ORDER BY seq DESC LIMIT 1").fetchone()
    return Tip(*row) if row is not None else begins_after(connection)


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turns SQLite's complaints about a damaged file into a StoreError."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StoreError(f"cannot read the journal {path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise damaged(path, str(error)) from error


@contextmanager
def writing(connection: sqlite3.Connection, path: str) -> Iterator[None]:
    """One transaction, on disk when it ends; all of it is undone by any error."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.OperationalError):
            raise JournalError(f"cannot write the journal {path}: {error}") from error
        if isinstance(error, sqlite3.DatabaseError):
            raise damaged(path, str(error)) from error
        raise


def damaged(path: str, problem: str) -> StoreError:
    return StoreError(f"the journal {path} is damaged ({problem}): {WHAT_TO_DO}")


WHAT_TO_DO = (
    "put a backup in its place; or see what can still be had (bireme store verify) and go on with that "
    "(bireme store recover)"
)


def _refuse_truncated(path: str) -> None:
    """A cut-off file can be opened and even read in parts: compare its size with the one its header promises."""
    if os.path.exists(path + "-wal") and os.path.getsize(path + "-wal"):
        return  # pages may still be on their way from the log into the file
    with open(path, "rb") as file:
        header = file.read(100)
        size = os.fstat(file.fileno()).st_size
    if not size:
        return
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise damaged(path, "it is not a database")
    (page_size,) = struct.unpack(">H", header[16:18])
    (pages,) = struct.unpack(">I", header[28:32])
    if size < pages * (65536 if page_size == 1 else page_size):
        raise damaged(path, "its end is missing")
