"""Where all pods are, counted by what other pods ask about them, and kept so while pods come and go.

Pods with neighbours in mind ask the same few questions: on which nodes are pods with these labels, who wants nobody
beside it, which ports and amounts are taken. Each question is answered from all pods once and then brought up to date
with every pod that changes, so that the thousandth pod with a question does not look at all the others again.
`crowd` owns one and tells it of pods, also of those that were only just given their node; `neighbours`
asks. Invariant: what is told is what the pods it holds would give if they were all counted anew.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from weakref import WeakKeyDictionary

from bireme.engines.kubernetes.guests.pods import anti_affinity, requests_of, selects
from bireme.engines.kubernetes.guests.volumes import may_attach

Object = Mapping[str, Any]
Port = tuple[str, str, int]
"""Address of the node, protocol, port."""

ANY_ADDRESS = "0.0.0.0"
_QUESTIONS_MOST = 256
"""Selectors come and go with the versions of what people run, and anybody may make up resources: beyond so many, all
are forgotten and asked anew."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The pods that a label selector speaks of, in some namespaces."""

    namespaces: tuple[str, ...]
    text: str
    """The selector, in one way of writing it."""
    selector: Object | None = field(compare=False)

    def includes(self, pod: Object) -> bool:
        metadata = pod["metadata"]
        return metadata["namespace"] in self.namespaces and selects(self.selector, metadata.get("labels") or {})


def chosen(term: Object, owner: Object) -> Chosen:
    """The pods that a term of affinity, or a spread, of this pod means."""
    selector = term.get("labelSelector")
    namespaces = term.get("namespaces") or (owner["metadata"]["namespace"],)
    return Chosen(tuple(sorted(namespaces)), json.dumps(selector, sort_keys=True), selector)


def apart_terms(pod: Object) -> list[tuple[Chosen, str]]:
    """Whom it wants in none of its domains, and the label that makes a domain."""
    return [(chosen(term, pod), term["topologyKey"]) for term in anti_affinity(pod)]


def ports_of(pod: Object) -> set[Port]:
    """Ports of its node that a pod takes."""
    spec = pod["spec"]
    sidecars = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"]
    return {
        (port.get("hostIP") or ANY_ADDRESS, port.get("protocol", "TCP"), port["hostPort"])
        for container in (*(spec.get("containers") or ()), *sidecars)
        for port in container.get("ports") or ()
        if port.get("hostPort")
    }


class Field:
    """Nodes among which a spread counts, and the domain of each. Two are the same only if they are one object."""

    def __init__(self, domain_of: Mapping[str, str]) -> None:
        self.domain_of = domain_of
        self.domains = frozenset(domain_of.values())


class Census:
    def __init__(self, pods: Iterable[Object] = ()) -> None:
        self._pods: dict[str, Object] = {}
        """By uid."""
        self._by_domain: WeakKeyDictionary[Field, dict[Chosen, Counter[str]]] = WeakKeyDictionary()
        """Gone with the fields, when a node has changed."""
        self._selected: dict[tuple[tuple[Chosen, ...], bool], Counter[str]] = {}
        self._amounts: dict[str, dict[str, Decimal]] = {}
        """Resource -> node -> what pods there ask for."""
        self._requests: dict[str, dict[str, Any]] = {}
        self.apart: dict[tuple[Chosen, str], Counter[str]] = {}
        """Who wants whom in none of its domains: on which nodes they are."""
        self.ports: dict[str, Counter[Port]] = {}
        """Node -> ports that are taken."""
        self.attaching: dict[str, Object] = {}
        """By uid: pods that may need something attached to their node."""
        for pod in pods:
            self.put(pod)

    def put(self, pod: Object) -> None:
        """Counts a pod on the node that it names, now or still."""
        before = self._pods.get(pod["metadata"]["uid"])
        if before is not None:
            if _alike(before, pod):
                self._pods[pod["metadata"]["uid"]] = pod
                return
            self.remove(pod["metadata"]["uid"])
        self._pods[pod["metadata"]["uid"]] = pod
        self._account(pod, 1)

    def remove(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._account(pod, -1)
            self._requests.pop(uid, None)

    def node_of(self, uid: str) -> str:
        """Empty: it has none."""
        pod = self._pods.get(uid)
        return str(pod["spec"]["nodeName"]) if pod is not None else ""

    def selected(self, *every: Chosen, staying: bool = False) -> Mapping[str, int]:
        """Node -> pods that all of these include; `staying`: without those that are being deleted."""
        key = (every, staying)
        found = self._selected.get(key)
        if found is None:
            _make_room(self._selected)
            found = self._selected[key] = Counter()
            for pod in self._pods.values():
                if _answers(pod, *key):
                    found[pod["spec"]["nodeName"]] += 1
        return found

    def by_domain(self, one: Chosen, among: Field) -> Counter[str]:
        """Domain -> pods that are meant and stay, on the nodes of this field. To read only."""
        questions = self._by_domain.setdefault(among, {})
        found = questions.get(one)
        if found is None:
            _make_room(questions)
            found = questions[one] = Counter()
            for node, count in self.selected(one, staying=True).items():
                if node in among.domain_of:
                    found[among.domain_of[node]] += count
        return found

    def amounts(self, resource: str) -> Mapping[str, Decimal]:
        """Node -> what pods there ask for of it."""
        found = self._amounts.get(resource)
        if found is None:
            _make_room(self._amounts)
            found = self._amounts[resource] = {}
            for pod in self._pods.values():
                self._add(resource, pod, 1)
        return found

    def _account(self, pod: Object, by: int) -> None:
        node = pod["spec"]["nodeName"]
        for key, counts in self._selected.items():
            if _answers(pod, *key):
                _change(counts, node, by)
        for among, questions in self._by_domain.items():
            for one, counts in questions.items() if node in among.domain_of else ():
                if _answers(pod, (one,), True):
                    _change(counts, among.domain_of[node], by)
        for resource in self._amounts:
            self._add(resource, pod, by)
        for term in apart_terms(pod):
            _change(self.apart.setdefault(term, Counter()), node, by)
            if not self.apart[term]:
                del self.apart[term]
        for port in ports_of(pod):
            _change(self.ports.setdefault(node, Counter()), port, by)
        if may_attach(pod):
            if by > 0:
                self.attaching[pod["metadata"]["uid"]] = pod
            else:
                self.attaching.pop(pod["metadata"]["uid"], None)

    def _add(self, resource: str, pod: Object, by: int) -> None:
        uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        asked = self._requests.get(uid)
        if asked is None:
            asked = self._requests[uid] = requests_of(pod["spec"])
        if asked.get(resource):
            there = self._amounts[resource]
            there[node] = there.get(node, Decimal(0)) + by * asked[resource]


def _make_room(questions: dict[Any, Any]) -> None:
    if len(questions) >= _QUESTIONS_MOST:
        questions.clear()


def _answers(pod: Object, every: tuple[Chosen, ...], staying: bool) -> bool:
    return not (staying and _leaves(pod)) and all(one.includes(pod) for one in every)


def _leaves(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _alike(before: Object, now: Object) -> bool:
    """In all that is counted here."""
    labels = before["metadata"].get("labels") == now["metadata"].get("labels")
    return labels and _leaves(before) == _leaves(now) and before["spec"] == now["spec"]


def _change(counts: Counter[Any], key: Any, by: int) -> None:
    counts[key] += by
    if not counts[key]:
        del counts[key]
