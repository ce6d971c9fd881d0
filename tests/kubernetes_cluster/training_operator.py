"""Kubeflow's training operator beside a control plane: its definitions in the API server, and it in a process."""

from __future__ import annotations

from tests.kubernetes_cluster import binaries
from tests.kubernetes_cluster.cluster import Kubernetes

_NAME = "training-operator"


def missing() -> str:
    """Why it cannot run here, in one line; empty when it can."""
    return binaries.missing(_NAME)


def start(kubernetes: Kubernetes) -> None:
    """Returns once its kinds of job can be created. It runs until the cluster ends."""
    definitions = sorted(binaries.manifests(_NAME).glob("kubeflow.org_*.yaml"))
    arguments = [part for one in definitions for part in ("-f", str(one))]
    kubernetes.kubectl("apply", "--server-side", *arguments)
    kubernetes.kubectl("wait", "--for=condition=Established", "--timeout=60s", *arguments)
    config = kubernetes.plane.identity(_NAME, "system:masters")
    kubernetes.keeper.start(_NAME, binaries.program(_NAME), f"--kubeconfig={config}")
