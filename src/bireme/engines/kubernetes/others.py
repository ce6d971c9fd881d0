"""What runs on nodes beside Bireme's jobs: pods that other schedulers placed, counted per node.

Pods that come with every node (of DaemonSets, and static ones) are taken off what the node offers: they are there as
long as it is. All others are counted as used, and told to the core when the count changes. The engine feeds it with
every pod that is not of a job of its own; of a guest, only what it was given more after it was placed is counted here.
Invariant: a pod counts from when it has a node until it has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from bireme.core.model.resources import GresShare, NodeShare
from bireme.engines.kubernetes.guests.pods import held_by
from bireme.engines.kubernetes.nodes import NO_AMOUNTS, Amounts, amounts, gres_type
from bireme.engines.kubernetes.pods import is_over

Object = Mapping[str, Any]

_STATIC = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True)
class _Pod:
    node: str
    asks: Amounts
    comes_with_node: bool


class Others:
    def __init__(self) -> None:
        self._pods: dict[str, _Pod] = {}
        """By uid: those that have a node and have not ended."""
        self._on: dict[str, set[str]] = {}
        """Node -> uids."""

    def pod_changed(self, kind: str, pod: Object, held: Amounts | None = None) -> _Pod | None:
        """What it held before or holds now, if that is another thing. `held`: what a job of guests holds for it."""
        uid = pod["metadata"]["uid"]
        before = self._pods.get(uid)
        node = pod["spec"].get("nodeName")
        over = kind == "DELETED" or is_over(pod)
        asks = amounts(held_by(pod), round_up=True)
        asks = asks if held is None else _more_than(held, asks)
        if over or not node or (held is not None and asks == NO_AMOUNTS):
            if before is not None:
                del self._pods[uid]
                self._on[before.node].discard(uid)
            return before
        now = _Pod(node, asks, _comes_with_node(pod))
        if now == before:
            return None
        self._pods[uid] = now
        self._on.setdefault(node, set()).add(uid)
        return now

    def reserved(self, node: str) -> Amounts:
        """CPUs and memory of what comes with the node."""
        return _sum(pod.asks for pod in self._there(node) if pod.comes_with_node)

    def share(self, node: str, labels: Mapping[str, str]) -> NodeShare:
        """All that the others hold. A GPU is never the node's own, whoever's pod has it."""
        there = self._there(node)
        held = _sum(pod.asks for pod in there if not pod.comes_with_node)
        gres: dict[str | None, int] = {}
        for name, count in (gpu for pod in there for gpu in pod.asks.gpus):
            type_ = gres_type(name, labels)
            gres[type_] = gres.get(type_, 0) + count
        shares = tuple(GresShare("gpu", type_, count) for type_, count in sorted(gres.items(), key=str))
        return NodeShare(node, ceil(held.milli_cpus / 1000), held.memory_mib, gres=shares, tasks=0)

    def _there(self, node: str) -> list[_Pod]:
        return [self._pods[uid] for uid in self._on.get(node, ())]


def _more_than(held: Amounts, asks: Amounts) -> Amounts:
    """What a pod was given beyond that, by a resize in place. The number of GPUs cannot be changed."""
    cpus = asks.milli_cpus - held.milli_cpus
    return Amounts(max(0, cpus), max(0, asks.memory_mib - held.memory_mib))


def _sum(asked: Any) -> Amounts:
    pods = list(asked)
    return Amounts(sum(one.milli_cpus for one in pods), sum(one.memory_mib for one in pods))


def _comes_with_node(pod: Object) -> bool:
    metadata = pod["metadata"]
    if _STATIC in (metadata.get("annotations") or {}):
        return True
    return any(owner.get("kind") == "DaemonSet" for owner in metadata.get("ownerReferences") or ())
