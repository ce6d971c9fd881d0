"""`bireme whatif` and `bireme sim run -w history` on a real cluster: what they say is what then happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster, virtual_nodes


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    made.conf(virtual_nodes(2, 2, cpus=8))
    with made.running():
        yield made


def what_if(cluster: Cluster, *words: str) -> dict[str, Any]:
    return dict(json.loads(cluster.bireme("whatif", "--json", *words).stdout))


def waiter(told: dict[str, Any], job: str) -> dict[str, Any]:
    return next(each for each in told["waiters"] if each["job"] == job)


def test_changes_to_a_busy_cluster(cluster: Cluster, tmp_path: Path) -> None:
    first = cluster.sbatch("-N2", "--gpus-per-node=2", "-t", "60", "--wrap", "sleep 300")
    cluster.until_started(first)
    waits = cluster.sbatch("-J", "next", "-N1", "--gpus-per-node=2", "-t", "30", "--wrap", "true")
    cluster.until(lambda: cluster.records(waits)[0]["expected_start"] is not None)
    told = what_if(cluster, "--add-nodes", "1x2:h100")
    job = waiter(told, waits)
    assert job["before"] - told["now"] == pytest.approx(3600, abs=120), "the first job's limit"
    assert job["after"] == pytest.approx(told["now"], abs=5)
    assert (told["units_before"], told["units_after"]) == (4, 5 + 1)
    assert waiter(what_if(cluster, "--drain", "n[1-2]"), waits)["after"] is None
    script = tmp_path / "big.sh"
    script.write_text("#!/bin/bash\n#SBATCH -N2 --gpus-per-node=2 -t 10 -J big\nsleep 1\n")
    new = what_if(cluster, "--submit", str(script))["waiters"][-1]
    assert (new["name"], new["nodes"], new["submitted"]) == ("big", 2, True)
    assert new["after"] is not None
    script.write_text("#!/bin/bash\n#SBATCH -N1 -t 10 -J head\n#SBATCH hetjob\n#SBATCH --gpus-per-node=2 -t 10\ntrue\n")
    shown = cluster.bireme("whatif", "--submit", str(script)).stdout.splitlines()
    assert [line.split()[:2] for line in shown if line.startswith("new")] == [["new+0", "head"], ["new+1", "head"]]
    assert cluster.run("squeue", "-h").stdout.count("\n") == 2, "nothing was submitted"
    said = cluster.bireme("whatif", "--add-nodes", "1x2:h100").stdout
    assert "sooner" in said
    assert "GPUs in use" in said
    wrong = cluster.bireme("whatif", "--drain", "n9", check=False)
    assert (wrong.returncode, "there is no node or switch n9" in wrong.stderr) == (1, True)
    nothing = cluster.bireme("whatif", check=False)
    assert "what is to change?" in nothing.stderr


def test_what_the_cluster_has_done_is_a_workload(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.sbatch("--wait", "--gpus-per-node=1", "-t", "5", "--wrap", "true")
    told = json.loads(cluster.bireme("sim", "run", "-w", "history", "-c", "1x2:h100", "--json").stdout)
    assert told["jobs"]["submitted"] == 3
    assert told["states"] == {"COMPLETED": 3}


def test_an_array_of_which_some_tasks_have_ended_some_run_and_some_wait(cluster: Cluster) -> None:
    array = cluster.sbatch("--array=1-8%2", "-n4", "-t", "30", "--wrap", "[ $SLURM_ARRAY_TASK_ID = 1 ] || sleep 300")
    cluster.until(lambda: f"{array}_3 " in cluster.run("squeue", "-h", "-t", "R", "-o", "%i ").stdout)
    for change in (("--add-nodes", "1x2:h100"), ("--drain", "n1"), ("--set", "KillWait=3")):
        (job,) = what_if(cluster, *change)["waiters"]
        assert job["job"].startswith(array), job
        assert job["last_after"] is not None, "its last task starts within the horizon"
