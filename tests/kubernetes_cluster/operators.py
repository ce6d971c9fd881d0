"""The controllers of JobSet and of Kubeflow's MPI operator beside a control plane: their kinds, and they in a process.

Their webhooks do not run: what these would fill in is in the objects that tests make (`jobset`). The MPI operator's
kind has the name of the training operator's: a cluster has one or the other.
"""

from __future__ import annotations

from typing import Any

from tests.kubernetes_cluster import binaries
from tests.kubernetes_cluster.cluster import Kubernetes

_NAME = "operators"


def missing() -> str:
    """Why they cannot run here, in one line; empty when they can."""
    return binaries.missing(_NAME)


def start(kubernetes: Kubernetes) -> None:
    """Returns once their kinds can be created. They run until the cluster ends."""
    start_controller(kubernetes, _NAME, "*.yaml")


def start_controller(kubernetes: Kubernetes, name: str, definitions: str) -> None:
    """One of `binaries` that runs with a kubeconfig, once the API server has its definitions (a pattern of files)."""
    arguments = [part for file in sorted(binaries.manifests(name).glob(definitions)) for part in ("-f", str(file))]
    kubernetes.kubectl("apply", "--server-side", *arguments)
    kubernetes.kubectl("wait", "--for=condition=Established", "--timeout=60s", *arguments)
    config = kubernetes.plane.identity(name, "system:masters")
    kubernetes.keeper.start(name, binaries.program(name), f"--kubeconfig={config}")


def jobset(name: str, parts: list[dict[str, Any]], **spec: Any) -> dict[str, Any]:
    """With the defaults that its webhook gives."""
    usual: dict[str, Any] = {"successPolicy": {"operator": "All"}, "startupPolicy": {"startupPolicyOrder": "AnyOrder"}}
    usual["network"] = {"enableDNSHostnames": False, "publishNotReadyAddresses": True}
    head = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}}
    return {**head, "spec": {**usual, "replicatedJobs": parts, **spec}}


def replicated_job(name: str, pods: int, pod: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Part of a JobSet: so many indexed pods of this spec that start together."""
    job = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "backoffLimit": 0}
    return {"name": name, "replicas": 1, "template": {"spec": {**job, "template": {"spec": pod}}}, **more}
