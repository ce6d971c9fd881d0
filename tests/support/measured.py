"""What a test asks of a cluster's telemetry, and how it waits for it. Used by tests of gatherers of every engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tests.support.cluster import Cluster
from tests.support.looks import looks

from bireme.client.transport import Transport

Found = TypeVar("Found")
_PATIENCE_S = 180.0


def until(look: Callable[[], Found | None], what: str) -> Found:
    """Waits for what is sure to come: what `look` finds, once it finds something."""
    for _ in looks(_PATIENCE_S):
        if found := look():
            return found
    raise AssertionError(what)


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
