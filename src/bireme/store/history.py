"""What finished, as rows of a few hundred bytes: what `sacct` reads.

Written in the transaction of the event that ended the job, read by the API. A row has the columns that are looked for,
and what differs from the record of its shape (`shapes.py`). Not here: what a record contains (`slurm/records`).
Invariant: one row per run of a job (job id, submit time, restarts); a row that is not what was written is told, never
shown.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from bireme.ports import HistoryQuery, HistoryRow
from bireme.store import codec
from bireme.store.checks import is_row, with_sum
from bireme.store.shapes import Columns, DamagedRecordError, ShapeReader, ShapeWriter

HISTORY_SCHEMA = """
CREATE TABLE shapes (
    id INTEGER PRIMARY KEY, user_name TEXT, user_id INTEGER, account TEXT, partition TEXT, state TEXT,
    record BLOB NOT NULL, sum INTEGER NOT NULL
);
CREATE TABLE runs (
    job_id INTEGER NOT NULL, submitted_at REAL NOT NULL, restarts INTEGER NOT NULL, array_job_id INTEGER,
    array_task_id INTEGER, het_job_id INTEGER, start REAL, "end" REAL, name TEXT, shape INTEGER NOT NULL,
    differs BLOB NOT NULL, sum INTEGER NOT NULL, PRIMARY KEY (job_id, submitted_at, restarts)
) WITHOUT ROWID;
CREATE INDEX runs_by_end ON runs ("end");
CREATE INDEX runs_by_array ON runs (array_job_id) WHERE array_job_id IS NOT NULL;
CREATE INDEX runs_by_het ON runs (het_job_id) WHERE het_job_id IS NOT NULL;
CREATE TABLE run_steps (
    job_id INTEGER NOT NULL, submitted_at REAL NOT NULL, restarts INTEGER NOT NULL, step_id INTEGER NOT NULL,
    start REAL, "end" REAL, shape INTEGER NOT NULL, differs BLOB NOT NULL, sum INTEGER NOT NULL,
    PRIMARY KEY (job_id, submitted_at, restarts, step_id)
) WITHOUT ROWID
"""
OF_A_SHAPE = ("runs", "run_steps")
"""Tables whose rows say only what differs from their shape: without it they are lost."""
_PRUNED_AT_ONCE = 10_000
_ID_BATCH = 500  # SQLite allows a limited number of values in one statement


JOB_COLUMNS = (
    "job_id", "submit_time", "restarts", "array_job_id", "array_task_id", "het_job_id", "start_time", "end_time", "name"
)  # fmt: skip
"""Fields of a job's record that are columns of its row."""
STEP_COLUMNS = ("job_id", "start_time", "end_time")
_IN_JOB_COLUMNS, _IN_STEP_COLUMNS = frozenset(JOB_COLUMNS), frozenset(STEP_COLUMNS)
_NOTHING: Mapping[str, Any] = {}
_BY_END = 'runs."end", runs.job_id, runs.submitted_at, runs.restarts'
"""As the index `runs_by_end` has them, which ends with the key of the row."""
RunPlace = tuple[float, int, float, int]
"""Where a run stands in that order."""


class HistoryWriter:
    """Writes rows within a transaction, around which `undone_with_errors` must be."""

    def __init__(self) -> None:
        self._shapes = ShapeWriter()
        self._used: set[int] | None = None
        """While unused shapes are looked for: those that rows got meanwhile."""

    def insert(self, connection: sqlite3.Connection, rows: Sequence[HistoryRow]) -> None:
        jobs, steps = [], []
        for row in rows:
            if row.step_id is None:
                jobs.append(self._job(connection, row))
            else:
                steps.append(self._step(connection, row))
        connection.executemany(f"INSERT OR REPLACE INTO runs VALUES ({_marks(12)})", jobs)
        connection.executemany(f"INSERT OR REPLACE INTO run_steps VALUES ({_marks(9)})", steps)

    def _job(self, connection: sqlite3.Connection, row: HistoryRow) -> tuple[Any, ...]:
        record, other = row.record, row.like or _NOTHING
        said = [record[name] if name in record else other.get(name) for name in JOB_COLUMNS]
        ids, start, end, name = said[3:6], *said[6:]
        given = [row.job_id, float(row.submitted_at), row.restarts, *ids, _real(start), _real(end), _storable(name)]
        columns = Columns(_IN_JOB_COLUMNS, _unlike(JOB_COLUMNS, said, given))
        shape, differs = self._shapes.pack(connection, record, columns, row.like)
        self._note_use(shape)
        return with_sum((*given, shape, differs))

    def _step(self, connection: sqlite3.Connection, row: HistoryRow) -> tuple[Any, ...]:
        record = row.record
        said = [record.get(name) for name in STEP_COLUMNS]
        given = [row.job_id, _real(said[1]), _real(said[2])]
        columns = Columns(_IN_STEP_COLUMNS, _unlike(STEP_COLUMNS, said, given))
        shape, differs = self._shapes.pack(connection, record, columns)
        self._note_use(shape)
        key = (row.job_id, float(row.submitted_at), row.restarts, row.step_id)
        return with_sum((*key, *given[1:], shape, differs))

    def _note_use(self, shape: int) -> None:
        if self._used is not None:
            self._used.add(shape)

    def keep(self, connection: sqlite3.Connection, kept: Collection[int]) -> None:
        """Before `prune`: jobs and arrays that are still known, whatever the age of their earlier runs."""
        connection.execute("CREATE TEMP TABLE IF NOT EXISTS kept (id INTEGER PRIMARY KEY)")
        connection.execute("DELETE FROM kept")
        connection.executemany("INSERT OR IGNORE INTO kept VALUES (?)", [(job_id,) for job_id in kept])

    def prune(self, connection: sqlite3.Connection, older_than: float) -> int:
        """Drops some of the runs that ended before then, with their steps; 0: none is left."""
        old = connection.execute(
            'SELECT job_id, submitted_at, restarts FROM runs WHERE "end" < ? AND job_id NOT IN (SELECT id FROM kept) '
            "AND coalesce(array_job_id, 0) NOT IN (SELECT id FROM kept) LIMIT ?",
            (older_than, _PRUNED_AT_ONCE),
        ).fetchall()
        for table in ("runs", "run_steps"):
            connection.executemany(f"DELETE FROM {table} WHERE job_id = ? AND submitted_at = ? AND restarts = ?", old)
        return len(old)

    def begin_sweep(self) -> None:
        """Before `unused_shapes` is asked, while nobody writes: what is used from now on is noted."""
        self._used = set()

    def end_sweep(self, connection: sqlite3.Connection, unused: Collection[int]) -> None:
        """Drops those that `unused_shapes` found, unless rows came to use them since."""
        gone = set(unused) - (self._used or set())
        self._used = None
        connection.executemany("DELETE FROM shapes WHERE id = ?", [(shape_id,) for shape_id in gone])
        self._shapes.forget()

    @contextmanager
    def undone_with_errors(self) -> Iterator[None]:
        """Shapes that it remembers are not there when the transaction that made them failed."""
        try:
            yield
        except BaseException:
            self._shapes.forget()
            raise


def unused_shapes(connection: sqlite3.Connection) -> list[int]:
    """All but the newest: no number is given twice, so that readers may go on with what they remember.

    It looks at every row: not for a connection that others wait for.
    """
    used = "SELECT shape FROM runs UNION SELECT shape FROM run_steps UNION SELECT max(id) FROM shapes"
    return [shape_id for (shape_id,) in connection.execute(f"SELECT id FROM shapes WHERE id NOT IN ({used})")]


def _real(at: Any) -> float | None:
    """As a column of times gives it back."""
    return None if at is None else float(at)


def _storable(name: str | None) -> str | None:
    """Bytes that are no text have no place in a column; the record has them all the same."""
    return name if name is None or name.isascii() else name.encode("utf-8", "replace").decode()


def _unlike(names: Sequence[str], said: Sequence[Any], given: Sequence[Any]) -> list[str]:
    """Which fields the row's columns do not give back as they are: a whole number among the times is a float there."""
    return [
        name
        for name, value, column in zip(names, said, given)
        if value is not column and (value != column or type(value) is not type(column))
    ]


def _checked(of: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    if not is_row(row):
        raise DamagedRecordError(f"the record of {of} is not what was written")
    return row


@contextmanager
def _named_in(damaged: list[str]) -> Iterator[None]:
    """What is damaged is named there, and passed over."""
    try:
        yield
    except DamagedRecordError as error:
        damaged.append(str(error))


def _any_text(data: bytes) -> str:
    """Damage may leave bytes that are no text: the row's sum tells."""
    return data.decode("utf-8", "surrogateescape")


class HistoryReader:
    def __init__(self) -> None:
        self._shapes = ShapeReader()

    def select(self, connection: sqlite3.Connection, query: HistoryQuery, damaged: list[str]) -> list[dict[str, Any]]:
        """The records that are sound; of the others `damaged` gets a sentence each."""
        order = "runs.job_id, runs.submitted_at, runs.restarts" if query.newest is None else 'runs."end" DESC'
        most = query.limit if query.newest is None else query.newest
        found = self._rows(connection, query, *_where(query), order, most)
        return self._sound(connection, query, found, damaged)

    def page(
        self, connection: sqlite3.Connection, query: HistoryQuery, after: RunPlace | None, size: int, damaged: list[str]
    ) -> tuple[list[dict[str, Any]], RunPlace | None]:
        """So many rows by their end from a place on, and the place of the last; None: there are no more."""
        # Where the index is entered: a condition on several columns is only tried row by row.
        condition, values = _where(query if after is None else replace(query, start=after[0]))
        if after is not None:
            condition += f" AND ({_BY_END}) > ({_marks(4)})"
        found = self._rows(connection, query, condition, [*values, *(after or ())], _BY_END, size)
        last = (found[-1][7], *found[-1][:3]) if len(found) == size else None
        return self._sound(connection, query, found, damaged), last

    def _rows(
        self,
        connection: sqlite3.Connection,
        query: HistoryQuery,
        condition: str,
        values: Sequence[Any],
        order: str,
        most: int | None,
    ) -> list[tuple[Any, ...]]:
        connection.text_factory = _any_text  # one name that is no text any more must not hide all others
        source = "runs" if query.duplicates else _LATEST_RUNS
        limit = f" LIMIT {int(most)}" if most is not None else ""
        return connection.execute(
            f"SELECT runs.* FROM {source} AS runs LEFT JOIN shapes ON shapes.id = runs.shape WHERE {condition} "
            f"ORDER BY {order}{limit}",
            values,
        ).fetchall()

    def _sound(
        self, connection: sqlite3.Connection, query: HistoryQuery, found: Sequence[tuple[Any, ...]], damaged: list[str]
    ) -> list[dict[str, Any]]:
        sound: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        for row in found:
            with _named_in(damaged):
                sound.append((row, self._record(connection, row)))
        if query.with_steps:
            steps = self._steps_of(connection, [row[0] for row, _ in sound], damaged)
            for row, record in sound:
                record["steps"] = steps.get(row[:3], [])
        return [record for _, record in sound if _is_meant(record, query.jobs)]

    def _record(self, connection: sqlite3.Connection, row: tuple[Any, ...]) -> dict[str, Any]:
        *given, shape, differs, _ = _checked(f"job {row[0]}", row)
        return self._shapes.unpack(connection, shape, differs, dict(zip(JOB_COLUMNS, given)))

    def _steps_of(
        self, connection: sqlite3.Connection, job_ids: list[int], damaged: list[str]
    ) -> dict[tuple[Any, ...], list[Any]]:
        steps: dict[tuple[Any, ...], list[Any]] = {}
        for begin in range(0, len(job_ids), _ID_BATCH):
            batch = job_ids[begin : begin + _ID_BATCH]
            rows = connection.execute(
                f"SELECT * FROM run_steps WHERE job_id IN ({_marks(len(batch))}) ORDER BY job_id, start, step_id", batch
            ).fetchall()
            for row in rows:
                *run, step_id, start, end, shape, differs, _ = row
                with _named_in(damaged):
                    _checked(f"step {step_id} of job {run[0]}", row)
                    columns = dict(zip(STEP_COLUMNS, (run[0], start, end)))
                    steps.setdefault(tuple(run), []).append(self._shapes.unpack(connection, shape, differs, columns))
        return steps

    def forget(self) -> None:
        """Shapes may have been removed."""
        self._shapes.forget()


def repack(connection: sqlite3.Connection) -> None:
    """The history of a file where every row was a whole record (schema 2); within the caller's transaction."""
    for statement in HISTORY_SCHEMA.split(";"):
        connection.execute(statement)
    writer = HistoryWriter()
    for table, step in (("jobs", "NULL"), ("steps", "step_id")):
        rows = connection.execute(f"SELECT job_id, {step}, submitted_at, restarts, record FROM {table}")
        while batch := rows.fetchmany(_ID_BATCH):
            read = [(job, step_id, at, again, codec.loads(data)) for job, step_id, at, again, data in batch]
            writer.insert(connection, [HistoryRow(*row) for row in read])
        connection.execute(f"DROP TABLE {table}")


_LATEST_RUNS = """(
    SELECT * FROM runs AS one WHERE NOT EXISTS (
        SELECT 1 FROM runs AS later WHERE later.job_id = one.job_id
        AND (later.submitted_at, later.restarts) > (one.submitted_at, one.restarts)
    )
)"""


Named = tuple[int, int | range | None]
"""A job, and of an array one task, several or (None) all."""


def _is_meant(record: dict[str, Any], jobs: Sequence[Named]) -> bool:
    """Of a row about many tasks that were cancelled together, whether one that is asked for is among them."""
    tasks = record.get("array_tasks")
    if not jobs or not tasks:
        return True
    own = (record.get("array_job_id"), record["job_id"])
    asked = [each for job_id, each in jobs if job_id in own]
    if None in asked:
        return True
    held = list(_ranges(tasks))
    return any(
        _share(range(each, each + 1) if isinstance(each, int) else each, some)
        for each in asked
        if each is not None
        for some in held
    )


def _ranges(tasks: str) -> Iterator[range]:
    """`[0-9:3,12%4]` as it is shown."""
    for part in tasks.strip("[]").partition("%")[0].split(","):
        first, _, rest = part.partition("-")
        last, _, step = rest.partition(":")
        if first.isdigit():
            yield range(int(first), int(last or first) + 1, int(step or 1))


def _share(one: range, other: range) -> bool:
    """Whether they have a task in common."""
    low, high = max(one[0], other[0]), min(one[-1], other[-1])
    if one.step == other.step == 1 or low > high:
        return low <= high
    few, many = (one, other) if one.step >= other.step else (other, one)
    first = low + (few.start - low) % few.step
    return any(task in many for task in range(first, high + 1, few.step))


_NAMED = """(
    job_id IN (SELECT value FROM json_each(?)) OR array_job_id IN (SELECT value FROM json_each(?))
    OR het_job_id IN (SELECT value FROM json_each(?))
    OR (array_job_id IN (SELECT value FROM json_each(?)) AND EXISTS (
        SELECT 1 FROM json_each(?) AS asked WHERE asked.value ->> 0 = array_job_id
        AND (array_task_id IS NULL OR (
            array_task_id BETWEEN asked.value ->> 1 AND asked.value ->> 2
            AND (array_task_id - (asked.value ->> 1)) % (asked.value ->> 3) = 0
        ))
    ))
)"""
"""However many ids there are, it is one condition: a chain of ORs may only be so long, and is tried for each row."""


def _named(jobs: Sequence[Named]) -> tuple[str, ...]:
    """The values of `_NAMED`: ids of whole jobs (for three columns), of arrays, and (array, first task, last, step)."""
    whole = json.dumps(sorted({job_id for job_id, tasks in jobs if tasks is None}))
    given = ((job_id, range(each, each + 1) if isinstance(each, int) else each) for job_id, each in jobs)
    ranges = [(job_id, each[0], each[-1], each.step) for job_id, each in given if each]
    return whole, whole, whole, json.dumps(sorted({each[0] for each in ranges})), json.dumps(ranges)


def _where(query: HistoryQuery) -> tuple[str, list[Any]]:
    conditions: list[str] = ["1"]
    values: list[Any] = []

    def require(condition: str, *given: Any) -> None:
        conditions.append(condition)
        values.extend(given)

    if query.start is not None:
        require('runs."end" >= ?', query.start)
    if query.ended_before is not None:
        require('runs."end" < ?', query.ended_before)
    if query.end is not None:
        require("submitted_at < ?", query.end)
    if query.users or query.uids:
        who = f"(user_name IN ({_marks(len(query.users))}) OR user_id IN ({_marks(len(query.uids))}))"
        require(who, *query.users, *query.uids)
    for column, wanted in (
        ("account", query.accounts),
        ("partition", query.partitions),
        ("state", query.states),
        ("runs.name", query.names),
    ):
        if wanted:
            require(f"{column} IN ({_marks(len(wanted))})", *wanted)
    if query.jobs:
        require(_NAMED, *_named(query.jobs))
    return " AND ".join(conditions), values


def _marks(count: int) -> str:
    return ", ".join("?" * count)
