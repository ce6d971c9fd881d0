"""What the tests of real clients share: a process environment that points at the module's cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cluster import Cluster


@pytest.fixture
def user(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cluster]:
    """This very process is a user of the cluster: PATH, BIREME_HOME and a working folder of its own."""
    variables = cluster.env
    for name in set(os.environ) - set(variables):
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    yield cluster
    cluster.run("scancel", "--user", cluster.run("id", "-un").stdout.strip(), check=False)
