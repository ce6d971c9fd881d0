"""scontrol -M: one of the daemon's clusters is seen and changed, and nothing of the others."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from tests.support.fake_api import FakeApi

from bireme.commands import reports, scontrol


def _job(job_id: int, cluster: str, partition: str) -> dict[str, Any]:
    return {"job_id": job_id, "name": f"of-{cluster}", "state": "RUNNING", "user_name": "root", "user_id": 0,
            "group_id": 0, "partition": partition, "cluster": cluster}  # fmt: skip


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """A workstation with a Slurm cluster beside it."""
    own, theirs = _job(31, "lab", "main"), _job(90, "big", "gpu")
    fake = FakeApi(
        {
            "/v1/ping": {"cluster": "lab", "clusters": ["lab", "big"], "now": 1000, "up_since": 10},
            "/v1/jobs": {"jobs": [own, theirs], "now": 1000},
            "/v1/jobs/31": {"jobs": [own], "now": 1000},
            "/v1/jobs/90": {"jobs": [theirs], "now": 1000},
            "/v1/jobs/31/script": b"#!/bin/bash\n",
            "/v1/jobs/90/script": b"#!/bin/sh\n",
            "/v1/nodes": {
                "nodes": [
                    {"name": "desk", "state": "IDLE", "cpus": 8, "partitions": ["main"]},
                    {"name": "n1", "state": "IDLE", "cpus": 8, "partitions": ["gpu"]},
                ]
            },
            "/v1/partitions": {
                "partitions": [
                    {"name": "main", "nodes": ["desk"], "cluster": "lab"},
                    {"name": "gpu", "nodes": ["n1"], "cluster": "big"},
                ]
            },
        }
    )
    monkeypatch.setattr(reports, "transport", lambda: fake)
    return fake


@pytest.mark.usefixtures("api")
def test_only_that_clusters_jobs_nodes_and_partitions_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for what, seen, unseen in (("job", "JobId=90", "31"), ("node", "NodeName=n1", "desk"), ("part", "=gpu", "main")):
        assert scontrol.main(["-M", "big", "-o", "show", what]) == 0
        said = capsys.readouterr().out
        assert seen in said
        assert unseen not in said
    assert scontrol.main(["-M", "big", "--json", "show", "job"]) == 0
    assert [job["job_id"] for job in json.loads(capsys.readouterr().out)["jobs"]] == [90]


@pytest.mark.usefixtures("api")
def test_a_job_of_another_cluster_is_not_known_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert scontrol.main(["-M", "big", "show", "job", "31"]) == 1
    assert capsys.readouterr().err == "slurm_load_jobs error: Invalid job id specified\n"
    assert scontrol.main(["-M", "big", "write", "batch_script", "31", "-"]) == 1
    assert scontrol.main(["-M", "big", "write", "batch_script", "90", "-"]) == 0
    assert capsys.readouterr().out == "#!/bin/sh\n"


def test_nothing_of_another_cluster_is_changed(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["hold", "31"], "Invalid job id specified"),
        (["update", "JobId=31", "Comment=x"], "Invalid job id specified"),
        (["update", "NodeName=desk", "State=RESUME"], "Invalid node name specified"),
        (["update", "PartitionName=main", "State=UP"], "Invalid partition name specified"),
    ):
        assert scontrol.main(["-M", "big", *words]) == 1
        assert said in capsys.readouterr().err
    assert api.posted == []
    assert scontrol.main(["-M", "big", "update", "NodeName=ALL", "State=RESUME"]) == 0
    assert scontrol.main(["-M", "lab", "hold", "31"]) == 0
    assert [(path, body.get("nodes")) for path, body in api.posted] == [
        ("/v1/nodes/update", "n1"),
        ("/v1/jobs/31/hold", None),
    ]


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize("name", ["nosuch", ""])
def test_a_cluster_that_nobody_has(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert scontrol.main(["-M", name, "show", "job"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"scontrol: error: No cluster '{name}' known by database.\n")
    assert said.endswith("scontrol: fatal: Could not get cluster information\n")


def test_a_node_of_no_partition_is_shown_with_the_daemons_own(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.answers["/v1/nodes"]["nodes"].append({"name": "spare", "state": "IDLE", "cpus": 8, "partitions": []})
    for cluster, seen in (("lab", ["desk", "spare"]), ("big", ["n1"])):
        assert scontrol.main(["-M", cluster, "--json", "show", "node"]) == 0
        assert [node["name"] for node in json.loads(capsys.readouterr().out)["nodes"]] == seen
    assert scontrol.main(["-M", "lab", "update", "NodeName=spare", "State=RESUME"]) == 0
    assert scontrol.main(["-M", "big", "update", "NodeName=spare", "State=RESUME"]) == 1


@pytest.mark.usefixtures("api")
def test_the_prompt_changes_clusters(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("cluster big\nshow part\ncluster\nshow part\n"))
    assert scontrol.main(["-o"]) == 0
    named = [word for word in capsys.readouterr().out.split() if word.startswith("PartitionName=")]
    assert named == ["PartitionName=gpu", "PartitionName=main", "PartitionName=gpu"]
