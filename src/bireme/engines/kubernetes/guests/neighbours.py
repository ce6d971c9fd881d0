"""Pods that care where other pods are, or share what the planner does not count, worked out to nodes. Pure.

Affinity and anti-affinity, spread, host ports, resources such as ephemeral storage or network cards, and how many
volumes a node can have: the planner knows nothing of them. `crowd` asks here which nodes are ruled out as things
stand, that is submitted with the pod, and it asks again before the pod is bound.

Pods that were submitted and have no node yet claim those on which they may come to be (`Claim`). For the next pod each
of them counts on every node where it would be in the way, and helps only where it is sure to be.
Invariant: what `ruled_out` leaves is right wherever the claims come to be within their nodes, if they all come to be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

from bireme.core.model.node_rules import NodeRules
from bireme.engines.kubernetes.guests.census import (
    ANY_ADDRESS,
    Census,
    Chosen,
    Field,
    Port,
    apart_terms,
    chosen,
    ports_of,
)
from bireme.engines.kubernetes.guests.pods import affinity, anti_affinity, is_counted, own_rules, requests_of
from bireme.engines.kubernetes.guests.volumes import Attachment, Stock, attachable, attachments_of, claims_of
from bireme.engines.kubernetes.nodes import quantity

Object = Mapping[str, Any]
Labels = Mapping[str, str]

NO_STOCK = Stock()
_ANY_NUMBER = 1_000_000
_KEPT_MOST = 256
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Ground:
    """Every node's labels and what it has to give; what is worked out of them is kept until a node changes."""

    def __init__(
        self,
        labels: Mapping[str, Labels],
        offered: Mapping[str, Mapping[str, Any]] | None = None,
        shunned: Set[str] = frozenset(),
    ) -> None:
        """`shunned`: nodes that are to be used last."""
        self.labels, self.offered, self.shunned = labels, offered or {}, shunned
        self._domains: dict[str, dict[str, set[str]]] = {}
        self._coarse: dict[str, bool] = {}
        self._carrying: dict[tuple[str, ...], Set[str]] = {}
        self._lacking: dict[tuple[str, ...], Set[str]] = {}
        self._parts: dict[tuple[str, ...], dict[tuple[str, ...], Set[str]]] = {}
        self._fields: dict[tuple[str, tuple[str, ...], NodeRules | None], Field] = {}
        self._admitted: dict[NodeRules, Set[str]] = {}
        self._amounts: dict[str, dict[str, Decimal]] = {}

    def domains(self, key: str) -> Mapping[str, Set[str]]:
        """Value of this label -> the nodes that have it."""
        return _kept(self._domains, key, lambda: self._domains_of(key))

    def _domains_of(self, key: str) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for node, labels in self.labels.items():
            if key in labels:
                found.setdefault(labels[key], set()).add(node)
        return found

    def domain(self, node: str, key: str) -> str | None:
        return self.labels.get(node, {}).get(key)

    def is_coarse(self, key: str) -> bool:
        """Whether the domains of this label are more than single nodes."""
        return _kept(self._coarse, key, lambda: len(self.domains(key)) < len(self.carrying((key,))))

    def carrying(self, keys: tuple[str, ...]) -> Set[str]:
        """Nodes that have all these labels."""
        nodes = self.labels.items()
        return _kept(
            self._carrying, keys, lambda: {node for node, labels in nodes if all(key in labels for key in keys)}
        )

    def lacking(self, keys: tuple[str, ...]) -> Set[str]:
        """Nodes that do not have all these labels."""
        return _kept(self._lacking, keys, lambda: self.labels.keys() - self.carrying(keys))

    def parts(self, keys: tuple[str, ...]) -> Mapping[tuple[str, ...], Set[str]]:
        """Values of these labels -> the nodes that have them."""
        return _kept(self._parts, keys, lambda: self._parts_of(keys))

    def _parts_of(self, keys: tuple[str, ...]) -> dict[tuple[str, ...], Set[str]]:
        found: dict[tuple[str, ...], set[str]] = {}
        for node in self.carrying(keys):
            found.setdefault(tuple(self.labels[node][key] for key in keys), set()).add(node)
        return dict(found)

    def field(self, key: str, keys: tuple[str, ...], rules: NodeRules | None) -> Field:
        """What a spread by `key` looks at, of a pod whose spreads are by `keys`; `rules`: its own, if they count."""

        def look() -> Field:
            nodes = self.carrying(keys) if rules is None else self.carrying(keys) & self.admitted(rules)
            return Field({node: self.labels[node][key] for node in nodes})

        return _kept(self._fields, (key, keys, rules), look)

    def around(self, key: str, nodes: Set[str]) -> Set[str]:
        """All nodes in the domains of these."""
        if not self.is_coarse(key):
            return nodes & self.carrying((key,))
        values, domains = {self.domain(node, key) for node in nodes} - {None}, self.domains(key)
        return {node for value in values if value is not None for node in domains[value]}

    def admitted(self, rules: NodeRules) -> Set[str]:
        """Nodes whose labels the rules let a pod use."""
        if not rules.all_of and not rules.any_of:
            return self.labels.keys()
        admits, nodes = rules.admits_labels, self.labels.items()
        return _kept(self._admitted, rules, lambda: {node for node, labels in nodes if admits(node, labels)})

    def amounts(self, resource: str) -> Mapping[str, Decimal]:
        """Node -> how much of it there is."""
        nodes = self.offered.items()
        return _kept(
            self._amounts, resource, lambda: {node: quantity(offers.get(resource, 0)) for node, offers in nodes}
        )


def _kept(memo: dict[_Key, _Value], key: _Key, make: Callable[[], _Value]) -> _Value:
    """What was made before for this key. Keys are people's words: of too many none is kept."""
    found = memo.get(key)
    if found is None:
        made = make()
        if len(memo) >= _KEPT_MOST:
            memo.clear()
        found = memo[key] = made
    return found


class Claim:
    """A pod in the queue, and the nodes on which it may come to be."""

    def __init__(self, pod: Object, nodes: Iterable[str], *, by_name: bool = False) -> None:
        """`by_name`: a few that were chosen for it, and not all where it could be."""
        self.pod, self.nodes, self.by_name = pod, frozenset(nodes), by_name
        self._domains: dict[Field, frozenset[str]] = {}

    def domains(self, among: Field) -> frozenset[str]:
        """Domains of this field in which the pod may come to be."""
        found = self._domains.get(among)
        if found is None:
            domain_of = among.domain_of
            found = self._domains[among] = frozenset(domain_of[node] for node in self.nodes if node in domain_of)
        return found

    def is_within(self, among: Field) -> bool:
        return self.nodes <= among.domain_of.keys()

    @cached_property
    def ports(self) -> set[Port]:
        return ports_of(self.pod)

    @cached_property
    def requests(self) -> dict[str, Any]:
        return requests_of(self.pod["spec"])


class Claims:
    """All claims, by the gang that makes them; what they may take of each node is kept added up."""

    def __init__(self, *claims: Claim) -> None:
        self._of: dict[str, tuple[Claim, ...]] = {}
        self._meant: dict[Chosen, dict[Claim, None]] = {}
        """Of those that were asked about: the claims whose pods are meant."""
        self.apart: dict[tuple[Chosen, str], dict[Claim, None]] = {}
        """Who wants whom in none of its domains."""
        self._amounts: dict[str, dict[str, Decimal]] = {}
        if claims:
            self.put("", claims)

    def __iter__(self) -> Iterator[Claim]:
        return chain.from_iterable(self._of.values())

    def __len__(self) -> int:
        """How many gangs."""
        return len(self._of)

    def __contains__(self, key: str) -> bool:
        return key in self._of

    def put(self, key: str, claims: tuple[Claim, ...]) -> None:
        assert key not in self._of, f"{key} claims nodes already"
        self._of[key] = claims
        for one, meant in self._meant.items():
            meant.update((claim, None) for claim in claims if one.includes(claim.pod))
        for claim in claims:
            for term in apart_terms(claim.pod):
                self.apart.setdefault(term, {})[claim] = None
        self._account(claims, 1)

    def remove(self, key: str) -> bool:
        """Whether there was one."""
        claims = self._of.pop(key, ())
        for meant in self._meant.values():
            for claim in claims:
                meant.pop(claim, None)
        for claim in claims:
            for term in apart_terms(claim.pod):
                self.apart[term].pop(claim, None)
                if not self.apart[term]:
                    del self.apart[term]
        self._account(claims, -1)
        return bool(claims)

    def of_pods(self, one: Chosen) -> Iterable[Claim]:
        """Claims of the pods that are meant."""
        if not self._of:
            return ()
        return _kept(self._meant, one, lambda: {claim: None for claim in self if one.includes(claim.pod)})

    def amounts(self, resource: str) -> Mapping[str, Decimal]:
        """Node -> what may be taken of it there, of what the planner does not count."""
        return self._amounts.get(resource, {})

    def _account(self, claims: Iterable[Claim], by: int) -> None:
        for claim in claims:
            for name, count in claim.requests.items():
                if count and not is_counted(name):
                    there = self._amounts.setdefault(name, {})
                    for node in claim.nodes:
                        there[node] = there.get(node, Decimal(0)) + by * count


NO_CLAIMS = Claims()


@dataclass(frozen=True, slots=True)
class World:
    """Where pods are and may come to be, and the nodes."""

    census: Census
    """All pods that have a node and have not ended."""
    ground: Ground
    stock: Stock = field(default_factory=Stock)
    claims: Claims = NO_CLAIMS

    def nodes_of(self, one: Chosen, near: Set[str] | None = None) -> set[str]:
        """Where a pod that is meant is, or may be; `near`: nobody asks about others than these."""
        found, claimed = self.census.selected(one), (claim.nodes for claim in self.claims.of_pods(one))
        return set(found).union(*claimed) if near is None else (near & found.keys()).union(*claimed)


def is_particular(pod: Object, stock: Stock = NO_STOCK) -> bool:
    """Whether its own words are about other pods, or about what only nodes and pods together tell."""
    said = affinity(pod) or anti_affinity(pod) or hard_spreads(pod) or ports_of(pod) or uncounted(pod)
    return bool(said or limited_drivers(pod, stock))


def is_kept_away(pod: Object, census: Census) -> bool:
    """Whether a pod somewhere wants it in none of its domains."""
    return any(whom.includes(pod) for whom, _ in census.apart)


def likeness(pod: Object) -> str:
    """A text that pods share from which the same nodes are ruled out."""
    metadata, spec = pod["metadata"], pod["spec"]
    words = {name: spec.get(name) for name in ("affinity", "topologySpreadConstraints", "nodeSelector")}
    asked = {name: str(count) for name, count in uncounted(pod).items()}
    volumes = [*claims_of(pod), *sorted(attachments_of(pod, NO_STOCK))]
    who = [metadata["namespace"], metadata.get("labels")]
    return json.dumps([who, words, asked, sorted(ports_of(pod)), volumes], sort_keys=True)


def ruled_out(pod: Object, world: World, among: Collection[str] | None = None) -> set[str]:
    """Nodes on which the pod must not be, because of where others are or may come to be. `among`: nobody asks about
    others than these, which may be left out."""
    out = _kept_apart(pod, world, among) | _far_from(pod, world)
    if hard_spreads(pod):
        out |= _uneven(pod, world, among)
    out |= _ports_taken(pod, world) | short_of(pod, world, 1, among)
    return out | {node for node, count in _room_to_attach(pod, world).items() if count < 1}


def _kept_apart(pod: Object, world: World, among: Collection[str] | None) -> set[str]:
    """Nodes in a domain with pods that it wants nowhere near, or that want it nowhere near."""
    by_key: dict[str, set[str]] = {}

    def near(key: str) -> Set[str] | None:
        return None if among is None else world.ground.around(key, set(among))

    for whom, key in apart_terms(pod):
        by_key.setdefault(key, set()).update(world.nodes_of(whom, near(key)))
    for (whom, key), nodes in world.census.apart.items():
        if whom.includes(pod):
            asked = near(key)
            by_key.setdefault(key, set()).update(nodes if asked is None else asked & nodes.keys())
    for (whom, key), claims in world.claims.apart.items():
        if whom.includes(pod):
            by_key.setdefault(key, set()).update(*(claim.nodes for claim in claims))
    return set().union(*(world.ground.around(key, nodes) for key, nodes in by_key.items()))


def mind(one: Object, other: Object) -> bool:
    """Whether either speaks of the other, or both want the same port."""
    for pod, neighbour in ((one, other), (other, one)):
        terms = (*affinity(pod), *anti_affinity(pod), *hard_spreads(pod))
        if any(chosen(term, pod).includes(neighbour) for term in terms):
            return True
    return _clash(ports_of(one), ports_of(other))


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
    nodes = world.ground.admitted(own_rules(pod))
    if not nodes:
        return []
    amounts, volumes = _room_of_amounts(pod, world), _room_to_attach(pod, world)
    words = sorted(uncounted(pod)) if amounts and all(amounts.get(node, 1) < 1 for node in nodes) else []
    if volumes and all(volumes.get(node, 1) < 1 for node in nodes):
        words += [f"volumes of {driver} that can be attached" for driver in sorted(limited_drivers(pod, world.stock))]
    return words


def short_of(pod: Object, world: World, times: int, among: Collection[str] | None = None) -> set[str]:
    """Nodes (of these) that have too little for so many like it, by amounts that the planner does not count."""
    out: set[str] = set()
    for name, count in uncounted(pod).items():
        offered, wanted = world.ground.amounts(name), times * count
        taken, claimed = world.census.amounts(name), world.claims.amounts(name)
        for node in offered if among is None else among:
            if offered.get(node, 0) - taken.get(node, 0) - claimed.get(node, 0) < wanted:
                out.add(node)
    return out


def _room_of_amounts(pod: Object, world: World) -> dict[str, int]:
    wanted = uncounted(pod)
    room: dict[str, int] = {}
    for name, count in wanted.items():
        taken, claimed = world.census.amounts(name), world.claims.amounts(name)
        for node, offered in world.ground.amounts(name).items():
            left = int((offered - taken.get(node, 0) - claimed.get(node, 0)) // count)
            room[node] = min(left, room.get(node, left))
    return room


def cannot_be_kept(pod: Object) -> tuple[str, ...]:
    """Refinements of these constraints that nobody here works out, in Kubernetes' own words."""
    found = []
    for term in (*affinity(pod), *anti_affinity(pod)):
        found += [name for name in ("namespaceSelector", "matchLabelKeys", "mismatchLabelKeys") if term.get(name)]
    for spread in hard_spreads(pod):
        found += ["matchLabelKeys"] if spread.get("matchLabelKeys") else []
        found += ["nodeTaintsPolicy"] if spread.get("nodeTaintsPolicy", "Ignore") != "Ignore" else []
    return tuple(sorted(set(found)))


# --- affinity -----------------------------------------------------------------------------------------------


def _far_from(pod: Object, world: World) -> set[str]:
    """All nodes but those near pods that all its terms speak of; the first of such pods may be anywhere."""
    terms = affinity(pod)
    if not terms:
        return set()
    ground, every = world.ground, [chosen(term, pod) for term in terms]
    keys = [term["topologyKey"] for term in terms]
    partners, unsure = set(world.census.selected(*every)), False
    for claim in world.claims:
        if all(one.includes(claim.pod) for one in every):
            if all(len({ground.domain(node, key) for node in claim.nodes}) == 1 for key in keys):
                partners.add(next(iter(claim.nodes)))
            else:
                unsure = True
    near = {key: {ground.domain(node, key) for node in partners} - {None} for key in keys}
    if not any(near.values()) and all(one.includes(pod) for one in every):
        bare = {node for node, labels in ground.labels.items() if any(key not in labels for key in keys)}
        return set(ground.labels) if unsure else bare
    return {
        node
        for node, labels in ground.labels.items()
        if any(labels.get(key) not in domains for key, domains in near.items())
    }


# --- spread -------------------------------------------------------------------------------------------------


def hard_spreads(pod: Object) -> tuple[Object, ...]:
    """Spread constraints that a pod requires."""
    constraints = pod["spec"].get("topologySpreadConstraints") or ()
    return tuple(one for one in constraints if one.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule")


def spread_chosen(pod: Object, spread: Object) -> Chosen:
    """The pods that a spread of this one counts: of its own namespace only."""
    return chosen({"labelSelector": spread.get("labelSelector")}, pod)


def _uneven(pod: Object, world: World, among: Collection[str] | None) -> set[str]:
    """Nodes where one more would be too many, beside the emptiest domain that the pod could use."""
    ground, out = world.ground, set(world.ground.lacking(_spread_keys(pod)))
    for spread in hard_spreads(pod):
        held, least = spread_held(pod, spread, world)
        domains, most = ground.domains(spread["topologyKey"]), spread["maxSkew"] + least
        most -= spread_chosen(pod, spread).includes(pod)
        if among is not None:
            asked = {ground.domain(node, spread["topologyKey"]) for node in among}
            held = {domain: held.get(domain, 0) for domain in asked if domain is not None}
        out.update(*(domains[domain] for domain, count in held.items() if count > most))
    return out


def _spread_keys(pod: Object) -> tuple[str, ...]:
    return tuple(sorted({spread["topologyKey"] for spread in hard_spreads(pod)}))


def spread_held(pod: Object, spread: Object, world: World) -> tuple[Mapping[str, int], int]:
    """How many each domain has or may come to have (none, if it is not named), and how many the emptiest that the pod
    could use is sure to have."""
    key, ground, whom = spread["topologyKey"], world.ground, spread_chosen(pod, spread)
    honoured = spread.get("nodeAffinityPolicy", "Honor") == "Honor"
    field_ = ground.field(key, _spread_keys(pod), own_rules(pod) if honoured else None)
    there = world.census.by_domain(whom, field_)
    held, sure = dict(there), dict(there)
    for claim in world.claims.of_pods(whom):
        domains = claim.domains(field_)
        for domain in domains:
            held[domain] = held.get(domain, 0) + 1
        if len(domains) == 1 and claim.is_within(field_):
            (domain,) = domains
            sure[domain] = sure.get(domain, 0) + 1
    few = len(field_.domains) < spread.get("minDomains", 1)
    return held, 0 if few or len(sure) < len(field_.domains) else min(sure.values(), default=0)


# --- ports and other things of a node -----------------------------------------------------------------------


def _clash(some: Iterable[Port], others: Iterable[Port]) -> bool:
    return any(
        one[1:] == other[1:] and (one[0] == other[0] or ANY_ADDRESS in (one[0], other[0]))
        for one in some
        for other in others
    )


def _ports_taken(pod: Object, world: World) -> set[str]:
    wanted = ports_of(pod)
    if not wanted:
        return set()
    taken = {node for node, ports in world.census.ports.items() if _clash(wanted, ports)}
    return taken.union(*(claim.nodes for claim in world.claims if _clash(wanted, claim.ports)))


def uncounted(pod: Object) -> dict[str, Any]:
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
    promised = _promised(world)
    nothing: set[Attachment] = set()
    return {
        node: min(
            _room_of_driver(driver, limits, wanted, there.get(node, nothing), promised.get(node, nothing))
            for driver in drivers
        )
        for node, limits in attachable(world.stock).items()
    }


def _room_of_driver(
    driver: str,
    limits: Mapping[str, int],
    wanted: Set[Attachment],
    there: Set[Attachment],
    promised: Set[Attachment],
) -> int:
    """`there`: attached already; `promised`: may come to be."""
    more = len({one for one in wanted - there if one[0] == driver})
    if driver not in limits or not more:
        return _ANY_NUMBER
    return (limits[driver] - sum(one[0] == driver for one in there | (promised - wanted))) // more


def _attached(world: World) -> dict[str, set[Attachment]]:
    """Node -> the volumes of the pods on it."""
    found: dict[str, set[Attachment]] = {}
    for pod in world.census.attaching.values():
        found.setdefault(pod["spec"]["nodeName"], set()).update(attachments_of(pod, world.stock))
    return found


def _promised(world: World) -> dict[str, set[Attachment]]:
    """Node -> the volumes of the pods that may come to be there."""
    found: dict[str, set[Attachment]] = {}
    for claim in world.claims:
        volumes = attachments_of(claim.pod, world.stock)
        for node in claim.nodes if volumes else ():
            found.setdefault(node, set()).update(volumes)
    return found
