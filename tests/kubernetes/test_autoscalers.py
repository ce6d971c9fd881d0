"""Somebody else's Deployment under Kubernetes' own autoscaler, placed by Bireme: HPA and metrics-server are real."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.kubernetes_cluster import metrics_server
from tests.kubernetes_cluster.cluster import Kubernetes, missing
from tests.kubernetes_cluster.images import BUSYBOX
from tests.support.kubernetes import KubernetesCluster

WHY_NOT = missing(nodes=True) or metrics_server.missing()
pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "-"), pytest.mark.timeout(600)]
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
AUTOSCALERS = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
PODS = "/api/v1/namespaces/default/pods?labelSelector=app%3Dweb"
SOME_TIME_S = 240.0
"""What pods use is measured every ten seconds, and counts over some of these."""


@pytest.fixture(scope="module")
def cluster(kubelets: Kubernetes) -> Iterator[KubernetesCluster]:
    metrics_server.start(kubelets)
    with KubernetesCluster(kubelets).running() as bireme:
        yield bireme


def deploy(cluster: KubernetesCluster) -> None:
    """Works while there is a file `busy`, else sleeps; it may have a tenth of a CPU."""
    work = f"while :; do test -e {cluster.work}/busy && seq 20000 > /dev/null || sleep 1; done"
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", work],
        "resources": {"requests": {"cpu": "50m"}, "limits": {"cpu": "100m"}},
        "volumeMounts": [{"name": "work", "mountPath": str(cluster.work)}],
    }
    volume = {"name": "work", "hostPath": {"path": str(cluster.work)}}
    pod = {
        "schedulerName": "bireme",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "volumes": [volume],
    }
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    cluster.kubernetes.api.create(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec})


def autoscale(cluster: KubernetesCluster) -> None:
    """One to three pods, each to use half of what it asks for."""
    measured = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "minReplicas": 1,
        "maxReplicas": 3,
        "metrics": [{"type": "Resource", "resource": measured}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    }
    cluster.kubernetes.api.create(AUTOSCALERS, {"metadata": {"name": "web"}, "spec": spec})


def pods(cluster: KubernetesCluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.kubernetes.api.get(PODS)["items"]
    return found


def until_running(cluster: KubernetesCluster, count: int) -> None:
    try:
        cluster.until(lambda: [each["status"]["phase"] for each in pods(cluster)] == ["Running"] * count, SOME_TIME_S)
    except AssertionError as late:
        status = cluster.kubernetes.api.get(f"{AUTOSCALERS}/web").get("status")
        raise AssertionError(f"{late}\n{status}") from None


def test_a_deployment_under_hpa_grows_and_shrinks_on_nodes_that_bireme_gives(cluster: KubernetesCluster) -> None:
    deploy(cluster)
    autoscale(cluster)
    until_running(cluster, 1)
    (cluster.work / "busy").touch()
    until_running(cluster, 3)
    assert {each["spec"]["schedulerName"] for each in pods(cluster)} == {"bireme"}
    assert all(each["spec"].get("nodeName") for each in pods(cluster))
    (cluster.work / "busy").unlink()
    until_running(cluster, 1)
    cluster.kubernetes.api.delete(f"{AUTOSCALERS}/web")
    cluster.kubernetes.api.delete(f"{DEPLOYMENTS}/web?propagationPolicy=Background")
    cluster.until(lambda: not pods(cluster), 60)
