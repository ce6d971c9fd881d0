"""Whose GPUs were whose, on disk: `ports.Holding` as rows.

Invariant: one row for each job, generation and GPU; a known one changes in nothing but its end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from bireme.ports import Holding
from bireme.store.checks import is_row
from bireme.store.series.database import Damage, insert


def write(connection: sqlite3.Connection, holdings: Sequence[Holding], damage: Damage) -> None:
    """Within a transaction."""
    for said in holdings:
        query = "SELECT * FROM held WHERE job_id = ? AND generation = ? AND uuid = ?"
        row = connection.execute(query, (said.job_id, said.generation, said.uuid)).fetchone()
        known = _holding(row, damage) if row is not None else None
        one = updated(known, said)
        since, until = float(one.start), float(one.end) if one.end is not None else None
        insert(connection, "held", one.job_id, one.generation, one.node, one.uuid, int(one.shared), since, until)


def updated(known: Holding | None, said: Holding) -> Holding:
    """One that had ended goes on where it is said to have no end: a GPU that its driver had lost for a while."""
    return replace(known, end=said.end) if known is not None else said


def read(
    connection: sqlite3.Connection,
    job_id: int | None,
    uuid: str | None,
    damage: Damage,
    span: tuple[float, float | None] = (0.0, None),
) -> list[Holding]:
    """`span`: those that share some time with it, as far as the rows themselves say it."""
    conditions = {"job_id = ?": job_id, "uuid = ?": uuid, "since < ?": span[1]}
    asked = {name: value for name, value in conditions.items() if value is not None}
    asked["(until IS NULL OR until > ?)"] = span[0]
    rows = connection.execute(f"SELECT * FROM held WHERE {' AND '.join(asked)} ORDER BY since", tuple(asked.values()))
    found = (_holding(row, damage) for row in rows.fetchall())
    return [holding for holding in found if holding is not None]


def read_open(connection: sqlite3.Connection, damage: Damage) -> list[Holding]:
    found = (_holding(row, damage) for row in connection.execute("SELECT * FROM held WHERE until IS NULL").fetchall())
    return [holding for holding in found if holding is not None]


def overlapping(holdings: Iterable[Holding], start: float, end: float | None) -> list[Holding]:
    return [one for one in holdings if (end is None or one.start < end) and (one.end is None or one.end > start)]


def _holding(row: tuple[Any, ...], damage: Damage) -> Holding | None:
    if not is_row(row):
        damage.note(f"a GPU of job {row[0]!r} in the series is not what was written: passed over")
        return None
    job_id, generation, node, uuid, shared, since, until, _ = row
    return Holding(job_id, generation, node, uuid, bool(shared), since, until)
