"""Which nodes a job may use, by their labels and taints: the rules that pods carry, as Kubernetes reads them.

Slurm has features instead (`core/placement/features.py`); jobs from its side have no rules. Made by the Kubernetes
engine of a pod's node selector, node affinity and tolerations; asked by placement, once for each kind of node.
Invariant: the answer depends on nothing but the node's name, labels and taints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NODE_NAME = "metadata.name"
"""A rule with this key is about the node's name."""


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Toleration:
    """An empty key tolerates every key, an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (self.key != "" and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class LabelRule:
    key: str
    operator: str
    """In, NotIn, Exists, DoesNotExist, Gt or Lt."""
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value)
        return False

    def _compares(self, value: str | None) -> bool:
        try:
            have, wanted = int(value or ""), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return have > wanted if self.operator == "Gt" else have < wanted

    def __str__(self) -> str:
        match self.operator:
            case "In" if len(self.values) == 1:
                return f"{self.key}={self.values[0]}"
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"no {self.key}"
        return f"{self.key} {self.operator} {','.join(self.values)}"


@dataclass(frozen=True, slots=True)
class Preference:
    """Nodes for which all of its rules hold are liked by so much more; less, if it is negative."""

    weight: int
    rules: tuple[LabelRule, ...]


@dataclass(frozen=True, slots=True)
class NodeRules:
    all_of: tuple[LabelRule, ...] = ()
    any_of: tuple[tuple[LabelRule, ...], ...] = ()
    """Alternatives, each a list of rules that all hold; none: nothing more is asked."""
    tolerations: tuple[Toleration, ...] = ()
    preferred: tuple[Preference, ...] = ()
    """These exclude no node: of those that are allowed and would do as well, they say which is better."""

    def admit(self, name: str, labels: Mapping[str, str], taints: tuple[Taint, ...]) -> bool:
        if not self.admits_labels(name, labels):
            return False
        return all(any(one.covers(taint) for one in self.tolerations) for taint in taints)

    def admits_labels(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the node's labels admit the job; its taints are another question (`admit`)."""
        named = {**labels, NODE_NAME: name}
        if not all(rule.holds(named) for rule in self.all_of):
            return False
        return not self.any_of or any(all(rule.holds(named) for rule in one) for one in self.any_of)

    def liking(self, name: str, labels: Mapping[str, str]) -> int:
        """How much better than others the node is."""
        named = {**labels, NODE_NAME: name}
        return sum(one.weight for one in self.preferred if all(rule.holds(named) for rule in one.rules))

    def keys(self) -> set[str]:
        """The labels that matter to it."""
        liked = (one.rules for one in self.preferred)
        return {rule.key for rules in (self.all_of, *self.any_of, *liked) for rule in rules} - {NODE_NAME}

    def __str__(self) -> str:
        parts = [str(rule) for rule in self.all_of]
        parts += [" or ".join(" and ".join(map(str, one)) for one in self.any_of)] if self.any_of else []
        return ", ".join(parts)
