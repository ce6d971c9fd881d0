"""A short soak of real daemons, agents and jobs, killed at seeded moments; and that its witness can see what is wrong.

`make soak-real SECONDS=600` is the long one.
"""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.soak_real.jobs import LOCKS, LOG, SoakJob
from tests.soak_real.soak import make_cluster, soak
from tests.soak_real.witness import Judge, held_locks, read_log, strays


def test_nothing_is_lost_runs_twice_or_is_left_behind() -> None:
    cluster = make_cluster()
    with cluster.running():
        figures = soak(cluster, seed=12, kills=5)
    assert figures.moments == 5
    assert figures.starts
    assert figures.states["COMPLETED"]


def judged(tmp_path: Path, log: str, job: SoakJob, *records: dict[str, Any], others: tuple[SoakJob, ...] = ()) -> str:
    """All that is wrong with a log, in one text."""
    (tmp_path / LOG).write_text(log)
    return "; ".join(Judge([job, *others], read_log(tmp_path / LOG, 0), records).broken([], {}))


def asked(token: str = "t", **facts: Any) -> SoakJob:
    return SoakJob(token, facts.pop("options", {}), "0", facts.pop("code", 0), job_id="7", **facts)


def record(comment: str = "t", **facts: Any) -> dict[str, Any]:
    known = {"job_id": 7, "array_job_id": None, "state": "COMPLETED", "restarts": 0, "exit_code": 0}
    return {"comment": comment, **known, **facts}


BEGIN, END = "begin t 7 - 0 n1 100.0 -\n", "end t 7 - 0 n1 101.0 0\n"


def test_a_job_that_ran_as_it_should(tmp_path: Path) -> None:
    assert judged(tmp_path, BEGIN + END, asked(), record()) == ""


@pytest.mark.parametrize(
    ("log", "job", "records", "words"),
    [
        (BEGIN + END, asked(), [], "1 records expected"),
        (BEGIN + END, asked(), [record(), record()], "there are 2"),
        ("", asked(), [record()], "never began"),
        (BEGIN + BEGIN + END, asked(), [record()], "ran 2 times"),
        (BEGIN + END, asked(code=3), [record()], "it was 3"),
        (BEGIN + END, asked(), [record(state="RUNNING")], "not at its end"),
        (BEGIN + END, asked(), [record(state="CANCELLED")], "nobody asked for it"),
        (BEGIN + "conflict t 7 - 0 n1 100.0 gpu-n1-0\n" + END, asked(), [record()], "is taken"),
        (BEGIN + END + "release t\n", asked(options={"hold": True}), [record()], "before anybody released it"),
        (BEGIN + END, asked(begin_at=100.5), [record()], "before its begin time"),
        (BEGIN + END, asked(options={"reservation": "lab"}), [record()], "began on n1"),
        (BEGIN.replace("n1", "n4") + END, asked(), [record()], "reserved for others"),
        ("begin stranger 9 - 0 n1 100.0 -\n" + BEGIN + END, asked(), [record()], "nobody asked for it"),
    ],
)
def test_what_the_witness_sees(
    tmp_path: Path, log: str, job: SoakJob, records: list[dict[str, Any]], words: str
) -> None:
    assert words in judged(tmp_path, log, job, *records)


@pytest.mark.parametrize(
    ("word", "first", "met"),
    [
        ("afterok", {"state": "COMPLETED"}, True),
        ("afterok", {"state": "FAILED"}, False),
        ("afternotok", {"state": "COMPLETED"}, False),
        ("afternotok", {"state": "FAILED"}, True),
        ("afterany", {"state": "FAILED"}, True),
        ("afterany", {"state": "RUNNING"}, False),
    ],
)
def test_dependencies_are_read_from_what_jobs_wrote(
    tmp_path: Path, word: str, first: dict[str, Any], met: bool
) -> None:
    other = SoakJob("first", {}, "0", 0, job_id="6")
    log = "begin first 6 - 0 n1 90.0 -\nend first 6 - 0 n1 91.0 0\n" + BEGIN + END
    records = record("first", job_id=6, **first), record()
    said = judged(tmp_path, log, asked(after=(word, "first")), *records, others=(other,))
    assert ("was not met" not in said) == met


def test_a_process_that_holds_a_lock_is_a_stray_wherever_it_hides(tmp_path: Path) -> None:
    (tmp_path / LOCKS).mkdir()
    path = tmp_path / LOCKS / "gpu-n1-0"
    assert held_locks(tmp_path) == []
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        hidden = subprocess.Popen(["env", "-i", "sleep", "1000"], pass_fds=[file.fileno()])
    try:
        assert list(strays(tmp_path)) == [hidden.pid]
        assert held_locks(tmp_path) == ["gpu-n1-0"]
    finally:
        hidden.kill()
        hidden.wait()
    assert not strays(tmp_path)
