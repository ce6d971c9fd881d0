"""What a configuration asks for and is not applied is said on the screen, where people start and look at a cluster."""

from __future__ import annotations

import pytest
from tests.support.cluster import Cluster

CONF = """\
ClusterName=stated
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PrologSlurmctld=/bin/check
NodeName=n1 CPUs=2 RealMemory=1000 NodeHostname=localhost
NodeName=cloud[1-2] CPUs=2 RealMemory=1000 NodeHostname=localhost State=CLOUD
PartitionName=p Nodes=ALL Default=YES
ResumeProgram=/bin/start
"""


@pytest.fixture(scope="module")
def cluster():
    cluster = Cluster()
    cluster.conf(CONF)
    try:
        yield cluster
    finally:
        cluster.stop()


def test_up_says_what_is_not_applied(cluster: Cluster) -> None:
    said = cluster.bireme("up", "--conf", str(cluster.conf_file)).stdout
    for words in (
        "PrologSlurmctld=/bin/check is not applied: this program is never run",
        "State=CLOUD of cloud1,cloud2 is not applied",
        "ResumeProgram=/bin/start is not applied: Bireme does not power nodes up or down",
        "a job may use more memory than its --mem",
    ):
        assert f"Not applied: {cluster.conf_file.parent}" in said or "Not applied: a job" in said
        assert words in said, said
    assert "PrologSlurmctld=/bin/check is not applied" in cluster.bireme("status").stdout


def test_nodes_that_nobody_starts_are_down_and_get_no_jobs(cluster: Cluster) -> None:
    states = cluster.run("sinfo", "-h", "-N", "-o", "%N %T %E").stdout.splitlines()
    assert "cloud1 down State=CLOUD: Bireme does not start nodes" in states, states
    assert cluster.run("sbatch", "-N2", "--wrap=true").returncode == 0
    said = cluster.run("squeue", "-h", "-t", "PD", "-o", "%r").stdout
    assert "DOWN" in said, said  # it waits, and not in a node that is not there


def test_reconfigure_says_it_too(cluster: Cluster) -> None:
    assert "not applied: " in cluster.run("scontrol", "reconfigure").stderr


def test_doctor_says_what_this_cluster_confines(cluster: Cluster) -> None:
    """Whatever the machine can: without cgroup.conf nothing is, as in Slurm."""
    lines = cluster.bireme("doctor", check=False).stdout.splitlines()
    memory = next(line for line in lines if "confine memory" in line)
    assert memory.startswith("warn"), memory
    assert any("PrologSlurmctld" in line for line in lines)


HOG = "python3 -c 'import time; x = bytearray(300 << 20); print(len(x), flush=True)'"


def test_a_job_may_use_more_memory_than_it_asked_for_where_nothing_confines_it(cluster: Cluster) -> None:
    """As in Slurm without ConstrainRAMSpace; whoever starts the cluster or asks the doctor was told."""
    job = cluster.sbatch("--mem=60M", "-o", "hog.out", "--wrap", HOG)
    assert cluster.wait(job)["state"] == "COMPLETED"
    assert (cluster.work / "hog.out").read_text() == f"{300 << 20}\n"
    lines = cluster.bireme("doctor", check=False).stdout.splitlines()
    place = next(i for i, line in enumerate(lines) if "confine memory" in line)
    assert "not in force: this cluster's configuration does not ask for it" in lines[place]
    assert "ConstrainRAMSpace=yes in cgroup.conf" in lines[place + 1]
    assert any("a job may use more memory than its --mem" in line for line in lines)


@pytest.fixture(scope="module")
def watched():
    cluster = Cluster()
    gathers = "JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=1\nJobAcctGatherParams=OverMemoryKill\n"
    cluster.conf(CONF.replace("PrologSlurmctld=/bin/check\n", gathers))
    try:
        yield cluster.up()
    finally:
        cluster.stop()


STAYING_HOG = HOG.replace(", flush=True)", ", flush=True); time.sleep(600)")


def test_a_script_that_a_sample_finds_above_its_memory_is_killed(watched: Cluster) -> None:
    """JobAcctGatherParams=OverMemoryKill: the same words and the same end as of Slurm 22.05."""
    job = watched.sbatch("--mem=60M", "-o", "script.out", "--wrap", f"{STAYING_HOG}; echo went on")
    ended = watched.wait(job)
    said = (watched.work / "script.out").read_text()
    assert (ended["state"], ended["exit_code"], ended["exit_signal"]) == ("FAILED", 0, 9), said
    assert f"slurmstepd: error: StepId={job}.batch exceeded memory limit (" in said
    assert f" > {60 << 20}), being killed\nslurmstepd: error: Exceeded job memory limit\n" in said
    assert "went on" not in said


def test_a_step_that_a_sample_finds_above_its_memory_is_killed_alone(watched: Cluster) -> None:
    job = watched.sbatch("--mem=60M", "-o", "step.out", "--wrap", f"srun {STAYING_HOG}; echo rc=$?")
    assert watched.wait(job)["state"] == "COMPLETED"
    said = (watched.work / "step.out").read_text()
    assert f"StepId={job}.0 exceeded memory limit (" in said
    assert "rc=137" in said


def test_who_stays_within_its_memory_is_let_be(watched: Cluster) -> None:
    job = watched.sbatch(
        "--mem=900M", "-o", "/dev/null", "--wrap", HOG.replace("flush=True)", "flush=True); time.sleep(3)")
    )
    assert watched.wait(job)["state"] == "COMPLETED"


def test_the_doctor_says_that_memory_is_watched(watched: Cluster) -> None:
    said = watched.bireme("doctor", check=False).stdout
    assert "looked at every 1 s: what uses more is ended (JobAcctGatherParams=OverMemoryKill)" in said
    assert "a job may use more memory than its --mem" not in said


def test_a_key_that_does_not_exist_starts_nothing() -> None:
    cluster = Cluster()
    cluster.conf(CONF.replace("PrologSlurmctld", "PrologSlurmctldm"))
    try:
        failed = cluster.bireme("up", "--conf", str(cluster.conf_file), check=False)
        assert failed.returncode != 0
        wanted = "Parsing error at unrecognized key: PrologSlurmctldm; did you mean PrologSlurmctld?"
        assert wanted in failed.stderr
        assert cluster.daemon_pid() is None
    finally:
        cluster.stop()
