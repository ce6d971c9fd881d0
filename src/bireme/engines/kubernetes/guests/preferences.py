"""What a pod would rather have: soft affinity and spread, as preferences among nodes. Pure.

`crowd` asks as a pod is submitted; the planner weighs them among the nodes that hold the pod (`Preference`). They
are worked out for the places as they are then, and not again: unlike what a pod requires, nothing depends on them.
Taints of effect PreferNoSchedule are in the weight of their node (`nodes`). What other pods would rather have next to
them is not asked. Invariant: no preference excludes a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from bireme.core.model.node_rules import LabelRule, Preference
from bireme.engines.kubernetes.guests.census import chosen
from bireme.engines.kubernetes.guests.neighbours import World, spread_chosen
from bireme.engines.kubernetes.guests.pods import term_rules

Object = Mapping[str, Any]

_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_MOST = 100
"""The largest weight that a pod can give; a domain without room for an even spread has as much against it."""


def has_preferences(pod: Object) -> bool:
    affinity = pod["spec"].get("affinity") or {}
    return bool(_even(pod) or any((kind or {}).get(_PREFERRED) for kind in affinity.values()))


def preferences_of(pod: Object, world: World) -> tuple[Preference, ...]:
    return (*_of_nodes(pod), *_of_pods(pod, "podAffinity", 1, world), *_of_pods(pod, "podAntiAffinity", -1, world),
            *(each for spread in _even(pod) for each in _of_spread(pod, spread, world)))  # fmt: skip


def _preferred(pod: Object, kind: str) -> list[Object]:
    return ((pod["spec"].get("affinity") or {}).get(kind) or {}).get(_PREFERRED) or []


def _of_nodes(pod: Object) -> Iterator[Preference]:
    for one in _preferred(pod, "nodeAffinity"):
        rules = term_rules(one["preference"])
        if rules:
            yield Preference(int(one["weight"]), rules)


def _of_pods(pod: Object, kind: str, sign: int, world: World) -> Iterator[Preference]:
    for one in _preferred(pod, kind):
        term = one["podAffinityTerm"]
        key = term["topologyKey"]
        there = (world.ground.domain(node, key) for node in world.census.selected(chosen(term, pod)))
        domains = sorted({domain for domain in there if domain is not None})
        if domains:
            yield Preference(sign * int(one["weight"]), (LabelRule(key, "In", tuple(domains)),))


def _even(pod: Object) -> list[Object]:
    constraints = pod["spec"].get("topologySpreadConstraints") or ()
    return [one for one in constraints if one.get("whenUnsatisfiable") == "ScheduleAnyway"]


def _of_spread(pod: Object, spread: Object, world: World) -> Iterator[Preference]:
    """The fuller a domain is, the less it is liked; least of all are nodes that are in none."""
    key = spread["topologyKey"]
    held: Counter[str] = Counter()
    for node, count in world.census.selected(spread_chosen(pod, spread)).items():
        domain = world.ground.domain(node, key)
        if domain is not None:
            held[domain] += count
    most = max(held.values(), default=0)
    for domain, count in sorted(held.items()):
        yield Preference(-_MOST * count // most, (LabelRule(key, "In", (domain,)),))
    yield Preference(-_MOST - 1, (LabelRule(key, "DoesNotExist"),))
