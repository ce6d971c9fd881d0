"""A cluster on real kubelets, used as people use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conformance.deployed import ClusterDeployment
from tests.kubernetes_cluster.cluster import missing, running
from tests.support.kubernetes import BASH, KubernetesCluster, load_bash, load_bireme

from bireme.testing.conformance.checks import Check, NotApplicable
from bireme.testing.conformance.scripts import SCRIPT_CHECKS, ScriptBody, run_script_check

pytestmark = pytest.mark.skipif(bool(missing(nodes=True)), reason=missing(nodes=True) or "-")


class KubernetesDeployment(ClusterDeployment):
    nodes = ("node1", "node2")

    def __init__(self, cluster: KubernetesCluster) -> None:
        self.cluster = cluster

    def restart_node(self, node: str) -> None:
        """Its pods are gone at once, and nobody says how they ended."""
        words = ("delete", "pods", "-A", "--grace-period=0", "--force", f"--field-selector=spec.nodeName={node}")
        self.cluster.kubernetes.kubectl(*words)

    def is_clear(self, job: str) -> bool:
        return not any(name.startswith(f"bireme-{job}-") for name in self.cluster.pods())


@pytest.fixture(scope="module")
def deployment() -> Iterator[KubernetesDeployment]:
    with running(nodes=2) as kubernetes:
        load_bireme(kubernetes)
        load_bash(kubernetes)
        cluster = KubernetesCluster(kubernetes, job_images=[BASH])
        try:
            yield KubernetesDeployment(cluster.up())
        finally:
            left = cluster.stop()
    assert not left, f"left running: {left}"


@pytest.mark.parametrize("check", list(SCRIPT_CHECKS), ids=str)
def test_kubernetes(deployment: KubernetesDeployment, check: Check[ScriptBody]) -> None:
    try:
        run_script_check(check, deployment)
    except NotApplicable as reason:
        pytest.skip(str(reason))
