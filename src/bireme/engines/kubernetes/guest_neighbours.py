"""Pods that care where other pods are, or share what the planner does not count, worked out to nodes. Pure.

Affinity and anti-affinity, spread, host ports, resources such as ephemeral storage or network cards, and how many
volumes a node can have: the planner knows nothing of them. `guests.py` places such pods one after another: it asks here
which nodes are ruled out as things stand, submits that with the pod, and asks again before it binds.
Invariant: what `ruled_out` leaves is right for the places it was given; of pods that `interact` only one waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from bireme.engines.kubernetes.guest_pods import affinity, anti_affinity, is_counted, own_rules, requests_of, selects
from bireme.engines.kubernetes.guest_volumes import Attachment, Stock, attachable, attachments_of
from bireme.engines.kubernetes.nodes import quantity

Object = Mapping[str, Any]
Labels = Mapping[str, str]
Port = tuple[str, str, int]
"""Address of the node, protocol, port."""

NO_STOCK = Stock()
_ANY_ADDRESS = "0.0.0.0"
_ANY_NUMBER = 1_000_000


@dataclass(frozen=True, slots=True)
class World:
    """All pods that have a node and have not ended, and every node's labels and what it has to give."""

    placed: tuple[Object, ...]
    labels: Mapping[str, Labels]
    offered: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stock: Stock = field(default_factory=Stock)

    def domain(self, node: str, key: str) -> str | None:
        return self.labels.get(node, {}).get(key)


def is_particular(pod: Object, stock: Stock = NO_STOCK) -> bool:
    """Whether its own words are about other pods, or about what only nodes and pods together tell."""
    said = affinity(pod) or anti_affinity(pod) or _spreads(pod) or _ports(pod) or _uncounted(pod)
    return bool(said or limited_drivers(pod, stock))


def ruled_out(pod: Object, world: World) -> set[str]:
    """Nodes on which the pod must not be, because of where others are."""
    out: set[str] = set()
    for term in anti_affinity(pod):
        near = {_domain_of(other, term, world) for other in world.placed if matches(term, pod, other)} - {None}
        out |= _in_domains(term["topologyKey"], near, world)
    for other in world.placed:
        for term in anti_affinity(other):
            if matches(term, other, pod):
                out |= _in_domains(term["topologyKey"], {_domain_of(other, term, world)} - {None}, world)
    out |= _far_from(pod, world)
    if _spreads(pod):
        out |= _uneven(pod, world)
    room = room_left(pod, world)
    return out | _ports_taken(pod, world) | {node for node, count in room.items() if count < 1}


def interact(one: Object, other: Object, stock: Stock = NO_STOCK) -> bool:
    """Whether the place of either may matter to the other."""
    if mind(one, other) or _uncounted(one).keys() & _uncounted(other).keys():
        return True
    return bool(limited_drivers(one, stock) & limited_drivers(other, stock))


def mind(one: Object, other: Object) -> bool:
    """Whether either speaks of the other, or both want the same port."""
    for pod, neighbour in ((one, other), (other, one)):
        terms = (*affinity(pod), *anti_affinity(pod))
        if any(matches(term, pod, neighbour) for term in terms):
            return True
        if any(spread_counts(pod, spread, neighbour) for spread in _spreads(pod)):
            return True
    return _clash(_ports(one), _ports(other))


def room_left(pod: Object, world: World, *, share_volumes: bool = False) -> dict[str, int]:
    """How many of such pods each node still holds, by what the planner does not count; a node that is not named holds
    any number. `share_volumes`: they all use the same ones, and a node attaches a volume once."""
    room = _room_of_amounts(pod, world)
    for node, count in _room_to_attach(pod, world).items():
        if share_volumes and count > 0:
            continue
        room[node] = min(count, room.get(node, count))
    return room


def lacking(pod: Object, world: World) -> list[str]:
    """What the planner does not count, the pod asks for, and no node that it may use has enough of at the moment."""
    rules = own_rules(pod)
    nodes = [node for node, labels in world.labels.items() if rules.admits_labels(node, labels)]
    if not nodes:
        return []
    amounts, volumes = _room_of_amounts(pod, world), _room_to_attach(pod, world)
    words = sorted(_uncounted(pod)) if amounts and all(amounts.get(node, 1) < 1 for node in nodes) else []
    if volumes and all(volumes.get(node, 1) < 1 for node in nodes):
        words += [f"volumes of {driver} that can be attached" for driver in sorted(limited_drivers(pod, world.stock))]
    return words


def _room_of_amounts(pod: Object, world: World) -> dict[str, int]:
    wanted = _uncounted(pod)
    if not wanted:
        return {}
    taken: dict[str, Counter[str]] = {}
    for other in world.placed:
        asked = {name: count for name, count in requests_of(other["spec"]).items() if name in wanted}
        taken.setdefault(other["spec"]["nodeName"], Counter()).update(asked)
    return {
        node: min(
            int((quantity(offered.get(name, 0)) - taken.get(node, Counter())[name]) // count)
            for name, count in wanted.items()
        )
        for node, offered in world.offered.items()
    }


def cannot_be_kept(pod: Object) -> tuple[str, ...]:
    """Refinements of these constraints that nobody here works out, in Kubernetes' own words."""
    found = []
    for term in (*affinity(pod), *anti_affinity(pod)):
        found += [name for name in ("namespaceSelector", "matchLabelKeys", "mismatchLabelKeys") if term.get(name)]
    for spread in _spreads(pod):
        found += ["matchLabelKeys"] if spread.get("matchLabelKeys") else []
        found += ["nodeTaintsPolicy"] if spread.get("nodeTaintsPolicy", "Ignore") != "Ignore" else []
    return tuple(sorted(set(found)))


# --- affinity -----------------------------------------------------------------------------------------------


def matches(term: Object, owner: Object, other: Object) -> bool:
    """Whether `other` is one of the pods that the term of `owner` speaks of."""
    namespaces = term.get("namespaces") or [owner["metadata"]["namespace"]]
    if other["metadata"]["namespace"] not in namespaces:
        return False
    return selects(term.get("labelSelector"), other["metadata"].get("labels") or {})


def _domain_of(pod: Object, term: Object, world: World) -> str | None:
    return world.domain(pod["spec"].get("nodeName", ""), term["topologyKey"])


def _in_domains(key: str, domains: set[str | None], world: World) -> set[str]:
    return {node for node, labels in world.labels.items() if labels.get(key) in domains} if domains else set()


def _far_from(pod: Object, world: World) -> set[str]:
    """All nodes but those near pods that all its terms speak of; the first of such pods may be anywhere."""
    terms = affinity(pod)
    if not terms:
        return set()
    partners = [other for other in world.placed if all(matches(term, pod, other) for term in terms)]
    near = {term["topologyKey"]: {_domain_of(other, term, world) for other in partners} - {None} for term in terms}
    if not any(near.values()) and all(matches(term, pod, pod) for term in terms):
        return {node for node, labels in world.labels.items() if any(key not in labels for key in near)}
    return {
        node
        for node, labels in world.labels.items()
        if any(labels.get(key) not in domains for key, domains in near.items())
    }


# --- spread -------------------------------------------------------------------------------------------------


def _spreads(pod: Object) -> tuple[Object, ...]:
    constraints = pod["spec"].get("topologySpreadConstraints") or ()
    return tuple(one for one in constraints if one.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule")


def spread_counts(pod: Object, spread: Object, other: Object) -> bool:
    same = pod["metadata"]["namespace"] == other["metadata"]["namespace"]
    return same and selects(spread.get("labelSelector"), other["metadata"].get("labels") or {})


def _uneven(pod: Object, world: World) -> set[str]:
    """Nodes where one more would be too many, beside the emptiest domain that the pod could use."""
    spreads = _spreads(pod)
    keys = [spread["topologyKey"] for spread in spreads]
    whole = {node: labels for node, labels in world.labels.items() if all(key in labels for key in keys)}
    out = world.labels.keys() - whole.keys()
    rules = own_rules(pod)
    own = {node for node, labels in whole.items() if rules.admits_labels(node, labels)}
    for spread in spreads:
        honoured = spread.get("nodeAffinityPolicy", "Honor") == "Honor"
        eligible = {node: labels for node, labels in whole.items() if node in own or not honoured}
        out |= {node for node in whole if whole[node][spread["topologyKey"]] in _too_full(pod, spread, eligible, world)}
    return set(out)


def _too_full(pod: Object, spread: Object, eligible: Mapping[str, Labels], world: World) -> set[str]:
    key = spread["topologyKey"]
    held = Counter({labels[key]: 0 for labels in eligible.values()})
    for other in world.placed:
        labels = eligible.get(other["spec"]["nodeName"])
        if labels and spread_counts(pod, spread, other) and not other["metadata"].get("deletionTimestamp"):
            held[labels[key]] += 1
    few = len(held) < spread.get("minDomains", 1)
    least = 0 if few else min(held.values(), default=0)
    itself = int(spread_counts(pod, spread, pod))
    return {domain for domain, count in held.items() if count + itself - least > spread["maxSkew"]}


# --- ports and other things of a node -----------------------------------------------------------------------


def _ports(pod: Object) -> set[Port]:
    spec = pod["spec"]
    sidecars = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"]
    return {
        (port.get("hostIP") or _ANY_ADDRESS, port.get("protocol", "TCP"), port["hostPort"])
        for container in (*(spec.get("containers") or ()), *sidecars)
        for port in container.get("ports") or ()
        if port.get("hostPort")
    }


def _clash(some: Iterable[Port], others: Iterable[Port]) -> bool:
    return any(
        one[1:] == other[1:] and (one[0] == other[0] or _ANY_ADDRESS in (one[0], other[0]))
        for one in some
        for other in others
    )


def _ports_taken(pod: Object, world: World) -> set[str]:
    wanted = _ports(pod)
    if not wanted:
        return set()
    return {str(other["spec"].get("nodeName", "")) for other in world.placed if _clash(wanted, _ports(other))}


def _uncounted(pod: Object) -> dict[str, Any]:
    """What it asks for that is no column of the planner's."""
    return {name: count for name, count in requests_of(pod["spec"]).items() if count and not is_counted(name)}


# --- volumes ------------------------------------------------------------------------------------------------


def limited_drivers(pod: Object, stock: Stock) -> frozenset[str]:
    """Drivers of its volumes of which some node can have only so many."""
    wanted = attachments_of(pod, stock) if stock.csi_nodes else frozenset()
    if not wanted:
        return frozenset()
    limited = {driver for limits in attachable(stock).values() for driver in limits}
    return frozenset(driver for driver, _ in wanted if driver in limited)


def _room_to_attach(pod: Object, world: World) -> dict[str, int]:
    drivers = limited_drivers(pod, world.stock)
    if not drivers:
        return {}
    wanted, there = attachments_of(pod, world.stock), _attached(world)
    return {
        node: min(_room_of_driver(driver, limits, wanted, there.get(node, set())) for driver in drivers)
        for node, limits in attachable(world.stock).items()
    }


def _room_of_driver(driver: str, limits: Mapping[str, int], wanted: Set[Attachment], there: Set[Attachment]) -> int:
    more = len({one for one in wanted - there if one[0] == driver})
    if driver not in limits or not more:
        return _ANY_NUMBER
    return (limits[driver] - sum(one[0] == driver for one in there)) // more


def _attached(world: World) -> dict[str, set[Attachment]]:
    """Node -> the volumes of the pods on it."""
    found: dict[str, set[Attachment]] = {}
    for pod in world.placed:
        found.setdefault(pod["spec"]["nodeName"], set()).update(attachments_of(pod, world.stock))
    return found
