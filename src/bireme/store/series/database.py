"""The file `series.db`: opening, schema, what its errors mean, and setting it aside where it cannot be used.

WAL with synchronous=FULL: readers never wait for the writer, and a commit is on disk when it returns. After each flush
the write-ahead file is emptied into the database, so that rot in it cannot take away what was flushed.
Invariant: every failure leaves here as `SeriesError` (not now: disk full, no right to it; nothing of it was stored) or
as `DamagedError` (the file is not what was written, and is to be set aside).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
import struct
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from bireme.ports import SeriesError
from bireme.store.checks import is_row, with_sum

log = logging.getLogger("bireme.store.series")

SCHEMA_VERSION = 2
PAGE_BYTES = 8192
BESIDE = ("-wal", "-shm")
_TOLD_MOST = 100
_ERROR_LETTERS = 200

_FIRST_SCHEMA = (
    "CREATE TABLE about (key TEXT PRIMARY KEY, value INTEGER NOT NULL, sum INTEGER NOT NULL)",
    "CREATE TABLE gatherers (id TEXT PRIMARY KEY, no INTEGER NOT NULL, at REAL NOT NULL, sum INTEGER NOT NULL)",
    "CREATE TABLE rounds (id INTEGER PRIMARY KEY, gatherer TEXT NOT NULL, last INTEGER NOT NULL, data BLOB NOT NULL, "
    "sum INTEGER NOT NULL)",
    "CREATE TABLE series (id INTEGER PRIMARY KEY, about TEXT NOT NULL, node TEXT NOT NULL, metric TEXT NOT NULL, "
    "sum INTEGER NOT NULL)",
    "CREATE UNIQUE INDEX series_by_name ON series (node, about, metric)",
    "CREATE TABLE subjects (id INTEGER PRIMARY KEY, about TEXT NOT NULL, node TEXT NOT NULL, name TEXT NOT NULL, "
    "since REAL NOT NULL, until REAL NOT NULL, sum INTEGER NOT NULL)",
    "CREATE INDEX subjects_by_name ON subjects (about, name, node)",
    "CREATE TABLE chunks (key INTEGER PRIMARY KEY, data BLOB NOT NULL, sum INTEGER NOT NULL)",
    "CREATE TABLE held (job_id INTEGER NOT NULL, generation INTEGER NOT NULL, node TEXT NOT NULL, uuid TEXT NOT NULL, "
    "shared INTEGER NOT NULL, since REAL NOT NULL, until REAL, sum INTEGER NOT NULL, "
    "PRIMARY KEY (job_id, generation, uuid))",
    "CREATE INDEX held_by_gpu ON held (uuid, since)",
)
_STORIES = (
    "CREATE TABLE waited (job_id INTEGER NOT NULL, since REAL NOT NULL, until REAL, reasons TEXT NOT NULL, "
    "sum INTEGER NOT NULL, PRIMARY KEY (job_id, since)) WITHOUT ROWID",
    "CREATE INDEX waited_until ON waited (until)",
    "CREATE TABLE happened (id INTEGER PRIMARY KEY, at REAL NOT NULL, node TEXT NOT NULL, kind TEXT NOT NULL, "
    "uuid TEXT NOT NULL, code INTEGER NOT NULL, pid INTEGER NOT NULL, task TEXT NOT NULL, text TEXT NOT NULL, "
    "sum INTEGER NOT NULL)",
    "CREATE INDEX happened_to_gpu ON happened (uuid, at)",
    "CREATE INDEX happened_to_task ON happened (task)",
)
_DIGESTS = (
    "CREATE TABLE digests (job_id INTEGER NOT NULL, generation INTEGER NOT NULL, since REAL NOT NULL, "
    "until REAL NOT NULL, data BLOB NOT NULL, sum INTEGER NOT NULL, PRIMARY KEY (job_id, generation))",
    "CREATE INDEX digests_by_end ON digests (until)",
)
_SCHEMA = (*_FIRST_SCHEMA, *_STORIES, *_DIGESTS)
SCHEMAS = {1: _FIRST_SCHEMA, 2: _SCHEMA}
"""By version. An older file gets what it lacks when it is opened to be written."""
TABLES = ("about", "gatherers", "rounds", "series", "subjects", "chunks", "held", "waited", "happened", "digests")


class DamagedError(Exception):
    """The file is not what was written."""


class Damage:
    """What was found damaged and passed over: each said once in the log, all of it for whoever asks."""

    def __init__(self) -> None:
        self._told: list[str] = []
        self._more = 0

    def note(self, text: str) -> None:
        if text in self._told:
            return
        if len(self._told) >= _TOLD_MOST:
            self._more += 1
            return
        self._told.append(text)
        log.error("%s", text)

    def __str__(self) -> str:
        """In one line for people; empty: nothing was found."""
        others = len(self._told) + self._more - 1
        return self._told[-1] + (f" (and {others} more before it)" if others else "") if self._told else ""


def open_to_write(path: str) -> sqlite3.Connection:
    """Makes the file (mode 0600) if need be. Raises SeriesError, DamagedError.

    Only as the first connection of a process: what is not SQLite may not open the file while it has others.
    """
    try:
        # SQLite would create it with the umask's mode; the files beside it take after this one.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        check_file(path)
    except OSError as error:
        raise SeriesError(f"cannot open {path}: {error.strerror}") from error
    connection = _connected(path)
    try:
        with reading(path):
            connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA temp_store=MEMORY")
            _ensure_schema(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _connected(path: str, **how: Any) -> sqlite3.Connection:
    try:
        connection: sqlite3.Connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=10.0, **how
        )
    except sqlite3.Error as error:
        raise SeriesError(f"cannot open {path}: {error}") from error
    # Damage may make any text of it: the sum of its row tells, not the decoder.
    connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
    return connection


def connect_to_read(path: str) -> sqlite3.Connection:
    """A second connection of the process that has the writing one."""
    connection = _connected(path)
    connection.execute("PRAGMA query_only=ON")
    return connection


def connect_to_inspect(path: str) -> sqlite3.Connection:
    """From another process; changes nothing, neither the file nor its write-ahead file."""
    alone = not os.path.exists(path + "-wal")
    where = f"file:{urllib.parse.quote(os.path.abspath(path))}?{'immutable=1' if alone else 'mode=ro'}"
    connection = _connected(where, uri=True)
    connection.execute("PRAGMA query_only=ON")
    return connection


def file_of(path: str) -> tuple[int, int] | None:
    """Which file is there: two of them never answer the same while somebody has the first one open. None: none is."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SeriesError(f"cannot look at {path}: {error.strerror}") from error
    return found.st_dev, found.st_ino


def aside_of(path: str) -> list[str]:
    """The damaged files that were set aside and still lie beside it."""
    folder, name = os.path.split(os.path.abspath(path))
    numbered = re.compile(re.escape(name) + r"\.damaged-\d+")
    try:
        return sorted(os.path.join(folder, each) for each in os.listdir(folder) if numbered.fullmatch(each))
    except FileNotFoundError:
        return []


def set_aside(path: str, problem: str, damage: Damage) -> str:
    """Renames the files; says so. The new name."""
    aside = next(f"{path}.damaged-{no}" for no in count(1) if not os.path.exists(f"{path}.damaged-{no}"))
    try:
        for suffix in ("", *BESIDE):
            with contextlib.suppress(FileNotFoundError):
                os.rename(path + suffix, aside + suffix)
    except OSError as error:
        raise SeriesError(f"{path} is damaged ({problem}) and cannot be set aside: {error.strerror}") from error
    damage.note(f"{path} was damaged ({problem}): it was set aside as {aside}, and a new one was begun")
    return aside


@contextmanager
def writing(connection: sqlite3.Connection, path: str) -> Iterator[None]:
    """One transaction; all of it is undone by any error. Its last step, the commit, may be made before by its user."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        if connection.in_transaction:
            connection.execute("COMMIT")
    except BaseException as error:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise in_words(error, path, "write") from error


@contextmanager
def reading(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise in_words(error, path, "read") from error


def in_words(error: BaseException, path: str, verb: str) -> BaseException:
    if isinstance(error, sqlite3.OperationalError):
        advice = ": free some space" if "full" in str(error) else ""
        return SeriesError(f"cannot {verb} {path}: {error}{advice}")
    if isinstance(error, sqlite3.DatabaseError):
        return DamagedError(str(error))
    return error


def empty_log(connection: sqlite3.Connection) -> None:
    """Into the database with it. Whoever reads meanwhile keeps what he needs of it for the next time."""
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def sound_rows(connection: sqlite3.Connection, table: str, damage: Damage) -> list[tuple[Any, ...]]:
    """All rows that are what was written, without their sums; the others are named."""
    found = []
    for row in connection.execute(f"SELECT * FROM {table}"):
        if is_row(row):
            found.append(row[:-1])
        else:
            damage.note(f"{table} {row[0]!r} in the series is not what was written: passed over")
    return found


UNWRITABLE = (
    OverflowError, TypeError, ValueError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError,
)  # fmt: skip
"""What is raised for a value that no database takes: not by the disk, and again at every try."""


def insert_or_drop(connection: sqlite3.Connection, damage: Damage, table: str, *values: Any) -> None:
    """As `insert`; a row that can never be written is dropped and named, and the transaction goes on without it."""
    try:
        insert(connection, table, *values)
    except UNWRITABLE as error:
        damage.note(f"a row of {table} can never be written and was dropped ({briefly(error)})")


def briefly(error: Exception) -> str:
    """In a line of bounded length."""
    return f"{type(error).__name__}: {error}"[:_ERROR_LETTERS]


def insert(connection: sqlite3.Connection, table: str, *values: Any) -> None:
    """Puts a row with its sum, in place of one with the same key."""
    row = with_sum(values)
    connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def _ensure_schema(connection: sqlite3.Connection, path: str) -> None:
    begun = connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,)
    version = check_schema(connection, path) if begun else 0
    if version == SCHEMA_VERSION:
        return
    has = set(SCHEMAS.get(version, ()))
    with writing(connection, path):
        for statement in _SCHEMA:
            if statement not in has:
                connection.execute(statement)
        insert(connection, "about", "version", SCHEMA_VERSION)


def check_schema(connection: sqlite3.Connection, path: str) -> int:
    """Its version. Raises DamagedError, or SeriesError for one of a newer Bireme."""
    found = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    version = None
    if any(str(sql).startswith("CREATE TABLE about ") for sql in found):
        version = connection.execute("SELECT * FROM about WHERE key = 'version'").fetchone()
    if version is None or not is_row(version):
        raise DamagedError("it does not say what it is")
    if version[1] > SCHEMA_VERSION:
        raise SeriesError(f"{path} was written by a newer Bireme: upgrade, or move it away to begin a new one")
    if found != set(SCHEMAS.get(version[1], ())):
        raise DamagedError("its tables are not what they were")
    return int(version[1])


def check_file(path: str) -> None:
    """A cut-off file can be opened and even read in parts: compares its size with the one its header promises.

    Raises DamagedError. Not while this process has a connection to it.
    """
    if os.path.exists(path + "-wal") and os.path.getsize(path + "-wal"):
        return  # pages may still be on their way from the log into the file
    with open(path, "rb") as file:
        header = file.read(100)
        size = os.fstat(file.fileno()).st_size
    if not size:
        return
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise DamagedError("it is not a database")
    (page_size,) = struct.unpack(">H", header[16:18])
    (pages,) = struct.unpack(">I", header[28:32])
    if size < pages * (65536 if page_size == 1 else page_size):
        raise DamagedError("its end is missing")
