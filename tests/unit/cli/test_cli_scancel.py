"""scancel: which jobs it means, what it says, and how it ends."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.fake_daemon import FakeDaemon

from bireme.cli.scancel import is_named, label, main, matches, single_jobs


def job(job_id: int, **facts: Any) -> dict[str, Any]:
    return {"job_id": job_id, "name": "train", "partition": "gpu", "user_id": 0, "state": "RUNNING", **facts}


@pytest.fixture
def queue(daemon: FakeDaemon) -> FakeDaemon:
    jobs = [
        job(1, account="red", node_list="n[1-2]"),
        job(2, state="PENDING", name="eval", array_job_id=2, array_tasks="3-4%1"),
        job(3, state="COMPLETED"),
        job(4, array_job_id=2, array_task_id=1),
    ]
    daemon.routes["GET /v1/jobs"] = (200, {"jobs": jobs})
    for target in ("1", "2_1", "2_3", "2_4", "7", "7_1", "7_2"):
        daemon.routes[f"POST /v1/jobs/{target}/cancel"] = (200, {"jobs": []})
    return daemon


def cancelled(daemon: FakeDaemon) -> list[str]:
    return [route.split("/")[3] for route, _ in daemon.requests if route.endswith("/cancel")]


def test_ids_go_straight_to_the_daemon(queue: FakeDaemon) -> None:
    assert main(["7", "7_[1-2]"]) == 0
    assert [route for route, _ in queue.requests] == [
        "POST /v1/jobs/7/cancel",
        "POST /v1/jobs/7_1/cancel",
        "POST /v1/jobs/7_2/cancel",
    ]


def test_a_signal_and_its_scope_are_sent(queue: FakeDaemon) -> None:
    assert main(["-s", "usr1", "-b", "7"]) == 0
    assert queue.bodies("POST /v1/jobs/7/cancel") == [{"signal": 10, "batch_only": True, "full": False}]


def test_a_step_has_its_own_route(daemon: FakeDaemon) -> None:
    daemon.routes["POST /v1/jobs/7/steps/0/cancel"] = (200, {})
    assert main(["7.0"]) == 0


def test_a_job_that_is_not_there_is_worth_no_word_unless_asked(
    daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]
) -> None:
    daemon.refuse("POST /v1/jobs/99/cancel", "Invalid job id specified", "ESLURM_INVALID_JOB_ID", 404)
    assert main(["99"]) == 0
    assert capfd.readouterr().err == ""
    assert main(["-v", "99"]) == 0
    assert capfd.readouterr().err == (
        "scancel: Terminating job 99\nscancel: error: Kill job error on job id 99: Invalid job id specified\n"
    )


def test_another_users_job_is_an_error(daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    daemon.refuse("POST /v1/jobs/9/cancel", "Access/permission denied", "ESLURM_ACCESS_DENIED", 403)
    assert main(["9"]) == 1
    assert capfd.readouterr().err == "scancel: error: Kill job error on job id 9: Access/permission denied\n"


@pytest.mark.parametrize(
    ("options", "ended"),
    [
        (["-n", "eval"], ["2_3", "2_4"]),
        (["-t", "PENDING"], ["2_3", "2_4"]),
        (["-A", "red"], ["1"]),
        (["-w", "n2"], ["1"]),
        (["-p", "cpu"], []),
        (["-t", "running", "2"], ["2_1"]),
        (["-u", "0"], ["1", "2_3", "2_4", "2_1"]),
    ],
)
def test_filters_choose_among_the_living(queue: FakeDaemon, options: list[str], ended: list[str]) -> None:
    assert main(options) == 0
    assert cancelled(queue) == ended


def test_filters_come_from_the_environment_too(queue: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANCEL_NAME", "eval")
    assert main([]) == 0
    assert cancelled(queue) == ["2_3", "2_4"]


@pytest.mark.parametrize(("answer", "ended"), [("y\n", ["1"]), ("n\n", []), ("", [])])
def test_interactive_asks_first(
    queue: FakeDaemon,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    ended: list[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    assert main(["-i", "1"]) == 0
    assert cancelled(queue) == ended
    assert capfd.readouterr().out == "Cancel job_id=1 name=train partition=gpu [y/n]? "


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "scancel: error: No job identification provided\n"),
        (["abc"], "scancel: error: Invalid job id abc\n"),
        (["-s", "FOO", "5"], "Unknown job signal: FOO\n"),
        (["-u", "no.such.user"], "scancel: error: Invalid user name: no.such.user\n"),
        (
            ["-t", "XYZ"],
            "Invalid job state specified: XYZ\nValid job states are PENDING, RUNNING, and SUSPENDED\n",
        ),
        (["--bogus"], "scancel: unrecognized option '--bogus'\nTry \"scancel --help\" for more information\n"),
    ],
)
def test_bad_command_lines(home: Path, capfd: pytest.CaptureFixture[str], argv: list[str], says: str) -> None:
    assert main(argv) == 1
    assert capfd.readouterr().err == says


def test_array_tasks_one_by_one() -> None:
    assert list(single_jobs("7_[1-5:2,9%2]")) == ["7_1", "7_3", "7_5", "7_9"]


def test_labels_are_what_squeue_shows() -> None:
    assert label(job(2, array_job_id=2, array_tasks="[3-4]")) == "2_[3-4]"
    assert label(job(5, array_job_id=2, array_task_id=7)) == "2_7"
    assert label(job(9, het_job_id=8, het_offset=1)) == "8+1"
    assert label(job(9)) == "9"


def test_names_of_arrays_and_components() -> None:
    assert is_named(job(5, array_job_id=2, array_task_id=7), "2")
    assert is_named(job(5, array_job_id=2, array_task_id=7), "2_[6-8]")
    assert not is_named(job(5, array_job_id=2, array_task_id=7), "2_8")
    assert is_named(job(9, het_job_id=8, het_offset=1), "8+1")
    assert not matches(job(1, qos="normal"), {"qos": "high"})
