"""Services as people write them who know their shell and their web framework, and nothing of Bireme."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.cluster import Cluster, virtual_nodes
from tests.support.serving import ready, serve, shown

from bireme.client.sdk import Client


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with Cluster(virtual_nodes(1, 0, cpus=8)).running() as running:
        yield running


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """The one of all tests here, without any service before and after."""
    yield shared
    with Client(str(shared.home), patience_s=60.0) as client:
        left = [client.service(record["name"], must_exist=False) for record in client.services()]
        for service in left:
            service.stop()
        for service in left:
            service.wait_gone(120)


def test_the_command_of_a_probe_is_a_line_of_shell_with_the_replicas_variables(cluster: Cluster) -> None:
    mark = cluster.work / "ready"
    line = f'test -n "$PORT" && test -e {mark}.$BIREME_REPLICA || {{ echo "no mark yet" >&2; exit 7; }}'
    serve(cluster, f"--readiness=exec:'{line}' period=200ms timeout=20s")
    cluster.until(lambda: any("exit code 7: no mark yet" in each["why"] for each in shown(cluster)["replicas"]), 60.0)
    (replica,) = shown(cluster)["replicas"]
    mark.with_suffix(f".{replica['number']}").touch()
    ready(cluster, 1)
