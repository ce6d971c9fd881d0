"""`inspect` names what is damaged and what can still be had, and changes nothing."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from hashlib import sha256
from pathlib import Path

import pytest

from bireme.core.model.events import JobReleased, JobSubmitted
from bireme.core.model.jobs import JobSpec, Owner
from bireme.core.state.state import State
from bireme.ports import HistoryRow
from bireme.store.guard import mark_path
from bireme.store.inspection import inspect
from bireme.store.journal import SqliteStore

SCRIPT = b"#!/bin/sh\necho train\n"
SCRIPT_NAME = sha256(SCRIPT).hexdigest()


def submitted(job_id: int) -> JobSubmitted:
    return JobSubmitted(
        job_id, JobSpec(owner=Owner(uid=1, gid=1, user="ann"), name=f"job{job_id}", script=SCRIPT_NAME), 10, None, ()
    )


def record(job_id: int, step_id: int | None = None) -> HistoryRow:
    return HistoryRow(job_id, step_id, 1, 0, {"job_id": job_id, "state": "COMPLETED", "user_name": "ann"})


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Nine events, snapshots of the fifth and the seventh, two records, a script."""
    path = str(tmp_path / "journal.db")
    store = SqliteStore(path)
    store.put(SCRIPT)
    store.append([(n, "ann submit", submitted(n)) for n in range(1, 8)], [record(1), record(1, 0)])
    for seq in (5, 7):
        store.write_snapshot(seq, State(next_job_id=seq + 1, seq=seq))
    store.append([(9.0, "x", JobReleased(1)), (9.0, "x", JobReleased(2))])
    store.close()
    return path


def changed(path: str, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_sound_journal_has_no_findings_and_is_left_as_it_was(path: str) -> None:
    before = {name: name.read_bytes() for name in Path(path).parent.iterdir()}
    found = inspect(path)
    assert found.sound
    assert (found.events, found.records, found.blobs, found.snapshots, found.good_to) == (9, 2, 1, [5, 7], 9)
    assert {name: name.read_bytes() for name in Path(path).parent.iterdir()} == before


def test_it_looks_while_a_daemon_writes(path: str) -> None:
    store = SqliteStore(path)
    for _ in range(3):
        store.append([(9.0, "x", JobReleased(1))])
        assert inspect(path).sound
    assert inspect(path).good_to == 12
    store.close()


@pytest.mark.parametrize(
    ("statement", "said", "good_to"),
    [
        ("UPDATE journal SET at = 5 WHERE seq = 3", "event 3 of .* is not what was written", 9),
        ("UPDATE journal SET at = 5 WHERE seq = 8", "event 8 of .* is not what was written", 7),
        ("UPDATE journal SET sum = 5 WHERE seq = 8", "event 9 of .* is not what was written", 7),
        ("DELETE FROM journal WHERE seq = 9", "ends with event 8: the newest event, 9, is lost", 8),
        ("DELETE FROM journal WHERE seq = 8", "events 8 to 8 of .* are missing", 7),
        ("DELETE FROM journal WHERE seq = 2", "events 2 to 2 of .* are missing", 9),
        ("UPDATE snapshots SET data = x'00' WHERE seq = 7", "the snapshot of event 7 in .* is damaged", 9),
        ("UPDATE runs SET name = 'bob'", "the record of job 1 .* is not what was written", 9),
        ('UPDATE run_steps SET "end" = 8.5', "the record of job 1 .* is not what was written", 9),
        ("UPDATE shapes SET user_name = 'bob'", "the record of all jobs of one kind .* is not what was written", 9),
        ("UPDATE blobs SET data = x'00'", "blob [0-9a-f]+ .* is not what was stored", 9),
        ("DELETE FROM about WHERE key = 'journal_id'", ".", 9),
    ],
)
def test_what_is_damaged_is_named_with_what_can_be_had(path: str, statement: str, said: str, good_to: int) -> None:
    changed(path, statement)
    found = inspect(path)
    assert any(re.search(said, finding) for finding in found.findings), found.findings
    if "about" not in statement:
        assert found.good_to == good_to


def test_an_index_that_lies_is_named(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA writable_schema=ON")
    connection.execute("DELETE FROM sqlite_master WHERE name = 'journal_by_job'")
    connection.commit()
    connection.close()
    found = inspect(path)
    assert any("its pages are damaged" in finding for finding in found.findings), found.findings
    assert found.good_to == 9


def test_a_bad_page_costs_what_is_on_it(tmp_path: Path) -> None:
    path = str(tmp_path / "journal.db")
    store = SqliteStore(path)
    store.append([(n, "x", submitted(n)) for n in range(1, 2_001)])
    store.close()
    with open(path, "r+b") as file:
        file.seek(4096 * 30)
        file.write(b"\xa5" * 4096)
    found = inspect(path)
    assert found.findings
    assert 1_900 < found.events < 2_000, "one page holds some twenty"
    assert found.highest == 2_000
    assert 0 < found.good_to < 2_000


def test_files_that_are_gone_or_strange(path: str) -> None:
    shutil.move(path, path + ".away")
    assert any("journal.db is gone" in finding for finding in inspect(path).findings)
    shutil.move(path + ".away", path)
    os.unlink(mark_path(path))
    assert any("journal.mark is gone" in finding for finding in inspect(path).findings)
    Path(mark_path(path)).write_bytes(b"x" * 8192)
    assert any("journal.mark is damaged" in finding for finding in inspect(path).findings)
    Path(path).write_bytes(b"not a database" * 1000)
    assert any("it is not a database" in finding for finding in inspect(path).findings)


def test_a_home_without_a_journal_has_nothing_to_find(tmp_path: Path) -> None:
    assert inspect(str(tmp_path / "journal.db")).sound
