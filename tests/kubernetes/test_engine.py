"""Slurm scripts on a real Kubernetes: two kubelets, an image without Python or libc, GPUs that the kubelet gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kubernetes_cluster.cluster import Kubernetes, missing
from tests.kubernetes_cluster.images import BUSYBOX
from tests.support.kubernetes import KubernetesCluster

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


@pytest.fixture(scope="module")
def cluster(kubelets: Kubernetes) -> Iterator[KubernetesCluster]:
    with KubernetesCluster(kubelets).running() as bireme:
        yield bireme


def test_nodes_are_the_cluster_s_with_their_gpus(cluster: KubernetesCluster) -> None:
    said = cluster.run("sinfo", "-h", "-o", "%P %D %T %G").stdout
    assert said == "main* 2 idle gpu:8\n"


def test_an_unchanged_script_runs_on_both_nodes_and_srun_reaches_them(cluster: KubernetesCluster) -> None:
    script = cluster.script(
        "#SBATCH -N2 --gpus-per-node=2\n"
        "echo batch on $SLURMD_NODENAME of $SLURM_JOB_NODELIST\n"
        "srun -l sh -c 'echo $SLURM_PROCID $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES'\n"
        "grep -c -e node1 -e node2 /etc/hosts\n"
    )
    job = cluster.sbatch(str(script))
    assert cluster.wait(job)["state"] == "COMPLETED", cluster.log_tail()
    batch, *tasks, hosts = cluster.output(job).splitlines()
    assert batch == "batch on node1 of node[1-2]"
    assert [line.split()[:4] for line in sorted(tasks)] == [["0:", "0", "node1", "0,1"], ["1:", "1", "node2", "0,1"]]
    assert all(line.split()[4].count("GPU-") == 2 for line in tasks), "the kubelet chose the devices"
    assert hosts == "2"
    cluster.until(lambda: not cluster.pods())


def test_srun_from_outside_brings_output_and_exit_code_back(cluster: KubernetesCluster) -> None:
    done = cluster.run("srun", "-N2", "sh", "-c", "echo $SLURMD_NODENAME; exit 3", check=False)
    assert sorted(done.stdout.split()) == ["node1", "node2"]
    assert done.returncode == 3


def test_commands_in_a_pod_have_a_token_for_their_own_job_only(cluster: KubernetesCluster) -> None:
    other = cluster.sbatch("--hold", "--wrap", "true")
    job = cluster.sbatch(
        "--wrap", f"squeue -h -o %i -t R; scancel {other}; scontrol update jobid=$SLURM_JOB_ID comment=mine"
    )
    assert cluster.wait(job)["state"] == "COMPLETED"
    assert cluster.output(job).splitlines()[0] == job
    assert "Access/permission denied" in cluster.output(job)
    assert cluster.records(job)[0]["comment"] == "mine"
    assert cluster.records(other)[0]["state"] == "PENDING"
    cluster.run("scancel", other)


def test_a_running_job_survives_the_daemon_and_is_found_again(cluster: KubernetesCluster) -> None:
    job = cluster.sbatch("-N2", "--wrap", "touch began; until test -e go; do sleep 0.1; done; srun hostname | sort")
    cluster.until_started(job, 60)
    cluster.until(lambda: (cluster.work / "began").exists(), 60)
    cluster.kill_daemon()
    cluster.up_again()
    assert cluster.records(job)[0]["state"] == "RUNNING"
    (cluster.work / "go").touch()
    assert cluster.wait(job)["state"] == "COMPLETED", cluster.log_tail()
    assert cluster.output(job) == "node1\nnode2\n"


def test_scancel_gives_the_script_its_grace(cluster: KubernetesCluster) -> None:
    job = cluster.sbatch("--wrap", "trap 'echo bye; exit 0' TERM; touch up; while true; do sleep 0.1; done")
    cluster.until_started(job, 60)
    cluster.until(lambda: (cluster.work / "up").exists(), 60)
    cluster.run("scancel", job)
    assert cluster.wait(job)["state"] == "CANCELLED"
    assert "bye" in cluster.output(job)
    cluster.until(lambda: not cluster.pods())


def test_an_image_that_does_not_exist_is_told_and_holds_no_gpu(cluster: KubernetesCluster) -> None:
    job = cluster.sbatch("--gpus=8", "--container-image=bireme.test/nothing:1", "--wrap", "true")

    def told() -> bool:
        return "ErrImageNeverPull" in cluster.bireme("why", job).stdout

    cluster.until(told, 60)
    assert cluster.run("squeue", "-h", "-j", job, "-o", "%T %r").stdout == "PENDING JobLaunchFailure\n"
    cluster.run("scancel", job)
    cluster.until(lambda: not cluster.pods())


def test_a_pod_that_somebody_deletes_is_a_lost_node_and_the_job_comes_back(cluster: KubernetesCluster) -> None:
    job = cluster.sbatch(
        "--requeue",
        "--wrap",
        "echo $SLURM_RESTART_COUNT; touch r$SLURM_RESTART_COUNT; until test -e end; do sleep 0.1; done",
    )
    cluster.until(lambda: (cluster.work / "r").exists() or (cluster.work / "r0").exists(), 60)
    (pod,) = cluster.pods()
    cluster.kubernetes.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
    cluster.until(lambda: (cluster.work / "r1").exists(), 90)
    (cluster.work / "end").touch()
    assert cluster.wait(job)["state"] == "COMPLETED"
    assert "the pod was deleted" in cluster.bireme("why", job).stdout or cluster.records(job)[0]["restarts"] == 1


def test_a_cordoned_node_takes_no_new_jobs(cluster: KubernetesCluster) -> None:
    cluster.kubernetes.kubectl("cordon", "node2")
    cluster.until(lambda: cluster.run("sinfo", "-h", "-n", "node2", "-o", "%T").stdout.strip() == "drained", 30)
    assert "cordoned" in cluster.run("sinfo", "-h", "-R").stdout
    cluster.kubernetes.kubectl("uncordon", "node2")
    cluster.until(lambda: cluster.run("sinfo", "-h", "-n", "node2", "-o", "%T").stdout.strip() == "idle", 30)


def test_gpus_that_pods_of_others_hold_are_used_until_they_leave(cluster: KubernetesCluster) -> None:
    limits = {"nvidia.com/gpu": "6", "cpu": "1"}
    container = {"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "resources": {"limits": limits}}
    spec = {
        "nodeName": "node1",
        "terminationGracePeriodSeconds": 0,
        "containers": [{**container, "command": ["sleep", "infinity"]}],
    }
    theirs = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "theirs"}, "spec": spec}
    cluster.kubernetes.api.create("/api/v1/namespaces/default/pods", theirs)

    def used() -> str:
        return cluster.run("sinfo", "-h", "-n", "node1", "-O", "GresUsed:40").stdout

    cluster.until(lambda: ":6(IDX:0-5)" in used(), 30)
    large = cluster.sbatch("-w", "node1", "--gpus=8", "--wrap", "true")
    small = cluster.sbatch("-w", "node1", "--gpus=2", "--wrap", "true")
    cluster.kill_daemon()
    cluster.up_again()
    assert cluster.wait(small)["state"] == "COMPLETED", cluster.log_tail()
    assert cluster.run("squeue", "-h", "-j", large, "-o", "%T %r").stdout == "PENDING Resources\n"
    cluster.kubernetes.kubectl("delete", "pod", "theirs", "--grace-period=0", "--force")
    assert cluster.wait(large)["state"] == "COMPLETED", cluster.log_tail()
    cluster.until(lambda: not cluster.pods())
