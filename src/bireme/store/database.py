"""The SQLite file: opening, schema, and what its errors mean in words.

WAL with synchronous=FULL: a commit is on disk when it returns, and readers never wait for the writer. A simulation asks
for less: its journal is as complete, but a crash of the machine may lose its end.
Invariant: every failure leaves here as `StoreError` (cannot be used: says which file and what to do about it) or
`JournalError` (cannot be written now: nothing of the group was stored).
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from bireme.ports import JournalError

SCHEMA_VERSION = 1

_SCHEMA = """
CREATE TABLE schema_version (version INTEGER NOT NULL);
CREATE TABLE journal (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, cause TEXT NOT NULL, kind TEXT NOT NULL, job_id INTEGER,
    data BLOB NOT NULL
);
CREATE INDEX journal_by_job ON journal (job_id) WHERE job_id IS NOT NULL;
CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE blobs (id TEXT PRIMARY KEY, compressed INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE jobs (
    job_id INTEGER NOT NULL, submitted_at REAL NOT NULL, restarts INTEGER NOT NULL,
    array_job_id INTEGER, array_task_id INTEGER, het_job_id INTEGER, name TEXT, user TEXT, uid INTEGER,
    account TEXT, partition TEXT, state TEXT, start REAL, "end" REAL, record BLOB NOT NULL,
    PRIMARY KEY (job_id, submitted_at, restarts)
);
CREATE INDEX jobs_by_end ON jobs ("end");
CREATE INDEX jobs_by_array ON jobs (array_job_id) WHERE array_job_id IS NOT NULL;
CREATE INDEX jobs_by_het ON jobs (het_job_id) WHERE het_job_id IS NOT NULL;
CREATE TABLE steps (
    job_id INTEGER NOT NULL, submitted_at REAL NOT NULL, restarts INTEGER NOT NULL, step_id INTEGER NOT NULL,
    state TEXT, start REAL, "end" REAL, record BLOB NOT NULL,
    PRIMARY KEY (job_id, submitted_at, restarts, step_id)
);
"""


class StoreError(Exception):
    """The store cannot be used. The text names the file and says what to do."""


def connect(path: str, durable: bool = True) -> sqlite3.Connection:
    """Opens `path`, creating it (mode 0600) if need be. `durable` False: no commit waits for the disk."""
    try:
        # SQLite would create it with the umask's mode; the -wal and -shm files take after this one.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreError(f"cannot open the journal {path}: {error.strerror}") from error
    _refuse_truncated(path)
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


def _ensure_schema(connection: sqlite3.Connection, path: str) -> None:
    known = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    if not known:
        with writing(connection, path):
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute("INSERT INTO schema_version VALUES (?)", (SCHEMA_VERSION,))
        return
    if ("schema_version",) not in known:
        raise StoreError(f"{path} is an SQLite database, but not Bireme's: name another BIREME_HOME")
    row = connection.execute("SELECT max(version) FROM schema_version").fetchone()
    if row[0] is None or row[0] > SCHEMA_VERSION:
        raise StoreError(
            f"the journal {path} was written by a newer Bireme (schema {row[0]}; this one knows {SCHEMA_VERSION}): "
            "upgrade Bireme, or name another BIREME_HOME"
        )


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
    return StoreError(
        f"the journal {path} is damaged ({problem}): put a backup in its place, or move it away (together with "
        f"{os.path.basename(path)}-wal) to start with an empty cluster"
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
