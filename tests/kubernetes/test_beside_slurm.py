"""A real Kubernetes and a real Slurm in one daemon: partitions choose, and neither hides what the other can do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kubernetes_cluster.cluster import Kubernetes, missing
from tests.kubernetes_cluster.images import BUSYBOX
from tests.slurm_cluster import Layout, SlurmCluster, running
from tests.support.guests import pod
from tests.support.kubernetes import KubernetesCluster
from tests.support.slurm_attached import skip_without_slurm, wrappers

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
LONG_S = 120.0


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    skip_without_slurm()
    with running(Layout()) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def both(kubelets: Kubernetes, slurm: SlurmCluster) -> Iterator[KubernetesCluster]:
    settings = f'[slurm]\nconf = "{slurm.folder}/slurm.conf"\npoll_s = 1\n'
    if slurm.slurm.chroot:
        settings += f'commands = "{wrappers(slurm.folder / "commands", slurm)}"\n'
    with KubernetesCluster(kubelets, engine="kubernetes+slurm", beside=settings).running() as cluster:
        if slurm.slurm.chroot:
            cluster.work = slurm.work
        yield cluster


def partitions(both: KubernetesCluster) -> set[str]:
    return set(both.run("sinfo", "-h", "-o", "%P %N").stdout.splitlines())


def ends(both: KubernetesCluster, *jobs: str) -> list[str]:
    said = both.run("sacct", "-nXP", "-j", ",".join(jobs), "-o", "State,ExitCode").stdout
    return sorted(said.split())


def test_a_partition_chooses_the_engine_also_after_a_restart(both: KubernetesCluster, slurm: SlurmCluster) -> None:
    assert {"main* node[1-2]", "cpu c[1-2]"} <= partitions(both)
    ours, theirs = (
        both.sbatch("-N2", "--wrap", "srun hostname | sort; exit 3"),
        both.sbatch("-p", "cpu", "--wrap", "exit 4"),
    )
    assert int(ours) >= 60_000_000 > int(theirs)
    slurm.until(lambda: ends(both, ours, theirs) == ["FAILED|3:0", "FAILED|4:0"], "both end")
    assert both.output(ours) == "node1\nnode2\n"
    assert slurm.call("squeue", "-h", "-t", "all", "-j", theirs, "-o", "%T") == "FAILED"

    runs = both.sbatch("--wrap", "touch began; until test -e open; do sleep 0.1; done; exit 5")
    both.until(lambda: (both.work / "began").exists(), LONG_S)
    held = both.sbatch("-H", "-p", "cpu", "--wrap", "exit 6")
    both.kill_daemon()
    both.up_again()
    both.run("scontrol", "reconfigure")
    assert {"main* node[1-2]", "cpu c[1-2]"} <= partitions(both)
    both.run("scontrol", "release", held)
    (both.work / "open").touch()
    slurm.until(lambda: ends(both, runs, held) == ["FAILED|5:0", "FAILED|6:0"], "both end")


def test_commands_inside_a_pod_reach_the_daemon(both: KubernetesCluster) -> None:
    job = both.sbatch("--wrap", "squeue -h -o %i -t R; scontrol update jobid=$SLURM_JOB_ID comment=mine")
    assert both.wait(job, LONG_S)["state"] == "COMPLETED", both.output(job)
    assert both.output(job).split() == [job]
    assert both.records(job)[0]["comment"] == "mine"


def test_pods_of_others_are_placed_and_explained(both: KubernetesCluster) -> None:
    body = pod("guest")
    body["spec"]["containers"][0] |= {"image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sleep", "1000"]}
    both.kubernetes.api.create("/api/v1/namespaces/default/pods", body)
    gated = pod("gated", schedulingGates=[{"name": "example.com/later"}])
    both.kubernetes.api.create("/api/v1/namespaces/default/pods", gated)
    try:
        placed = both.kubernetes.wait_for_pod("guest", "Running", within_s=LONG_S)
        assert placed["spec"]["nodeName"] in ("node1", "node2")
        assert "guest" in both.run("squeue", "-h", "-p", "main", "-o", "%j").stdout
        assert "its scheduling gates are closed: example.com/later" in " ".join(
            both.bireme("why", "pod/gated").stdout.split()
        )
    finally:
        for name in ("guest", "gated"):
            both.kubernetes.kubectl("delete", "pod", name, "--wait=false")
    both.until(lambda: not both.pods(), LONG_S)
    both.until(lambda: not both.run("squeue", "-h").stdout, LONG_S)
