"""A cluster on the embedded engine, used as people use it: scripts, and services."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conformance.deployed import ClusterDeployment, check_on, service_check_on
from tests.support.cluster import Cluster, virtual_nodes

from bireme.testing.conformance.checks import Check
from bireme.testing.conformance.scripts import SCRIPT_CHECKS, ScriptBody
from bireme.testing.conformance.services import SERVICE_CHECKS, ServiceBody


class EmbeddedDeployment(ClusterDeployment):
    """`bireme up` on this machine, with two virtual nodes."""

    def __init__(self) -> None:
        self.cluster = Cluster(virtual_nodes(2, 2, cpus=16)).up()

    def restart_node(self, node: str) -> None:
        self.cluster.kill_agent(node)

    def is_clear(self, job: str) -> bool:
        return not self.cluster.pids_with(f"BIREME_JOB={job}.")


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedDeployment]:
    made = EmbeddedDeployment()
    try:
        yield made
    finally:
        left = made.cluster.stop()
    assert not left, f"left running: {left}"


@pytest.mark.parametrize("check", list(SCRIPT_CHECKS), ids=str)
def test_embedded(embedded: EmbeddedDeployment, check: Check[ScriptBody]) -> None:
    check_on(embedded, check)


@pytest.mark.parametrize("check", list(SERVICE_CHECKS), ids=str)
def test_embedded_services(embedded: EmbeddedDeployment, check: Check[ServiceBody]) -> None:
    service_check_on(embedded, check)
