"""What a pod would rather have, as preferences among nodes."""

from __future__ import annotations

from typing import Any

from bireme.core.model.node_rules import NodeRules
from bireme.engines.kubernetes.guests.census import Census
from bireme.engines.kubernetes.guests.neighbours import Ground, World
from bireme.engines.kubernetes.guests.preferences import has_preferences, preferences_of

LABELS = {f"n{number}": {"zone": f"z{number // 2}", "host": f"n{number}"} for number in range(4)} | {"bare": {}}
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def pod(app: str, node: str = "", namespace: str = "team", **spec: Any) -> dict[str, Any]:
    named = {"nodeName": node} if node else {}
    metadata = {"name": app, "namespace": namespace, "uid": f"{namespace}/{app}@{node}", "labels": {"app": app}}
    return {"metadata": metadata, "spec": {**named, **spec}}


def rather(kind: str, weight: int, app: str, key: str = "zone") -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}
    return {"affinity": {kind: {PREFERRED: [{"weight": weight, "podAffinityTerm": term}]}}}


def liked(mine: dict[str, Any], *placed: dict[str, Any]) -> dict[str, int]:
    """Node -> how much it is liked."""
    rules = NodeRules(preferred=preferences_of(mine, World(Census(placed), Ground(LABELS))))
    return {node: rules.liking(node, labels) for node, labels in LABELS.items()}


def test_most_pods_have_none() -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
    assert not has_preferences(pod("a"))
    assert not has_preferences(pod("a", affinity={"nodeAffinity": required}))


def test_nodes_by_their_labels() -> None:
    rule = {"key": "zone", "operator": "In", "values": ["z1"]}
    empty: dict[str, Any] = {}
    terms = [{"weight": 7, "preference": {"matchExpressions": [rule]}}, {"weight": 9, "preference": empty}]
    mine = pod("a", affinity={"nodeAffinity": {PREFERRED: terms}})
    assert has_preferences(mine)
    assert liked(mine) == {"n0": 0, "n1": 0, "n2": 7, "n3": 7, "bare": 0}


def test_near_some_pods_and_far_from_others() -> None:
    others = (pod("b", "n0"), pod("b", "n2", namespace="other"))
    assert liked(pod("a", **rather("podAffinity", 5, "b")), *others) == {"n0": 5, "n1": 5, "n2": 0, "n3": 0, "bare": 0}
    far = pod("a", **rather("podAntiAffinity", 5, "b", "host"))
    assert liked(far, *others) == {"n0": -5, "n1": 0, "n2": 0, "n3": 0, "bare": 0}
    assert set(liked(far).values()) == {0}, "there is nobody yet"


def test_evenly_if_it_can_be() -> None:
    spread = {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 1}
    spread["labelSelector"] = {"matchLabels": {"app": "a"}}
    mine = pod("a", topologySpreadConstraints=[spread])
    assert has_preferences(mine)
    others = (pod("a", "n0"), pod("a", "n1"), pod("a", "n2"), pod("b", "n3"))
    found = liked(mine, *others)
    assert found["n2"] == found["n3"] > found["n0"] == found["n1"] > found["bare"]
