"""What a test asks of a cluster's telemetry, and how it waits for it. Used by tests of gatherers of every engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from tests.support.cluster import Cluster

from bireme.client.transport import Transport

Found = TypeVar("Found")
_PATIENCE_S = 120.0


def until(look: Callable[[], Found | None], what: str) -> Found:
    """Waits for what is sure to come."""
    deadline = time.monotonic() + _PATIENCE_S
    while (found := look()) is None:
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def ask(cluster: Cluster, path: str, **query: Any) -> dict[str, Any]:
    with Transport(str(cluster.home)) as transport:
        answer: dict[str, Any] = transport.get(path, {name: str(value) for name, value in query.items()})
        return answer


def values_of(cluster: Cluster, job_id: int) -> dict[str, float] | None:
    figures: dict[str, float] | None = ask(cluster, "/v1/telemetry/now")["jobs"].get(str(job_id), {}).get("values")
    return figures


def curves(cluster: Cluster, job_id: int, *metrics: str) -> list[dict[str, Any]]:
    names = ",".join(metrics)
    found: list[dict[str, Any]] = ask(cluster, "/v1/telemetry/series", job=job_id, metrics=names)["curves"]
    return found
