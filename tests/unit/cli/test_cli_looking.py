"""explain, doctor, logs, sattach."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.fake_daemon import FakeDaemon

from bireme.cli import doctor, explain, logs
from bireme.cli.interactive import sattach
from bireme.daemon.paths import Paths

SCRIPT = "#!/bin/bash\n#SBATCH -J train -N 4 --gpus-per-node=h100:8 -t 12:00:00\n#SBATCH --mail-type=END\nsrun true\n"


# --- explain -----------------------------------------------------------------------------------------------


def test_explain_tells_of_a_jobs_own_lines(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.sh").write_text("#!/bin/bash\n#BIREME --heal=restart --checkpoint=out/%j\ntrue\n")
    assert explain.main(["train.sh"]) == 0
    told = capsys.readouterr().out
    assert "out/%j" in told
    Path("serve.sh").write_text("#!/bin/bash\n#BIREME --replicas=2 --health=/ --heal=restart\ntrue\n")
    assert explain.main(["serve.sh"]) != 0, "a service's replicas are not healed twice"


def test_explain_needs_no_daemon(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.sh").write_text(SCRIPT)
    assert explain.main(["train.sh"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("train\n")
    assert "12:00:00" in text
    assert "--mail-type: " in text


@pytest.mark.parametrize("argv", [["--json", "-N2", "train.sh"], ["-N2", "train.sh", "--json"]])
def test_explain_for_tools(home: Path, capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    Path("train.sh").write_text(SCRIPT)
    assert explain.main(argv) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["nodes"]["min"] == 2
    assert told["gpus_total"] == 16


def test_explain_tells_of_a_service_what_its_lines_and_flags_say(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("chat.sh").write_text("#!/bin/bash\n#SBATCH --mem=2G\n#BIREME --replicas=0-4 --health=/h\nserver\n")
    assert explain.main(["chat.sh", "--drain", "5s"]) == 0
    told = capfd.readouterr().out
    assert "0 to 4, as the load needs" in told
    assert "5s for requests in flight" in told
    assert "2G on each node" in told
    assert "the longest that its partition allows" in told
    assert explain.main(["--json", "--replicas", "3", "chat.sh"]) == 0
    service = json.loads(capfd.readouterr().out)["service"]
    assert (service["name"], service["scaling"]["replicas_max"]) == ("chat", 3)
    assert explain.main(["chat.sh", "--drian", "5s"]) == 255
    assert "did you mean --drain?" in capfd.readouterr().err


def test_explain_tells_of_what_has_no_words_of_its_own(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--switches=2", "--licenses=matlab:2", "--mail-type=END", "--contiguous", "--qos=high", "--comment=mine"]
    Path("train.sh").write_text(SCRIPT)
    assert explain.main(["--json", *asked, "train.sh"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["further"] == {"switches": "2", "licenses": "matlab:2", "contiguous": "yes", "comment": "mine"}
    assert "--mail-type" in [each["option"] for each in told["ignored"]]
    assert told["qos"] == "high"


def test_explain_a_missing_script(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert explain.main(["nope.sh"]) == 1
    assert "Unable to open file nope.sh" in capfd.readouterr().err


# --- doctor ------------------------------------------------------------------------------------------------


def test_doctor_without_a_cluster_is_well_and_says_how_to_start_one(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor.main(["--json"]) == 0
    checks = {check["check"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["daemon"]["status"] == "warn"
    assert checks["daemon"]["advice"] == "start it with: bireme up"


def test_doctor_finds_nodes_that_do_not_answer(daemon: FakeDaemon) -> None:
    daemon.routes["GET /v1/ping"] = (200, {"cluster": "lab", "version": "0.0.1", "pid": 7, "now": 0.0})
    nodes = [{"name": "n1", "state": "DOWN", "flags": []}, {"name": "n2", "state": "IDLE", "flags": ["DRAIN"]}]
    daemon.routes["GET /v1/nodes"] = (200, {"nodes": nodes})
    checks = [check for check in doctor.examine(Paths(str(daemon.home))) if check.name in ("agents", "daemon", "clock")]
    assert [check.status for check in checks] == ["ok", "warn", "warn", "fail", "warn"]
    assert "1 of 2 nodes do not answer: n1" in checks[3].why


def test_doctor_finds_a_home_that_others_can_read(home: Path) -> None:
    home.mkdir()
    home.chmod(0o777)
    (check,) = [check for check in doctor.examine(Paths(str(home))) if check.name == "home"]
    assert check.status == "fail"
    assert check.advice == f"chmod 700 {home}"


def test_a_check_that_breaks_is_a_finding(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise RuntimeError("the driver is in pieces")

    monkeypatch.setattr(doctor.gpus, "discover", broken)
    (check,) = [check for check in doctor.examine(Paths(str(home))) if check.name == "GPUs"]
    assert (check.status, "the driver is in pieces" in check.why) == ("fail", True)


# --- logs --------------------------------------------------------------------------------------------------


OWN = {"user_id": os.geteuid()}


def test_logs_follow_until_the_job_ended(daemon: FakeDaemon, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "slurm-42.out"
    record = {**OWN, "job_id": 42, "std_out": str(out), "std_err": str(out), "reason": "Resources"}

    def look(_: Any) -> tuple[int, Any]:
        state = next(states)
        if state != "PENDING":
            out.write_text("one\n" if state == "RUNNING" else "one\ntwo\n")
        return 200, {"jobs": [{**record, "state": state}]}

    states = iter(["PENDING", "RUNNING", "COMPLETED"])
    daemon.routes["GET /v1/jobs/42"] = look
    daemon.routes["GET /v1/jobs/42/wait"] = (200, {"done": False, "jobs": []})
    assert logs.main(["-f", "42"]) == 0
    said = capfd.readouterr()
    assert said.out == "one\ntwo\n"
    assert "job 42 waits (Resources)" in said.err


def test_logs_of_an_array_have_headings(daemon: FakeDaemon, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_text(f"{file.name}\n")
    jobs = [{**OWN, "state": "COMPLETED", "std_out": str(file)} for file in files]
    daemon.routes["GET /v1/jobs/7"] = (200, {"jobs": jobs})
    assert logs.main(["7"]) == 0
    assert capfd.readouterr().out == f"==> {files[0]} <==\na\n\n==> {files[1]} <==\nb\n"


def test_logs_of_a_job_that_was_forgotten_come_from_history(
    daemon: FakeDaemon, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old").write_text("old\n")
    daemon.refuse("GET /v1/jobs/3", "Invalid job id specified", "ESLURM_INVALID_JOB_ID", 404)
    daemon.routes["GET /v1/history"] = (200, {"jobs": [{**OWN, "state": "FAILED", "std_out": str(tmp_path / "old")}]})
    assert logs.main(["3"]) == 0
    assert capfd.readouterr().out == "old\n"
    daemon.routes["GET /v1/history"] = (200, {"jobs": []})
    assert logs.main(["3"]) == 1
    assert "there is no job 3" in capfd.readouterr().err


@pytest.mark.parametrize("what", ["link", "folder", "pipe"])
def test_logs_show_nothing_that_is_not_the_jobs(
    daemon: FakeDaemon, tmp_path: Path, capfd: pytest.CaptureFixture[str], what: str
) -> None:
    """Also to root, who may read all: its owner can put anything in the place of an output."""
    secret, out = tmp_path / "secret", tmp_path / "out"
    secret.write_text("secret\n")
    {"link": lambda: out.symlink_to(secret), "folder": out.mkdir, "pipe": lambda: os.mkfifo(out)}[what]()
    daemon.routes["GET /v1/jobs/3"] = (200, {"jobs": [{"user_id": 4242, "state": "COMPLETED", "std_out": str(out)}]})
    assert logs.main(["3"]) == 0
    said = capfd.readouterr()
    assert said.out == ""
    why = "is not a file of the job's owner: not shown" if what == "link" else "is no file: what went there cannot"
    assert f"{out} {why}" in said.err


def test_logs_of_others_do_nothing_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = b"\x1b]0;title\x07 50%\r 51%\tdone\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert logs.for_terminal(raw, os.geteuid()) == raw
    assert logs.for_terminal(raw, 4242) == b"\\x1b]0;title\\x07 50%\r 51%\tdone\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert logs.for_terminal(raw, 4242) == raw


@pytest.mark.parametrize(("count", "rest"), [(0, ""), (1, "c\n"), (2, "b\nc\n"), (9, "a\nb\nc\n")])
def test_the_last_lines(count: int, rest: str) -> None:
    file = io.BytesIO(b"a\nb\nc\n")
    file.seek(logs.last_lines_begin(file, count))
    assert file.read().decode() == rest


# --- sattach -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("argv", "says"), [([], "too many parameters"), (["abc"], "Failed to parse stepid")])
def test_sattach_refuses_what_is_no_step(
    home: Path, capfd: pytest.CaptureFixture[str], argv: list[str], says: str
) -> None:
    assert sattach.main(argv) == 1
    said = capfd.readouterr()
    assert f"sattach: error: {says}" in said.err
    assert said.out == "Usage: sattach [options] <jobid.stepid>\n"


def test_sattach_layout(daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    step = {
        "step_id": 0,
        "num_tasks": 2,
        "node_count": 1,
        "node_list": "n1",
        "nodes": [{"node": "n1", "task_ids": [0, 1]}],
    }
    daemon.routes["GET /v1/jobs/42/steps"] = (200, {"steps": [step]})
    assert sattach.main(["--layout", "42.0"]) == 0
    assert "Node 0 (n1), 2 task(s): 0 1" in capfd.readouterr().out


def test_sattach_to_a_step_that_ended(daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    daemon.routes["GET /v1/jobs/42/steps"] = (200, {"steps": [{"step_id": 0, "end_time": 1.0}]})
    assert sattach.main(["42.0"]) == 1
    assert "Job/step already completing or completed" in capfd.readouterr().err
