"""What the journal does not tell of jobs, on disk: what kept them waiting, and what happened to GPUs and tasks.

Beside the series, since nothing of it is needed to run a job. Both tables are bounded in rows and in age.
Invariant: one span of waiting for each job and start; a known one changes in nothing but its end and its reasons.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple
from typing import Any

import msgspec

from bireme.core.telemetry.waiting import Said, Waited
from bireme.ports import Happened
from bireme.store.checks import is_row
from bireme.store.series.database import Damage, insert_or_drop

MOST_WAITS = 500_000
MOST_HAPPENINGS = 100_000
MOST_TOLD = 1_000
"""Happenings in one answer: the newest."""
_AT_ONCE = 200
"""GPUs in one question to the database."""


def write_waits(connection: sqlite3.Connection, waits: Iterable[Waited], damage: Damage) -> None:
    """Within a transaction."""
    for one in waits:
        reasons = msgspec.json.encode(one.reasons).decode()
        until = float(one.end) if one.end is not None else None
        insert_or_drop(connection, damage, "waited", one.job_id, float(one.start), until, reasons)


def read_waits(connection: sqlite3.Connection, job_id: int, damage: Damage) -> list[Waited]:
    query = "SELECT * FROM waited WHERE job_id = ? ORDER BY since"
    return _waits(connection.execute(query, (job_id,)).fetchall(), damage)


def read_open_waits(connection: sqlite3.Connection, damage: Damage) -> list[Waited]:
    return _waits(connection.execute("SELECT * FROM waited WHERE until IS NULL").fetchall(), damage)


def _waits(rows: Sequence[tuple[Any, ...]], damage: Damage) -> list[Waited]:
    found = []
    for row in rows:
        if is_row(row):
            job_id, since, until, reasons, _ = row
            found.append(Waited(job_id, since, until, msgspec.json.decode(reasons, type=Said)))
        else:
            damage.note(f"why job {row[0]!r} waited, in the series, is not what was written: passed over")
    return found


def write_happenings(connection: sqlite3.Connection, happenings: Iterable[Happened], damage: Damage) -> None:
    """Within a transaction."""
    (last,) = connection.execute("SELECT max(id) FROM happened").fetchone()
    for number, one in enumerate(happenings, (last or 0) + 1):
        at, *more = astuple(one)
        insert_or_drop(connection, damage, "happened", number, float(at), *more)


def read_happenings(
    connection: sqlite3.Connection, task_prefix: str, uuids: Collection[str], start: float, end: float, damage: Damage
) -> list[Happened]:
    # The character after "." in the alphabet ends what begins with the prefix.
    past = task_prefix[:-1] + chr(ord(task_prefix[-1]) + 1)
    query = "SELECT * FROM happened WHERE {} AND at BETWEEN ? AND ? ORDER BY at DESC LIMIT ?"
    asked: list[tuple[str, tuple[str, ...]]] = [("task >= ? AND task < ?", (task_prefix, past))]
    names = sorted(uuids)
    for first in range(0, len(names), _AT_ONCE):
        some = tuple(names[first : first + _AT_ONCE])
        asked.append((f"uuid IN ({', '.join('?' * len(some))})", some))
    rows: dict[int, tuple[Any, ...]] = {}
    for where, values in asked:
        for row in connection.execute(query.format(where), (*values, start, end, MOST_TOLD)):
            rows[row[0]] = row
    found = []
    for row in rows.values():
        if is_row(row):
            found.append(Happened(*row[1:-1]))
        else:
            damage.note(f"a happening in the series ({row[0]!r}) is not what was written: passed over")
    return sorted(found, key=lambda one: one.at)[-MOST_TOLD:]


def drop_old(connection: sqlite3.Connection, oldest: float) -> None:
    """What ended before, and the oldest of what is too much. Within a transaction."""
    connection.execute("DELETE FROM waited WHERE until < ?", (oldest,))
    connection.execute("DELETE FROM happened WHERE at < ?", (oldest,))
    (waits,) = connection.execute("SELECT count(*) FROM waited").fetchone()
    if waits > MOST_WAITS:
        connection.execute(
            "DELETE FROM waited WHERE (job_id, since) IN "
            "(SELECT job_id, since FROM waited WHERE until IS NOT NULL ORDER BY until LIMIT ?)",
            (waits - MOST_WAITS,),
        )
    (happenings,) = connection.execute("SELECT count(*) FROM happened").fetchone()
    if happenings > MOST_HAPPENINGS:
        connection.execute(
            "DELETE FROM happened WHERE id IN (SELECT id FROM happened ORDER BY at LIMIT ?)",
            (happenings - MOST_HAPPENINGS,),
        )
