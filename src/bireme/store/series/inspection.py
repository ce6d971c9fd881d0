"""Looks at every row of a `series.db` and changes nothing: for `bireme store verify`, and for tests of rot.

A start does not do this: it takes as long as the file is large, and what is damaged is passed over where it is read.
Not to be called by the process that has the file open.
Invariant: what is not named here is what was written, or was never there.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import Any

from bireme.ports import SeriesError
from bireme.store.checks import is_row
from bireme.store.series import columns, digests, fresh
from bireme.store.series.columns import ColumnsError
from bireme.store.series.database import SCHEMAS, TABLES, DamagedError, check_file, check_schema, connect_to_inspect
from bireme.store.series.fresh import RoundsError

MOST_TOLD = 20


def inspect(path: str) -> list[str]:
    """What is damaged, in words. Empty: nothing, or there is no such file."""
    if not os.path.exists(path):
        return []
    try:
        if not os.path.exists(path + "-wal"):  # else somebody may be writing, and its size says nothing
            check_file(path)
        with closing(connect_to_inspect(path)) as connection:
            version = check_schema(connection, path)
            return [*_structure(connection), *_rows(connection, version)][:MOST_TOLD]
    except (DamagedError, SeriesError, sqlite3.Error, OSError) as error:
        return [f"{path}: {error}"]


def _structure(connection: sqlite3.Connection) -> list[str]:
    told = [str(text) for (text,) in connection.execute(f"PRAGMA integrity_check({MOST_TOLD})")]
    return [] if told == ["ok"] else [line for text in told for line in text.splitlines()]


def _rows(connection: sqlite3.Connection, version: int) -> list[str]:
    made = " ".join(SCHEMAS[version])
    return [
        f"{table} {row[0]!r} in the series is not what was written"
        for table in TABLES
        if f"CREATE TABLE {table} " in made
        for row in connection.execute(f"SELECT * FROM {table}")
        if not (is_row(row) and _can_be_read(table, row))
    ]


def _can_be_read(table: str, row: tuple[Any, ...]) -> bool:
    try:
        if table == "chunks":
            columns.decode(row[1])
        elif table == "rounds":
            fresh.decode(row[3])
        elif table == "digests":
            digests.decode(row[4])
    except (ColumnsError, RoundsError, digests.DigestError):
        return False
    return True
