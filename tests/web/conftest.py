"""A browser for all pages' tests, and a cluster for those of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.browsing import Browsing, chromium
from tests.support.cluster import Cluster


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def pages(browser: Any, cluster: Cluster) -> Browsing:
    """Logged in as who started the cluster."""
    return Browsing(browser, cluster)
