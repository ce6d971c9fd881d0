"""What is looked at before a journal is opened: is all of it there that was ever said to be on disk?

Reading only: opening a database for writing would fold its write-ahead file into it, and what is damaged there would
be gone for good. Not here: whether every row is sound (`inspection`); that takes as long as the journal is large.
Invariant: a journal that lost something is not opened, and nothing of it is changed.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

from bireme.ports import StoreError
from bireme.store import mark as marks
from bireme.store.checks import Tip
from bireme.store.database import (
    WHAT_TO_DO,
    connect_to_read,
    is_marked,
    journal_id_of,
    newest,
    reading,
    schema_of,
)
from bireme.store.mark import DamagedMarkError, Mark, read

FIRST_WITH_SUMS = 2


class LostEventsError(StoreError):
    """The journal is not what the mark beside it says it was."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{problem}. Nothing was started or changed: {WHAT_TO_DO}")
        self.path = path
        self.problem = problem


def mark_path(journal: str) -> str:
    return os.path.splitext(journal)[0] + marks.SUFFIX


def check_whole(path: str) -> None:
    """Raises LostEventsError (or what keeps the file from being read at all); returns if it may be opened."""
    mark = read_mark(path)
    if is_absent(path):
        if mark is not None:
            gone = "is empty" if os.path.exists(path) else "is gone"
            raise LostEventsError(path, f"the journal {path} {gone}, and it had {mark.seq} events")
        return
    with closing(connect_to_read(path)) as connection, reading(path):
        version = schema_of(connection, path)
        if version < FIRST_WITH_SUMS:
            (last,) = connection.execute("SELECT max(seq) FROM journal").fetchone() if version else (0,)
            found, name, there, marked = Tip(last or 0, 0), None, None, False
        else:
            found, name, marked = newest(connection), journal_id_of(connection), is_marked(connection)
            there = _sum_at(connection, mark) if mark is not None else None
    if mark is None:
        if marked:
            lost = (
                f"{mark_path(path)} is gone: nobody can say whether the newest events of the journal {path} are there"
            )
            raise LostEventsError(path, lost)
        return
    problem = problem_with(path, mark, found, name, there)
    if problem:
        raise LostEventsError(path, problem)


def is_absent(path: str) -> bool:
    """There is no journal here, or an empty file in its place."""
    return not os.path.exists(path) or (not os.path.getsize(path) and not _has_log(path))


def problem_with(path: str, mark: Mark, found: Tip, name: str | None, there: int | None) -> str:
    """In words; empty if there is none. `name` None: a journal without one. `there`: its sum where the mark stands."""
    if name is not None and name != mark.journal_id:
        return f"the journal {path} and {mark_path(path)} are not of one home: one of them was put here from elsewhere"
    if found.seq < mark.seq:
        count = mark.seq - found.seq
        which = f"the newest event, {mark.seq}, is" if count == 1 else f"the newest {count} events, to {mark.seq}, are"
        return f"the journal {path} ends with event {found.seq}: {which} lost"
    if there is not None and there != mark.sum:
        return f"event {mark.seq} of the journal {path} is not the one that was written: another was put in its place"
    return ""


def read_mark(path: str) -> Mark | None:
    """Of the journal at `path`; raises LostEventsError where it cannot be read."""
    try:
        return read(mark_path(path))
    except DamagedMarkError as error:
        problem = f"{error}: nobody can say whether the newest events of the journal {path} are there"
        raise LostEventsError(path, problem) from error
    except OSError as error:
        raise StoreError(f"cannot read {mark_path(path)}: {error.strerror}") from error


def _sum_at(connection: sqlite3.Connection, mark: Mark) -> int | None:
    row = connection.execute("SELECT sum FROM journal WHERE seq = ?", (mark.seq,)).fetchone()
    return row[0] if row is not None else None


def _has_log(path: str) -> bool:
    return os.path.exists(path + "-wal") and os.path.getsize(path + "-wal") > 0
