"""salloc: granted, waiting, refused, revoked; the program it runs and how that ends."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.cli.fake_daemon import FakeDaemon

from bireme.cli.interactive.salloc import main, program_environment

RUNNING = {"job_id": 42, "state": "RUNNING"}


@pytest.fixture
def granting(daemon: FakeDaemon) -> FakeDaemon:
    daemon.routes["POST /v1/jobs"] = (200, {"job_id": 42})
    daemon.routes["GET /v1/jobs/42/wait"] = (200, {"done": True, "jobs": [RUNNING]})
    daemon.routes["GET /v1/jobs/42/environment"] = (200, {"variables": {"SLURM_JOB_ID": "42"}})
    daemon.routes["POST /v1/jobs/42/complete"] = (200, {})
    return daemon


def test_the_program_runs_with_the_allocations_variables_and_gives_it_back(
    granting: FakeDaemon, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["-n2", "sh", "-c", "echo job $SLURM_JOB_ID; exit 7"]) == 7
    said = capfd.readouterr()
    assert said.out == "job 42\n"
    assert said.err == "salloc: Granted job allocation 42\nsalloc: Relinquishing job allocation 42\n"
    assert granting.bodies("POST /v1/jobs/42/complete") == [{"exit_code": 7, "signal": 0}]
    assert granting.bodies("POST /v1/jobs")[0]["spec"]["kind"] == "interactive"


def test_waiting_is_told(granting: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    answers = iter([{"done": False, "jobs": []}, {"done": True, "jobs": [RUNNING]}])
    granting.routes["GET /v1/jobs/42/wait"] = lambda _: (200, next(answers))
    assert main(["true"]) == 0
    assert capfd.readouterr().err.splitlines()[:4] == [
        "salloc: Pending job allocation 42",
        "salloc: job 42 queued and waiting for resources",
        "salloc: job 42 has been allocated resources",
        "salloc: Granted job allocation 42",
    ]


def test_immediate_does_not_wait(granting: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    granting.routes["GET /v1/jobs/42/wait"] = (200, {"done": False, "jobs": []})
    assert main(["-I1", "true"]) == 1
    assert "Immediate execution impossible, insufficient priority" in capfd.readouterr().err
    assert granting.bodies("POST /v1/jobs/42/complete")


def test_cancelled_while_waiting(granting: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    granting.routes["GET /v1/jobs/42/wait"] = (200, {"done": True, "jobs": [{"state": "CANCELLED"}]})
    assert main(["true"]) == 1
    assert capfd.readouterr().err == "salloc: Job allocation 42 has been revoked\n"


def test_no_shell_leaves_the_job(granting: FakeDaemon) -> None:
    assert main(["--no-shell"]) == 0
    assert granting.bodies("POST /v1/jobs/42/complete") == []
    assert not any(route.endswith("hold-open") for route, _ in granting.requests)


def test_a_program_that_is_not_there(granting: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["nosuchprog"]) == 1
    assert 'salloc: error: _fork_command: Unable to find command "nosuchprog"' in capfd.readouterr().err


@pytest.mark.parametrize(("number", "code"), [("KILL", 0), ("HUP", 0), ("SEGV", 1), ("TERM", 1)])
def test_a_program_ended_by_its_user_is_no_failure(granting: FakeDaemon, number: str, code: int) -> None:
    assert main(["-Q", "sh", "-c", f"kill -{number} $$"]) == code


def test_inside_it_the_commands_are_this_clusters(granting: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    main(["-Q", "sh", "-c", "echo $PATH; echo $BIREME_HOME"])
    path, home = capfd.readouterr().out.split()
    assert path.startswith(f"{granting.home}/bin:")
    assert home == str(granting.home)


def test_refused(daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    daemon.refuse("POST /v1/jobs", "Invalid partition name specified")
    assert main(["-p", "nope", "true"]) == 1
    assert capfd.readouterr().err == "salloc: error: Job submit/allocate failed: Invalid partition name specified\n"


def test_variables_of_a_job_around_it_do_not_leak() -> None:
    own = {"HOME": "/", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "9", "SLURM_CONF": "/c"}
    allocated: dict[str, Any] = {"SLURM_JOB_ID": "42"}
    assert program_environment(own, allocated) == {"HOME": "/", "SLURM_CONF": "/c", "SLURM_JOB_ID": "42"}


def test_chdir_is_where_the_program_runs(granting: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-Q", "--chdir=/", "pwd"]) == 0
    assert capfd.readouterr().out == "/\n"


def test_chdir_to_nowhere_asks_for_nothing(granting: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--chdir=/nowhere", "pwd"]) == 1
    assert capfd.readouterr().err == "salloc: error: chdir(/nowhere): No such file or directory\n"
    assert not granting.bodies("POST /v1/jobs")
