"""sbatch against a daemon that answers what it is told to."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.fake_daemon import FakeDaemon

from bireme.commands.sbatch import main
from bireme.commands.waiting import exit_code_of


def ended(code: int = 0, signal: int = 0, state: str = "COMPLETED") -> dict[str, Any]:
    return {"job_id": 42, "state": state, "exit_code": code, "exit_signal": signal}


def script(text: str) -> str:
    Path("job.sh").write_text(text)
    return "job.sh"


@pytest.fixture
def accepting(daemon: FakeDaemon) -> FakeDaemon:
    daemon.routes["POST /v1/jobs"] = (200, {"job_id": 42})
    daemon.routes["GET /v1/ping"] = (200, {"cluster": "lab", "clusters": ["lab"]})
    daemon.routes["GET /v1/jobs/42"] = (200, {"jobs": [{"cluster": "lab"}]})
    return daemon


def test_the_script_its_options_and_the_environment_are_sent(
    accepting: FakeDaemon, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLOUR", "blue\udcff")
    name = script("#!/bin/bash\n#SBATCH -N 2 -J mine\necho hi\n")
    assert main(["-n", "4", name, "an argument"]) == 0
    assert capfd.readouterr().out == "Submitted batch job 42\n"
    (body,) = accepting.bodies("POST /v1/jobs")
    assert body["spec"]["name"] == "mine"
    assert body["spec"]["argv"] == ["an argument"]
    assert body["spec"]["resources"]["nodes_min"] == 2
    assert body["spec"]["resources"]["ntasks"] == 4
    assert "owner" not in body["spec"]
    assert body["script"].endswith("echo hi\n")
    assert body["environment"]["COLOUR"] == "blue\udcff"
    assert len(body["idempotency_key"]) == 32


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (["--parsable"], "42\n"),
        (["--parsable", "-M", "lab"], "42;lab\n"),
        (["-Q"], ""),
        (["-Q", "--parsable"], ""),
        (["-n1", ":", "-Q", "-n1"], ""),
        ([], "Submitted batch job 42\n"),
    ],
)
def test_what_is_printed(
    accepting: FakeDaemon, capfd: pytest.CaptureFixture[str], options: list[str], printed: str
) -> None:
    assert main([*options, "--wrap", "true"]) == 0
    assert capfd.readouterr().out == printed


def test_a_script_comes_through_standard_input(accepting: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"#!/bin/sh\ntrue\n")))
    assert main([]) == 0
    assert accepting.bodies("POST /v1/jobs")[0]["script"] == "#!/bin/sh\ntrue\n"


def test_a_script_is_found_along_path(accepting: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "shared.sh").write_text("#!/bin/sh\n: shared\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin")
    assert main(["shared.sh"]) == 0
    assert ": shared" in accepting.bodies("POST /v1/jobs")[0]["script"]


def test_options_that_are_not_applied_are_said_once(accepting: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--mail-type=END", "--mail-type=FAIL", "--wrap", "true"]) == 0
    assert capfd.readouterr().err.count("--mail-type is accepted but not applied") == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "sbatch: error: Batch script is empty!"),
        (b" \n\n", "sbatch: error: Batch script contains only whitespace!"),
        (b"echo hi\n", "sbatch: error: This does not look like a batch script.  The first"),
        (b"#!/bin/sh\n\0", "sbatch: error: The Slurm controller does not allow scripts that"),
        (b"#!/bin/sh\r\ntrue\r\n", "sbatch: error: Batch script contains DOS line breaks (\\r\\n)"),
        (b"#!/bin/sh\n" + b"x" * 10_000_000, "Pathname of a file, directory or other parameter too long"),
    ],
)
def test_a_file_that_is_no_script_is_refused_before_anything_is_sent(
    daemon: FakeDaemon, capfd: pytest.CaptureFixture[str], content: bytes, says: str
) -> None:
    Path("bad.sh").write_bytes(content)
    assert main(["bad.sh"]) == 1
    assert says in capfd.readouterr().err
    assert daemon.requests == []


def test_a_missing_script(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["nope.sh"]) == 1
    assert capfd.readouterr().err == "sbatch: error: Unable to open file nope.sh\n"


def test_an_unknown_option_is_getopts_refusal(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--bogus", "--wrap", "true"]) == 255
    expected = "sbatch: unrecognized option '--bogus'\nTry \"sbatch --help\" for more information\n"
    assert capfd.readouterr().err == expected


def test_the_clusters_refusal_is_told_with_its_reason(daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    daemon.refuse("POST /v1/jobs", "Invalid partition name specified", "ESLURM_INVALID_PARTITION_NAME")
    assert main(["-p", "nope", "--wrap", "true"]) == 1
    assert "sbatch: error: Batch job submission failed: Invalid partition name specified\n" in capfd.readouterr().err


def test_slurm_exit_error_replaces_the_exit_code(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.refuse("POST /v1/jobs", "Invalid partition name specified")
    monkeypatch.setenv("SLURM_EXIT_ERROR", "99")
    assert main(["--wrap", "true"]) == 99


def test_without_a_daemon_it_says_how_to_start_one(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--wrap", "true"]) == 1
    first, second = capfd.readouterr().err.splitlines()
    assert first == ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)")
    assert second.endswith("start it with: bireme up")


def test_test_only_tells_when_and_where_on_standard_error(
    daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]
) -> None:
    daemon.routes["POST /v1/jobs"] = (
        200,
        {"job_id": 5, "start_time": 1.0, "cpus": 2, "nodes": ["n1", "n2"], "partition": "gpu"},
    )
    assert main(["--test-only", "--wrap", "true"]) == 0
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("sbatch: Job 5 to start at 1970-01-01T")
    assert said.err.endswith("using 2 processors on nodes n[1-2] in partition gpu\n")


def test_test_only_refused(daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    daemon.refuse("POST /v1/jobs", "Requested node configuration is not available")
    assert main(["--test-only", "--wrap", "true"]) == 1
    assert capfd.readouterr().err == "allocation failure: Requested node configuration is not available\n"


def test_wait_goes_on_asking_until_the_job_ended_and_ends_as_it_did(accepting: FakeDaemon) -> None:
    answers = iter([{"done": False, "jobs": []}, {"done": True, "jobs": [ended(), ended(3, state="FAILED")]}])
    accepting.routes["GET /v1/jobs/42/wait"] = lambda _: (200, next(answers))
    assert main(["--wait", "--wrap", "exit 3"]) == 3


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (ended(), 0),
        (ended(7, state="FAILED"), 7),
        (ended(0, 9, "FAILED"), 1),
        (ended(0, 0, "TIMEOUT"), 1),
        (ended(0, 0, "CANCELLED"), 1),
    ],
)
def test_exit_code_of_a_waited_job(record: dict[str, Any], code: int) -> None:
    assert exit_code_of(record) == code


def test_components_of_a_heterogeneous_job_are_sent_together(accepting: FakeDaemon) -> None:
    assert main([script("#!/bin/sh\n#SBATCH -n1\n#SBATCH hetjob\n#SBATCH -n2\ntrue\n")]) == 0
    (body,) = accepting.bodies("POST /v1/jobs")
    assert [part["spec"]["resources"]["ntasks"] for part in body["het"]] == [1, 2]
    assert all(part["script"] for part in body["het"])


def test_all_components_of_a_wrapped_command_are_called_so(accepting: FakeDaemon) -> None:
    assert main(["-n1", "--wrap", "true", ":", "-n1", ":", "-J", "mine", "-n1"]) == 0
    (body,) = accepting.bodies("POST /v1/jobs")
    assert [part["spec"]["name"] for part in body["het"]] == ["wrap", "wrap", "mine"]


def test_an_empty_name_is_a_name(accepting: FakeDaemon) -> None:
    assert main(["-J", "", "--wrap", "true"]) == 0
    (body,) = accepting.bodies("POST /v1/jobs")
    assert body["spec"].get("name", "") == ""


def test_in_a_folder_that_was_removed_nothing_is_submitted(
    accepting: FakeDaemon, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("PWD", str(gone))
    assert main(["--wrap", "true"]) == 255
    assert "sbatch: error: getcwd failed: No such file or directory\n" in capfd.readouterr().err
    assert accepting.bodies("POST /v1/jobs") == []


def test_a_component_takes_over_what_is_not_about_its_size(accepting: FakeDaemon) -> None:
    name = script("#!/bin/bash\n")
    given = ["-J", "foo", "-t", "7", "--mem=100", "-c2", "-p", "gpu", "-n2", ":", "-n3", ":", "-J", "other", "-n1"]
    assert main([*given, name]) == 0
    (body,) = accepting.bodies("POST /v1/jobs")
    first, second, third = (part["spec"] for part in body["het"])
    assert [spec["name"] for spec in (first, second, third)] == ["foo", "foo", "other"]
    assert [spec["time_limit_s"] for spec in (first, second, third)] == [420, 420, 420]
    assert [spec["resources"].get("memory_per_node_mib") for spec in (first, second, third)] == [100, 100, 100]
    assert second["resources"].get("cpus_per_task") is None
    assert "partitions" not in second


@pytest.mark.parametrize("export", ["NONE", "COLOUR", "COLOUR=red"])
def test_a_job_that_leaves_its_environment_behind_begins_with_a_login(
    accepting: FakeDaemon, export: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLOUR", "blue")
    monkeypatch.setenv("LEFT", "behind")
    assert main([f"--export={export}", script("#!/bin/bash\n")]) == 0
    sent = accepting.bodies("POST /v1/jobs")[0]["environment"]
    assert {"HOME", "LOGNAME", "PATH", "SHELL", "USER"} <= set(sent)
    assert sent["SLURM_GET_USER_ENV"] == "1"
    assert "LEFT" not in sent
    assert sent.get("COLOUR") == {"NONE": None, "COLOUR": "blue", "COLOUR=red": "red"}[export]


def test_a_login_shell_that_does_not_answer_is_told(
    accepting: FakeDaemon, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bireme.commands.submitting.login_environment.login_environment", lambda: None)
    assert main(["--export=NONE", script("#!/bin/bash\n")]) == 0
    message = "sbatch: error: Unable to get user's local environment, running only with passed environment\n"
    assert capfd.readouterr().err == message


def test_what_is_sent_is_json_that_any_reader_accepts(accepting: FakeDaemon) -> None:
    main(["--array=1-3", "--signal=B:USR1@60", "-d", "singleton", "--wrap", "true"])
    spec = accepting.bodies("POST /v1/jobs")[0]["spec"]
    assert json.loads(json.dumps(spec)) == spec
    assert spec["array"]["task_ids"] == [1, 2, 3]
    assert spec["warning"] == {"number": 10, "batch_only": True}
    assert spec["dependencies"]["items"] == [{"kind": "singleton"}]
