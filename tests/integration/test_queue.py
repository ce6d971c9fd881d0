"""The queue as users drive it: arrays, dependencies, heterogeneous jobs, hold, update, suspend, nodes in and out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cluster import Cluster, virtual_nodes

CONF = virtual_nodes(3, 2, cpus=8, settings="MaxArraySize=2001")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(CONF).running() as made:
        yield made


def states(cluster: Cluster, job: str) -> set[str]:
    return {record["state"] for record in cluster.records(job)}


# -- arrays ------------------------------------------------------------------------------------------------------------


def test_an_array_of_a_thousand(cluster: Cluster) -> None:
    """Every task runs once, with its own number, output and record."""
    (cluster.work / "arr").mkdir()
    job = cluster.sbatch(
        "--array=1-1000",
        "-o",
        "arr/%A_%a.out",
        "--wrap",
        "echo $SLURM_ARRAY_TASK_ID; exit $((SLURM_ARRAY_TASK_ID == 777))",
    )
    cluster.wait(job, 120)
    files = {path.name: path.read_text() for path in (cluster.work / "arr").iterdir()}
    assert files == {f"{job}_{task}.out": f"{task}\n" for task in range(1, 1001)}
    rows = cluster.run("sacct", "-n", "-X", "-P", "-j", job, "-o", "JobID,State,ExitCode").stdout.splitlines()
    assert len(rows) == 1000
    assert [row for row in rows if "COMPLETED" not in row] == [f"{job}_777|FAILED|1:0"]


def test_a_throttle_holds(cluster: Cluster) -> None:
    job = cluster.sbatch("--array=0-19%3", "-o", "/dev/null", "--wrap", "echo + >> thr; sleep 0.1; echo - >> thr")
    assert cluster.wait(job, 60)["state"] == "COMPLETED"
    depth = most = 0
    for sign in (cluster.work / "thr").read_text().split():
        depth += 1 if sign == "+" else -1
        most = max(most, depth)
    assert most <= 3
    assert most > 1


def test_array_variables(cluster: Cluster) -> None:
    names = ("JOB_ID", "TASK_ID", "TASK_COUNT", "TASK_MIN", "TASK_MAX", "TASK_STEP")
    body = "echo " + " ".join(f"$SLURM_ARRAY_{name}" for name in names)
    job = cluster.sbatch("--array=2-10:4", "-o", "var-%a", "--wrap", body)
    cluster.wait(job, 30)
    assert {(cluster.work / f"var-{n}").read_text() for n in (2, 6, 10)} == {
        f"{job} {n} 3 2 10 4\n" for n in (2, 6, 10)
    }


# -- dependencies ------------------------------------------------------------------------------------------------------


def test_dependencies_decide_what_runs(cluster: Cluster) -> None:
    first = cluster.sbatch("-H", "-o", "/dev/null", "--wrap", "echo first >> dep; exit 3")
    ok = cluster.sbatch(f"-dafterok:{first}", "-o", "/dev/null", "--wrap", "echo ok >> dep")
    killed = cluster.sbatch(
        f"-dafterok:{first}", "--kill-on-invalid-dep=yes", "-o", "/dev/null", "--wrap", "echo no >> dep"
    )
    notok = cluster.sbatch(f"-dafternotok:{first}", "-o", "/dev/null", "--wrap", "echo notok >> dep")
    then = cluster.sbatch(f"-dafterany:{first}:{notok}", "-o", "/dev/null", "--wrap", "echo then >> dep")
    either = cluster.sbatch(f"-dafterok:{first}?afternotok:{first}", "-o", "/dev/null", "--wrap", "true")
    cluster.run("scontrol", "release", first)
    assert cluster.wait(then, 30)["state"] == "COMPLETED"
    assert cluster.wait(either, 30)["state"] == "COMPLETED"
    assert cluster.wait(killed, 30)["state"] == "CANCELLED"
    assert (cluster.work / "dep").read_text().split() == ["first", "notok", "then"]
    assert cluster.run("squeue", "-h", "-j", ok, "-o", "%T %r").stdout.split() == [
        "PENDING",
        "DependencyNeverSatisfied",
    ]
    cluster.run("scancel", ok)


def test_aftercorr_and_singleton(cluster: Cluster) -> None:
    first = cluster.sbatch(
        "--array=1-3",
        "-o",
        "/dev/null",
        "--wrap",
        "echo a$SLURM_ARRAY_TASK_ID >> corr; exit $((SLURM_ARRAY_TASK_ID == 2))",
    )
    second = cluster.sbatch(
        "--array=1-3", f"-daftercorr:{first}", "-o", "/dev/null", "--wrap", "echo b$SLURM_ARRAY_TASK_ID >> corr"
    )
    for task in (1, 3):
        assert cluster.wait(f"{second}_{task}", 30)["state"] == "COMPLETED"
    words = (cluster.work / "corr").read_text().split()
    assert sorted(words) == ["a1", "a2", "a3", "b1", "b3"]
    assert words.index("a1") < words.index("b1")
    assert cluster.records(f"{second}_2")[0]["state"] == "PENDING"
    cluster.run("scancel", second)
    jobs = [
        cluster.sbatch(
            "-J", "alone", "-d", "singleton", "-o", "/dev/null", "--wrap", "echo + >> one; sleep 0.1; echo - >> one"
        )
        for _ in range(3)
    ]
    for job in jobs:
        cluster.wait(job, 30)
    assert (cluster.work / "one").read_text().split() == ["+", "-"] * 3


# -- heterogeneous jobs ------------------------------------------------------------------------------------------------


def test_a_heterogeneous_job(cluster: Cluster) -> None:
    """Two components start together; srun reaches each by its group, or both in one step."""
    cluster.script(
        "#!/bin/bash\n#SBATCH -N1 -n2 -o het.out\n#SBATCH hetjob\n#SBATCH -N2 -n2 --gres=gpu:1\n"
        "echo size $SLURM_HET_SIZE\n"
        "srun --het-group=0 bash -c 'echo zero $SLURM_PROCID'\n"
        "srun --het-group=1 bash -c 'echo one $SLURM_PROCID $CUDA_VISIBLE_DEVICES'\n"
        "srun --het-group=0,1 bash -c 'echo both $SLURM_STEP_ID $SLURM_PROCID of $SLURM_NTASKS'\n"
        "echo word | srun --het-group=0,1 --input=3 bash -c 'echo $SLURM_PROCID reads $(cat)'\n",
        "het.sh",
    )
    job = cluster.sbatch("het.sh")
    record = cluster.wait(job, 30)
    text = (cluster.work / "het.out").read_text()
    lines = text.splitlines()
    assert lines[0] == "size 2", text
    assert sorted(lines[1:3]) == ["zero 0", "zero 1"], text
    assert sorted(lines[3:5]) == ["one 0 0", "one 1 0"], text
    assert sorted(lines[5:9]) == [f"both 1 {rank} of 4" for rank in range(4)], text
    assert sorted(lines[9:]) == ["0 reads", "1 reads", "2 reads", "3 reads word"], text
    assert record["state"] == "COMPLETED"
    assert cluster.wait(f"{job}+1", 30)["state"] == "COMPLETED"


# -- hold, update, suspend ---------------------------------------------------------------------------------------------


def test_hold_update_release(cluster: Cluster) -> None:
    job = cluster.sbatch("-H", "-o", "/dev/null", "--wrap", "sleep 0.1")
    assert cluster.run("squeue", "-h", "-j", job, "-o", "%r").stdout.strip() == "JobHeldUser"
    cluster.run(
        "scontrol", "update", f"JobId={job}", "Name=newname", "NumNodes=2", "TimeLimit=00:07:00", "Partition=debug"
    )
    shown = cluster.run("squeue", "-h", "-j", job, "-o", "%j %D %l %P").stdout.split()
    assert shown == ["newname", "2", "7:00", "debug"]
    cluster.run("scontrol", "release", job)
    record = cluster.wait(job, 30)
    assert (record["state"], record["node_count"], record["partition"]) == ("COMPLETED", 2, "debug")
    late = cluster.run("scontrol", "update", f"JobId={job}", "NumNodes=1", check=False)
    assert late.returncode == 1
    assert "Job/step already completing or completed" in late.stderr


def test_suspend_stops_the_processes(cluster: Cluster) -> None:
    job = cluster.sbatch("-o", "/dev/null", "--wrap", "while :; do date +%s%N > beat; sleep 0.02; done")
    cluster.until(lambda: (cluster.work / "beat").exists())
    cluster.run("scontrol", "suspend", job)
    assert cluster.run("squeue", "-h", "-j", job, "-o", "%t").stdout.strip() == "S"
    cluster.until(lambda: stands_still(cluster.work / "beat"))
    cluster.run("scontrol", "resume", job)
    still = (cluster.work / "beat").read_text()
    cluster.until(lambda: (cluster.work / "beat").read_text() not in ("", still))
    assert states(cluster, job) == {"RUNNING"}
    cluster.run("scancel", job)
    assert cluster.wait(job, 30)["state"] == "CANCELLED"


def stands_still(path: Path) -> bool:
    """Several of its intervals long."""
    before = path.read_text()
    time.sleep(0.15)
    return path.read_text() == before


# -- nodes -------------------------------------------------------------------------------------------------------------


def node_state(cluster: Cluster, node: str) -> str:
    return cluster.run("sinfo", "-h", "-N", "-n", node, "-p", "main", "-o", "%T").stdout.strip()


def test_a_draining_node_finishes_and_takes_nothing_new(cluster: Cluster) -> None:
    job = cluster.sbatch("-w", "n3", "-o", "/dev/null", "--wrap", "while [ ! -e drained ]; do sleep 0.02; done")
    cluster.until_started(job)
    cluster.run("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=fan is loud")
    assert node_state(cluster, "n3") == "draining"
    waiting = cluster.sbatch("-w", "n3", "-o", "/dev/null", "--wrap", "true")
    (cluster.work / "drained").touch()
    assert cluster.wait(job, 30)["state"] == "COMPLETED"
    assert node_state(cluster, "n3") == "drained"
    assert states(cluster, waiting) == {"PENDING"}
    assert "fan is loud" in cluster.run("sinfo", "-R").stdout
    cluster.run("scontrol", "update", "NodeName=n3", "State=RESUME")
    assert cluster.wait(waiting, 30)["state"] == "COMPLETED"
    assert node_state(cluster, "n3") == "idle"


def test_a_node_set_down_ends_and_requeues_its_jobs(cluster: Cluster) -> None:
    requeued = cluster.sbatch(
        "--requeue", "-o", "/dev/null", "-w", "n2", "--wrap", '[ -n "$SLURM_RESTART_COUNT" ] || sleep 600'
    )
    lost = cluster.sbatch("--no-requeue", "-o", "/dev/null", "-w", "n2", "--wrap", "sleep 600")
    for job in (requeued, lost):
        cluster.until_started(job)
    cluster.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=power")
    assert cluster.wait(lost, 30)["state"] == "NODE_FAIL"
    cluster.until(lambda: cluster.records(requeued)[0]["restarts"] == 1)
    assert node_state(cluster, "n2") == "down"
    cluster.run("scontrol", "update", "NodeName=n2", "State=RESUME")
    assert cluster.wait(requeued, 30)["state"] == "COMPLETED"


def test_a_partition_set_down_starts_nothing(cluster: Cluster) -> None:
    cluster.run("scontrol", "update", "PartitionName=debug", "State=DOWN")
    job = cluster.sbatch("-p", "debug", "-o", "/dev/null", "--wrap", "true")
    cluster.until(lambda: cluster.run("squeue", "-h", "-j", job, "-o", "%r").stdout.strip() == "PartitionDown")
    cluster.run("scontrol", "update", "PartitionName=debug", "State=UP")
    assert cluster.wait(job, 30)["state"] == "COMPLETED"
