"""`bireme why` on a real cluster: a waiting gang is explained, and its suggestions come true when they are followed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster, virtual_nodes

SWITCHES = """\
SwitchName=leaf1 Nodes=n[1-2]
SwitchName=leaf2 Nodes=n3
SwitchName=spine Switches=leaf[1-2]
"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    made.conf(virtual_nodes(3, 2, cpus=8, settings="TopologyPlugin=topology/tree"), topology=SWITCHES)
    with made.running():
        yield made


def why(cluster: Cluster, job: str) -> dict[str, Any]:
    told = json.loads(cluster.bireme("why", "--json", job).stdout)
    assert told["left_out"] == 0
    return dict(told["jobs"][0])


def text(cluster: Cluster, job: str) -> str:
    """With lines joined again."""
    return " ".join(cluster.bireme("why", job).stdout.split())


def suggested(cluster: Cluster, job: str, words: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = why(cluster, job)["suggestions"]
    return next(each for each in found if words in each["what"])


def busy(cluster: Cluster) -> tuple[str, str, str]:
    """(a job that holds one node for an hour, a gang that waits for it, a job behind the gang)."""
    first = cluster.sbatch("-J", "prep", "--gpus-per-node=2", "-t", "60", "--wrap", "sleep 300")
    cluster.until_started(first)
    gang = cluster.sbatch("-J", "gang", "-N3", "--gpus-per-node=h100:2", "-t", "2:00:00", "--wrap", "sleep 300")
    late = cluster.sbatch("-J", "late", "--gpus-per-node=h100:2", "-t", "2:00:00", "--wrap", "sleep 300")
    cluster.until(lambda: cluster.records(late)[0]["expected_start"] is not None)
    return first, gang, late


def test_a_waiting_gang_and_what_starts_it_sooner(cluster: Cluster) -> None:
    first, gang, late = busy(cluster)
    said = text(cluster, gang)
    assert "needs 3 nodes x 2 gpu:h100" in said
    assert "2 nodes of main have that free now" in said
    assert f"job {first} frees n1" in said
    told = why(cluster, gang)["waiting"]
    assert told["expected"]["certainty"] == "slot"
    ends = cluster.records(first)[0]["end_time"]
    assert ends <= told["expected"]["start"] <= ends + 60
    assert told["places"][0]["position"] == 1

    # The plan, squeue and scontrol agree on when.
    shown, nodes = cluster.run("squeue", "--start", "-h", "-o", "%S %Y", "-j", gang).stdout.split()
    assert shown.startswith("20")
    assert nodes == "n[1-3]"
    record = cluster.run("scontrol", "show", "job", gang).stdout
    assert f"StartTime={shown}" in record
    assert "SchedNodeList=n[1-3]" in record

    # Whoever stands behind it may go first if it is short; doing what is suggested proves it.
    shorter = suggested(cluster, late, "time limit")
    assert shorter["starts_now"]
    cluster.run(*shorter["command"].split())
    cluster.until_started(late)

    # So may the gang itself, with fewer nodes.
    fewer = suggested(cluster, gang, "on 1 node")
    assert fewer["starts_now"]
    cluster.run(*fewer["command"].split())
    cluster.until_started(gang)
    assert "under 1 switch (leaf" in text(cluster, gang)


def test_held_running_and_ended(cluster: Cluster) -> None:
    held = cluster.sbatch("-H", "-J", "held", "--wrap", "exit 3")
    assert why(cluster, held)["waiting"]["expected"]["certainty"] == "gated"
    release = suggested(cluster, held, "released")
    assert "Its owner holds it" in text(cluster, held)
    cluster.run(*release["command"].split())
    cluster.wait(held)
    said = text(cluster, held)
    assert "FAILED" in said
    assert "Its script ended with exit code 3." in said
    assert f"slurm-{held}.out" in said
    slow = cluster.sbatch("-t", "10", "--wrap", "sleep 300")
    cluster.until_started(slow)
    running = why(cluster, slow)["running"]
    assert (running["partition"], running["displaced"]) == ("main", [])
    assert running["ends_at"] == pytest.approx(running["started_at"] + 600)
    array = cluster.sbatch("--array=1-3%1", "-t", "10", "--wrap", "sleep 300")
    cluster.until(lambda: len(cluster.records(array)) == 2)
    assert "JobArrayTaskLimit" in text(cluster, f"{array}_3")
    assert cluster.bireme("why", "999", check=False).returncode == 1


def test_test_only_reports_the_calendars_earliest_start(cluster: Cluster) -> None:
    _, gang, _ = busy(cluster)
    slot = why(cluster, gang)["waiting"]["expected"]["start"]
    done = cluster.run("sbatch", "--test-only", "-N3", "--exclusive", "-t", "10", "--wrap", "true")
    assert "to start at 20" in done.stderr
    assert "processors on nodes n[1-3] in partition main" in done.stderr
    done = cluster.run("srun", "--test-only", "-n1", "-t", "10", "true")
    assert "using 1 processors on nodes n" in done.stderr
    assert slot is not None
    assert len(cluster.run("squeue", "-h").stdout.splitlines()) == 3


def test_a_snapshot_is_planned_again_without_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    _, gang, late = busy(cluster)
    path = tmp_path / "a.snapshot"
    cluster.bireme("snapshot", str(path))
    cluster.bireme("snapshot", "--anonymise", str(tmp_path / "b.snapshot"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"sleep 300" not in path.read_bytes()
    assert b"prep" not in (tmp_path / "b.snapshot").read_bytes()
    cluster.down()
    planned = json.loads(cluster.bireme("plan", "--check", "--json", str(path)).stdout)
    assert {each["job_id"] for each in planned["waits"]} == {int(gang), int(late)}
    assert cluster.bireme("plan", str(path)).stdout == cluster.bireme("plan", str(path)).stdout
    cluster.up_again()
