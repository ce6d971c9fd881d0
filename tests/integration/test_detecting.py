"""Detectors on a real cluster, with cards that follow a script: what the driver tells becomes findings of the right GPU
and job, and a job that stops getting on is told in less than a minute."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import Cluster
from tests.support.measured import until

from bireme.client.sdk import Client

CONF = """
ClusterName=watched
SlurmctldHost=localhost
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
KillWait=2
NodeName=n1 NodeHostname=localhost CPUs=8 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES
PartitionName=train Nodes=ALL
HealthCheckProgram={folder}/check
HealthCheckInterval=1
HealthCheckNodeState=IDLE
"""
CHECK = """#!/bin/sh
[ -e {folder}/bad ] || exit 0
scontrol update nodename=$SLURMD_NODENAME state=drain reason="check: bad disk"
exit 2
"""
WELL = {
    "gpu_util": 97, "gpu_copy_util": 40, "gpu_memory_used": 70_000, "gpu_tensor_active": 45, "gpu_sm_active": 80,
    "gpu_sm_clock": 1980, "gpu_throttle": 4, "gpu_ecc_uncorrected": 0, "gpu_row_remap_failure": 0,
}  # fmt: skip
TRAINS = """#!/bin/bash
#SBATCH --job-name=train --partition=train --ntasks=3 --gpus=2 --requeue
#BIREME --checkpoint=run-%j
srun --ntasks=3 {python} train.py
"""
TRAIN = """
import json, os, time
from torch.distributed import distributed_c10d
def read_batch():
    open("gate").read()
rank, folder = int(os.environ["SLURM_PROCID"]), "run-" + os.environ["SLURM_JOB_ID"]
if "BIREME_CHECKPOINT" in os.environ:
    print("goes on from", os.environ["BIREME_CHECKPOINT"], "in start", os.environ["SLURM_RESTART_COUNT"])
    raise SystemExit
if rank == 0:
    os.mkdir(folder)
    header = json.dumps({"w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
    open(folder + "/step-1.safetensors", "wb").write(len(header).to_bytes(8, "little") + header + b"12345678")
while not os.path.exists("stop"):
    print("step", flush=True)
    time.sleep(0.5)
read_batch() if rank == 2 else distributed_c10d.all_reduce()
"""
COLLECTIVE = """
import threading
def all_reduce():
    threading.Event().wait()
"""
"""In the place of PyTorch's: ranks that wait for another are known by the file that they stand in."""


def card(number: int, **more: Any) -> dict[str, Any]:
    values = {**WELL, **more.pop("values", {})}
    return {"uuid": f"GPU-{number}", "minor": number, "bus": f"00000000:{17 + number}:00.0", "values": values, **more}


def play(cluster: Cluster, *cards: dict[str, Any]) -> None:
    """What the cards do from now on."""
    file = cluster.folder / "cards.json"
    file.with_suffix(".new").write_text(json.dumps({"cards": cards}))
    file.with_suffix(".new").replace(file)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(CONF.replace("HealthCheck", "#"))
    check = made.folder / "check"
    check.write_text(CHECK.format(folder=made.folder))
    check.chmod(0o755)
    made.conf(CONF.format(folder=made.folder), gres="NodeName=n1 Name=gpu File=/dev/nvidia[0-1]\n")
    play(made, card(0), card(1))
    made.variables |= {
        "BIREME_TELEMETRY_GATHER": "on",
        "BIREME_TELEMETRY_INTERVAL_S": "2",
        "BIREME_NVML_MODULE": "bireme.testing.scripted_nvml",
        "BIREME_NVML_SCRIPT": str(made.folder / "cards.json"),
        "BIREME_DETECTORS_HANG_S": "10",
        "BIREME_HEALING_MODE": "observe",
        "BIREME_HEALING_PARTITIONS": "train=act",
        "BIREME_CHECKPOINTS_INTERVAL_S": "1",
    }
    with made.running():
        yield made


def findings(cluster: Cluster) -> dict[str, dict[str, Any]]:
    with Client(str(cluster.home)) as client:
        return {f"{each['detector']} {each['place']}": each for each in client.findings()}


def found(cluster: Cluster, key: str) -> dict[str, Any]:
    return until(lambda: findings(cluster).get(key), f"there is no finding {key}")


def until_measured(cluster: Cluster) -> None:
    def both() -> bool | None:
        with Client(str(cluster.home)) as client:
            told = client.transport.get("/v1/telemetry/now")["gpus"]
        return (len(told) == 2 and all("gpu_sm_active" in gpu["values"] for gpu in told)) or None

    until(both, "the cards are not measured")


def submit(cluster: Cluster, *options: str, script: str = "sleep 600") -> int:
    return int(cluster.run("sbatch", "--parsable", *options, "--wrap", script).stdout)


def test_what_the_driver_tells_is_a_finding_of_the_right_gpu_and_job(cluster: Cluster) -> None:
    until_measured(cluster)
    assert findings(cluster) == {}, "nothing is wrong"
    job_id = submit(cluster, "--gpus=1")
    with Client(str(cluster.home)) as client:
        until(lambda: client.job(job_id)["state"] == "RUNNING" or None, "it does not run")
    play(cluster, card(0, xids=[43]), card(1, xids=[79]))
    broken = found(cluster, "xid n1:gpu1")
    assert (broken["gravity"], broken["cause"], broken["uuid"]) == ("broken", "gpu_fell_off_bus", "GPU-1")
    of_program = found(cluster, f"xid job {job_id}.1")
    assert (of_program["gravity"], of_program["who"]) == ("note", "you")
    play(cluster, card(0, xids=[43], values={"gpu_ecc_uncorrected": 2}), card(1, xids=[79], lost=True))
    memory = found(cluster, "ecc n1:gpu0")
    assert memory["jobs"] == [str(job_id)]
    assert "gpu_ecc_uncorrected=" in memory["evidence"][0]["text"]
    assert found(cluster, "off_the_bus n1:gpu1")["gravity"] == "broken"
    shown = cluster.run("bireme", "findings", "show", str(memory["id"])).stdout
    assert "GPU 0 met a memory error that it could not correct" in shown
    assert "bireme findings show" in cluster.run("bireme", "why", str(job_id)).stdout
    play(cluster, card(0, xids=[43], values={"gpu_ecc_uncorrected": 2}), card(1, xids=[79]))
    until(lambda: "off_the_bus n1:gpu1" not in findings(cluster) or None, "it answers again, and nobody notices")
    cluster.run("scancel", str(job_id))
    until(lambda: f"xid job {job_id}.1" not in findings(cluster) or None, "the job is over, and its finding is not")
    assert {"ecc n1:gpu0", "xid n1:gpu1"} <= findings(cluster).keys(), "what lasts stands until somebody says so"
    for each in findings(cluster).values():
        cluster.run("bireme", "findings", "mended", str(each["id"]), "--why", "cards replaced")
    assert findings(cluster) == {}


def test_a_job_that_stops_getting_on_names_the_rank_and_goes_on_from_its_checkpoint(cluster: Cluster) -> None:
    """The time that it takes is set to 10 s: the rule is the same as with 40. One rank really stops, in a read; the
    others wait for it."""
    play(cluster, card(0), card(1))
    until_measured(cluster)
    os.mkfifo(cluster.work / "gate")
    for name, text in (("__init__", ""), ("distributed/__init__", ""), ("distributed/distributed_c10d", COLLECTIVE)):
        file = cluster.work / "torch" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (cluster.work / "train.py").write_text(TRAIN)
    script = cluster.script(TRAINS.format(python=sys.executable), "train.sh")
    job_id = int(cluster.sbatch(str(script)))
    with Client(str(cluster.home)) as client:
        until(lambda: client.job(job_id)["state"] == "RUNNING" or None, "it does not run")
        began = client.ping()["now"]

        def learned() -> bool | None:
            curves = client.transport.get("/v1/telemetry/series", {"job": job_id, "metric": "output_position"})
            return (client.ping()["now"] - began > 45.0 and bool(curves)) or None

        until(learned, "it is not measured")
        assert not [key for key in findings(cluster) if key.startswith("hang")], "it works"
        (cluster.work / "stop").touch()
        play(cluster, *(card(n, values={"gpu_util": 100, "gpu_tensor_active": 0, "gpu_sm_active": 9,
                                        "gpu_copy_util": 0}) for n in (0, 1)))  # fmt: skip
        assert client.wait(job_id, 120)["state"] == "COMPLETED"
        (healing,) = [each for each in client.healings(everything=True) if each["job_id"] == job_id]
    named = "rank 2 stands in read_batch (train.py:5) while ranks 0-1 wait in a collective"
    assert (healing["act"], healing["state"], named in healing["reason"]) == ("restart-job", "done", True), healing
    stacks = [each["text"] for each in healing["evidence"] if each["source"] == "trace"]
    assert stacks[0] == named
    assert any("rank 0: thread" in text and "all_reduce" in text for text in stacks), stacks
    assert f"goes on from {cluster.work}/run-{job_id}/step-1.safetensors in start 1" in cluster.output(job_id)
    assert named in " ".join(cluster.run("bireme", "why", str(job_id)).stdout.split())
    until(lambda: not findings(cluster) or None, "the start is over, and its finding is not")


def test_the_sites_own_check_drains_its_node_as_in_slurm(cluster: Cluster) -> None:
    (cluster.folder / "bad").touch()
    note = found(cluster, "health.program n1")
    assert (note["gravity"], note["title"]) == ("note", "HealthCheckProgram ended with 2")
    with Client(str(cluster.home)) as client:
        (node,) = client.nodes()
    assert "DRAIN" in node["flags"]
    assert node["reason"] == "check: bad disk"
    (cluster.folder / "bad").unlink()
    until(lambda: not findings(cluster) or None, "it ends well, and nobody notices")


def test_the_machine_is_checked_by_the_command(cluster: Cluster) -> None:
    told = json.loads(cluster.run("bireme", "health", "--json", check=False).stdout)
    assert {"driver", "memory", "clock", "cgroup"} <= {each["name"] for each in told["checks"]}
