"""Fences on a real Kubernetes: a node that is out of service is marked for everybody else, and unmarked again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.kubernetes_cluster.cluster import Kubernetes, missing
from tests.support.kubernetes import KubernetesCluster

from bireme.client.sdk import Client

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
KEY = "bireme.dev/fenced"


@pytest.fixture(scope="module")
def cluster(kubelets: Kubernetes) -> Iterator[KubernetesCluster]:
    with KubernetesCluster(kubelets).running() as bireme:
        yield bireme


def node_of(cluster: KubernetesCluster, name: str) -> dict[str, Any]:
    return dict(cluster.kubernetes.api.get(f"/api/v1/nodes/{name}"))


def taints(cluster: KubernetesCluster, name: str) -> set[str]:
    return {each["key"] for each in node_of(cluster, name)["spec"].get("taints") or ()}


def condition(cluster: KubernetesCluster, name: str) -> tuple[str, str]:
    known = node_of(cluster, name)["status"]["conditions"]
    return next(((each["status"], each["message"]) for each in known if each["type"] == "BiremeFenced"), ("", ""))


def test_a_fenced_node_is_marked_for_others_and_only_our_marks_are_taken_away(cluster: KubernetesCluster) -> None:
    known = cluster.kubernetes.api.get("/api/v1/nodes")["items"]
    first, second = sorted(node["metadata"]["name"] for node in known)[:2]
    cluster.kubernetes.kubectl("taint", "node", first, "team=theirs:PreferNoSchedule")
    try:
        with Client(str(cluster.home)) as client:
            client.fence(first, "its NIC flaps")
            cluster.until(lambda: condition(cluster, first) == ("True", "its NIC flaps"), 60)
            assert taints(cluster, first) == {KEY, "team"}
            assert KEY not in taints(cluster, second)
            job = cluster.sbatch("--wrap", "hostname")
            assert cluster.wait(job)["node_list"] == second
            cluster.kill_daemon()
            cluster.up_again()
            assert KEY in taints(cluster, first)
            cluster.kubernetes.kubectl("cordon", first)
            client.undo_healing(client.healings()[0]["id"], "new cable")
            cluster.until(lambda: condition(cluster, first)[0] == "False", 60)
            assert taints(cluster, first) >= {"team"}
            assert KEY not in taints(cluster, first)
            assert node_of(cluster, first)["spec"]["unschedulable"], "somebody else's cordon stays"
    finally:
        cluster.kubernetes.kubectl("uncordon", first)
        cluster.kubernetes.kubectl("taint", "node", first, "team-")


def test_one_gpu_cannot_be_fenced_there_and_that_is_said(cluster: KubernetesCluster) -> None:
    shown = cluster.bireme("healings", "--json").stdout
    assert '"mode": "observe"' in shown, "the cluster is others' too"
