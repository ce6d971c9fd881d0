"""scancel: which jobs it means, what it says, and how it ends."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.fake_daemon import FakeDaemon

from bireme.commands.scancel import is_named, label, main, matches


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
    for target in ("1", "2_1", "7"):
        daemon.routes[f"POST /v1/jobs/{target}/cancel"] = (200, {"jobs": []})
    daemon.routes["POST /v1/cancel"] = (200, {"cancelled": [], "errors": []})
    return daemon


def refused(word: str, message: str, code: str, **more: Any) -> dict[str, Any]:
    return {"job": word, "error": {"message": message, "code": code}, **more}


def cancelled(daemon: FakeDaemon) -> list[str]:
    return [route.split("/")[3] for route, _ in daemon.requests if route.endswith("/cancel")]


def test_ids_go_straight_to_the_daemon(queue: FakeDaemon) -> None:
    assert main(["7"]) == 0
    assert [route for route, _ in queue.requests] == ["POST /v1/jobs/7/cancel"]


@pytest.mark.parametrize("words", [["7", "9"], ["7_[0-49999]"], ["7_[1-5:2,9%2]", "8+1"]])
def test_many_are_one_request(queue: FakeDaemon, words: list[str]) -> None:
    assert main(words) == 0
    assert queue.requests == [("POST /v1/cancel", {"signal": None, "batch_only": False, "full": False, "jobs": words})]


def test_of_many_those_that_were_refused_are_told_in_slurms_words(
    daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]
) -> None:
    errors = [
        refused("1_[2-3,55]", "Invalid job id specified", "ESLURM_INVALID_JOB_ID"),
        refused("9", "Access/permission denied", "ESLURM_ACCESS_DENIED"),
    ]
    daemon.routes["POST /v1/cancel"] = (200, {"cancelled": ["7"], "errors": errors})
    assert main(["7", "1_[2-3,55]", "9"]) == 1
    assert capfd.readouterr().err == "scancel: error: Kill job error on job id 9: Access/permission denied\n"
    daemon.routes["POST /v1/cancel"] = (200, {"cancelled": ["7"], "errors": errors[:1]})
    assert main(["-v", "7", "1_[2-3,55]"]) == 0
    assert capfd.readouterr().err.splitlines() == [
        "scancel: Terminating job 7",
        "scancel: Terminating job 1_[2-3,55]",
        "scancel: error: Kill job error on job id 1_[2-3,55]: Invalid job id specified",
    ]


def test_a_list_of_tasks_that_is_none_is_refused_before_anything_is_asked(
    queue: FakeDaemon, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["7", "7_[3-]"]) == 1
    assert (queue.requests, capfd.readouterr().err) == ([], "scancel: error: Invalid job id 7_[3-]\n")


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


@pytest.mark.parametrize("options", [["-s", "USR1"], ["-s", "KILL"], ["-b"], ["-b", "-v"]])
@pytest.mark.parametrize("code", ["ESLURM_INVALID_JOB_ID", "ESLURM_ALREADY_DONE"])
def test_a_signal_that_nobody_gets_is_an_error(
    daemon: FakeDaemon, capfd: pytest.CaptureFixture[str], options: list[str], code: str
) -> None:
    daemon.refuse("POST /v1/jobs/7/cancel", "Job/step already completing or completed", code=code)
    assert main([*options, "7"]) == 1
    assert "scancel: error: Kill job error on job id 7: Invalid job id specified\n" in capfd.readouterr().err
    assert main([*options, "-Q", "7"]) == 1
    assert "error" not in capfd.readouterr().err


def test_with_a_cluster_alone_ids_are_told_of_as_without(
    daemon: FakeDaemon, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "lab")
    daemon.routes["GET /v1/ping"] = (200, {"cluster": "lab", "clusters": ["lab"]})
    error = refused("99", "Invalid job id specified", "ESLURM_INVALID_JOB_ID", unknown=True)
    daemon.routes["POST /v1/cancel"] = (200, {"cancelled": [], "errors": [error]})
    assert main(["99"]) == 0
    assert capfd.readouterr().err == ""
    assert daemon.bodies("POST /v1/cancel")[0]["cluster"] == ["lab"]
    assert main(["-s", "USR1", "99"]) == 1
    assert main(["-n", "name", "99"]) == 1
    assert capfd.readouterr().err.count("Kill job error on job id 99: Invalid job id specified") == 2


def test_another_users_job_is_an_error(daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    daemon.refuse("POST /v1/jobs/9/cancel", "Access/permission denied", "ESLURM_ACCESS_DENIED", 403)
    assert main(["9"]) == 1
    assert capfd.readouterr().err == "scancel: error: Kill job error on job id 9: Access/permission denied\n"


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (["-n", "eval,train"], {"name": ["eval", "train"], "jobs": []}),
        (["-t", "PD"], {"state": ["PENDING"], "jobs": []}),
        (["-A", "red", "-q", "high"], {"account": ["red"], "qos": ["high"], "jobs": []}),
        (["-w", "n[2-3]"], {"nodes": ["n2", "n3"], "jobs": []}),
        (["-t", "running", "2", "7_[1-2]"], {"state": ["RUNNING", "CONFIGURING"], "jobs": ["2", "7_[1-2]"]}),
        (["-u", "0", "-p", "gpu"], {"user": ["0"], "partition": ["gpu"], "jobs": []}),
        (["-R", "r", "--wckey=k", "-s", "9"], {"reservation": ["r"], "wckey": ["k"], "signal": 9, "jobs": []}),
    ],
)
def test_filters_are_the_daemons_to_apply(queue: FakeDaemon, options: list[str], sent: dict[str, Any]) -> None:
    assert main(options) == 0
    assert queue.requests == [("POST /v1/cancel", {"signal": None, "batch_only": False, "full": False, **sent})]


def test_what_filters_ended_is_told_when_asked(daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    errors = [
        refused("99", "Invalid job id specified", "ESLURM_INVALID_JOB_ID", unknown=True),
        refused("3", "Access/permission denied", "ESLURM_ACCESS_DENIED"),
    ]
    daemon.routes["POST /v1/cancel"] = (200, {"cancelled": ["1", "2_[3-4]"], "errors": errors})
    assert main(["-n", "eval", "99"]) == 1
    assert capfd.readouterr().err.splitlines() == [
        "scancel: error: Kill job error on job id 99: Invalid job id specified",
        "scancel: error: Kill job error on job id 3: Access/permission denied",
    ]
    daemon.routes["POST /v1/cancel"] = (200, {"cancelled": ["1", "2_[3-4]"], "errors": []})
    assert main(["-v", "-n", "eval"]) == 0
    told = capfd.readouterr().err.splitlines()
    assert told == ["scancel: Terminating job 1", "scancel: Terminating job 2_[3-4]"]


def test_filters_come_from_the_environment_too(queue: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANCEL_NAME", "eval")
    assert main([]) == 0
    assert queue.bodies("POST /v1/cancel")[0]["name"] == ["eval"]


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


def test_labels_are_what_squeue_shows() -> None:
    assert label(job(2, array_job_id=2, array_tasks="[3-4]")) == "2_[3-4]"
    assert label(job(5, array_job_id=2, array_task_id=7)) == "2_7"
    assert label(job(9, het_job_id=8, het_offset=1)) == "8+1"
    assert label(job(9)) == "9"


def test_names_of_arrays_and_components() -> None:
    assert is_named(job(5, array_job_id=2, array_task_id=7), "2")
    assert is_named(job(5, array_job_id=2, array_task_id=7), "2_[6-8]")
    assert not is_named(job(5, array_job_id=2, array_task_id=7), "2_8")
    assert not is_named(job(5, array_job_id=2, array_task_id=7), "2_[4-8:2]")
    assert is_named(job(9, het_job_id=8, het_offset=1), "8+1")
    assert not matches(job(1, qos="normal"), {"qos": "high"})
