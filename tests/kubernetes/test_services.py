"""Services on a real Kubernetes: replicas are pods, asked by their agents, shown to the cluster and to the router."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest
from tests.kubernetes_cluster import binaries
from tests.kubernetes_cluster.cluster import Kubernetes, missing
from tests.support.kubernetes import KubernetesCluster

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")

SCRIPT = """#!/bin/sh
#BIREME --replicas=2 --health=/index.html --drain=1s
mkdir "$SLURM_JOB_ID" && echo "$BIREME_SERVICE $BIREME_REVISION" > "$SLURM_JOB_ID/index.html"
exec httpd -f -p "$PORT" -h "$SLURM_JOB_ID"
"""
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io/service-name=web"


GATEWAYS = "/apis/gateway.networking.k8s.io/v1/namespaces/default/gateways"
ROUTES = "/apis/gateway.networking.k8s.io/v1/namespaces/default/httproutes"
WITHOUT_GATEWAYS = binaries.missing("gateway-api")


@pytest.fixture(scope="module")
def cluster(kubelets: Kubernetes) -> Iterator[KubernetesCluster]:
    if not WITHOUT_GATEWAYS:
        install_a_gateway(kubelets)
    with KubernetesCluster(kubelets).running() as bireme:
        yield bireme
    if not WITHOUT_GATEWAYS:
        kubelets.api.delete(f"{GATEWAYS}/public")


def install_a_gateway(kubelets: Kubernetes) -> None:
    """The kinds of the Gateway API, and one Gateway. Nobody serves it: what is made for it is looked at."""
    files = sorted(binaries.manifests("gateway-api").glob("*.yaml"))
    arguments = [part for file in files for part in ("-f", str(file))]
    kubelets.kubectl("apply", "--server-side", *arguments)
    kubelets.kubectl("wait", "--for=condition=Established", "--timeout=60s", *arguments)
    listener = {"name": "http", "port": 80, "protocol": "HTTP"}
    gateway = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "public"}}
    kubelets.api.create(GATEWAYS, {**gateway, "spec": {"gatewayClassName": "nobody", "listeners": [listener]}})


def shown(cluster: KubernetesCluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.bireme("service", "show", "web", "--json").stdout)
    return found


def addresses(cluster: KubernetesCluster) -> set[tuple[str, int]]:
    """Where clients in the cluster are led."""
    slices = cluster.kubernetes.api.get(SLICES)["items"]
    return {(each["endpoints"][0]["addresses"][0], each["ports"][0]["port"]) for each in slices}


def pod_addresses(cluster: KubernetesCluster) -> dict[str, str]:
    pods = cluster.kubernetes.api.get("/api/v1/pods")["items"]
    return {pod["metadata"]["labels"]["bireme.dev/job"]: pod["status"].get("podIP", "") for pod in pods}


def ready(cluster: KubernetesCluster) -> list[dict[str, Any]]:
    """Serves it where nobody has yet, and waits until two are ready, and there are no others; the replicas."""
    if not json.loads(cluster.bireme("services", "--json").stdout):
        cluster.script(SCRIPT, "web.sh")
        cluster.bireme("serve", "web.sh")
    cluster.until(lambda: [each["state"] for each in shown(cluster)["replicas"]] == ["ready"] * 2, 120)
    return list(shown(cluster)["replicas"])


def is_shown_exactly(cluster: KubernetesCluster, replicas: list[dict[str, Any]]) -> None:
    pods = pod_addresses(cluster)
    expected = {(pods[str(each["job_id"])], each["port"]) for each in replicas}
    cluster.until(lambda: addresses(cluster) == expected, 30)


def test_the_cluster_is_shown_exactly_the_replicas_that_are_ready(cluster: KubernetesCluster) -> None:
    is_shown_exactly(cluster, ready(cluster))
    found = cluster.kubernetes.api.get("/api/v1/namespaces/default/services/web")
    assert found["spec"]["ports"][0]["port"] == 80
    assert "selector" not in found["spec"]
    with urlopen(shown(cluster)["url"] + "index.html", timeout=30) as answer:
        assert answer.read() == b"web 1\n", "and the router reaches the pods"


@pytest.mark.skipif(bool(WITHOUT_GATEWAYS), reason=WITHOUT_GATEWAYS or "-")
def test_a_gateway_is_told_the_way_to_it(cluster: KubernetesCluster) -> None:
    ready(cluster)
    cluster.until(lambda: cluster.kubernetes.api.get(ROUTES)["items"], 60)
    (route,) = cluster.kubernetes.api.get(ROUTES)["items"]
    assert [(each["namespace"], each["name"]) for each in route["spec"]["parentRefs"]] == [("default", "public")]
    (rule,) = route["spec"]["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/web"}}]
    assert [(each["name"], each["port"]) for each in rule["backendRefs"]] == [("web", 80)]


def test_a_cancelled_replica_is_replaced_there_too(cluster: KubernetesCluster) -> None:
    first, second = ready(cluster)
    cluster.run("scancel", str(first["job_id"]))
    cluster.until(lambda: first["number"] not in [each["number"] for each in shown(cluster)["replicas"]], 120)
    left = ready(cluster)
    assert second["number"] in [each["number"] for each in left]
    is_shown_exactly(cluster, left)


def test_a_daemon_that_was_away_finds_what_is_there(cluster: KubernetesCluster) -> None:
    before = ready(cluster)
    cluster.kill_daemon()
    host, port = min(addresses(cluster))
    with urlopen(f"http://{host}:{port}/index.html", timeout=30) as answer:
        assert answer.status == 200
    cluster.up_again()
    assert shown(cluster)["ready"] == 2
    is_shown_exactly(cluster, before)


def test_a_stopped_service_leaves_nothing(cluster: KubernetesCluster) -> None:
    ready(cluster)
    cluster.bireme("service", "stop", "web")
    labelled = "?labelSelector=bireme.dev/service"
    cluster.until(lambda: not cluster.kubernetes.api.get(f"/api/v1/services{labelled}")["items"], 120)
    cluster.until(lambda: not addresses(cluster), 120)
    assert WITHOUT_GATEWAYS or not cluster.kubernetes.api.get(ROUTES)["items"], "who is led there goes first"
    cluster.until(lambda: not cluster.pods(), 120)
