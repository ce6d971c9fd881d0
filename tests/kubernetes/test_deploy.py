"""`kubectl apply -k deploy/kubernetes`, for real: a daemon in the cluster, with the rights of its account alone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.kubernetes_cluster.cluster import Kubernetes, missing
from tests.kubernetes_cluster.processes import wait_for
from tests.support.cluster import ROOT
from tests.support.daemon_image import DAEMON, load_daemon

pytestmark = pytest.mark.skipif(bool(missing(scheduler=True)), reason=missing(scheduler=True) or "-")
LONG_S = 180.0
VOLUME = "journal"
ASKS = """
import asyncio
from bireme.gather.clusters import pod_resources, unary
socket = "/var/lib/kubelet/pod-resources/kubelet.sock"
print(asyncio.run(unary.call(socket, pod_resources.METHOD, b"", timeout_s=60, most_bytes=2**20)))
"""


@dataclass(slots=True)
class Deployed:
    kubernetes: Kubernetes

    def bireme(self, *words: str) -> str:
        """As somebody who may `kubectl exec` into the daemon's pod."""
        return self.kubernetes.kubectl("exec", "-n", "bireme", "deploy/bireme", "--", "bireme", *words)

    def asked_by(self, node: str) -> str:
        """What the kubelet of this node tells the DaemonSet's pod on it, with the rights that the pod has."""
        path = "/api/v1/namespaces/bireme/pods?labelSelector=app%3Dbireme-node"
        pods = {pod["spec"]["nodeName"]: pod for pod in self.kubernetes.api.get(path)["items"]}
        name = pods[node]["metadata"]["name"]
        return self.kubernetes.kubectl("exec", "-n", "bireme", name, "--", "/opt/bireme/bin/python3", "-c", ASKS)

    def is_ready(self) -> bool:
        status = self.kubernetes.api.get("/apis/apps/v1/namespaces/bireme/deployments/bireme")["status"]
        return bool(status.get("readyReplicas") == 1)

    def pod(self) -> str:
        found = self.kubernetes.api.get("/api/v1/namespaces/bireme/pods?labelSelector=app%3Dbireme")["items"]
        return str(found[0]["metadata"]["name"])


@pytest.fixture(scope="module")
def deployed(kubelets: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """The folder as it is, with the image's name written into it, as docs/kubernetes.md says.

    Over it lies what this test cluster lacks: an address of the API server without kube-proxy, names without DNS,
    images without a registry, a disk without a provisioner.
    """
    load_daemon(kubelets, kubelets.slot.folder / "bundle")
    folder = tmp_path_factory.mktemp("deploy")
    base = shutil.copytree(ROOT / "deploy" / "kubernetes", folder / "kubernetes")
    settings = base / "kustomization.yaml"
    image, _, tag = DAEMON.partition(":")
    settings.write_text(settings.read_text().replace("newTag: latest", f"newName: {image}\n    newTag: '{tag}'"))
    (folder / "kustomization.yaml").write_text(json.dumps(overlay(kubelets)))
    disk = kubelets.slot.folder / VOLUME
    disk.mkdir()
    os.chown(disk, 1000, 1000)
    kubelets.api.create("/api/v1/persistentvolumes", volume(disk))
    kubelets.plane.start_scheduler()
    kubelets.kubectl("apply", "-k", str(folder))
    try:
        yield Deployed(kubelets)
    finally:
        kubelets.kubectl("delete", "-k", str(folder))
        kubelets.kubectl("delete", "persistentvolume", VOLUME)
        kubelets.plane.stop_scheduler()


def overlay(kubernetes: Kubernetes) -> dict[str, object]:
    host, _, port = kubernetes.plane.server.removeprefix("https://").rpartition(":")
    variables: list[dict[str, object]] = [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "KUBERNETES_SERVICE_HOST", "value": host},
        {"name": "KUBERNETES_SERVICE_PORT", "value": port},
        {"name": "BIREME_KUBERNETES_PULL_POLICY", "value": "Never"},
        {"name": "BIREME_KUBERNETES_GATEWAY", "value": "$(POD_IP):6830"},
    ]
    container = {"name": "daemon", "imagePullPolicy": "Never", "env": variables}
    patch = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "bireme", "namespace": "bireme"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["kubernetes"],
        "patches": [{"patch": json.dumps(patch)}],
    }


def volume(disk: Path) -> dict[str, object]:
    spec = {"capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": str(disk)}}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": VOLUME}, "spec": spec}


def test_a_daemon_in_the_cluster_becomes_ready_and_runs_a_gang(deployed: Deployed) -> None:
    wait_for(deployed.is_ready, "the daemon to be ready", LONG_S)
    assert deployed.bireme("sinfo", "-h", "-N", "-o", "%N").split() == ["node1", "node2"]
    job = deployed.bireme("sbatch", "--parsable", "-N2", "--wrap", "srun hostname | sort").strip()
    wait_for(lambda: not deployed.bireme("squeue", "-h", "-j", job), f"job {job} to end", LONG_S)
    said = deployed.bireme("sacct", "-n", "-X", "-P", "-j", job, "-o", "State,NodeList").strip()
    assert said == "COMPLETED|node[1-2]", deployed.kubernetes.kubectl("logs", "-n", "bireme", "deploy/bireme")
    assert deployed.bireme("logs", job) == "node1\nnode2\n"


def test_a_daemon_whose_pod_is_replaced_goes_on_with_its_queue(deployed: Deployed) -> None:
    held = deployed.bireme("sbatch", "--parsable", "--hold", "--wrap", "true").strip()
    before = deployed.pod()
    deployed.kubernetes.kubectl("delete", "pod", "-n", "bireme", before)
    wait_for(lambda: deployed.is_ready() and deployed.pod() != before, "another daemon to be ready", LONG_S)
    assert deployed.bireme("squeue", "-h", "-j", held, "-o", "%T").strip() == "PENDING"
    deployed.bireme("scancel", held)


NODE_SET = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "bireme-node", "namespace": "bireme"}}


def node_overlay() -> dict[str, object]:
    """Both kubelets are on this machine, where real nodes have a disk each; and there is no registry."""
    mount = {"name": "spool", "mountPath": "/var/lib/bireme-node", "subPathExpr": "$(NODE_NAME)"}
    container = {"name": "node", "imagePullPolicy": "Never", "volumeMounts": [mount]}
    patch = {**NODE_SET, "spec": {"template": {"spec": {"containers": [container]}}}}
    image, _, tag = DAEMON.partition(":")
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["telemetry"],
        "patches": [{"patch": json.dumps(patch)}],
        "images": [{"name": "bireme", "newName": image, "newTag": tag}],
    }


@pytest.fixture
def node_pods(deployed: Deployed, tmp_path: Path) -> Iterator[Deployed]:
    """As the head of deploy/kubernetes/telemetry/kustomization.yaml says; by the pod's address, since there is no
    DNS."""
    kubectl = deployed.kubernetes.kubectl
    kubectl("set", "env", "-n", "bireme", "deploy/bireme", "BIREME_TELEMETRY_LISTEN=0.0.0.0:8700")
    kubectl("rollout", "status", "-n", "bireme", "deploy/bireme", "--timeout=180s")
    wait_for(deployed.is_ready, "the daemon to be ready", LONG_S)
    pod = deployed.kubernetes.api.get(f"/api/v1/namespaces/bireme/pods/{deployed.pod()}")
    address = f"{pod['status']['podIP']}:8700"
    file = "/var/lib/bireme/node.json"
    deployed.bireme("node", "token", "*", "--address", address, "--out", file)
    pass_file = tmp_path / "node.json"
    pass_file.write_text(kubectl("exec", "-n", "bireme", "deploy/bireme", "--", "cat", file))
    kubectl("create", "secret", "generic", "-n", "bireme", "bireme-node", f"--from-file=node.json={pass_file}")
    shutil.copytree(ROOT / "deploy" / "kubernetes" / "telemetry", tmp_path / "telemetry")
    (tmp_path / "kustomization.yaml").write_text(json.dumps(node_overlay()))
    kubectl("apply", "-k", str(tmp_path))
    try:
        yield deployed
    finally:
        kubectl("delete", "-k", str(tmp_path))
        kubectl("delete", "secret", "-n", "bireme", "bireme-node")


def test_the_pods_of_the_daemon_set_tell_of_every_node_and_of_the_pods_of_jobs(node_pods: Deployed) -> None:
    """Over TLS, with the token of the secret, to the daemon in its pod; processes are read from inside a container."""

    def told() -> bool:
        said = node_pods.bireme("status").partition("newest round of ")[2].partition("\n")[0]
        return all(f"{node} " in said for node in ("node1", "node2"))

    wait_for(told, "both nodes to tell what they do", LONG_S)
    job = node_pods.bireme("sbatch", "--parsable", "--wrap", "srun sh -c 'while :; do :; done'").strip()

    def measured() -> bool:
        (timeline,) = json.loads(node_pods.bireme("timeline", job, "--json"))["timelines"]
        return any(lane["name"] == "cpu_user" and lane["lines"] for lane in timeline["lanes"])

    try:
        wait_for(measured, "the job's pods to be measured", LONG_S)
        said = [node_pods.asked_by(node) for node in ("node1", "node2")]
        assert any(f"-{job}-1-0" in pods for pods in said), "the kubelets do not tell the DaemonSet's pods of the job's"
    finally:
        node_pods.bireme("scancel", job)
    wait_for(lambda: not node_pods.bireme("squeue", "-h", "-j", job), f"job {job} to end", LONG_S)
