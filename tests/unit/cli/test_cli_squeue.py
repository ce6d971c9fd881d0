"""squeue as a user meets it: lines, filters, messages and exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.fake_api import FakeApi, absent

from bireme.commands import reports, squeue

JOBS: list[dict[str, Any]] = [
    {"job_id": 31, "name": "run", "partition": "gpu", "state": "RUNNING", "user_name": "root", "user_id": 0,
     "elapsed_s": 27, "node_list": "n[1-2]", "node_count": 2, "priority": 9, "account": "ml"},
    {"job_id": 32, "array_job_id": 32, "array_tasks": "2-4%2", "array_throttle": 2, "name": "arr",
     "partition": "cpu,all", "state": "PENDING", "reason": "JobArrayTaskLimit", "user_name": "ada", "user_id": 1000,
     "nodes_min": 1, "priority": 8},
    {"job_id": 30, "name": "old", "partition": "gpu", "state": "COMPLETED", "user_name": "root", "user_id": 0,
     "elapsed_s": 5, "node_list": "n3", "node_count": 1, "priority": 7},
]  # fmt: skip


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    for name in ("SQUEUE_FORMAT", "SQUEUE_FORMAT2", "SQUEUE_STATES", "SQUEUE_SORT", "SLURM_TIME_FORMAT"):
        monkeypatch.delenv(name, raising=False)
    fake = FakeApi(
        {
            "/v1/jobs": {"jobs": JOBS, "now": 1000},
            "/v1/jobs/30": {"jobs": JOBS[2:], "now": 1000},
            "/v1/jobs/32": {"jobs": JOBS[1:2], "now": 1000},
            "/v1/nodes": {"nodes": [{"name": "n1"}, {"name": "n2"}, {"name": "n3"}]},
            "/v1/jobs/31/steps": {
                "steps": [
                    {"job_id": 31, "step_id": 0, "name": "sleep", "state": "RUNNING", "elapsed_s": 3,
                     "node_list": "n[1-2]", "partition": "gpu", "user_id": 0},
                    {"job_id": 31, "step_id": 1, "name": "done", "state": "COMPLETED"},
                ]
            },
        }
    )  # fmt: skip
    monkeypatch.setattr(reports, "transport", lambda: fake)
    return fake


HEADER = "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
RUNNING = "                31       gpu      run     root  R       0:27      2 n[1-2]\n"
ARRAY = "        32_[2-4%2]   cpu,all      arr      ada PD       0:00      1 (JobArrayTaskLimit)\n"


def test_live_jobs_by_default(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert squeue.main([]) == 0
    assert capsys.readouterr().out == HEADER + ARRAY + RUNNING


def test_it_asks_only_for_what_it_prints(api: FakeApi) -> None:
    squeue.main(["-h", "-o", "%i %T", "-S", "i"])
    (path, params) = api.asked[0]
    assert path == "/v1/jobs"
    assert set(params["fields"].split(",")) <= {
        "job_id", "state", "array_job_id", "array_task_id", "array_tasks", "array_throttle", "het_job_id", "het_offset",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "ids"),
    [
        (["-t", "all"], "32_[2-4%2] 30 31"),
        (["-t", "CD"], "30"),
        (["-u", "0"], "31"),
        (["-p", "all"], "32_[2-4%2]"),
        (["-n", "run,other"], "31"),
        (["-A", "ml"], "31"),
        (["-w", "n2"], "31"),
        (["-r"], "32_2 32_3 32_4 31"),
        (["-j", "32"], "32_[2-4%2]"),
        (["-j32_3"], "32_[2-4%2]"),
        (["--job", "31,32"], "32_[2-4%2] 31"),
        (["-j", "31,32"], "32_[2-4%2] 31"),
        (["-j", "30"], ""),
        (["-S", "-i"], "32_[2-4%2] 31"),
        (["--states=RUNNING"], "31"),
        (["-q", "high"], ""),
    ],
)
def test_filters(api: FakeApi, capsys: pytest.CaptureFixture[str], argv: list[str], ids: str) -> None:
    assert squeue.main(["-h", "-o", "%i", *argv]) == 0
    assert capsys.readouterr().out.split() == ids.split()


def test_steps(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert squeue.main(["-s"]) == 0
    assert capsys.readouterr().out == (
        "         STEPID     NAME PARTITION     USER      TIME NODELIST\n"
        "           31.0    sleep       gpu     root      0:03 n[1-2]\n"
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-j", "9999"], "slurm_load_jobs error: Invalid job id specified\n"),
        (["-j", "abc"], "squeue: error: Invalid job id: abc\n"),
        (["-w", "n9"], "squeue: error: Invalid node name n9\n"),
        (["-i", "x"], "squeue: error: --iterate=x\n"),
        (["-S", "!"], "squeue: error: Invalid sort specification: !\n"),
        (["-S", "i,foo"], "squeue: error: Invalid sort specification: o\n"),
        (["--foo"], "squeue: unrecognized option '--foo'\nTry \"squeue --help\" for more information\n"),
        (["-Z"], "squeue: invalid option -- 'Z'\nTry \"squeue --help\" for more information\n"),
        (["-o"], "squeue: option requires an argument -- 'o'\nTry \"squeue --help\" for more information\n"),
        (
            ["--st"],
            "squeue: option '--st' is ambiguous; possibilities: '--start' '--steps' '--states'\n"
            'Try "squeue --help" for more information\n',
        ),
        (["-s31"], "squeue: error: Invalid job_step id: 31.??\n"),
        (["-o%i", "-Ojobid"], "squeue: error: -O (--Format) is incompatible with -o (--format)\n"),
        (["-Ojobid", "-o%i"], "squeue: error: -o (--format) is incompatible with -O (--Format)\n"),
    ],
)
def test_refusals(api: FakeApi, capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert squeue.main(argv) == 1
    assert capsys.readouterr().err == message


def test_an_unknown_user_selects_nothing(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert squeue.main(["-h", "-u", "no-such-user"]) == 0
    assert capsys.readouterr() == ("", "squeue: error: Invalid user: no-such-user\n")


def test_formats_from_the_environment(
    api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    monkeypatch.setenv("SQUEUE_STATES", "R")
    squeue.main(["-h"])
    monkeypatch.setenv("SQUEUE_FORMAT2", "jobid:4,name:.5")
    squeue.main(["-h"])
    squeue.main(["-h", "-o", "%j"])
    assert capsys.readouterr().out == "31\n31    run\nrun\n"


def test_no_daemon(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(reports, "transport", lambda: FakeApi({"/v1/jobs": absent()}))
    assert squeue.main([]) == 1
    error = capsys.readouterr().err
    assert error.startswith("slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
    assert "bireme up" in error


@pytest.mark.parametrize(
    ("text", "unknown"), [("nosuch", ["nosuch"]), ("no,such", ["no", "such"]), ("", [""]), (",", [""])]
)
def test_clusters_that_nobody_has(
    api: FakeApi, capsys: pytest.CaptureFixture[str], text: str, unknown: list[str]
) -> None:
    api.answers["/v1/ping"] = {"clusters": ["lab"]}
    assert squeue.main(["-M", text]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    *each, last = said.err.splitlines()
    assert each == [f"squeue: error: No cluster '{name}' known by database." for name in unknown]
    assert last.startswith(f"squeue: error: '{text}' can't be reached now, or it is an invalid entry for --cluster. ")


def test_a_cluster_in_a_variable_that_nobody_has(
    api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api.answers["/v1/ping"] = {"clusters": ["lab"]}
    monkeypatch.setenv("SLURM_CLUSTERS", "nosuch")
    assert squeue.main([]) == 1
    assert "invalid entry for SLURM_CLUSTERS. " in capsys.readouterr().err
    monkeypatch.setenv("SLURM_CLUSTERS", "lab")
    assert squeue.main([]) == 0
    assert capsys.readouterr().out.startswith("CLUSTER: lab\n")


def test_clusters_without_a_daemon(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(reports, "transport", lambda: FakeApi({"/v1/ping": absent()}))
    assert squeue.main(["-M", "lab"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("squeue: error: Problem talking to the database: Unable to contact slurm controller")
    assert "bireme up" in error


def test_json_has_slurms_shape(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert squeue.main(["--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["errors"] == data["warnings"] == []
    assert data["meta"]["slurm"]["version"]["major"].isdigit()
    job = next(job for job in data["jobs"] if job["job_id"] == 31)
    assert job["job_state"] == ["RUNNING"]
    assert job["node_count"] == {"set": True, "infinite": False, "number": 2}
    assert job["time_limit"] == {"set": False, "infinite": True, "number": 0}
    assert next(job for job in data["jobs"] if job["job_id"] == 32)["array_task_string"] == "2-4%2"


def test_version_is_two_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert squeue.main(["--version"]) == 0
    name, version = capsys.readouterr().out.split()
    assert name == "slurm"
    assert len([int(part) for part in version.split(".")]) == 3
