"""What finished, as rows with indexed columns beside the whole record: what `sacct` reads.

Written in the transaction of the event that ended the job, read by the API. Not here: what a record contains
(`core/accounting/records.py`). Invariant: one row per run of a job (job id, submit time, restarts); a row whose record
is not what was written is told, never shown.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bireme.ports import HistoryRow
from bireme.store import codec
from bireme.store.checks import is_row, with_sum

_ID_BATCH = 500  # SQLite allows a limited number of values in one statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which finished jobs. Empty or None: no such condition."""

    start: float | None = None
    """Jobs that ended at or after this time."""
    end: float | None = None
    """Jobs that were submitted before this time."""
    users: tuple[str, ...] = ()
    uids: tuple[int, ...] = ()
    accounts: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    jobs: tuple[tuple[int, int | None], ...] = ()
    """(job id, array task id or None for all of it)."""
    with_steps: bool = False
    duplicates: bool = False
    """Also the earlier runs of requeued jobs."""
    limit: int | None = None


def insert(connection: sqlite3.Connection, rows: Sequence[HistoryRow]) -> None:
    jobs, steps = [], []
    for row in rows:
        record, data = row.record, codec.dumps(row.record)
        key = (row.job_id, float(row.submitted_at), row.restarts)
        times = (record.get("state"), _real(record.get("start_time")), _real(record.get("end_time")), data)
        if row.step_id is not None:
            steps.append(with_sum((*key, row.step_id, *times)))
            continue
        named = ("array_job_id", "array_task_id", "het_job_id", "name", "user_name", "user_id", "account")
        columns = [record.get(name) for name in (*named, "partition")]
        jobs.append(with_sum((*key, *columns, *times)))
    connection.executemany(f"INSERT OR REPLACE INTO jobs VALUES ({_marks(16)})", jobs)
    connection.executemany(f"INSERT OR REPLACE INTO steps VALUES ({_marks(9)})", steps)


def _real(at: Any) -> float | None:
    """As a column of times gives it back."""
    return None if at is None else float(at)


class DamagedRecordError(ValueError):
    """A row is not what was written."""


def _read(of: str, row: Sequence[Any]) -> Any:
    if not is_row(row):
        raise DamagedRecordError(f"the record of {of} is not what was written")
    return codec.loads(row[-2])


def select(connection: sqlite3.Connection, query: Query) -> list[dict[str, Any]]:
    condition, values = _where(query)
    source = "jobs" if query.duplicates else _LATEST_RUNS
    limit = f" LIMIT {int(query.limit)}" if query.limit is not None else ""
    found = connection.execute(
        f"SELECT * FROM {source} WHERE {condition} ORDER BY job_id, submitted_at, restarts{limit}", values
    ).fetchall()
    records = [_read(f"job {row[0]}", row) for row in found]
    if query.with_steps:
        steps = _steps_of(connection, [row[0] for row in found])
        for row, record in zip(found, records):
            record["steps"] = steps.get(row[:3], [])
    return records


_LATEST_RUNS = """(
    SELECT * FROM jobs AS one WHERE NOT EXISTS (
        SELECT 1 FROM jobs AS later WHERE later.job_id = one.job_id
        AND (later.submitted_at, later.restarts) > (one.submitted_at, one.restarts)
    )
)"""


def _where(query: Query) -> tuple[str, list[Any]]:
    conditions: list[str] = ["1"]
    values: list[Any] = []

    def require(condition: str, *given: Any) -> None:
        conditions.append(condition)
        values.extend(given)

    if query.start is not None:
        require('"end" >= ?', query.start)
    if query.end is not None:
        require("submitted_at < ?", query.end)
    if query.users or query.uids:
        who = f"(user IN ({_marks(len(query.users))}) OR uid IN ({_marks(len(query.uids))}))"
        require(who, *query.users, *query.uids)
    for column, wanted in (
        ("account", query.accounts),
        ("partition", query.partitions),
        ("state", query.states),
        ("name", query.names),
    ):
        if wanted:
            require(f"{column} IN ({_marks(len(wanted))})", *wanted)
    if query.jobs:
        either = []
        for job_id, task_id in query.jobs:
            if task_id is None:
                either.append("(job_id = ? OR array_job_id = ? OR het_job_id = ?)")
                values.extend((job_id, job_id, job_id))
            else:
                either.append("(array_job_id = ? AND array_task_id = ?)")
                values.extend((job_id, task_id))
        conditions.append("(" + " OR ".join(either) + ")")
    return " AND ".join(conditions), values


def _steps_of(connection: sqlite3.Connection, job_ids: list[int]) -> dict[tuple[Any, ...], list[Any]]:
    steps: dict[tuple[Any, ...], list[Any]] = {}
    for begin in range(0, len(job_ids), _ID_BATCH):
        batch = job_ids[begin : begin + _ID_BATCH]
        rows = connection.execute(
            f"SELECT * FROM steps WHERE job_id IN ({_marks(len(batch))}) ORDER BY job_id, start, step_id",
            batch,
        )
        for row in rows:
            steps.setdefault(row[:3], []).append(_read(f"step {row[3]} of job {row[0]}", row))
    return steps


def _marks(count: int) -> str:
    return ", ".join("?" * count)
