"""The part of the nodes that a pod may have while many pods that mind each other are placed at once. Pure.

Pods that mind each other could be placed one after another only, each when the one before has its node. Instead each
gets a slice: a domain of the labels that its words are about, such as a zone, and where they are about single nodes, a
few of these. `crowd` claims the slice for the pod; the next one is given another, by the same rules that hold for
pods that are placed. The planner chooses within it. A pod that finds no place in its slice is given all nodes, alone.
Invariant: a slice is a part of the candidates that it was cut of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from heapq import heapify, heappop
from itertools import islice
from typing import Any

from bireme.core.model.node_rules import NODE_NAME, LabelRule, NodeRules
from bireme.engines.kubernetes.guests.census import ports_of
from bireme.engines.kubernetes.guests.neighbours import (
    World,
    hard_spreads,
    limited_drivers,
    room_left,
    short_of,
    spread_held,
)
from bireme.engines.kubernetes.guests.pods import affinity, anti_affinity, asks_for_spread, requests_of
from bireme.engines.kubernetes.guests.preferences import has_preferences, preferences_of
from bireme.engines.kubernetes.nodes import is_gpu

Object = Mapping[str, Any]

_NOTHING = Decimal(0)
_CHOICE = 4
"""So many nodes are left to the planner where one would do: some may be kept for others that it knows of."""


@dataclass(frozen=True, slots=True)
class Slice:
    nodes: frozenset[str]
    rules: tuple[LabelRule, ...]
    """What tells the planner; none: no node is left out."""
    by_name: bool = False
    """Some nodes of a domain, and not all that are left of it."""

    @property
    def as_rules(self) -> NodeRules:
        return NodeRules(self.rules)


def cut(pod: Object, world: World, candidates: Set[str], usable: Callable[[str], bool], waiting: int) -> Slice | None:
    """The few of these nodes that one pod is tried on while so many others wait; None: none of them has room for it
    now."""
    ground, asked = world.ground, requests_of(pod["spec"])
    keys = tuple(key for key in _keys(pod) if ground.is_coarse(key))
    by_name = _minds_single_nodes(pod, world, candidates, waiting)
    many = max(1, min(_CHOICE, len(candidates) // (waiting + 1)))
    for values, nodes in _groups(pod, world, candidates, keys):
        if not by_name:
            if _has_room(asked, world, sorted(nodes), usable):
                rules = (LabelRule(key, "In", (value,)) for key, value in zip(keys, values))
                return Slice(frozenset(nodes), tuple(rules))
            continue
        free = (node for node in _in_order(pod, world, nodes) if _holds(asked, world, node) and usable(node))
        chosen = tuple(islice(free, many))
        if chosen:
            return Slice(frozenset(chosen), (LabelRule(NODE_NAME, "In", tuple(sorted(chosen))),), by_name=True)
    return None


def _keys(pod: Object) -> list[str]:
    """Labels that make the domains of which its words speak."""
    terms = (*affinity(pod), *anti_affinity(pod), *hard_spreads(pod))
    return sorted({term["topologyKey"] for term in terms})


def _minds_single_nodes(pod: Object, world: World, candidates: Set[str], waiting: int) -> bool:
    """Whether others like it may not all come to one node, as far as the planner does not see to that."""
    if ports_of(pod):
        return True
    terms = (*anti_affinity(pod), *hard_spreads(pod))
    if any(not world.ground.is_coarse(term["topologyKey"]) for term in terms):
        return True
    if short_of(pod, world, waiting + 1, candidates):
        return True
    return bool(limited_drivers(pod, world.stock)) and any(count <= waiting for count in room_left(pod, world).values())


def _groups(
    pod: Object, world: World, candidates: Set[str], keys: tuple[str, ...]
) -> list[tuple[tuple[str, ...], Set[str]]]:
    """(values of the keys, nodes), the emptiest domains of its spreads first, and of these the largest."""
    if not keys:
        return [((), candidates)]
    parts = ((values, nodes & candidates) for values, nodes in world.ground.parts(keys).items())
    found = [(values, nodes) for values, nodes in parts if nodes]
    held = {
        spread["topologyKey"]: spread_held(pod, spread, world)[0]
        for spread in hard_spreads(pod)
        if spread["topologyKey"] in keys
    }

    def fullness(group: tuple[tuple[str, ...], Set[str]]) -> tuple[int, int, tuple[str, ...]]:
        values = dict(zip(keys, group[0]))
        return sum(counts.get(values[key], 0) for key, counts in held.items()), -len(group[1]), group[0]

    return sorted(found, key=fullness)


def _in_order(pod: Object, world: World, nodes: Set[str]) -> Iterator[str]:
    """As the planner would like them: those that the pod prefers, then the fullest, so that whole nodes stay free.

    Most nodes are empty and alike, and mostly a few are asked for: the others are not looked at one by one.
    """
    counted = next((name for name in requests_of(pod["spec"]) if is_gpu(name)), "cpu")
    used, sign = world.census.amounts(counted), 1 if asks_for_spread(pod) else -1
    labels, shunned = world.ground.labels, world.ground.shunned
    rules = NodeRules(preferred=preferences_of(pod, world)) if has_preferences(pod) else None
    special = nodes if rules else nodes & (shunned | used.keys())
    ranks: dict[tuple[bool, int, Decimal], list[str]] = {(False, 0, _NOTHING): list(nodes - special)}
    for node in special:
        liking = rules.liking(node, labels[node]) if rules else 0
        ranks.setdefault((node in shunned, -liking, sign * used.get(node, _NOTHING)), []).append(node)
    for _, alike in sorted(ranks.items()):
        heapify(alike)
        while alike:
            yield heappop(alike)


def _holds(asked: Mapping[str, Any], world: World, node: str) -> int:
    """How many pods that ask for this the node has room for, beside all that are there or claim it by name."""
    claims = [claim for claim in world.claims if claim.by_name and node in claim.nodes]
    room = []
    for name, count in asked.items():
        if count:
            taken = sum((claim.requests.get(name, 0) for claim in claims), world.census.amounts(name).get(node, 0))
            room.append(int((world.ground.amounts(name).get(node, 0) - taken) // count))
    return max(0, min(room, default=1))


def _has_room(asked: Mapping[str, Any], world: World, nodes: Sequence[str], usable: Callable[[str], bool]) -> bool:
    """Whether these nodes hold a pod that asks for this beside all that claim one of them."""
    group = set(nodes)
    before = sum(not claim.by_name and not claim.nodes.isdisjoint(group) for claim in world.claims)
    for node in reversed(nodes):  # the planner fills them from the first
        room = _holds(asked, world, node)
        before -= room if room and usable(node) else 0
        if before < 0:
            return True
    return False
