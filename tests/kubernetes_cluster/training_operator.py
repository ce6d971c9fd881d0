"""Kubeflow's training operator beside a control plane: its definitions in the API server, and it in a process."""

from __future__ import annotations

from tests.kubernetes_cluster import binaries
from tests.kubernetes_cluster.cluster import Kubernetes
from tests.kubernetes_cluster.operators import start_controller

_NAME = "training-operator"


def missing() -> str:
    """Why it cannot run here, in one line; empty when it can."""
    return binaries.missing(_NAME)


def start(kubernetes: Kubernetes) -> None:
    """Returns once its kinds of job can be created. It runs until the cluster ends."""
    start_controller(kubernetes, _NAME, "kubeflow.org_*.yaml")
