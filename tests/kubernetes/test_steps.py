"""Steps of jobs in pods outlive the daemon: their output, input, signals and exit codes, however the daemon goes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kubernetes_cluster.cluster import Kubernetes, missing
from tests.support.kubernetes import BASH, KubernetesCluster

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
LONG_S = 120.0
CONF = """\
ClusterName=steps
SlurmctldHost=localhost
KillWait=2
GresTypes=gpu
MinJobAge=3600
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PartitionName=main Nodes=ALL Default=YES
"""
Leaves = Callable[[KubernetesCluster], object]


@pytest.fixture(scope="module")
def cluster(kubelets: Kubernetes) -> Iterator[KubernetesCluster]:
    with KubernetesCluster(kubelets, slurm_conf=CONF, job_images=[BASH]).running() as bireme:
        yield bireme


killed = KubernetesCluster.kill_daemon
stopped = KubernetesCluster.down
however = pytest.mark.parametrize("leaves", [killed, stopped], ids=["killed", "stopped"])


@pytest.fixture
def files(cluster: KubernetesCluster, tmp_path: Path) -> Path:
    """A folder of this test's own that all pods see."""
    folder = cluster.work / tmp_path.name
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    return folder


def gate(path: Path) -> str:
    return f"until test -e {path}; do sleep 0.05; done"


EXITED = "srun: error: node1: task 0: Exited with exit code 7"


def said(output: str) -> list[str]:
    """Without the word of a shell whose `sleep` the signal met."""
    return [line for line in output.splitlines() if not line.endswith("User defined signal 1")]


@however
def test_a_step_in_its_own_pod_needs_no_daemon(cluster: KubernetesCluster, files: Path, leaves: Leaves) -> None:
    """It goes on, is signalled and ends while there is none."""
    (files / "task.sh").write_text(
        f"trap 'echo got usr1; touch {files}/usr1' USR1; touch {files}/began\n"
        f"{gate(files / 'usr1')}; read line; echo read $line; exit 7\n"
    )
    script = cluster.script(
        f"#!/bin/bash\n({gate(files / 'go')}; echo some input) | srun bash {files}/task.sh & step=$!\n"
        f"{gate(files / 'signal')}; kill -USR1 $step\n"
        f"wait $step; echo rc=$? | tee {files}/rc\n"
    )
    job = cluster.sbatch(str(script))
    cluster.until(lambda: (files / "began").exists(), LONG_S)
    leaves(cluster)
    (files / "signal").touch()
    cluster.until(lambda: (files / "usr1").exists(), LONG_S)
    (files / "go").touch()
    cluster.until(lambda: (files / "rc").exists() and (files / "rc").read_text(), LONG_S)
    cluster.up_again()
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    assert said(cluster.output(job)) == ["got usr1", "read some input", EXITED, "rc=7"]
    assert cluster.run("sacct", "-n", "-P", "-j", f"{job}.0", "-o", "ExitCode").stdout == "7:0\n"


@however
def test_a_step_on_two_nodes_goes_on_where_it_was(cluster: KubernetesCluster, files: Path, leaves: Leaves) -> None:
    """No line is lost or said twice, of what was written before, meanwhile and after."""
    (files / "task.sh").write_text(
        f"trap 'touch {files}/usr1-$SLURM_PROCID' USR1\n"
        "say() { for number in {1..3000}; do echo $1 $number; done; }\n"
        f"say before; touch {files}/began-$SLURM_PROCID; {gate(files / 'away')}\n"
        f"say meanwhile; touch {files}/meanwhile-$SLURM_PROCID; {gate(files / 'back')}; say after\n"
        f"{gate(files / 'usr1-$SLURM_PROCID')}; wc -c; exit $((SLURM_PROCID + 3))\n"
    )
    script = cluster.script(
        f"#!/bin/bash\n#SBATCH -N2\n(head -c 100000 /dev/zero; {gate(files / 'away')};"
        "head -c 3000000 /dev/zero) |"
        f" srun -l bash {files}/task.sh & step=$!\n"
        f"{gate(files / 'away')}; kill -USR1 $step; wait $step; echo rc=$?\n"
    )
    job = cluster.sbatch(str(script))
    cluster.until(lambda: len(list(files.glob("began-*"))) == 2, LONG_S)
    leaves(cluster)
    (files / "away").touch()
    cluster.until(lambda: len(list(files.glob("meanwhile-*"))) == 2, LONG_S)
    cluster.until(lambda: (files / "usr1-0").exists(), LONG_S)
    assert not (files / "usr1-1").exists(), "the way to the other pod is by the daemon"
    cluster.up_again()
    (files / "back").touch()
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    lines = said(cluster.output(job))
    for rank in (0, 1):
        of_rank = [line.removeprefix(f"{rank}: ") for line in lines if line.startswith(f"{rank}: ")]
        wanted = [f"{when} {number}" for when in ("before", "meanwhile", "after") for number in range(1, 3001)]
        assert of_rank == [*wanted, "3100000"], (len(of_rank), of_rank[-3:])
    assert lines[-1] == "rc=4", lines[-5:]


def test_srun_of_a_user_goes_on_when_the_daemon_is_back(cluster: KubernetesCluster, files: Path) -> None:
    task = f"echo before; touch {files}/began-$SLURM_PROCID; {gate(files / 'back')}; cat; exit 5"
    command = ["srun", "-l", "-N2", "sh", "-c", task]
    with subprocess.Popen(
        command, cwd=cluster.work, env=cluster.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as srun:
        cluster.until(lambda: len(list(files.glob("began-*"))) == 2, LONG_S)
        killed(cluster)
        assert srun.stdin is not None
        srun.stdin.write("said meanwhile\n")
        srun.stdin.close()
        cluster.up_again()
        (files / "back").touch()
        assert srun.stdout is not None
        lines = sorted(srun.stdout.read().splitlines())
    assert lines == [f"{rank}: {word}" for rank in (0, 1) for word in ("before", "said meanwhile")]
    assert srun.returncode == 5


def test_srun_that_is_to_end_while_there_is_no_daemon_ends_its_tasks(cluster: KubernetesCluster, files: Path) -> None:
    script = cluster.script(
        f"#!/bin/bash\nsrun sh -c 'touch {files}/began; sleep 1000' & step=$!\n"
        f"{gate(files / 'end')}; kill -TERM $step; wait $step; echo rc=$? > {files}/rc\n"
    )
    job = cluster.sbatch(str(script))
    cluster.until(lambda: (files / "began").exists(), LONG_S)
    stopped(cluster)
    (files / "end").touch()
    cluster.until(lambda: (files / "rc").exists() and (files / "rc").read_text(), LONG_S)
    assert (files / "rc").read_text() == "rc=137\n"
    cluster.up_again()
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()


def test_a_pod_that_is_gone_is_a_lost_node_for_the_step(cluster: KubernetesCluster, files: Path) -> None:
    """Nobody waits for what will never come back."""
    command = ["srun", "--no-kill", "-N2", "sh", "-c", f"touch {files}/began-$SLURM_PROCID; sleep 1000"]
    with subprocess.Popen(
        command, cwd=cluster.work, env=cluster.env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as srun:
        cluster.until(lambda: len(list(files.glob("began-*"))) == 2, LONG_S)
        pods = cluster.kubernetes.api.get("/api/v1/pods")["items"]
        (gone,) = [pod["metadata"]["name"] for pod in pods if pod["spec"]["nodeName"] == "node2"]
        cluster.kubernetes.kubectl("delete", "pod", gone, "--grace-period=0", "--force")
        assert srun.stderr is not None
        said = srun.stderr.read()
    assert "node2" in said
    assert srun.returncode != 0


def test_a_task_holds_its_own_streams_alone(cluster: KubernetesCluster) -> None:
    """A copy of them would keep a reader waiting for ends that have come."""
    script = cluster.script("#!/bin/bash\nls /proc/self/fd\nsrun ls /proc/self/fd\n")
    job = cluster.sbatch(str(script))
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    assert cluster.output(job).split() == ["0", "1", "2", "3"] * 2
