"""What an agent writes down: read back as it was, damage left out and told, the newest past kept for who lost it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bireme.agent.messages.lines import encode_line
from bireme.agent.messages.told import BatchEnded, Launched
from bireme.agent.outbox import Outbox
from bireme.agent.records import TaskRecords, read_records
from bireme.agent.system.processes import ProcessIdentity
from bireme.core.model.resources import NO_USAGE, ExitStatus


def filled(path: Path) -> TaskRecords:
    """Job 1 is over and forgotten, job 2 over and not acknowledged, job 3 runs."""
    records = TaskRecords(path)
    outbox = Outbox(records)
    for job in (1, 2, 3):
        records.held((job, 1))
        records.started((job, 1), 99_999_000 + job)
        outbox.add(Launched(job, 1, at=4.0))
    for job in (1, 2):
        outbox.add(BatchEnded(job, 1, ExitStatus(), NO_USAGE, cleared=True, at=5.0))
    outbox.acknowledge_job((1, 1))
    records.forget((1, 1), outbox.seq)
    return records


def test_everything_is_read_back_by_the_next_agent(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    filled(path)
    again = TaskRecords(path)
    assert [leftover.key for leftover in again.leftovers] == [(2, 1), (3, 1)]
    assert [event["ev"] for event in again.leftovers[0].events] == ["launched", "batch_ended"]
    assert again.leftovers[1].processes[0].pid == 99_999_003
    assert (again.epoch, again.last_seq, again.damaged) == (2, 5, [])


def test_what_runs_goes_on_when_the_disk_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = TaskRecords(tmp_path / "tasks.jsonl")
    os.dup2(os.open("/dev/full", os.O_WRONLY), records._fd)
    with pytest.raises(OSError, match="No space left"):
        records.held((1, 1))  # nothing runs yet: such a job is refused
    records.started((1, 1), 99_999_001)
    records.kept((1, 1), ProcessIdentity(99_999_002, 1, "boot"), "")
    assert caplog.text.count("job 1.1: a process could not be written down") == 2


@contextmanager
def room_for(count: int) -> Iterator[None]:
    """No file can become longer: a write that would make it so is cut short, and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_cannot_be_written_anew_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bireme.agent.records._REWRITE_BYTES", 10_000)
    path = tmp_path / "tasks.jsonl"
    records = TaskRecords(path)
    for job in range(40):
        records.held((job, 1))
        records.reported((job, 1), encode_line({"ev": "launched", "job": job, "gen": 1, "seq": job, "x": "y" * 1000}))
    descriptors = len(os.listdir("/proc/self/fd"))
    with room_for(20_000):  # there is none for what is still to be remembered, nor for one more line
        for _ in range(3):
            with pytest.raises(OSError, match="too large"):
                records._rewrite(40)
        with pytest.raises(OSError, match="too large"):
            records.forget((0, 1), 40)
    with room_for(path.stat().st_size + 50):  # for the line, after which the file is to be written anew
        records.forget((1, 1), 40)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert [file.name for file in tmp_path.iterdir()] == ["tasks.jsonl"]
    assert "cannot be made shorter" in caplog.text
    found = read_records(path)
    assert (len(found.jobs), found.damaged) == (39, [])


def test_a_line_for_which_there_is_no_room_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    records = TaskRecords(path)
    records.held((1, 1))
    with room_for(path.stat().st_size + 10), pytest.raises(OSError, match="too large"):
        records.held((2, 1))
    records.held((3, 1))
    found = read_records(path)
    assert (list(found.jobs), found.damaged) == ([(1, 1), (3, 1)], [])


def test_the_past_is_told_again_to_who_lost_it_also_by_the_next_agent(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    assert [event["ev"] for event in filled(path).recall()] == ["launched", "batch_ended"]
    path.unlink()
    filled(path)
    again = TaskRecords(TaskRecords(path)._path)
    told = again.recall()
    assert [(event["ev"], event["job"]) for event in told] == [("launched", 1), ("batch_ended", 1)]
    assert again.recall() == []
    again.forget((1, 1), 5)
    assert len(again.recall()) == 2, "forgotten anew, it is the past again"


def test_only_so_much_of_the_past_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bireme.agent.records._PAST_JOBS", 3)
    path = tmp_path / "tasks.jsonl"
    records = TaskRecords(path)
    outbox = Outbox(records)
    for job in range(1, 9):
        records.held((job, 1))
        outbox.add(BatchEnded(job, 1, ExitStatus(), NO_USAGE, cleared=True, at=5.0))
        records.forget((job, 1), outbox.seq)
    assert [event["job"] for event in TaskRecords(path).recall()] == [6, 7, 8]


def test_a_flipped_bit_anywhere_is_told_or_the_torn_end_of_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    filled(path)
    whole = path.read_bytes()
    lines = whole.count(b"\n")
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found = read_records(path)
        assert found.damaged or at == len(whole) - 1, f"byte {at}: {whole[:at][-40:]!r}"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        found = read_records(path)
        cut = whole[:length].count(b"\n")
        assert not found.damaged or cut < lines, "a torn last line is no damage"


def test_the_records_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    rows = [
        {"r": "epoch", "epoch": 4, "seq": 7},
        {"r": "job", "job": 2, "gen": 1},
        {"seq": 8, "ev": "batch_ended", "job": 2, "gen": 1, "status": {"code": 0}, "usage": {}, "cleared": True},
    ]
    path.write_bytes(b"".join(map(encode_line, rows)))
    found = read_records(path)
    assert (found.epoch, found.last_seq, list(found.jobs), found.damaged) == (4, 8, [(2, 1)], [])
