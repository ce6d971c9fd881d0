"""Who waits for whom among others' pods, and what a place must still be when a pod is bound to it.

Pods whose places depend on each other (`guest_neighbours`) stand in the queue one after another: one that is looked at
holds back the others of its kind until it has its place, or is known to wait. Everybody's pods are counted by node,
those that were just bound before the API server tells of them. `guests.py` owns it; it asks nobody and decides nothing.
Invariant: between the check of a place (`take`) and the next one, what was taken counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cached_property
from typing import Any

from bireme.core.model.node_rules import Preference
from bireme.engines.kubernetes.guest_neighbours import (
    World,
    interact,
    is_particular,
    lacking,
    mind,
    room_left,
    ruled_out,
)
from bireme.engines.kubernetes.guest_pods import anti_affinity, keeps_apart
from bireme.engines.kubernetes.guest_preferences import has_preferences, preferences_of
from bireme.engines.kubernetes.guest_volumes import Stock, attachments_of
from bireme.engines.kubernetes.pods import is_over

Object = Mapping[str, Any]


class Turn(Enum):
    NOW = "now"
    LATER = "later"
    NEVER = "never"
    """Its pods mind each other in a way that nobody here works out."""


class Sight:
    """The places of a gang's pods at one moment. The world, which is large, is put together once, if anybody asks."""

    def __init__(self, particular: Sequence[Object], look: Callable[[], World]) -> None:
        """`particular`: those of its pods whose place depends on others'."""
        self._particular, self._look = particular, look

    @cached_property
    def _world(self) -> World:
        return self._look()

    def ruled_out(self, pod: Object) -> set[str]:
        return ruled_out(pod, self._world) if self._particular else set()

    def lacking(self, pod: Object) -> list[str]:
        """What nodes and pods together have too little of for it, wherever it went."""
        return lacking(pod, self._world) if self._particular else []

    def preferences(self, pod: Object) -> tuple[Preference, ...]:
        return preferences_of(pod, self._world) if has_preferences(pod) else ()

    def most_a_node(self, pod: Object) -> int:
        """How many like it every node surely holds, by what the planner does not count; 0: any number."""
        if not self._particular:
            return 0
        volumes = {attachments_of(one, self._world.stock) for one in self._particular}
        room = room_left(pod, self._world, share_volumes=len(volumes) == 1)
        return min((count for count in room.values() if count > 0), default=0)


class Crowd:
    def __init__(
        self, world: Callable[[], World], pods_most: Callable[[str], int], stock: Callable[[], Stock] = Stock
    ) -> None:
        """`pods_most`: how many pods a node takes. `stock`: what is known of volumes."""
        self._watched, self._pods_most, self._stock = world, pods_most, stock
        self._keep_apart: dict[str, Object] = {}
        """Everybody's pods, by uid, that have a node and keep others away from it."""
        self._node_of: dict[str, str] = {}
        """Of everybody's pods, by uid, that have one and have not ended."""
        self._pods_on: Counter[str] = Counter()
        self.full: set[str] = set()
        """Nodes whose kubelet takes no more pods."""
        self._unseen: dict[str, Object] = {}
        """Pods that were bound, until the API server tells of it."""
        self._particular: dict[str, list[Object]] = {}
        """By gang: pods in the queue whose place depends on others', or others' on theirs."""
        self._known_to_wait: set[str] = set()
        self._held_back: dict[str, None] = {}
        """Gangs that wait until one of those has its place."""
        self._shut_out: dict[str, None] = {}
        """Gangs for which other pods left no node at all."""

    # --- where pods are ------------------------------------------------------------------------------------

    def note(self, kind: str, pod: Object) -> bool:
        """Whether a pod has left, for whom somebody may have waited."""
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        if kind == "DELETED" or is_over(pod):
            self.leave(uid)
            return bool(self._shut_out or self._particular)
        if node:
            self._unseen.pop(uid, None)
            self._count(uid, node)
            if anti_affinity(pod):
                self._keep_apart[uid] = pod
        return False

    def leave(self, uid: str) -> None:
        self._keep_apart.pop(uid, None)
        self._unseen.pop(uid, None)
        self._count(uid, "")

    def nodes_changed(self) -> None:
        self.full = {node for node, count in self._pods_on.items() if count >= self._pods_most(node)}

    def take(self, key: str, places: Sequence[tuple[Object, str]]) -> str:
        """Empty: these pods of a gang may go where they are to, and count there; else what is in the way."""
        for node, count in Counter(node for _, node in places).items():
            if self._pods_on[node] + count > self._pods_most(node):
                return f"node {node} takes no more pods"
        sight = self.sight(key)
        for pod, node in places:
            if node in sight.ruled_out(pod):
                return f"other pods rule out {node} for pod {pod['metadata']['name']} since it was planned"
        for pod, node in places:
            uid = pod["metadata"]["uid"]
            self._count(uid, node)
            if key in self._particular:
                self._unseen[uid] = {**pod, "spec": {**pod["spec"], "nodeName": node}}
        return ""

    def _count(self, uid: str, node: str) -> None:
        before = self._node_of.pop(uid, "")
        if node:
            self._node_of[uid] = node
        if before == node:
            return
        for changed, by in ((before, -1), (node, 1)):
            if changed:
                self._pods_on[changed] += by
                at_most = self._pods_on[changed] >= self._pods_most(changed)
                (self.full.add if at_most else self.full.discard)(changed)

    # --- who waits for whom --------------------------------------------------------------------------------

    def turn(self, key: str, ready: Sequence[Object]) -> Turn:
        """Whether the gang may join the queue, which then holds back those whose places depend on its own."""
        particular = [pod for pod in ready if self._is_particular(pod)]
        if not particular:
            return Turn.NOW
        first, *others_of_gang = ready
        if any(mind(first, other) for other in others_of_gang) and not all(map(keeps_apart, ready)):
            return Turn.NEVER
        before = [pods for other, pods in self._particular.items() if other not in {key, *self._known_to_wait}]
        stock = self._stock()
        if any(interact(other, mine, stock) for pods in before for other in pods for mine in particular):
            self._held_back[key] = None
            return Turn.LATER
        self._particular[key] = particular
        return Turn.NOW

    def _is_particular(self, pod: Object) -> bool:
        particular = is_particular(pod, self._stock())
        return particular or any(interact(other, pod) for other in self._keep_apart.values())

    def lets_go(self, key: str) -> list[str]:
        """It has its place or has left the queue: the gangs that it held back."""
        self._known_to_wait.discard(key)
        return self._released() if self._particular.pop(key, None) is not None else []

    def waits(self, key: str) -> list[str]:
        """It waits for something else than its turn: the gangs that it held back may pass it."""
        if key not in self._particular or key in self._known_to_wait:
            return []
        self._known_to_wait.add(key)
        return self._released()

    def _released(self) -> list[str]:
        held, self._held_back = list(self._held_back), {}
        return held

    def shut_out(self, key: str, *, by_others: bool) -> None:
        """No node is left to it: `by_others` is looked at again when a pod has left."""
        if by_others or self.full:
            self._shut_out[key] = None

    def those_shut_out(self) -> list[str]:
        found, self._shut_out = list(self._shut_out), {}
        return found

    # --- places --------------------------------------------------------------------------------------------

    def particular(self, key: str) -> Sequence[Object]:
        return self._particular.get(key, ())

    @property
    def with_particular(self) -> list[str]:
        return list(self._particular)

    def sight(self, key: str) -> Sight:
        return Sight(self.particular(key), self._world)

    def _world(self) -> World:
        watched = self._watched()
        return replace(watched, placed=(*watched.placed, *self._unseen.values()))
