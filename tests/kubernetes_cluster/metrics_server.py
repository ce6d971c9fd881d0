"""metrics-server beside a control plane with real nodes: what pods use becomes the API `metrics.k8s.io`.

The autoscaler that reads it (HPA) is in kube-controller-manager. There is no service proxy: the API server goes to
where the EndpointSlice says (`--enable-aggregator-routing`).
"""

from __future__ import annotations

from tests.kubernetes_cluster import binaries
from tests.kubernetes_cluster.api import ApiError
from tests.kubernetes_cluster.cluster import Kubernetes
from tests.kubernetes_cluster.control_plane import last_lines
from tests.kubernetes_cluster.processes import free_ports, wait_for

_NAME, _NAMESPACE, _PORT_NAME = "metrics-server", "kube-system", "https"
USED = "/apis/metrics.k8s.io/v1beta1"


def missing() -> str:
    """Why it cannot run here, in one line; empty when it can."""
    return binaries.missing(_NAME)


def start(kubernetes: Kubernetes) -> None:
    """Returns when it tells what every node uses. It runs until the cluster ends."""
    (port,) = free_ports(1)
    config = kubernetes.plane.identity(_NAME, "system:masters")
    serving = kubernetes.plane.authority.issue(_NAME, addresses=(kubernetes.slot.host_address,))
    kubernetes.keeper.start(
        _NAME,
        binaries.program(_NAME),
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        f"--bind-address={kubernetes.slot.host_address}",
        f"--secure-port={port}",
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        "--kubelet-insecure-tls",
        "--kubelet-preferred-address-types=InternalIP",
        "--metric-resolution=10s",
        "--kubelet-request-timeout=5s",
    )
    _announce(kubernetes, port)
    nodes, log = len(kubernetes.nodes), kubernetes.keeper.log(_NAME)
    wait_for(lambda: _nodes_told_of(kubernetes) == nodes, f"metrics of {nodes} nodes (see {log})", within_s=120)


def _announce(kubernetes: Kubernetes, port: int) -> None:
    """The API server sends who asks for these metrics there."""
    head = {"name": _NAME, "namespace": _NAMESPACE}
    ports = [{"name": _PORT_NAME, "port": 443, "protocol": "TCP"}]
    kubernetes.api.create(f"/api/v1/namespaces/{_NAMESPACE}/services", {"metadata": head, "spec": {"ports": ports}})
    place = {
        "metadata": {**head, "labels": {"kubernetes.io/service-name": _NAME}},
        "addressType": "IPv4",
        "ports": [{"name": _PORT_NAME, "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [kubernetes.slot.host_address], "conditions": {"ready": True}}],
    }
    kubernetes.api.create(f"/apis/discovery.k8s.io/v1/namespaces/{_NAMESPACE}/endpointslices", place)
    offered = {
        "group": "metrics.k8s.io",
        "version": "v1beta1",
        "service": {**head, "port": 443},
        "insecureSkipTLSVerify": True,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
    }
    made = {"metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": offered}
    kubernetes.api.create("/apis/apiregistration.k8s.io/v1/apiservices", made)


def _nodes_told_of(kubernetes: Kubernetes) -> int:
    if kubernetes.keeper.exit_code(_NAME) is not None:
        raise RuntimeError(f"metrics-server ended: {last_lines(kubernetes.keeper.log(_NAME))}")
    try:
        return len(kubernetes.api.get(f"{USED}/nodes")["items"])
    except ApiError:  # not yet
        return 0
