"""Others' pods that mind each other, submitted many at once: wherever the planner puts them within what it was told,
whatever binding fails and whoever leaves, no pod is bound where its words or another's forbid it, and none is left out.

The planner is played: it starts whom it likes, where it likes. The judge reads the pods alone, and counts all anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.engines.kubernetes.guests.census import Census
from bireme.engines.kubernetes.guests.crowd import Crowd, Turn
from bireme.engines.kubernetes.guests.neighbours import Ground, World, ruled_out

NODES = {f"n{number}": {"host": f"n{number}", "zone": f"z{number // 2}"} for number in range(6)}
DISK = 4
OFFERED = {node: {"ephemeral-storage": str(DISK), "cpu": "3"} for node in NODES}

apps = st.sampled_from("ab")
keys = st.sampled_from(("host", "zone"))
terms = st.builds(lambda app, key: {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}, apps, keys)
skews = st.sampled_from((1, 1, 2))
spreads = st.builds(lambda term, most: {**term, "maxSkew": most, "whenUnsatisfiable": "DoNotSchedule"}, terms, skews)
shapes = st.fixed_dictionaries(
    {"app": apps},
    optional={
        "apart": terms,
        "near": terms,
        "spread": spreads,
        "port": st.sampled_from((80, 81)),
        "disk": st.integers(1, 3),
    },
)


def pods_of(shape: dict[str, Any], first: int, many: int) -> list[dict[str, Any]]:
    """As replicas: all alike."""
    requests = {"cpu": "1"} | ({"ephemeral-storage": str(shape["disk"])} if "disk" in shape else {})
    ports = [{"hostPort": shape["port"]}] if "port" in shape else []
    spec: dict[str, Any] = {"containers": [{"resources": {"requests": requests}, "ports": ports}]}
    for kind, name in (("podAntiAffinity", "apart"), ("podAffinity", "near")):
        if name in shape:
            required = {"requiredDuringSchedulingIgnoredDuringExecution": [shape[name]]}
            spec.setdefault("affinity", {})[kind] = required
    if "spread" in shape:
        spec["topologySpreadConstraints"] = [shape["spread"]]
    return [
        {
            "metadata": {"name": f"p{uid}", "namespace": "team", "uid": f"u{uid}", "labels": {"app": shape["app"]}},
            "spec": deepcopy(spec),
            "shape": shape,
        }
        for uid in range(first, first + many)
    ]


# --- the judge ----------------------------------------------------------------------------------------------


def objections(mine: dict[str, Any], node: str, placed: dict[str, tuple[dict[str, Any], str]]) -> Iterator[str]:
    """What forbids this pod this node, beside those that are there."""
    shape, there = mine["shape"], [(pod["shape"], where) for pod, where in placed.values()]

    def meant(term: dict[str, Any], other: dict[str, Any]) -> bool:
        return bool(term["labelSelector"]["matchLabels"]["app"] == other["app"])

    def together(term: dict[str, Any], where: str) -> bool:
        return NODES[node][term["topologyKey"]] == NODES[where][term["topologyKey"]]

    for other, where in there:
        if "apart" in shape and meant(shape["apart"], other) and together(shape["apart"], where):
            yield "it wants that one away"
        if "apart" in other and meant(other["apart"], shape) and together(other["apart"], where):
            yield "that one wants it away"
        if "port" in shape and where == node and other.get("port") == shape["port"]:
            yield "the port is taken"
    if "near" in shape:
        partners = [where for other, where in there if meant(shape["near"], other)]
        first = not partners and meant(shape["near"], shape)
        if not first and not any(together(shape["near"], where) for where in partners):
            yield "its partner is elsewhere"
    if "spread" in shape:
        key = shape["spread"]["topologyKey"]
        held = dict.fromkeys((labels[key] for labels in NODES.values()), 0)
        for other, where in there:
            held[NODES[where][key]] += meant(shape["spread"], other)
        if held[NODES[node][key]] + meant(shape["spread"], shape) - min(held.values()) > shape["spread"]["maxSkew"]:
            yield f"it would be ahead: {held}"
    if "disk" in shape and shape["disk"] + sum(o.get("disk", 0) for o, where in there if where == node) > DISK:
        yield "the disk is full"


# --- the play -----------------------------------------------------------------------------------------------


class Play:
    def __init__(self, at_once: int) -> None:
        self.crowd = Crowd(lambda: self.ground, lambda _node: 100, at_once=at_once)
        self.ground = Ground(NODES, OFFERED)
        self.pods: dict[str, dict[str, Any]] = {}
        self.queued: dict[str, set[str]] = {}
        """Uid -> nodes that the planner was told."""
        self.placed: dict[str, tuple[dict[str, Any], str]] = {}
        self.heard: set[str] = set()
        """Of these, by uid: the API server has told of their node."""
        self.held_back: set[str] = set()

    @property
    def binding(self) -> list[str]:
        return [uid for uid in self.placed if uid not in self.heard]

    def look_at(self, uids: list[str]) -> None:
        """As guests.py looks at those that changed, together."""
        self.crowd.looks_at(uids)
        for uid in uids:
            if uid in self.pods and uid not in self.queued and uid not in self.placed:
                self._consider(uid)
        if called := self.crowd.looked_at():
            self.look_at(called)

    def _consider(self, uid: str) -> None:
        turn = self.crowd.turn(uid, [self.pods[uid]])
        assert turn is not Turn.NEVER
        if turn is Turn.LATER:
            self.held_back.add(uid)
            return
        self.held_back.discard(uid)
        part = self.crowd.slice_of(uid)
        if part is None:
            self.queued[uid] = NODES.keys() - self.crowd.ruled_out(uid).get(uid, set())
        else:
            self.queued[uid] = set(self.ground.admitted(part.as_rules) - self.crowd.beside(part))
            assert self.queued[uid] == part.nodes

    def start(self, uid: str, node: str) -> bool:
        pod = self.pods[uid]
        if self.crowd.take(uid, [(pod, node)]):
            del self.queued[uid]
            self.look_at([*self.crowd.lets_go(uid), uid])
            return False
        found = list(objections(pod, node, self.placed))
        assert not found, f"{uid} on {node}: {found}"
        del self.queued[uid]
        self.placed[uid] = pod, node
        self.look_at(self.crowd.settled(uid))
        return True

    def binding_fails(self, uid: str) -> None:
        """The job is put back, and stays what it was told to the planner."""
        pod, node = self.placed.pop(uid)
        self.crowd.leave(uid)
        self.queued[uid] = {node}
        assert pod is self.pods[uid]

    def is_heard(self, uid: str) -> None:
        """The API server tells of the binding."""
        pod, node = self.placed[uid]
        self.heard.add(uid)
        self.crowd.note("MODIFIED", {**pod, "spec": {**pod["spec"], "nodeName": node}})
        self.look_at(self.crowd.lets_go(uid))

    def leaves(self, uid: str) -> None:
        pod, node = self.placed.pop(uid)
        del self.pods[uid]
        self.crowd.note("DELETED", {**pod, "spec": {**pod["spec"], "nodeName": node}})
        self.look_at(self.crowd.lets_go(uid))

    def is_passed_over(self, uid: str) -> None:
        if self.crowd.slice_of(uid) is None:
            self.look_at(self.crowd.waits(uid))
            return
        del self.queued[uid]
        called = self.crowd.lets_go(uid)
        self.crowd.give_all(uid)
        self.look_at([*called, uid])

    def withdraw(self, uid: str) -> None:
        del self.queued[uid]
        self.look_at([*self.crowd.lets_go(uid), uid])


def play(data: st.DataObject, groups: list[tuple[dict[str, Any], int]]) -> Play:
    one = Play(data.draw(st.sampled_from((1, 3, 64))))
    coming = [pods_of(shape, 100 * number, many) for number, (shape, many) in enumerate(groups)]
    for _ in range(data.draw(st.integers(5, 60))):
        able = {"come": coming, "leave": one.placed, "fail": one.binding, "hear": one.binding}
        able |= dict.fromkeys(("start", "pass", "withdraw"), one.queued)
        acts = [act for act, whom in able.items() if whom for _ in range(5 if act in ("come", "start") else 1)]
        if not acts:
            break
        act = data.draw(st.sampled_from(acts))
        if act == "come":
            new = coming.pop(0)
            one.pods |= {pod["metadata"]["uid"]: pod for pod in new}
            one.look_at([pod["metadata"]["uid"] for pod in new])
            continue
        uid = data.draw(st.sampled_from(sorted(able[act])))
        match act:
            case "start" if one.queued[uid]:
                one.start(uid, data.draw(st.sampled_from(sorted(one.queued[uid]))))
            case "fail":
                one.binding_fails(uid)
            case "hear":
                one.is_heard(uid)
            case "leave":
                one.leaves(uid)
            case "pass":
                one.is_passed_over(uid)
            case "withdraw":
                one.withdraw(uid)
    return one


groups_of_pods = st.lists(st.tuples(shapes, st.integers(1, 9)), min_size=1, max_size=3)


@settings(max_examples=300, deadline=None)
@given(st.data(), groups_of_pods)
def test_nobody_is_bound_where_others_forbid_it(data: st.DataObject, groups: list[tuple[dict[str, Any], int]]) -> None:
    one = play(data, groups)
    waiting = {uid for uid in one.pods if uid not in one.placed}
    assert waiting == one.queued.keys() | one.held_back - one.placed.keys() - one.queued.keys(), "nobody is forgotten"
    counted = Census({**pod, "spec": {**pod["spec"], "nodeName": node}} for pod, node in one.placed.values())
    kept = one.crowd._census
    for question in kept._selected:
        assert kept._selected[question] == counted.selected(*question[0], staying=question[1])
    for name in kept._amounts:
        assert {n: c for n, c in kept.amounts(name).items() if c} == dict(counted.amounts(name))
    for among, questions in kept._by_domain.items():
        for whom, held in questions.items():
            assert held == counted.by_domain(whom, among)
    for whom, claims in one.crowd._claims._meant.items():
        assert claims.keys() == {claim for claim in one.crowd._claims if whom.includes(claim.pod)}
    assert kept.apart == counted.apart
    assert {node: ports for node, ports in kept.ports.items() if ports} == counted.ports
    for uid in waiting:
        for world in (World(kept, one.ground), World(kept, one.ground, claims=one.crowd._claims)):
            out = ruled_out(one.pods[uid], world)
            assert out == {node for node in NODES if node in ruled_out(one.pods[uid], world, (node,))}


@settings(max_examples=200, deadline=None)
@given(st.data(), groups_of_pods)
def test_nobody_waits_who_could_be_placed(data: st.DataObject, groups: list[tuple[dict[str, Any], int]]) -> None:
    """When the planner starts whoever it can, and nothing else happens any more."""
    one = play(data, groups)
    for _ in range(4 * len(one.pods) + 4):
        before = dict(one.placed)
        for uid in sorted(one.queued):
            for node in sorted(one.queued.get(uid, ())):
                if uid in one.queued and not list(objections(one.pods[uid], node, one.placed)) and one.start(uid, node):
                    break
            if uid in one.queued:
                one.is_passed_over(uid)
        if before == one.placed:
            for uid in sorted(one.queued):  # what was ruled out then may be free now: guests.py looks every few seconds
                one.withdraw(uid)
    left_out = {
        uid: nodes
        for uid, pod in one.pods.items()
        if uid not in one.placed and (nodes := [n for n in NODES if not list(objections(pod, n, one.placed))])
    }
    assert not left_out
    assert not one.held_back - one.placed.keys()
