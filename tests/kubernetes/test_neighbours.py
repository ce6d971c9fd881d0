"""Bireme's jobs and others' pods on the same real kubelets: who makes way for whom, and no GPU is given twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.kubernetes_cluster.cluster import Kubernetes, missing
from tests.kubernetes_cluster.images import BUSYBOX
from tests.support.kubernetes import KubernetesCluster

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
PODS = "/api/v1/namespaces/default/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
CLAIM = (
    'cd {work}/gpus; all=$(echo $NVIDIA_VISIBLE_DEVICES | tr , " "); '
    "for gpu in $all; do mkdir $gpu || echo $gpu >> {work}/twice; done; sleep 1; rmdir $all"
)
"""Takes a lock for each GPU that the kubelet gave, holds it for a while, and tells of one that was taken."""


@pytest.fixture(scope="module")
def cluster(kubelets: Kubernetes) -> Iterator[KubernetesCluster]:
    with KubernetesCluster(kubelets).running() as bireme:
        yield bireme


def spec_of(cluster: KubernetesCluster, gpus: int, command: str, **more: Any) -> dict[str, Any]:
    """Of a guest that runs a shell command and sees the working folder."""
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", command],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"cpu": "100m"}},
        "volumeMounts": [{"name": "work", "mountPath": str(cluster.work)}],
    }
    volume = {"name": "work", "hostPath": {"path": str(cluster.work)}}
    return {
        "schedulerName": "bireme",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "volumes": [volume],
        **more,
    }


def deploy(cluster: KubernetesCluster, name: str, gpus: int, command: str) -> None:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": spec_of(cluster, gpus, command, restartPolicy="Always")}
    body = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    head = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}}
    cluster.kubernetes.api.create(DEPLOYMENTS, {**head, "spec": body})


def undeploy(cluster: KubernetesCluster, name: str) -> None:
    cluster.kubernetes.api.delete(f"{DEPLOYMENTS}/{name}?propagationPolicy=Background")
    cluster.until(lambda: not phases(cluster, f"app={name}"), 60)


def phases(cluster: KubernetesCluster, selector: str) -> list[str]:
    found = cluster.kubernetes.api.get(f"{PODS}?labelSelector={selector.replace('=', '%3D')}")["items"]
    return [one["status"]["phase"] for one in found]


def test_a_batch_job_makes_way_for_a_service_and_goes_on_from_its_checkpoint(cluster: KubernetesCluster) -> None:
    script = cluster.script(
        "#SBATCH -N2 --gpus-per-node=8 --requeue\n"
        "step=$(cat checkpoint 2>/dev/null || echo 0)\n"
        "echo begins at $step, restart ${SLURM_RESTART_COUNT:-0} >> story\n"
        "until test -e enough; do step=$((step + 1)); echo $step > checkpoint.new; mv checkpoint.new checkpoint\n"
        "sleep 0.1; done\n"
        "echo ends at $step >> story\n"
    )
    job = cluster.sbatch(str(script))
    cluster.until(lambda: (cluster.work / "checkpoint").exists(), 60)
    deploy(cluster, "web", 8, "sleep infinity")
    cluster.until(lambda: phases(cluster, "app=web") == ["Running"], 90)
    assert cluster.records(job)[0]["state"] == "PENDING"
    reached = int((cluster.work / "checkpoint").read_text())
    undeploy(cluster, "web")
    cluster.until(lambda: int((cluster.work / "checkpoint").read_text()) > reached, 60)
    (cluster.work / "enough").touch()
    assert cluster.wait(job)["state"] == "COMPLETED", cluster.log_tail()
    first, second, end = (cluster.work / "story").read_text().splitlines()
    assert first == "begins at 0, restart 0"
    assert second == f"begins at {reached}, restart 1"
    assert int(end.split()[-1]) > reached


def test_an_evicted_pod_has_the_grace_that_it_asked_for(cluster: KubernetesCluster) -> None:
    farewell = (
        f"trap 'sleep 2; touch {cluster.work}/saved; exit 0' TERM; "
        f"touch {cluster.work}/ready-$(hostname); while :; do sleep 0.1; done"
    )
    spec = spec_of(cluster, 8, farewell, terminationGracePeriodSeconds=60)
    for name in ("node1", "node2"):
        pinned = spec | {"nodeSelector": {"kubernetes.io/hostname": name}}
        head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"old-{name}", "labels": {"app": "old"}}}
        cluster.kubernetes.api.create(PODS, {**head, "spec": pinned})
    cluster.until(lambda: phases(cluster, "app=old") == ["Running", "Running"], 60)
    cluster.until(lambda: len(list(cluster.work.glob("ready-*"))) == 2, 60)
    deploy(cluster, "new", 8, f"test -e {cluster.work}/saved && touch {cluster.work}/after; sleep infinity")
    cluster.until(lambda: phases(cluster, "app=new") == ["Running"], 90)
    cluster.until(lambda: (cluster.work / "after").exists(), 30)
    assert phases(cluster, "app=old").count("Running") == 1, "one was enough"
    cluster.kubernetes.api.delete(f"{PODS}?labelSelector=app%3Dold")
    undeploy(cluster, "new")


def test_others_gangs_run_to_their_end_beside_a_batch_job_and_no_gpu_is_given_twice(cluster: KubernetesCluster) -> None:
    (cluster.work / "gpus").mkdir(mode=0o777)
    (cluster.work / "gpus").chmod(0o777)
    claim = CLAIM.format(work=cluster.work)
    job = cluster.sbatch(str(cluster.script(f"#SBATCH -N2 --gpus-per-node=4\nsrun sh -c '{claim}'\n")))
    ranks: dict[str, Any] = {"completions": 2, "parallelism": 2, "completionMode": "Indexed"}
    ranks |= {"template": {"spec": spec_of(cluster, 4, claim)}}
    api, jobs = cluster.kubernetes.api, "/apis/batch/v1/namespaces/default/jobs"
    api.create(jobs, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "ranks"}, "spec": ranks})
    groups = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
    head = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": "native"}}
    api.create(groups, {**head, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})
    for number in range(2):
        member = spec_of(cluster, 8, claim, schedulingGroup={"podGroupName": "native"})
        metadata = {"name": f"native-{number}", "labels": {"app": "native"}}
        api.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": member})
    assert cluster.wait(job)["state"] == "COMPLETED", cluster.log_tail()
    cluster.until(lambda: api.get(f"{jobs}/ranks")["status"].get("succeeded") == 2, 60)
    cluster.until(lambda: phases(cluster, "app=native") == ["Succeeded", "Succeeded"], 60)
    assert not (cluster.work / "twice").exists(), (cluster.work / "twice").read_text()
    assert not list((cluster.work / "gpus").iterdir())
    api.delete(f"{jobs}/ranks?propagationPolicy=Background")
    api.delete(PODS)
    cluster.until(lambda: not cluster.pods(), 60)
