"""The Kubernetes that every module of this folder stands on: two real nodes, or without root a control plane alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kubernetes_cluster.cluster import Kubernetes, missing, running
from tests.support.kubernetes import load_bash, load_bireme


@pytest.fixture(scope="package")
def kubernetes() -> Iterator[Kubernetes]:
    nodes = 0 if missing(nodes=True) else 2
    with running(nodes=nodes) as cluster:
        if nodes:
            load_bireme(cluster)
            load_bash(cluster)
        yield cluster


@pytest.fixture(scope="package")
def kubelets(kubernetes: Kubernetes) -> Kubernetes:
    """The same, where its nodes are needed."""
    if not kubernetes.nodes:
        pytest.skip(missing(nodes=True))
    return kubernetes
