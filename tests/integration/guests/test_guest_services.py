"""Services among others' pods: before batch, on what others leave, and never against a disruption budget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.kubernetes_cluster.processes import wait_for
from tests.support.guests import PODS, Bireme, pod

HERE = {"kubernetes.io/hostname": "fake-00000"}
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
APPS = "/apis/apps/v1/namespaces/default"


@contextmanager
def made(bireme: Bireme, path: str, kind: str, name: str, **body: Any) -> Iterator[str]:
    """An object of the API, until the block ends."""
    version = "/".join(path.split("/")[2:4])
    bireme.kubernetes.api.create(path, {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **body})
    try:
        yield f"{path}/{name}"
    finally:
        bireme.kubernetes.api.delete(f"{path}/{name}?propagationPolicy=Background")


def service(replicas: int, gpus: int, app: str, **spec: Any) -> dict[str, Any]:
    annotations = spec.pop("annotations", {})
    template = {"metadata": {"labels": {"app": app}, "annotations": annotations}, "spec": pod("x", gpus)["spec"] | spec}
    return {"replicas": replicas, "selector": {"matchLabels": {"app": app}}, "template": template}


def nodes_of(bireme: Bireme, app: str) -> list[str]:
    found = bireme.kubernetes.api.get(f"{PODS}?labelSelector=app%3D{app}")["items"]
    return sorted(one["spec"].get("nodeName", "") for one in found)


@pytest.mark.parametrize(("placement", "nodes"), [("packed", {1, 2}), ("spread", {4})])
def test_replicas_are_placed_one_by_one_packed_or_spread(bireme: Bireme, placement: str, nodes: set[int]) -> None:
    wanted = service(4, 1, "web", annotations={"bireme.dev/placement": placement})
    with made(bireme, f"{APPS}/deployments", "Deployment", "web", spec=wanted):
        wait_for(lambda: len(nodes_of(bireme, "web")) == 4 and all(nodes_of(bireme, "web")), "four replicas placed")
        assert len(set(nodes_of(bireme, "web"))) in nodes
        assert {state for name, state in bireme.queue().items() if name.startswith("web-")} == {"RUNNING"}


def test_a_stateful_set_begins_with_its_first_pod_and_goes_on(bireme: Bireme) -> None:
    spec = service(3, 8, "db") | {"serviceName": "db"}
    with made(bireme, f"{APPS}/statefulsets", "StatefulSet", "db", spec=spec):
        assert len({bireme.node_of(f"db-{number}") for number in range(3)}) == 3


def test_a_service_is_before_batch_and_makes_it_leave(bireme: Bireme) -> None:
    bireme.create("batch", 8, nodeSelector=HERE)
    bireme.node_of("batch")
    bireme.create("later", 8, nodeSelector=HERE)
    assert bireme.message("later")
    with made(bireme, f"{APPS}/deployments", "Deployment", "web", spec=service(1, 8, "web", nodeSelector=HERE)):
        wait_for(lambda: nodes_of(bireme, "web") == ["fake-00000"], "the replica in the place of the batch pod")
        names = [one["metadata"]["name"] for one in bireme.kubernetes.api.get(PODS)["items"]]
        assert "batch" not in names
        assert bireme.queue()["later"] == "PENDING"
    assert bireme.node_of("later") == "fake-00000"


def test_a_higher_priority_class_preempts_a_lower_one(bireme: Bireme) -> None:
    with (
        made(bireme, CLASSES, "PriorityClass", "gold", value=1000),
        made(bireme, CLASSES, "PriorityClass", "tin", value=10),
    ):
        wait_for(lambda: "gold" in bireme.run("sacctmgr", "-nP", "show", "qos", "format=name"), "a QOS for the class")
        bireme.create("low", 8, nodeSelector=HERE, priorityClassName="tin")
        bireme.node_of("low")
        bireme.create("high", 8, nodeSelector=HERE, priorityClassName="gold")
        assert bireme.node_of("high") == "fake-00000"
        bireme.create("again", 8, nodeSelector=HERE, priorityClassName="tin")
        assert bireme.message("again")
        assert bireme.queue() == {"high": "RUNNING", "again": "PENDING"}


def test_a_class_that_never_preempts_waits_and_still_goes_first(bireme: Bireme) -> None:
    with made(bireme, CLASSES, "PriorityClass", "polite", value=1000, preemptionPolicy="Never"):
        wait_for(lambda: "polite" in bireme.run("sacctmgr", "-nP", "show", "qos", "format=name"), "a QOS")
        bireme.create("runs", 8, nodeSelector=HERE)
        bireme.node_of("runs")
        bireme.create("usual", 8, nodeSelector=HERE)
        assert bireme.message("usual")
        bireme.create("first", 8, nodeSelector=HERE, priorityClassName="polite")
        assert bireme.message("first")
        assert bireme.queue()["runs"] == "RUNNING"
        bireme.kubernetes.api.delete(f"{PODS}/runs")
        assert bireme.node_of("first") == "fake-00000"
        assert bireme.queue()["usual"] == "PENDING"


def kept(app: str) -> dict[str, Any]:
    return {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}}


def test_a_budget_that_forbids_sends_the_preemptor_to_another_victim(bireme: Bireme) -> None:
    there = {"kubernetes.io/hostname": "fake-00001"}
    with made(bireme, BUDGETS, "PodDisruptionBudget", "kept", **kept("kept")):
        bireme.create("kept", 8, nodeSelector=HERE, labels={"app": "kept"})
        bireme.create("free", 8, nodeSelector=there)
        bireme.node_of("kept")
        bireme.node_of("free")
        rule = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["fake-00000", "fake-00001"]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        with made(bireme, f"{APPS}/deployments", "Deployment", "web", spec=service(1, 8, "web", affinity=affinity)):
            wait_for(lambda: nodes_of(bireme, "web") == ["fake-00001"], "the replica in the place of the free pod")
            assert bireme.node_of("kept") == "fake-00000"


def test_a_budget_that_forbids_all_lets_the_preemptor_wait_and_says_so(bireme: Bireme) -> None:
    with made(bireme, BUDGETS, "PodDisruptionBudget", "kept", **kept("kept")) as budget:
        bireme.create("kept", 8, nodeSelector=HERE, labels={"app": "kept"})
        bireme.node_of("kept")
        with made(bireme, f"{APPS}/deployments", "Deployment", "web", spec=service(1, 8, "web", nodeSelector=HERE)):
            name = wait_for(lambda: [one for one in bireme.queue() if one.startswith("web-")], "the replica to wait")[0]
            bireme.message(name, "kept by disruption budget kept")
            assert bireme.node_of("kept") == "fake-00000"
            bireme.kubernetes.api.patch(budget, {"spec": {"minAvailable": 0}})
            wait_for(lambda: nodes_of(bireme, "web") == ["fake-00000"], "the place, once the budget allows it")
