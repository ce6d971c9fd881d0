"""On a machine with cgroup v2: nothing of a job is left at its end, however it hides, as root and as a user."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.gpu.asking import Report
from tests.support.hidden_jobs import ENDS, V2_TREES, Hidden, cluster_of
from tests.support.hiding import WAYS

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["root, cgroup v2", "root, no cgroup"])
def hidden(request: pytest.FixtureRequest, report: Report) -> Iterator[Hidden]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with cluster_of(request.param).running() as cluster:
        if "v2" in request.param and "cgroup v2" not in cluster.bireme("status").stdout:
            report("tracking", cluster.bireme("doctor", check=False).stdout)
            pytest.skip(f"no group can be made in {', '.join(V2_TREES) or 'any cgroup v2 tree'}")
        yield Hidden(cluster)


@pytest.mark.parametrize(("end", "state"), ENDS.items())
@pytest.mark.parametrize("way", WAYS)
def test_nothing_survives(hidden: Hidden, way: str, end: str, state: str) -> None:
    hidden.check(way, end, state)
