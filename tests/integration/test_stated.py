"""What a configuration asks for and is not applied is said on the screen, where people start and look at a cluster."""

from __future__ import annotations

import pytest
from tests.support.cluster import Cluster

CONF = """\
ClusterName=stated
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
HealthCheckProgram=/bin/check
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
        "HealthCheckProgram=/bin/check is not applied: this program is never run",
        "State=CLOUD of cloud1,cloud2 is not applied",
        "ResumeProgram=/bin/start is not applied: Bireme does not power nodes up or down",
        "a job may use more memory than its --mem",
    ):
        assert f"Not applied: {cluster.conf_file.parent}" in said or "Not applied: a job" in said
        assert words in said, said
    assert "HealthCheckProgram=/bin/check is not applied" in cluster.bireme("status").stdout


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
    assert any("HealthCheckProgram" in line for line in lines)


def test_a_key_that_does_not_exist_starts_nothing() -> None:
    cluster = Cluster()
    cluster.conf(CONF.replace("HealthCheckProgram", "HealthCheckProgramm"))
    try:
        failed = cluster.bireme("up", "--conf", str(cluster.conf_file), check=False)
        assert failed.returncode != 0
        wanted = "Parsing error at unrecognized key: HealthCheckProgramm; did you mean HealthCheckProgram?"
        assert wanted in failed.stderr
        assert cluster.daemon_pid() is None
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    "command",
    [
        "sbatch --container-image=ubuntu --wrap=true",
        "srun --container-image=ubuntu true",
        "salloc --container=/bundle true",
    ],
)
def test_a_job_for_an_image_does_not_run_on_the_host(cluster: Cluster, command: str) -> None:
    refused = cluster.run(*command.split(), check=False)
    assert refused.returncode != 0
    assert "runs no containers" in refused.stderr, refused.stderr
    assert "kubernetes engine" in refused.stderr


def test_a_step_for_an_image_does_not_run_on_the_host(cluster: Cluster) -> None:
    job = cluster.sbatch("-o", "step.out", "--wrap", "srun --container-image=ubuntu touch was_here")
    cluster.wait(job)
    assert "runs no containers" in (cluster.work / "step.out").read_text()
    assert not (cluster.work / "was_here").exists()
