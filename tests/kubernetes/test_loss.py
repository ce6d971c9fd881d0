"""A daemon that lost its newest events on a real Kubernetes: what pods and the cluster know does not run again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kubernetes_cluster.cluster import Kubernetes, missing
from tests.support.kubernetes import KubernetesCluster
from tests.support.rollback import keep, keep_home, put_back, put_home_back

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
LONG_S = 120.0
LEASE = ("lease", "bireme-losing", "-o", r"jsonpath={.metadata.annotations.bireme\.dev/ends}")
CONF = "ClusterName=losing\nSlurmctldHost=localhost\nKillWait=2\nGresTypes=gpu\nSelectType=select/cons_tres\n"
CONF += "SelectTypeParameters=CR_CPU\nPartitionName=main Nodes=ALL Default=YES\n"


@pytest.fixture(scope="module")
def cluster(kubelets: Kubernetes) -> Iterator[KubernetesCluster]:
    with KubernetesCluster(kubelets, slurm_conf=CONF).running() as bireme:
        yield bireme


def held(cluster: KubernetesCluster, name: str, *options: str) -> str:
    """A job that notes each run of it, and ends when its gate is opened."""
    until_open = f"until test -e {name}.gate; do sleep 0.1; done"
    return cluster.sbatch(
        "-H", "-J", name, *options, "--wrap", f"echo run >> {name}.runs; {until_open}; echo > {name}.end"
    )


def runs(cluster: KubernetesCluster, name: str) -> int:
    file = cluster.work / f"{name}.runs"
    return file.read_text().count("run") if file.exists() else 0


def release(cluster: KubernetesCluster, *jobs: str) -> None:
    for job in jobs:
        cluster.run("scontrol", "release", job, check=False)


def open_gate(cluster: KubernetesCluster, name: str) -> None:
    (cluster.work / f"{name}.gate").touch()


def is_over(cluster: KubernetesCluster, job: str) -> bool:
    """Nothing of its script is left on any kubelet; its agent may still be there."""
    return not cluster.pids_with(f"SLURM_JOB_ID={job}")


def clear(cluster: KubernetesCluster) -> None:
    for file in (*cluster.work.glob("*.runs"), *cluster.work.glob("*.gate"), *cluster.work.glob("*.end")):
        file.unlink()


def test_what_ended_or_runs_in_pods_is_not_run_twice_after_a_loss(cluster: KubernetesCluster) -> None:
    """Lost are: the end of one job, start and end of another, the start of one whose script ended while no daemon was
    there, that of one that runs on two nodes, and a whole submission."""
    clear(cluster)
    jobs = {name: held(cluster, name, "-N2" if name == "runs" else "-N1") for name in ("end", "both", "away", "runs")}
    release(cluster, jobs["end"])
    cluster.until(lambda: runs(cluster, "end"), LONG_S)
    older = keep(cluster)
    open_gate(cluster, "end")
    cluster.wait(jobs["end"], LONG_S)
    release(cluster, jobs["both"], jobs["away"], jobs["runs"])
    open_gate(cluster, "both")
    assert cluster.wait(jobs["both"], LONG_S)["state"] == "COMPLETED"
    jobs["unknown"] = held(cluster, "unknown")
    release(cluster, jobs["unknown"])
    cluster.until(lambda: all(runs(cluster, name) == 1 for name in jobs), LONG_S)
    cluster.kill_daemon()
    open_gate(cluster, "away")
    cluster.until(lambda: (cluster.work / "away.end").exists() and is_over(cluster, jobs["away"]), LONG_S)
    put_back(cluster, older)

    assert cluster.bireme("up", check=False).returncode != 0
    assert "Lost: the newest" in cluster.bireme("store", "recover", "--accept-loss").stdout
    cluster.up_again()
    release(cluster, jobs["both"], jobs["away"], jobs["runs"])  # that it was done is lost with the rest
    for name in ("end", "both", "away"):
        assert cluster.wait(jobs[name], LONG_S)["state"] == "COMPLETED", (name, cluster.log_tail())
    cluster.until(lambda: runs(cluster, "runs") == 2, LONG_S)
    later = cluster.sbatch("--wrap", "true")
    assert int(later) > int(jobs["unknown"])
    assert cluster.wait(later, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    assert {name: runs(cluster, name) for name in jobs} == {"end": 1, "both": 1, "away": 1, "runs": 2, "unknown": 1}
    cluster.until(lambda: is_over(cluster, jobs["unknown"]), LONG_S)
    open_gate(cluster, "runs")
    assert cluster.wait(jobs["runs"], LONG_S)["state"] == "COMPLETED"
    cluster.until(lambda: not cluster.pods() and not cluster.secrets(), LONG_S)


def test_a_home_that_went_back_is_found_out_by_the_cluster(cluster: KubernetesCluster) -> None:
    """Its mark agrees with its journal, and no pod is left: only the Lease knows of what came later."""
    clear(cluster)
    job = held(cluster, "once")
    kept = keep_home(cluster)
    release(cluster, job)
    open_gate(cluster, "once")
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED"
    cluster.until(lambda: not cluster.pods() and f"[{job}," in cluster.kubernetes.kubectl("get", *LEASE), LONG_S)
    cluster.kill_daemon()
    put_home_back(cluster, kept)
    cluster.up_again()
    cluster.until(lambda: "events were lost" in (cluster.home / "log" / "daemon.log").read_text(), LONG_S)
    release(cluster, job)
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED"
    assert cluster.wait(cluster.sbatch("--wrap", "true"), LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    assert runs(cluster, "once") == 1
    cluster.down()
    logged = (cluster.home / "log" / "daemon.log").read_text().count("events were lost")
    cluster.up_again()
    assert cluster.wait(cluster.sbatch("--wrap", "true"), LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    assert (cluster.home / "log" / "daemon.log").read_text().count("events were lost") == logged, "it is over"
