"""What makes a database of an earlier Bireme one of this: each step within the transaction that opens it.

A step names columns by the version that it leads to, and uses nothing that may change later.
Invariant: a step that fails leaves the file as it was.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable

from bireme.store.checks import Tip, beginning, event_sum, row_sum, snapshot_sum
from bireme.store.history import repack

Step = Callable[[sqlite3.Connection, str], None]


def _give_sums(connection: sqlite3.Connection, path: str) -> None:
    """1 -> 2: every row gets its sum. What rotted before nobody can tell: what is there now counts."""
    for table in ("journal", "snapshots", "jobs", "steps"):
        connection.execute(f"ALTER TABLE {table} ADD COLUMN sum INTEGER NOT NULL DEFAULT 0")
    connection.execute("CREATE TABLE about (key TEXT PRIMARY KEY, value NOT NULL)")
    journal_id = secrets.token_hex(8)
    _drop_before_gaps(connection)
    tip = _beginning_of_old(connection, journal_id)
    rows = [("journal_id", journal_id), ("begins_after", tip.seq), ("begins_with", tip.sum)]
    connection.executemany("INSERT INTO about VALUES (?, ?)", rows)
    events = connection.execute("SELECT seq, at, cause, kind, job_id, data FROM journal ORDER BY seq")
    sums, total = [], tip.sum
    for event in events:
        total = event_sum(total, *event)
        sums.append((total, event[0]))
    connection.executemany("UPDATE journal SET sum = ? WHERE seq = ?", sums)
    taken = connection.execute("SELECT seq, data FROM snapshots").fetchall()
    connection.executemany(
        "UPDATE snapshots SET sum = ? WHERE seq = ?", [(snapshot_sum(*row), row[0]) for row in taken]
    )
    for table in ("jobs", "steps"):
        changes = [(row_sum(row[1:-1]), row[0]) for row in connection.execute(f"SELECT rowid, * FROM {table}")]
        connection.executemany(f"UPDATE {table} SET sum = ? WHERE rowid = ?", changes)


def _drop_before_gaps(connection: sqlite3.Connection) -> None:
    """Pruning by age left gaps where the clock had been set back: what is older than a gap is not needed either."""
    query = "SELECT max(seq) FROM journal AS one WHERE NOT EXISTS (SELECT 1 FROM journal WHERE seq = one.seq - 1)"
    (first,) = connection.execute(query).fetchone()
    (covered,) = connection.execute("SELECT min(seq) FROM snapshots").fetchone()
    if first is not None and covered is not None and first - 1 <= covered:
        connection.execute("DELETE FROM journal WHERE seq < ?", (first,))


def _beginning_of_old(connection: sqlite3.Connection, journal_id: str) -> Tip:
    (first,) = connection.execute("SELECT min(seq) FROM journal").fetchone()
    (covered,) = connection.execute("SELECT max(seq) FROM snapshots").fetchone()
    seq = first - 1 if first is not None else covered or 0
    return Tip(seq, beginning(journal_id).sum)


def _pack_history(connection: sqlite3.Connection, path: str) -> None:
    """2 -> 3: what rows of the history have in common is kept once."""
    repack(connection)


def _list_events_of_services(connection: sqlite3.Connection, path: str) -> None:
    """3 -> 4: the story of a service is found without reading the whole journal."""
    of_services = "kind GLOB 'Service*' OR kind GLOB 'Revision*' OR kind GLOB 'Replica*'"
    connection.execute(f"CREATE INDEX journal_of_services ON journal (seq) WHERE {of_services}")


MIGRATIONS: dict[int, Step] = {1: _give_sums, 2: _pack_history, 3: _list_events_of_services}
"""By the version that they begin with."""
