"""Disruption budgets: which jobs of others' pods may not be evicted now, because somebody promised so many of them up.

Pure. Bireme evicts through the API server, which refuses what a budget forbids; a job that is known to be kept is not
chosen as a victim in the first place, so that nobody waits for an end that does not come.
Invariant: of the jobs that are not kept, all could be evicted together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from bireme.engines.kubernetes.guests.pods import selects

Object = Mapping[str, Any]
Key = TypeVar("Key")


def keepers(budgets: Iterable[Object], jobs: Mapping[Key, Sequence[Object]]) -> dict[Key, str]:
    """Job -> the budget that keeps it. The youngest may go first."""
    kept: dict[Key, str] = {}
    for budget in sorted(budgets, key=lambda one: (one["metadata"]["namespace"], one["metadata"]["name"])):
        under = {key: sum(_covers(budget, pod) for pod in pods) for key, pods in jobs.items()}
        allowed = int((budget.get("status") or {}).get("disruptionsAllowed", 0))
        for key in sorted((key for key, count in under.items() if count), key=lambda key: _born(jobs[key])):
            if under[key] <= allowed and key not in kept:
                allowed -= under[key]
            else:
                kept.setdefault(key, f"disruption budget {budget['metadata']['name']}")
    return kept


def _covers(budget: Object, pod: Object) -> bool:
    metadata = pod["metadata"]
    if metadata["namespace"] != budget["metadata"]["namespace"]:
        return False
    return selects((budget.get("spec") or {}).get("selector"), metadata.get("labels") or {})


def _born(pods: Sequence[Object]) -> tuple[Any, ...]:
    """Sorts the youngest first: RFC 3339 times compare as text, turned round."""
    youngest = max(str(pod["metadata"].get("creationTimestamp", "")) for pod in pods)
    return tuple(-ord(char) for char in youngest), pods[0]["metadata"]["name"]
