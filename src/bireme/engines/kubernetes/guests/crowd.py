"""Who is placed beside whom among others' pods, and what a place must still be when a pod is bound to it.

Pods whose places depend on each other (`neighbours`) are submitted many at a time. Each claims the nodes on which
it may come to be; who comes next gets only what is right wherever those come to be within their claims. While others
wait for their turn, a single pod claims a slice of the nodes (`slices`) instead of all that would do. A claim
ends when its pod is to be bound, which counts on its node from then on, or is known to wait for something else.
Everybody's pods are counted by node (`census`), those that are just being bound before the API server tells of
them; one whose binding failed is forgotten. `scheduler.py` owns it; it asks nobody and decides nothing.
Invariant: between the check of a place (`take`) and the next one, what was taken counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from enum import Enum
from itertools import islice
from typing import Any

from bireme.core.model.node_rules import Preference
from bireme.engines.kubernetes.guests.census import Census
from bireme.engines.kubernetes.guests.neighbours import (
    NO_CLAIMS,
    Claim,
    Claims,
    Ground,
    World,
    is_kept_away,
    is_particular,
    lacking,
    likeness,
    mind,
    room_left,
    ruled_out,
)
from bireme.engines.kubernetes.guests.pods import keeps_apart, own_rules
from bireme.engines.kubernetes.guests.preferences import has_preferences, preferences_of
from bireme.engines.kubernetes.guests.slices import Slice, cut
from bireme.engines.kubernetes.guests.volumes import Stock, attachments_of
from bireme.engines.kubernetes.pods import is_over

Object = Mapping[str, Any]


class Turn(Enum):
    NOW = "now"
    LATER = "later"
    NEVER = "never"
    """Its pods mind each other in a way that nobody here works out."""


class Sight:
    """The places of a gang's pods at one moment."""

    def __init__(self, particular: Sequence[Object], world: World) -> None:
        """`particular`: those of its pods whose place depends on others'."""
        self._particular, self._world = particular, world

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
        self,
        ground: Callable[[], Ground],
        pods_most: Callable[[str], int],
        stock: Callable[[], Stock] = Stock,
        usable: Callable[[Object], Callable[[str], bool]] = lambda _pod: lambda _node: True,
        at_once: int = 64,
    ) -> None:
        """`pods_most`: how many pods a node takes. `stock`: what is known of volumes. `usable`: of a pod,
        whether a node takes it at the moment, whatever is on it. `at_once`: so many gangs claim nodes at the same time;
        the planner looks at them in one pass or two."""
        self._ground, self._pods_most, self._stock, self._usable = ground, pods_most, stock, usable
        self._at_once = at_once
        self._census = Census()
        self._pods_on: Counter[str] = Counter()
        self.full: set[str] = set()
        """Nodes whose kubelet takes no more pods."""
        self._particular: dict[str, Sequence[Object]] = {}
        """By gang: pods in the queue whose place depends on others', or others' on theirs."""
        self._claims = Claims()
        """Of these, where neither their places nor that they wait is known."""
        self._ruled_out: dict[str, dict[str, set[str]]] = {}
        """By gang and pod: the nodes that were ruled out when it had its turn."""
        self._slices: dict[str, Slice] = {}
        """By gang: all that was left to it."""
        self._unlucky: set[str] = set()
        """Gangs that found no place in their slice."""
        self._known_to_wait: set[str] = set()
        self._held_back: dict[str, None] = {}
        """Gangs that wait for their turn, in order."""
        self._called: dict[str, None] = {}
        """Gangs of these that are to be looked at again."""
        self._shut_out: dict[str, None] = {}
        """Gangs for which other pods left no node at all."""

    # --- where pods are ------------------------------------------------------------------------------------

    def note(self, kind: str, pod: Object) -> bool:
        """Whether a pod has left, for whom somebody may have waited."""
        if kind == "DELETED" or is_over(pod):
            self.leave(pod["metadata"]["uid"])
            return bool(self._shut_out or self._particular)
        if pod["spec"].get("nodeName"):
            self._put(pod)
        return False

    def leave(self, uid: str) -> None:
        """Forgets a pod that has ended, or could not be bound."""
        self._count(self._census.node_of(uid), "")
        self._census.remove(uid)

    def nodes_changed(self) -> None:
        self.full = {node for node, count in self._pods_on.items() if count >= self._pods_most(node)}

    def take(self, key: str, places: Sequence[tuple[Object, str]]) -> str:
        """Empty: these pods of a gang may go where they are to, and count there; else what is in the way."""
        for node, count in Counter(node for _, node in places).items():
            if self._pods_on[node] + count > self._pods_most(node):
                return f"node {node} takes no more pods"
        taken: list[str] = []
        for pod, node in places:
            if self._minds_neighbours(key, pod) and node in ruled_out(pod, self._world(), (node,)):
                for uid in taken:
                    self.leave(uid)
                return f"other pods rule out {node} for pod {pod['metadata']['name']} since it was planned"
            self._put({**pod, "spec": {**pod["spec"], "nodeName": node}})
            taken.append(pod["metadata"]["uid"])
        return ""

    def _minds_neighbours(self, key: str, pod: Object) -> bool:
        """Whether a gang minds neighbours, also if it did not once: one that wants it nowhere near may have come."""
        return key in self._particular or is_kept_away(pod, self._census)

    def _put(self, pod: Object) -> None:
        self._count(self._census.node_of(pod["metadata"]["uid"]), pod["spec"]["nodeName"])
        self._census.put(pod)

    def _count(self, before: str, now: str) -> None:
        if before == now:
            return
        for changed, by in ((before, -1), (now, 1)):
            if changed:
                self._pods_on[changed] += by
                at_most = self._pods_on[changed] >= self._pods_most(changed)
                (self.full.add if at_most else self.full.discard)(changed)

    # --- who waits for whom --------------------------------------------------------------------------------

    def turn(self, key: str, ready: Sequence[Object]) -> Turn:
        """Whether the gang may join the queue, where it then claims the nodes that are left to it."""
        was_held_back = key in self._called
        self._held_back.pop(key, None)
        self._called.pop(key, None)
        particular = [pod for pod in ready if self.is_particular(pod)]
        if not particular:
            return Turn.NOW
        first, *others_of_gang = ready
        if any(mind(first, other) for other in others_of_gang) and not all(map(keeps_apart, ready)):
            return Turn.NEVER
        assert key not in self._claims, f"{key} is in the queue already"
        if len(self._claims) >= self._at_once:
            return self._hold_back(key)
        world = self._world(self._claims)
        out = {pod["metadata"]["uid"]: ruled_out(pod, world) for pod in particular}
        left = [self._left(pod, out[pod["metadata"]["uid"]]) for pod in particular]
        alone = len(ready) > 1 or key in self._unlucky or not all(left)
        if self._claims and alone and (not was_held_back or left != self._left_without_claims(particular)):
            return self._hold_back(key)
        self._particular[key], self._ruled_out[key] = particular, out
        if all(left):
            self._claim(key, particular, left, world, sliced=self._waiting > 0 and not alone)
        return Turn.NOW

    def is_particular(self, pod: Object) -> bool:
        """Whether its place depends on others', or others' on its own."""
        return is_particular(pod, self._stock()) or is_kept_away(pod, self._census)

    def _left(self, pod: Object, out: Set[str]) -> Set[str]:
        return self._ground().admitted(own_rules(pod)) - out - self.full

    def _left_without_claims(self, particular: Sequence[Object]) -> list[Set[str]]:
        return [self._left(pod, ruled_out(pod, self._world())) for pod in particular]

    def _hold_back(self, key: str) -> Turn:
        self._held_back[key] = None
        return Turn.LATER

    def _claim(
        self, key: str, particular: Sequence[Object], left: Sequence[Set[str]], world: World, *, sliced: bool
    ) -> None:
        if not sliced:
            self._claims.put(key, tuple(Claim(pod, nodes) for pod, nodes in zip(particular, left)))
            return
        (pod,), (candidates,) = particular, left
        waiting = min(self._waiting, self._at_once - 1 - len(self._claims))
        found = cut(pod, world, candidates, self._usable(pod), waiting)
        if found is None:  # it waits for room: of all nodes, and in nobody's way
            self._known_to_wait.add(key)
            return
        self._slices[key] = found
        self._claims.put(key, (Claim(pod, found.nodes, by_name=found.by_name),))

    def settled(self, key: str) -> list[str]:
        """Notes that a gang's pods are to be bound, and count there now: the gangs that may have their turn now."""
        self._unlucky.discard(key)
        return self._released() if self._claims.remove(key) else []

    def lets_go(self, key: str) -> list[str]:
        """Notes that a gang has its place or has left the queue: the gangs that may have their turn now."""
        self._known_to_wait.discard(key)
        self._unlucky.discard(key)
        self._slices.pop(key, None)
        self._held_back.pop(key, None)
        self._called.pop(key, None)
        self._ruled_out.pop(key, None)
        self._claims.remove(key)
        return self._released() if self._particular.pop(key, None) is not None else []

    def waits(self, key: str) -> list[str]:
        """Notes that a gang waits for something else than its turn: the gangs that may pass it."""
        if key not in self._particular or key in self._known_to_wait:
            return []
        self._known_to_wait.add(key)
        self._claims.remove(key)
        return self._released()

    def give_all(self, key: str) -> None:
        """To a gang that found no place in its slice and has left the queue: next time all nodes are left to it."""
        self._unlucky.add(key)

    def looks_at(self, keys: Iterable[str]) -> None:
        """Notes whose turn comes, one after another: each is in the way of the others."""
        self._called.update(dict.fromkeys(keys))

    def looked_at(self) -> list[str]:
        """All that were to be looked at have been: those that are held back though nobody claims anything."""
        self._called.clear()
        return [] if self._claims else self._released()

    def _released(self) -> list[str]:
        """Of those that are held back as many as may have their turn, and some more: not everyone finds a place. Who is
        held back again stands at the end."""
        many = 2 * (self._at_once - len(self._claims)) - len(self._called)
        called = list(islice(self._held_back, max(0, many)))
        for key in called:
            del self._held_back[key]
            self._called[key] = None
        return called

    @property
    def _waiting(self) -> int:
        return len(self._held_back) + len(self._called)

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

    def claims(self, key: str) -> bool:
        """Whether others must keep away from where it may come to be."""
        return key in self._claims

    def slice_of(self, key: str) -> Slice | None:
        """All that is left to it; None: whatever other pods leave."""
        return self._slices.get(key)

    def beside(self, slice_: Slice) -> Set[str]:
        """Nodes that its rules let pass, and that are not of it."""
        return set() if slice_.by_name else self._ground().admitted(slice_.as_rules) - slice_.nodes

    def ruled_out(self, key: str) -> Mapping[str, set[str]]:
        """By pod of the gang, where its place depends on others': the nodes that were ruled out at its turn, also by
        those that are still in the queue."""
        return self._ruled_out.get(key, {})

    def others_moved(self, key: str, before: Mapping[str, set[str]], known: dict[str, set[str]]) -> bool:
        """Whether what is ruled out for pods of this gang is another thing than before. `known`: by likeness, what was
        found for others at the same moment; most that wait are alike."""
        for pod in self.particular(key):
            like = likeness(pod)
            if like not in known:
                known[like] = ruled_out(pod, self._world())
            if known[like] != before.get(pod["metadata"]["uid"], set()):
                return True
        return False

    def sight(self, key: str) -> Sight:
        return Sight(self.particular(key), self._world())

    def _world(self, claims: Claims = NO_CLAIMS) -> World:
        return World(self._census, self._ground(), self._stock(), claims)
