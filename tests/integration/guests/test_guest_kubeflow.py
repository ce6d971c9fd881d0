"""Kubeflow's own training operator makes the pods, Bireme places them: gangs of PyTorchJobs and MPIJobs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kubernetes_cluster import training_operator
from tests.kubernetes_cluster.processes import wait_for
from tests.support.guests import PODS, Bireme, on_nodes, pod


@pytest.fixture(scope="package")
def kubeflow(bireme: Bireme) -> Bireme:
    why = training_operator.missing()
    if why:
        pytest.skip(why)
    training_operator.start(bireme.kubernetes)
    return bireme


def replicas(count: int, gpus: int, nodes: list[str], container: str, **annotations: str) -> dict[str, Any]:
    """Of a Kubeflow job, on these nodes only."""
    made = pod("x", gpus)["spec"]
    made["containers"][0]["name"] = container
    template = {"metadata": {"annotations": annotations}, "spec": made | on_nodes(nodes)}
    return {"replicas": count, "restartPolicy": "Never", "template": template}


def training_job(kind: str, name: str, least: int, **specs: dict[str, Any]) -> dict[str, Any]:
    policy = {"schedulingPolicy": {"minAvailable": least}, "cleanPodPolicy": "All"}
    head = {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": name}}
    (roles,) = specs.items()
    return {**head, "spec": {"runPolicy": policy, roles[0]: roles[1]}}


def has_condition(bireme: Bireme, path: str, wanted: str) -> bool:
    conditions = bireme.kubernetes.api.get(path).get("status", {}).get("conditions") or ()
    return any(one["type"] == wanted and one["status"] == "True" for one in conditions)


def test_a_pytorch_job_of_kubeflow_starts_whole_or_not_at_all(kubeflow: Bireme) -> None:
    api, jobs = kubeflow.kubernetes.api, "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
    nodes = [f"fake-{number:05d}" for number in range(4)]
    kubeflow.create("taken", 8, nodeSelector={"kubernetes.io/hostname": nodes[0]})
    kubeflow.node_of("taken")
    specs = {
        "Master": replicas(1, 8, nodes, "pytorch", **{"bireme.test/runs-for": "2s"}),
        "Worker": replicas(3, 8, nodes, "pytorch"),
    }
    api.create(jobs, training_job("PyTorchJob", "llm", 4, pytorchReplicaSpecs=specs))
    kubeflow.message("llm-worker-0", "3 are free for it now")
    ours = [one for one in api.get(PODS)["items"] if one["metadata"]["name"].startswith("llm")]
    assert not any(one["spec"].get("nodeName") for one in ours)
    api.delete(f"{PODS}/taken")
    ranks = ("llm-master-0", "llm-worker-0", "llm-worker-1", "llm-worker-2")
    assert {kubeflow.node_of(name) for name in ranks} == set(nodes)
    wait_for(lambda: has_condition(kubeflow, f"{jobs}/llm", "Running"), "the operator to see it run")
    wait_for(lambda: has_condition(kubeflow, f"{jobs}/llm", "Succeeded"), "its master to end")
    wait_for(lambda: "llm" not in kubeflow.queue(), "its gang to leave the queue")
    api.delete(f"{jobs}/llm?propagationPolicy=Background")


def test_a_pytorch_job_starts_with_the_least_it_asks_for_and_the_rest_join(kubeflow: Bireme) -> None:
    api, jobs = kubeflow.kubernetes.api, "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
    nodes = [f"fake-{number:05d}" for number in range(4)]
    kubeflow.create("taken", 8, nodeSelector={"kubernetes.io/hostname": nodes[3]})
    kubeflow.node_of("taken")
    specs = {"Master": replicas(1, 8, nodes, "pytorch"), "Worker": replicas(3, 8, nodes, "pytorch")}
    api.create(jobs, training_job("PyTorchJob", "elastic", 3, pytorchReplicaSpecs=specs))
    assert {kubeflow.node_of(f"elastic-{name}") for name in ("master-0", "worker-0", "worker-1")} == set(nodes[:3])
    assert kubeflow.message("elastic-worker-2")
    api.delete(f"{PODS}/taken")
    assert kubeflow.node_of("elastic-worker-2") == nodes[3]
    api.delete(f"{jobs}/elastic?propagationPolicy=Background")


def test_an_mpi_job_of_kubeflow_is_a_gang(kubeflow: Bireme) -> None:
    api, jobs = kubeflow.kubernetes.api, "/apis/kubeflow.org/v1/namespaces/default/mpijobs"
    nodes = [f"fake-{number:05d}" for number in range(2)]
    specs = {"Launcher": replicas(1, 0, nodes, "mpi"), "Worker": replicas(2, 8, nodes, "mpi")}
    api.create(jobs, training_job("MPIJob", "allreduce", 3, mpiReplicaSpecs=specs))
    assert {kubeflow.node_of(f"allreduce-worker-{rank}") for rank in range(2)} == set(nodes)
    assert kubeflow.node_of("allreduce-launcher") in nodes
    wait_for(lambda: has_condition(kubeflow, f"{jobs}/allreduce", "Running"), "the operator to see it run")
    api.delete(f"{jobs}/allreduce?propagationPolicy=Background")
