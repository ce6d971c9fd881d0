"""scontrol as a user meets it: what it shows, what it sends, and its words when that fails."""

from __future__ import annotations

import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_api import FakeApi, absent

from bireme.commands import reports, scontrol
from bireme.commands.scontrol.job_keys import JOB_KEYS, job_change
from bireme.slurm.changes import CHANGEABLE

JOB = {"job_id": 31, "name": "run", "state": "RUNNING", "user_name": "root", "user_id": 0, "group_id": 0,
       "partition": "gpu", "time_limit_s": 3600}  # fmt: skip
ARRAY = {"job_id": 32, "array_job_id": 32, "array_tasks": "2-4%2", "array_throttle": 2, "name": "arr",
         "state": "PENDING", "user_name": "ada", "user_id": 1000, "group_id": 1000,
         "std_out": "/home/ada/slurm-32_4294967294.out"}  # fmt: skip


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    fake = FakeApi(
        {
            "/v1/jobs": {"jobs": [JOB, ARRAY], "now": 1000},
            "/v1/jobs/31": {"jobs": [JOB], "now": 1000},
            "/v1/jobs/32": {"jobs": [ARRAY], "now": 1000},
            "/v1/jobs/31/script": b"#!/bin/bash\nsrun hostname\n",
            "/v1/jobs/31/steps": {"steps": []},
            "/v1/nodes": {"nodes": [{"name": name, "state": "IDLE", "cpus": 8} for name in ("n1", "n2")]},
            "/v1/partitions": {"partitions": [{"name": "gpu", "nodes": ["n1", "n2"]}]},
            "/v1/ping": {"cluster": "c", "pid": 1, "now": 1000, "up_since": 10},
            "/v1/config": {"cluster": "c", "source": "/etc/slurm/slurm.conf", "raw": {"KillWait": "30"}, "bireme": {}},
            "/v1/topology": {"switches": [], "blocks": []},
            "/v1/reservations": {"reservations": [], "now": 1000},
        }
    )  # fmt: skip
    monkeypatch.setattr(reports, "transport", lambda: fake)
    return fake


@pytest.fixture
def no_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Any:
        raise AssertionError("this needs no daemon")

    monkeypatch.setattr(reports, "transport", nobody)


@pytest.mark.usefixtures("no_daemon")
def test_hostnames_need_no_daemon(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert scontrol.main(["show", "hostnames", "n[1-2],c1"]) == 0
    monkeypatch.setenv("SLURM_JOB_NODELIST", "a[08-10]")
    assert scontrol.main(["show", "hostnames"]) == 0
    assert scontrol.main(["show", "hostname", "x"]) == 0
    assert capsys.readouterr().out.split() == ["n1", "n2", "c1", "a08", "a09", "a10", "x"]


@pytest.mark.usefixtures("no_daemon")
def test_hostlists(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = tmp_path / "hosts"
    names.write_text("n3\nn1\nn2\n")
    assert scontrol.main(["show", "hostlist", "n1,n2,n4"]) == 0
    assert scontrol.main(["show", "hostlistsorted", str(names)]) == 0
    assert capsys.readouterr().out == "n[1-2,4]\nn[1-3]\n"


@pytest.mark.usefixtures("no_daemon")
def test_empty_and_bad_hostlists(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.delenv("SLURM_NODELIST", raising=False)
    assert scontrol.main(["show", "hostnames"]) == 0
    assert capsys.readouterr().err == "scontrol: error: host list is empty\n"
    assert scontrol.main(["show", "hostlist"]) == 1
    assert scontrol.main(["show", "hostnames", "n[1-"]) == 1
    assert "Invalid hostlist" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["show", "job", "31"], ["show", "job=31"], ["sho", "jo", "31"], ["show", "JobId=31"]]
)
def test_ways_to_name_a_job(api: FakeApi, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert scontrol.main(words) == 0
    assert capsys.readouterr().out.startswith("JobId=31 JobName=run\n   UserId=root(0)")


def test_usage_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert scontrol.main(["--usage"]) == 0
    assert capsys.readouterr().out.startswith("scontrol [OPTIONS] [COMMAND]")


def test_one_waiting_task(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert scontrol.main(["-o", "show", "job", "32_4"]) == 0
    assert capsys.readouterr().out.startswith("JobId=32 ArrayJobId=32 ArrayTaskId=4 ArrayTaskThrottle=2 JobName=arr ")
    assert scontrol.main(["show", "job", "32_99"]) == 1
    assert capsys.readouterr().out == "Job 32_99 not found\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["foo"], "invalid keyword: foo\n"),
        (["s"], "invalid keyword: s\n"),
        (["show"], "too few arguments for keyword:show\n"),
        (["show", "foo"], "invalid entity:foo for keyword:show \n"),
        (["show", "job", "9999"], "slurm_load_jobs error: Invalid job id specified\n"),
        (["show", "job", "abc"], "scontrol_print_job error: Invalid job id specified\n"),
        (["hold"], "too few arguments for keyword:hold\n"),
        (["update"], "too few arguments for update keyword\n"),
        (
            ["update", "foo"],
            'No valid entity in update command\nInput line must include "NodeName", "PartitionName", "Reservation", '
            '"JobId", or "SlurmctldDebug"\n',
        ),
        (
            ["update", "JobId=31", "Foo=1"],
            "Update of this parameter is not supported: Foo=1\nRequest aborted\n",
        ),
        (
            ["update", "NodeName=n1", "State=DRAIN"],
            "You must specify a reason when DOWNING or DRAINING a node. Request denied\n",
        ),
        (
            ["fsdampeningfactor", "2"],
            "scontrol: error: fsdampeningfactor is not supported here: "
            "set FairShareDampeningFactor in slurm.conf and run scontrol reconfigure\n",
        ),
        (["errnumstr", "x"], "numeric arguments required for keyword:errnumstr\n"),
        (["write", "foo"], "invalid write argument:foo\n"),
        (["write", "batch_script", "9999"], "job script retrieval failed: Invalid job id specified\n"),
    ],
)
def test_refusals(api: FakeApi, capsys: pytest.CaptureFixture[str], words: list[str], error: str) -> None:
    assert scontrol.main(words) == 1
    assert capsys.readouterr().err == error
    assert api.posted == []


def test_components_of_a_heterogeneous_job_name_each_other(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    component = {**JOB, "job_id": 132, "het_job_id": 131, "het_offset": 1, "het_job_id_set": "131-132"}
    api.answers["/v1/jobs/132"] = {"jobs": [component]}
    assert scontrol.main(["show", "job", "132"]) == 0
    seen = capsys.readouterr().out
    assert "JobId=132 HetJobId=131 HetJobOffset=1 JobName=run\n   HetJobIdSet=131-132\n" in seen
    assert scontrol.main(["--json", "show", "job", "132"]) == 0
    (shape,) = json.loads(capsys.readouterr().out)["jobs"]
    assert shape["het_job_id_set"] == "131-132"


def test_missing_records(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert scontrol.main(["show", "node", "nx"]) == 1
    assert scontrol.main(["show", "partition", "px"]) == 1
    assert scontrol.main(["show", "reservation", "r"]) == 1
    assert capsys.readouterr().out == "Node nx not found\nPartition px not found\nReservation r not found\n"


def test_verbs_go_to_every_job_and_tell_each_refusal(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    errors = [{"job": "9", "error": {"message": "Invalid job id specified"}}]
    api.answers["/v1/orders"] = {"done": ["31", "32_[1-2]"], "errors": errors}
    assert scontrol.main(["release", "31,9", "32_[1-2]"]) == 1
    assert api.posted == [("/v1/orders", {"verb": "release", "jobs": ["31", "9", "32_[1-2]"]})]
    assert capsys.readouterr().err.splitlines() == [
        "Invalid job id specified for job 9",
        "slurm_suspend error: Invalid job id specified",
    ]


def test_jobs_by_name(api: FakeApi) -> None:
    api.answers["/v1/orders"] = {"done": ["31", "32"], "errors": []}
    assert scontrol.main(["hold", "jobname=run"]) == 0
    assert api.asked[0][1]["name"] == "run"
    assert api.posted == [("/v1/orders", {"verb": "hold", "jobs": ["31", "32"]})]


def test_requeue_and_hold(api: FakeApi) -> None:
    scontrol.main(["requeue", "31"])
    scontrol.main(["requeuehold", "Incomplete", "31,32"])  # 32 has not begun: nothing of it is incomplete
    assert api.posted == [("/v1/jobs/31/requeue", {"hold": False}), ("/v1/jobs/31/requeue", {"hold": True})]


@pytest.mark.parametrize(
    ("pairs", "changes"),
    [
        (["TimeLimit=1:00:00"], {"time_limit_s": 3600}),
        (["timelimit=UNLIMITED"], {"time_limit_s": None}),
        (["TimeLimit=+30"], {"time_limit_s": 5400}),
        (["TimeLimit-=10"], {"time_limit_s": 3000}),
        (["Partition=a,b", "QOS=high"], {"partitions": ["a", "b"], "qos": "high"}),
        (["NumNodes=2-4"], {"nodes_min": 2, "nodes_max": 4, "nodes_given": True}),
        (["Name=x y", "Nice"], {"name": "x y", "nice": 100}),
        (["MinMemoryNode=4G"], {"memory_per_node_mib": 4096, "memory_per_cpu_mib": None}),
        (["ExcNodeList=n[1-2]"], {"exclude": ["n1", "n2"]}),
        (["ArrayTaskThrottle=8", "Requeue=0"], {"array_throttle": 8, "requeue": False}),
        (["Comment='two words'"], {"comment": "two words"}),
        (["Gres=gpu:h100:2"], {"gres_per_node": [{"name": "gpu", "type": "h100", "count": 2}]}),
    ],
)
def test_update_job(api: FakeApi, pairs: list[str], changes: dict[str, Any]) -> None:
    assert scontrol.main(["update", "JobId=31", *pairs]) == 0
    assert api.posted == [("/v1/jobs/31/update", {"changes": changes})]


def test_update_takes_key_and_value_as_two_words(api: FakeApi) -> None:
    assert scontrol.main(["update", "job", "31", "Nice", "comment=a=b", "TimeLimit", "7"]) == 0
    assert api.posted == [("/v1/jobs/31/update", {"changes": {"nice": 100, "comment": "a=b", "time_limit_s": 420}})]


def test_priority_zero_is_a_hold(api: FakeApi) -> None:
    assert scontrol.main(["update", "job", "JobId=31", "Priority=0"]) == 0
    assert [path for path, _ in api.posted] == ["/v1/jobs/31/hold"]


def test_many_jobs_are_updated_by_one_request(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    errors = [{"job": "9", "error": {"message": "Invalid job id specified"}}]
    api.answers["/v1/orders"] = {"done": ["31", "32_[1-2]"], "errors": errors}
    assert scontrol.main(["update", "JobId=31,9,32_[1-2]", "Priority=0", "Comment=x"]) == 1
    assert api.posted == [
        ("/v1/orders", {"verb": "hold", "jobs": ["31", "9", "32_[1-2]"]}),
        ("/v1/orders", {"verb": "update", "jobs": ["31", "32_[1-2]"], "changes": {"comment": "x"}}),
    ]
    assert capsys.readouterr().err.splitlines()[0] == "Invalid job id specified for job 9"


def test_a_bad_value_sends_nothing(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert scontrol.main(["update", "JobId=31", "Name=x", "TimeLimit=soon"]) == 1
    assert capsys.readouterr().err.startswith("scontrol: error: Invalid TimeLimit value")
    assert api.posted == []


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("CPUsPerTask=-3", "Invalid CPUsPerTask value: -3"),
        ("cpuspertask=x", "Invalid CPUsPerTask value: x"),
        ("Nice=99999999999", "Nice value out of range (+/- 2147483645). Value ignored"),
        ("Nice=-2147483646", "Nice value out of range (+/- 2147483645). Value ignored"),
        ("SiteFactor=99999999999", "SiteFactor value out of range (+/- 2147483645). Value ignored"),
        ("Priority=-1", "Invalid Priority value: -1"),
        ("Priority=99999999999", "Invalid Priority value: 99999999999"),
        ("NumTasks=-1", "Invalid NumTasks value: -1"),
        ("NumTasks=0", "Invalid NumTasks value: 0"),
        ("NumCPUs=0", "Invalid NumCPUs value: 0"),
        ("NumNodes=3-2", "Invalid NumNodes value: 3-2"),
        ("MinCPUsNode=-1", "Invalid MinCPUsNode value: -1"),
        ("MinMemoryNode=-1", "Invalid MinMemoryNode value: -1"),
        ("ArrayTaskThrottle=-1", "Invalid ArrayTaskThrottle value"),
        ("Requeue=x", "Invalid Requeue value: x"),
        ("ReqCores=-1", "Invalid ReqCores value: -1"),
        ("CoreSpec=-2", "Invalid CoreSpec value: -2"),
        ("MailType=x", "Invalid MailType value: x"),
        ("Features=[a", "Invalid Features value: [a"),
        ("Switches=-1", "Invalid Switches value: -1"),
    ],
)
def test_numbers_and_words_out_of_range(api: FakeApi, capsys: pytest.CaptureFixture[str], word: str, said: str) -> None:
    assert scontrol.main(["update", "JobId=31", word]) == 1
    assert capsys.readouterr().err.startswith(f"scontrol: error: {said}")
    assert api.posted == []


def test_the_command_changes_what_the_api_lets_change() -> None:
    good = {
        "constraints": "a", "features": "a", "prefer": "a", "deadline": "now+1hour", "starttime": "now",
        "eligibletime": "now", "contiguous": "yes", "oversubscribe": "yes", "shared": "yes", "requeue": "yes",
        "dependency": "afterok:3", "gres": "gpu:1", "trespernode": "gpu:1", "mailtype": "END", "heal": "off",
    }  # fmt: skip
    fields = [name for key in JOB_KEYS for name in job_change(key, good.get(key, "1"))]
    assert set(fields) == CHANGEABLE


def test_update_nodes_and_partitions(api: FakeApi) -> None:
    assert scontrol.main(["update", "NodeName=n[1-3]", "State=drain", "Reason=bad fan"]) == 0
    assert scontrol.main(["update", "nodename=ALL", "state=resume"]) == 0
    assert scontrol.main(["update", "PartitionName=gpu", "State=DOWN", "MaxTime=1-0", "MaxNodes=UNLIMITED"]) == 0
    assert api.posted == [
        ("/v1/nodes/update", {"nodes": "n[1-3]", "state": "DRAIN", "reason": "bad fan"}),
        ("/v1/nodes/update", {"nodes": "n1,n2", "state": "RESUME"}),
        ("/v1/partitions/gpu/update", {"changes": {"state": "DOWN", "max_time_s": 86400, "max_nodes": None}}),
    ]


@pytest.mark.parametrize("name", ["nod", "node", "NodeN", "nodename"])
def test_a_node_is_named_by_as_many_letters_as_slurm_takes(api: FakeApi, name: str) -> None:
    """Measured with Slurm 22.05: three letters are enough, one too many is not."""
    assert scontrol.main(["update", f"{name}=n1", "sta=drain", "rea=bad fan"]) == 0
    assert api.posted == [("/v1/nodes/update", {"nodes": "n1", "state": "DRAIN", "reason": "bad fan"})]


@pytest.mark.parametrize("name", ["par", "part", "partition", "PartitionN"])
def test_a_partition_is_named_by_as_many_letters_as_slurm_takes(api: FakeApi, name: str) -> None:
    assert scontrol.main(["update", f"{name}=gpu", "maxt=100", "st=down", "prio=5"]) == 0
    changes = {"max_time_s": 6000, "state": "DOWN", "priority_job_factor": 5, "priority_tier": 5}
    assert api.posted == [("/v1/partitions/gpu/update", {"changes": changes})]


@pytest.mark.parametrize("key", ["no", "nodenamex", "pa", "partitionx", "jo", "ste"])
def test_fewer_letters_name_nothing(api: FakeApi, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert scontrol.main(["update", f"{key}=n1", "state=down"]) == 1
    assert "No valid entity in update command" in capsys.readouterr().err
    assert not api.posted


def test_a_job_may_still_be_given_another_partition(api: FakeApi) -> None:
    assert scontrol.main(["update", "jobi=31", "partition=gpu"]) == 0
    ((_, body),) = api.posted
    assert "gpu" in str(body)


def test_write_batch_script(api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy.sh"
    assert scontrol.main(["write", "batch_script", "31", str(copy)]) == 0
    assert copy.read_bytes() == b"#!/bin/bash\nsrun hostname\n"
    assert capsys.readouterr().out == f"batch script for job 31 written to {copy}\n"


def test_ping(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert scontrol.main(["ping"]) == 0
    assert capsys.readouterr().out.endswith(" is UP\n")
    api.answers["/v1/ping"] = absent()
    assert scontrol.main(["ping"]) == 1
    assert capsys.readouterr().out.endswith(" is DOWN\n")


def test_config(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert scontrol.main(["show", "config"]) == 0
    text = capsys.readouterr().out
    assert "KillWait                = 30 sec" in text
    assert text.endswith(" is UP\n")


def test_json(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert scontrol.main(["show", "job", "31", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["job_id"] == 31
    assert scontrol.main(["--json", "show", "nodes"]) == 0
    assert [node["name"] for node in json.loads(capsys.readouterr().out)["nodes"]] == ["n1", "n2"]


def test_prompt(api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "oneliner\nshow job 31\nfoo\nupdate jobid=31 comment='a b'\nquit\nshow job 32\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert scontrol.main([]) == 0
    seen = capsys.readouterr()
    assert seen.out.count("JobId=") == 1
    assert seen.err == "invalid keyword: foo\n"
    assert api.posted == [("/v1/jobs/31/update", {"changes": {"comment": "a b"}})]


def test_an_update_that_changes_nothing_is_told(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert scontrol.main(["update", "JobId=31", "UserID=1"]) == 1
    assert (capsys.readouterr().err, api.posted) == ("No changes specified\n", [])


def test_the_files_of_one_waiting_task_are_its_own(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert scontrol.main(["show", "job", "32_4"]) == 0
    shown = capsys.readouterr().out
    assert "StdOut=/home/ada/slurm-32_4.out\n" in shown


def test_processes_of_another_clusters_jobs_are_not_listed(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    words = {"BIREME_JOB": "x", "SLURM_JOB_ID": "41"}
    started = [
        subprocess.Popen(["sleep", "1000"], env={**words, "PATH": os.environ["PATH"], "BIREME_HOME": str(home)})
        for home in (own, other)
    ]
    try:
        monkeypatch.setenv("BIREME_HOME", str(own))
        scontrol.main(["listpids", "41"])
        rows = capsys.readouterr().out.splitlines()[1:]
        assert [row.split() for row in rows] == [[str(started[0].pid), "41", "batch", "0", "0"]]
    finally:
        for process in started:
            process.kill()
            process.wait()
