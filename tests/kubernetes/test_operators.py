"""JobSet's and the MPI operator's own controllers make the pods, in the order that they keep; Bireme places them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.kubernetes.test_neighbours import PODS, spec_of
from tests.kubernetes_cluster import operators
from tests.kubernetes_cluster.cluster import Kubernetes
from tests.kubernetes_cluster.operators import jobset, replicated_job
from tests.support.kubernetes import KubernetesCluster

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
MPIJOBS = "/apis/kubeflow.org/v2beta1/namespaces/default/mpijobs"


@pytest.fixture(scope="module")
def cluster(kubelets: Kubernetes) -> Iterator[KubernetesCluster]:
    why = operators.missing()
    if why:
        pytest.skip(why)
    operators.start(kubelets)
    with KubernetesCluster(kubelets).running() as bireme:
        yield bireme


def ends(cluster: KubernetesCluster, path: str, condition: str) -> None:
    """Returns when the object is so; removes it and all that it made."""
    api = cluster.kubernetes.api

    def is_so() -> bool:
        conditions = api.get(path).get("status", {}).get("conditions") or ()
        return any(one["type"] == condition and one["status"] == "True" for one in conditions)

    try:
        cluster.until(is_so, 120)
    except AssertionError as late:
        told = [(one["metadata"]["name"], one["status"]) for one in api.get(PODS)["items"]]
        raise AssertionError(f"{late}: {told}\n{cluster.log_tail()}") from None
    api.delete(f"{path}?propagationPolicy=Background")
    cluster.until(lambda: not cluster.pods(), 60)


def story(cluster: KubernetesCluster) -> list[str]:
    return (cluster.work / "story").read_text().split()


def test_parts_of_a_jobset_that_start_in_order(cluster: KubernetesCluster) -> None:
    """The workers are made when the driver is ready, and it ends when they have."""
    work = cluster.work
    driver = f"echo driver >> {work}/story; until test -e {work}/worker0 -a -e {work}/worker1; do sleep 0.1; done"
    worker = f"echo worker >> {work}/story; touch {work}/worker$JOB_COMPLETION_INDEX"
    parts = [
        replicated_job("driver", 1, spec_of(cluster, 0, driver)),
        replicated_job("workers", 2, spec_of(cluster, 8, worker)),
    ]
    body = jobset("inorder", parts, startupPolicy={"startupPolicyOrder": "InOrder"})
    cluster.kubernetes.api.create(JOBSETS, body)
    ends(cluster, f"{JOBSETS}/inorder", "Completed")
    assert story(cluster) == ["driver", "worker", "worker"]


def test_a_part_of_a_jobset_that_depends_on_anothers_end(cluster: KubernetesCluster) -> None:
    """Both need every GPU of the cluster: the second starts with what the first has given back."""
    (cluster.work / "story").unlink(missing_ok=True)
    prepare, train = (spec_of(cluster, 8, f"echo {name} >> {cluster.work}/story") for name in ("prepare", "train"))
    parts = [
        replicated_job("prepare", 2, prepare),
        replicated_job("train", 2, train, dependsOn=[{"name": "prepare", "status": "Complete"}]),
    ]
    cluster.kubernetes.api.create(JOBSETS, jobset("after", parts))
    ends(cluster, f"{JOBSETS}/after", "Completed")
    assert story(cluster) == ["prepare", "prepare", "train", "train"]


@pytest.mark.parametrize("policy", ["AtStartup", "WaitForWorkersReady"])
def test_an_mpi_job_and_its_launcher(cluster: KubernetesCluster, policy: str) -> None:
    """The workers are a gang; the launcher, another Job's pod that may come only when they run, is placed too."""
    work, name = cluster.work, f"allreduce-{policy.lower()}"
    worker = f"until test -e {work}/{name}; do sleep 0.1; done"
    launcher = f"cp /etc/mpi/hostfile {work}/hosts-{name} && touch {work}/{name}"
    replicas = {"Launcher": role(cluster, 1, 0, launcher), "Worker": role(cluster, 2, 8, worker)}
    head = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": name}}
    spec = {"runPolicy": {"cleanPodPolicy": "Running"}, "slotsPerWorker": 8, "mpiReplicaSpecs": replicas}
    cluster.kubernetes.api.create(MPIJOBS, {**head, "spec": {**spec, "launcherCreationPolicy": policy}})
    ends(cluster, f"{MPIJOBS}/{name}", "Succeeded")
    hosts = (work / f"hosts-{name}").read_text().splitlines()
    assert [line.partition(".")[0] for line in hosts] == [f"{name}-worker-{rank}" for rank in range(2)]


def role(cluster: KubernetesCluster, count: int, gpus: int, command: str) -> dict[str, Any]:
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": spec_of(cluster, gpus, command)}}
