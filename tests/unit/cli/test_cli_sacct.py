"""sacct and sstat as a user meets them: rows, the time window, selection, messages."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from tests.support.fake_api import FakeApi, refused

from bireme.commands import reports, sacct, sstat

NOW = time.mktime((2030, 5, 7, 12, 0, 0, 0, 0, -1))
"""Noon: the default window began at midnight, long before all that happened "just now"."""


def job(job_id: int, state: str, *, began: float, ended: float | None = None, **more: Any) -> dict[str, Any]:
    return {
        "job_id": job_id, "name": f"job{job_id}", "state": state, "partition": "gpu", "account": "ml", "user_id": 1000,
        "user_name": "ada", "submit_time": began, "eligible_time": began, "start_time": began, "end_time": ended,
        "elapsed_s": 60, "tres_allocated": {"cpu": 2, "mem": 1024, "node": 1}, "node_list": "n1", "node_count": 1,
        **more,
    }  # fmt: skip


JOBS = [
    job(1, "COMPLETED", began=NOW - 500_000, ended=NOW - 499_000),
    job(2, "FAILED", began=NOW - 5, ended=NOW - 3, exit_code=3, steps=[
        {"step_id": "batch", "name": "batch", "state": "FAILED", "exit_code": 3, "num_cpus": 2},
        {"step_id": 0, "name": "python", "state": "COMPLETED", "num_cpus": 2},
    ]),
    job(3, "RUNNING", began=NOW - 2, ended=NOW + 3600),
    job(5, "CANCELLED", began=NOW - 2, ended=NOW - 1, cancelled_by=1000, array_job_id=4, array_task_id=7),
]  # fmt: skip


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    fake = FakeApi({"/v1/history": {"jobs": JOBS}})
    monkeypatch.setattr(reports, "transport", lambda: fake)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.delenv("SACCT_FORMAT", raising=False)
    return fake


def out(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    assert sacct.main(list(argv)) == 0
    return capsys.readouterr().out.splitlines()


def test_default_columns(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys, "-j", "2") == [
        "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode ",
        "------------ ---------- ---------- ---------- ---------- ---------- -------- ",
        "2                  job2        gpu         ml          2     FAILED      3:0 ",
        "2.batch           batch                    ml          2     FAILED      3:0 ",
        "2.0              python                    ml          2  COMPLETED      0:0 ",
    ]


def test_yesterdays_jobs_need_a_start_time(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert "1" not in out(capsys, "-XPn", "-o", "jobid", "-S", "now-1hour")
    assert "1" in out(capsys, "-XPn", "-o", "jobid", "-S", "now-10days")
    assert out(capsys, "-XPn", "-o", "jobid", "-j", "1") == ["1"]


def test_jobs_that_cannot_run_yet_are_shown_by_id_only(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    held = {**job(9, "PENDING", began=NOW - 2), "eligible_time": None, "start_time": None}
    api.answers["/v1/history"] = {"jobs": [held]}
    assert out(capsys, "-XPn", "-o", "jobid", "-S", "now-1hour") == []
    assert out(capsys, "-XPn", "-o", "jobid", "-j", "9") == ["9"]


def test_the_window_that_is_asked_of_the_api(api: FakeApi) -> None:
    sacct.main(["-j", "1,5_3"])
    sacct.main(["-S", "2026-01-02", "-E", "2026-01-03", "-u", "1000"])
    (_, by_id), (_, by_time) = api.asked
    assert "start" not in by_id
    assert by_id["job"] == "1,5"
    assert by_time["end"] - by_time["start"] == 86400
    assert by_time["user"] == "1000"


@pytest.mark.parametrize(
    ("argv", "ids"),
    [
        (["-S", "now-1hour"], "2 3 4_7"),
        (["-S", "now-1hour", "-s", "F"], "2"),
        (["-S", "now-1hour", "-s", "R"], "2 3 4_7"),  # all of them ran in that hour
        (["-s", "CD"], ""),  # only what ends this very moment, as in Slurm
        (["-s", "R"], "3"),
        (["-j", "4_7"], "4_7"),
        (["-j", "4"], "4_7"),
        (["--clusters", "all", "--starttime", "now-1hour", "--endtime", "now", "--name", "job2"], "2"),
        (["-S", "now-1hour", "--name", "job3"], "3"),
        (["-S", "now-1hour", "-N", "n[2-3]"], ""),
        (["-S", "now-1hour", "-r", "cpu"], ""),
    ],
)
def test_selection(api: FakeApi, capsys: pytest.CaptureFixture[str], argv: list[str], ids: str) -> None:
    assert out(capsys, "-XPn", "-o", "JobID", *argv) == ids.split()


def test_options_given_again_add_up(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    """submitit asks for each of its jobs with a -j of its own."""
    said = out(capsys, "-n", "-X", "-P", "-j", "2", "-j", "3,1", "-o", "JobID", "-o", "State")
    assert said == ["1|COMPLETED", "2|FAILED", "3|RUNNING"]


HET = [
    job(20, "COMPLETED", began=NOW - 5, ended=NOW - 3, het_job_id=20, het_offset=0),
    job(21, "COMPLETED", began=NOW - 5, ended=NOW - 3, het_job_id=20, het_offset=1),
    job(30, "PENDING", began=NOW - 5, array_job_id=30, array_tasks="1-3"),
]


@pytest.mark.parametrize(
    ("argv", "ids"),
    [
        (["-j", "20"], "20+0 20+1"),
        (["-j", "20+1"], "20+1"),
        (["-j", "20+1", "--whole-hetjob"], "20+0 20+1"),
        (["-j", "20+1", "--whole-hetjob=yes"], "20+0 20+1"),
        (["-j", "20", "--whole-hetjob=no"], "20+0"),
        (["-j", "20+1", "--whole-hetjob=no"], "20+1"),
        (["-j", "30"], "30_[1-3]"),
        (["-j", "30", "--array"], "30_1 30_2 30_3"),
        (["-j", "20", "--use-local-uid"], "20+0 20+1"),
    ],
)
def test_components_and_tasks(
    api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argv: list[str], ids: str
) -> None:
    monkeypatch.setattr(reports, "transport", lambda: FakeApi({"/v1/history": {"jobs": HET}}))
    assert " ".join(out(capsys, *argv, "-n", "-P", "-o", "jobid")) == ids


def test_a_hetjob_is_whole_or_not(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert sacct.main(["--whole-hetjob=perhaps"]) == 1
    said = 'sacct: error: Invalid --whole-hetjob value "perhaps". Valid values: [yes|no].'
    assert said in capsys.readouterr().err


def test_a_named_step(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys, "-Pn", "-o", "JobID,State", "-j", "2.batch") == ["2.batch|FAILED"]


def test_cancelled_says_by_whom(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys, "-XPn", "-o", "JobIDRaw,State", "-j", "4_7") == ["5|CANCELLED by 1000"]


def test_a_user_sees_only_own_jobs(
    api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert out(capsys, "-XPn", "-o", "JobID", "-S", "now-1hour") == []
    assert len(out(capsys, "-a", "-XPn", "-o", "JobID", "-S", "now-1hour")) == 3


def test_format_from_the_environment(
    api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACCT_FORMAT", "jobid,user")
    assert out(capsys, "-XP", "-j", "1") == ["JobID|User", "1|ada"]
    assert out(capsys, "-Xp", "-b", "-j", "1") == ["JobID|State|ExitCode|", "1|COMPLETED|0:0|"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-s", "foo"], "sacct: fatal: unrecognized job state value 'foo'\n"),
        (["-S", "foo"], "Invalid time specification (pos=0): foo\n"),
        (["-o", "foo"], 'sacct: error: Invalid field requested: "foo"\n'),
        (["--foo"], "sacct: unrecognized option '--foo'\n"),
        (["-j", "x"], "sacct: fatal: Bad job/step specified: x\n"),
    ],
)
def test_refusals(api: FakeApi, capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert sacct.main(argv) == 1
    assert capsys.readouterr().err == message


def test_clusters(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.answers["/v1/history"] = {"jobs": [{**JOBS[1], "cluster": "lab"}, {**JOBS[2], "cluster": "big"}]}
    for named, ids in (("big", "3"), ("lab,big", "2 3"), ("all", "2 3"), ("", "2 3"), ("nosuch", "")):
        assert out(capsys, "-nXP", "-o", "jobid", "-M", named) == ids.split()


def test_a_window_that_ends_before_it_starts(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert sacct.main(["-S", "2031-01-01", "-E", "2030-01-01"]) == 1
    told = "Start time (2031-01-01T00:00:00) requested is after end time (2030-01-01T00:00:00)."
    assert capsys.readouterr().err == f"sacct: error: {told}\n"


def test_json(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert sacct.main(["--json", "-j", "2"]) == 0
    (shape,) = json.loads(capsys.readouterr().out)["jobs"]
    assert shape["state"] == {"current": ["FAILED"], "reason": "None"}
    assert shape["exit_code"]["return_code"]["number"] == 3
    assert [step["step"]["id"] for step in shape["steps"]] == ["2.batch", "2.0"]
    assert {"type": "cpu", "name": "", "id": 1, "count": 2} in shape["tres"]["allocated"]


def test_sstat_measures_the_first_numbered_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [
        {"step_id": "batch", "state": "RUNNING", "num_tasks": 1},
        {"step_id": 0, "state": "COMPLETED"},
        {"step_id": 1, "state": "RUNNING", "num_tasks": 2, "node_list": "n1"},
    ]
    usage = {"1": {"max_rss_kib": 2048, "tasks": 2, "user_cpu_s": 4.0}, "batch": {"max_rss_kib": 10}}
    fake = FakeApi({"/v1/jobs/9/steps": {"steps": steps}, "/v1/jobs/9/usage": {"steps": usage}})
    monkeypatch.setattr(reports, "transport", lambda: fake)
    assert sstat.main(["-nP", "-o", "JobID,MaxRSS,AveCPU,NTasks", "-j", "9"]) == 0
    assert sstat.main(["-nP", "-o", "JobID,MaxRSS", "-a", "-j", "9"]) == 0
    assert sstat.main(["-nP", "-o", "JobID", "-j", "9.batch"]) == 0
    assert capsys.readouterr().out == "9.1|2M|00:00:02|2\n9.batch|10K\n9.1|2M\n9.batch\n"


def test_sstat_says_what_it_cannot_measure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeApi({"/v1/jobs/8/steps": refused("Invalid job id specified")})
    monkeypatch.setattr(reports, "transport", lambda: fake)
    assert sstat.main([]) == 1
    assert sstat.main(["-n", "-j", "8"]) == 0
    assert capsys.readouterr().err == (
        "sstat: error: You didn't give me any jobs to stat.\nsstat: error: couldn't get steps for job 8\n"
    )


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ("-k 10", "2"),
        ("-k 10:00", "2"),
        ("-K 10", "2 3 4_7"),
        ("-k 5 -K 60", "2 3"),
        ("-k 60 -K 10", ""),
        ("-k UNLIMITED", "4_7"),
        ("-F SchedMain", "2 3"),
        ("-F schedmain,None", "2 3 4_7"),
        ("-F None", "4_7"),
        ("-F SchedBackfill", ""),
    ],
)
def test_jobs_are_chosen_by_their_time_limits_and_flags(
    api: FakeApi, capsys: pytest.CaptureFixture[str], options: str, ids: str
) -> None:
    limits = {2: 600, 3: 3600, 5: None}
    jobs = [{**job, "time_limit_s": limits.get(job["job_id"])} for job in JOBS[1:]]
    jobs[-1]["start_time"] = None
    api.answers["/v1/history"] = {"jobs": jobs}
    assert " ".join(out(capsys, "-X", "-n", "-P", "-o", "jobid", *options.split())) == ids


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("-k x", "sacct: fatal: Invalid time limit specification"),
        ("-K x", "sacct: fatal: Invalid time limit specification"),
        ("-F DUP", "sacct: error: str_2_job_flags: Invalid job flag DUP"),
        ("-c", "Slurm job completion is disabled"),
        ("-f /etc/hostname", "Slurm job completion is disabled"),
        ("-x 2", "sacct: error: --associations: associations have no numbers here: --accounts and --user say the same"),
        ("-u nosuch,root", "sacct: error: Invalid user id: nosuch"),
        ("-g nosuch", "sacct: error: Invalid group id: nosuch"),
    ],
)
def test_what_cannot_be_chosen_is_refused(
    api: FakeApi, capsys: pytest.CaptureFixture[str], options: str, said: str
) -> None:
    assert sacct.main(options.split()) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"{said}\n")
