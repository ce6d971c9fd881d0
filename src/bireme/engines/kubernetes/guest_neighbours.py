"""Pods that care where other pods are: affinity, anti-affinity, spread and host ports, worked out to nodes. Pure.

The planner knows nothing of pods' neighbours. `guests.py` places such pods one after another: it asks here which nodes
are ruled out as things stand, submits that with the pod, and asks again before it binds.
Invariant: what `ruled_out` leaves is right for the places it was given; of pods that `interact` only one waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bireme.engines.kubernetes.guest_pods import affinity, anti_affinity, selects

Object = Mapping[str, Any]
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class World:
    """All pods that have a node and have not ended, and the labels of every node."""

    placed: tuple[Object, ...]
    labels: Mapping[str, Labels]

    def domain(self, node: str, key: str) -> str | None:
        return self.labels.get(node, {}).get(key)


def is_particular(pod: Object) -> bool:
    """Whether its own words are about other pods."""
    return bool(affinity(pod) or anti_affinity(pod) or _spreads(pod) or _ports(pod))


def ruled_out(pod: Object, world: World) -> set[str]:
    """Nodes on which the pod must not be, because of where others are."""
    out: set[str] = set()
    for term in anti_affinity(pod):
        near = {_domain_of(other, term, world) for other in world.placed if _matches(term, pod, other)} - {None}
        out |= _in_domains(term["topologyKey"], near, world)
    for other in world.placed:
        for term in anti_affinity(other):
            if _matches(term, other, pod):
                out |= _in_domains(term["topologyKey"], {_domain_of(other, term, world)} - {None}, world)
    for term in affinity(pod):
        out |= _far_from(pod, term, world)
    for spread in _spreads(pod):
        out |= _too_full(pod, spread, world)
    return out | _ports_taken(pod, world)


def interact(one: Object, other: Object) -> bool:
    """Whether the place of either may matter to the other."""
    for pod, neighbour in ((one, other), (other, one)):
        terms = (*affinity(pod), *anti_affinity(pod))
        if any(_matches(term, pod, neighbour) for term in terms):
            return True
        if any(_counts(pod, spread, neighbour) for spread in _spreads(pod)):
            return True
    return bool(_ports(one) & _ports(other))


def cannot_be_kept(pod: Object) -> tuple[str, ...]:
    """Refinements of these constraints that nobody here works out, in Kubernetes' own words."""
    found = []
    for term in (*affinity(pod), *anti_affinity(pod)):
        found += [name for name in ("namespaceSelector", "matchLabelKeys", "mismatchLabelKeys") if term.get(name)]
    for spread in _spreads(pod):
        found += [name for name in ("minDomains", "matchLabelKeys") if spread.get(name)]
    return tuple(sorted(set(found)))


# --- one constraint at a time -------------------------------------------------------------------------------


def _matches(term: Object, owner: Object, other: Object) -> bool:
    """Whether `other` is one of the pods that the term of `owner` speaks of."""
    namespaces = term.get("namespaces") or [owner["metadata"]["namespace"]]
    if other["metadata"]["namespace"] not in namespaces:
        return False
    return selects(term.get("labelSelector"), other["metadata"].get("labels") or {})


def _domain_of(pod: Object, term: Object, world: World) -> str | None:
    return world.domain(pod["spec"].get("nodeName", ""), term["topologyKey"])


def _in_domains(key: str, domains: set[str | None], world: World) -> set[str]:
    return {node for node, labels in world.labels.items() if labels.get(key) in domains} if domains else set()


def _far_from(pod: Object, term: Object, world: World) -> set[str]:
    """All nodes but those near a pod that it wants near; the first of such pods may be anywhere with the label."""
    near = {_domain_of(other, term, world) for other in world.placed if _matches(term, pod, other)} - {None}
    key = term["topologyKey"]
    if not near and _matches(term, pod, pod):
        return {node for node, labels in world.labels.items() if key not in labels}
    return {node for node, labels in world.labels.items() if labels.get(key) not in near}


def _spreads(pod: Object) -> tuple[Object, ...]:
    constraints = pod["spec"].get("topologySpreadConstraints") or ()
    return tuple(one for one in constraints if one.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule")


def _counts(pod: Object, spread: Object, other: Object) -> bool:
    same = pod["metadata"]["namespace"] == other["metadata"]["namespace"]
    return same and selects(spread.get("labelSelector"), other["metadata"].get("labels") or {})


def _too_full(pod: Object, spread: Object, world: World) -> set[str]:
    key = spread["topologyKey"]
    held = Counter(
        world.domain(other["spec"].get("nodeName", ""), key) for other in world.placed if _counts(pod, spread, other)
    )
    domains = {labels[key] for labels in world.labels.values() if key in labels}
    least = min((held.get(domain, 0) for domain in domains), default=0)
    itself = int(_counts(pod, spread, pod))
    full = {domain for domain in domains if held.get(domain, 0) + itself - least > spread["maxSkew"]}
    return {node for node, labels in world.labels.items() if labels.get(key) in full or key not in labels}


def _ports(pod: Object) -> set[tuple[str, int]]:
    """(protocol, port of the node). Addresses of one node are not told apart."""
    return {
        (port.get("protocol", "TCP"), port["hostPort"])
        for container in pod["spec"].get("containers") or ()
        for port in container.get("ports") or ()
        if port.get("hostPort")
    }


def _ports_taken(pod: Object, world: World) -> set[str]:
    wanted = _ports(pod)
    if not wanted:
        return set()
    return {str(other["spec"].get("nodeName", "")) for other in world.placed if _ports(other) & wanted}
