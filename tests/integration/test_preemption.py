"""Preemption for real: the signal, the grace, the requeue, and a job that goes on from its checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from cluster import Cluster, virtual_nodes

RULES = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE"

CHECKPOINTING = """\
trap 'echo "told to leave at step $step"; echo $step > checkpoint; exit 0' TERM
step=$(cat checkpoint 2>/dev/null || echo 0)
echo "start ${SLURM_RESTART_COUNT:-0} at step $step"
while ((step < 40)); do step=$((step + 1)); sleep 0.05 & wait $!; done
echo "done at step $step"
"""


def test_a_preempted_job_checkpoints_and_goes_on(make_cluster: Callable[..., Cluster]) -> None:
    """`debug` has the higher tier."""
    cluster = make_cluster(virtual_nodes(1, 4, settings=RULES))
    told = cluster.work / "low.out"
    script = cluster.script(CHECKPOINTING, "low.sh")
    low = cluster.sbatch("--gpus=4", "--open-mode=append", f"--output={told}", str(script))
    cluster.until(lambda: told.exists() and "at step 0" in told.read_text())
    high = cluster.sbatch("--partition=debug", "--gpus=4", "--wrap", "true")
    cluster.wait(high)
    cluster.wait(low)
    output = told.read_text()
    assert cluster.records(high)[0]["state"] == "COMPLETED"
    final = cluster.records(low)[0]
    assert (final["state"], final["restarts"]) == ("COMPLETED", 1)
    assert "done at step 40" in output
    again = int(output.split("start 1 at step ")[1].split()[0])
    assert 0 < again < 40, output
    preempted = cluster.run("sacct", "-D", "-X", "-n", "-P", "-j", str(low), "-o", "State").stdout.split()
    assert preempted == ["PREEMPTED", "COMPLETED"]


SAVING = """#!/bin/bash
while [ ! -e save ]; do sleep 0.05; done
bireme checkpoint && touch saved
while [ ! -e leave ]; do sleep 0.05; done
"""


def test_a_job_that_has_just_saved_makes_way_before_a_younger_one(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(virtual_nodes(2, 4, settings=RULES))
    older = cluster.sbatch("--gpus=4", "--output=saved.out", str(cluster.script(SAVING, "saving.sh")))
    cluster.until(lambda: state_of(cluster, older) == "R")
    younger = cluster.sbatch("--gpus=4", "--output=/dev/null", "--wrap", "while [ ! -e leave ]; do sleep 0.05; done")
    cluster.until(lambda: cluster.records(younger)[0]["elapsed_s"] >= 2)
    (cluster.work / "save").touch()
    cluster.until(lambda: (cluster.work / "saved").exists())
    assert "Checkpoint" in cluster.run("bireme", "why", str(older)).stdout
    cluster.wait(cluster.sbatch("--partition=debug", "--gpus=4", "--wrap", "true"))
    (cluster.work / "leave").touch()
    cluster.wait(older)
    cluster.wait(younger)
    assert [cluster.records(job)[0]["restarts"] for job in (older, younger)] == [1, 0]


def test_a_checkpoint_is_of_a_job(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(virtual_nodes(1, 4))
    outside = cluster.run("bireme", "checkpoint", env={"SLURM_JOB_ID": ""}, check=False)
    assert (outside.returncode, "not inside a job" in outside.stderr) == (1, True)
    unknown = cluster.run("bireme", "checkpoint", "999", check=False)
    assert (unknown.returncode, "job 999: Invalid job id specified" in unknown.stderr) == (1, True)


SUSPENDING = "PreemptType=preempt/partition_prio\nPreemptMode=SUSPEND,GANG"


def test_a_victim_is_suspended_and_goes_on_by_itself(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(virtual_nodes(1, 4, cpus=4, settings=SUSPENDING))
    steps, go = cluster.work / "steps", cluster.work / "go"
    script = cluster.script(f"until [ -e {go} ]; do echo step >> {steps}; sleep 0.02; done", "low.sh")
    low = cluster.sbatch("--cpus-per-task=4", "--gpus=1", str(script))
    cluster.until(steps.exists)
    high = cluster.sbatch("--partition=debug", "--cpus-per-task=2", "--gpus=1", "--wrap", "sleep 300")
    cluster.until(lambda: state_of(cluster, high) == "R")
    assert state_of(cluster, low) == "S"
    reached = steps.read_text()
    record = cluster.run("scontrol", "show", "job", str(low)).stdout
    assert "JobState=SUSPENDED Reason=None" in record
    assert "SuspendTime=None" not in record
    cluster.until(lambda: cluster.records(low)[0]["suspended_s"] >= 1)
    assert steps.read_text() == reached
    newcomer = cluster.sbatch("--cpus-per-task=1", "--wrap", "true")
    told = " ".join(cluster.run("bireme", "why", str(low)).stdout.split())
    assert f"for job {high}; it goes on by itself when its CPUs are free" in told
    assert f"Displaced job {low}" in " ".join(cluster.run("bireme", "why", str(high)).stdout.split())
    cluster.run("scancel", str(high))
    cluster.until(lambda: state_of(cluster, low) == "R")
    cluster.until(lambda: len(steps.read_text()) > len(reached))
    go.touch()
    cluster.wait(low)
    cluster.wait(newcomer)
    row = cluster.run("sacct", "-X", "-n", "-P", "-j", str(low), "-o", "State,Suspended,Restarts").stdout.strip()
    state, suspended, restarts = row.split("|")
    assert (state, restarts) == ("COMPLETED", "0")
    assert suspended != "00:00:00", row


def state_of(cluster: Cluster, job: int) -> str:
    return cluster.run("squeue", "-h", "-j", str(job), "-o", "%t").stdout.strip()
