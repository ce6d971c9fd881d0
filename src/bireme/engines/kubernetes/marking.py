"""Marks on nodes that Bireme keeps out of service: a taint of its own, and a condition that says why.

The daemon's own jobs and its guests are kept off by the core; the taint is for everybody else's pods, and the condition
for whoever looks (`kubectl describe node`). A taint, not a cordon: it has a key that nobody else sets, so that what is
taken away again is Bireme's own and nothing else. Called with all that is fenced (`ports.MarksNodes`).
Invariant: no field of a node but that taint and that condition is ever changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from bireme.engines.kubernetes.apiserver.api import ApiProblem, KubernetesApi
from bireme.engines.kubernetes.nodes import FENCED_TAINT

Object = dict[str, Any]
CONDITION = "BiremeFenced"
_MERGE = "application/merge-patch+json"
_CONDITIONS = "application/strategic-merge-patch+json"
_LONGEST = 1024
RIGHTS = "deploy/kubernetes/fencing has the right to mark nodes"


class NodeMarks:
    """`nodes`: the cluster's, as they were last seen."""

    def __init__(self, api: KubernetesApi, nodes: Callable[[], Mapping[str, Object]], now: Callable[[], float]) -> None:
        self._api, self._nodes, self._now = api, nodes, now

    async def keep_out(self, fenced: Mapping[str, str]) -> None:
        """Raises OSError where a node could not be marked or unmarked: the others are all the same."""
        problems = []
        for name, node in list(self._nodes().items()):
            try:
                await self._mark(name, node, fenced.get(name))
            except ApiProblem as problem:
                if problem.status != 404:
                    problems.append(problem)
        if problems:
            more = f"; {RIGHTS}" if problems[0].status == 403 else ""
            raise OSError(f"{len(problems)} nodes cannot be marked: {problems[0]}{more}")

    async def _mark(self, name: str, node: Object, why: str | None) -> None:
        taints = (node.get("spec") or {}).get("taints") or []
        others = [taint for taint in taints if taint.get("key") != FENCED_TAINT]
        is_marked = len(others) < len(taints)
        if is_marked != (why is not None):
            added = [] if why is None else [{"key": FENCED_TAINT, "effect": "NoSchedule"}]
            version = node["metadata"].get("resourceVersion")
            body = {"metadata": {"resourceVersion": version}, "spec": {"taints": [*others, *added] or None}}
            await self._api.ask("PATCH", f"/api/v1/nodes/{name}", body, media=_MERGE)
        known = condition_of((node.get("status") or {}).get("conditions") or ())
        if known != (why or "")[:_LONGEST]:
            body = {"status": {"conditions": [self._condition(why)]}}
            await self._api.ask("PATCH", f"/api/v1/nodes/{name}/status", body, media=_CONDITIONS)

    def _condition(self, why: str | None) -> Object:
        now = datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "type": CONDITION,
            "status": "False" if why is None else "True",
            "reason": "InService" if why is None else "Fenced",
            "message": "Bireme has lifted its fence" if why is None else why[:_LONGEST],
            "lastTransitionTime": now,
            "lastHeartbeatTime": now,
        }


def condition_of(conditions: Iterable[Object]) -> str:
    """Why the node is fenced, as its condition says; empty: it is not."""
    known = next((each for each in conditions if each.get("type") == CONDITION), {})
    return str(known.get("message", "")) if known.get("status") == "True" else ""
