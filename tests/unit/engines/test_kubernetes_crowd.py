"""Who waits for whom among others' pods, and whether a place is still one when a pod is bound to it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from bireme.engines.kubernetes.guests.crowd import Crowd, Turn
from bireme.engines.kubernetes.guests.neighbours import Ground

HOSTS = {name: {"kubernetes.io/hostname": name} for name in ("n1", "n2")}


def pod(name: str, app: str = "a", *, away_from: str = "", node: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": []}
    if away_from:
        selector = {"matchLabels": {"app": away_from}}
        term = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    if node:
        spec["nodeName"] = node
    return {"metadata": {"name": name, "namespace": "team", "uid": name, "labels": {"app": app}}, "spec": spec}


def crowd(*placed: dict[str, Any], most: int = 9) -> Crowd:
    made = Crowd(lambda: Ground(HOSTS), lambda _node: most)
    for one in placed:
        made.note("ADDED", one)
    return made


def test_pods_that_mind_each_other_wait_one_after_another_and_others_do_not() -> None:
    one = crowd()
    assert one.turn("first", [pod("first", away_from="a")]) is Turn.NOW
    assert one.turn("second", [pod("second", away_from="a")]) is Turn.LATER
    assert one.turn("stranger", [pod("stranger", "b")]) is Turn.NOW
    assert one.lets_go("first") == ["second"]
    assert one.turn("second", [pod("second", away_from="a")]) is Turn.NOW


def waiting_crowd(nodes: int, pods: int, at_once: int = 64) -> tuple[Crowd, list[dict[str, Any]]]:
    """Pods that keep apart, of which the first was submitted with all nodes and has its place."""
    labels = {f"n{number}": {"kubernetes.io/hostname": f"n{number}"} for number in range(nodes)}
    ground = Ground(labels, {node: {"cpu": "4"} for node in labels})
    one = Crowd(lambda: ground, lambda _node: 9, at_once=at_once)
    apart = [pod(f"p{number}", away_from="a") for number in range(pods)]
    assert one.turn("p0", apart[:1]) is Turn.NOW
    for number in range(1, pods):
        assert one.turn(f"p{number}", [apart[number]]) is Turn.LATER
    assert one.take("p0", [(apart[0], "n0")]) == ""
    assert one.settled("p0") == [f"p{number}" for number in range(1, pods)][: 2 * at_once]
    return one, apart


def test_many_that_mind_each_other_are_submitted_at_once_each_with_nodes_of_its_own() -> None:
    one, apart = waiting_crowd(nodes=9, pods=5)
    assert all(one.turn(f"p{number}", [apart[number]]) is Turn.NOW for number in range(1, 5))
    slices = [part.nodes for number in range(1, 4) if (part := one.slice_of(f"p{number}"))]
    assert len(slices) == 3
    assert one.slice_of("p4") is None, "nobody waits behind it"
    assert one.ruled_out("p4")["p4"] == frozenset({"n0"}).union(*slices)
    assert len(frozenset().union(*slices)) == sum(map(len, slices)), "no node is in two of them"
    assert "n0" not in frozenset().union(*slices)


def test_who_finds_no_place_in_its_slice_gets_all_nodes_when_nobody_else_may_come_there() -> None:
    one, apart = waiting_crowd(nodes=9, pods=4)
    for number in (1, 2):
        one.turn(f"p{number}", [apart[number]])
    one.lets_go("p1")
    one.give_all("p1")
    assert one.turn("p1", [apart[1]]) is Turn.LATER, "the other may still come to be anywhere in its own"
    part = one.slice_of("p2")
    assert part is not None
    assert one.take("p2", [(apart[2], min(part.nodes))]) == ""
    assert one.settled("p2") == ["p1"], "the fourth is called already"
    assert one.turn("p1", [apart[1]]) is Turn.NOW
    assert one.slice_of("p1") is None
    assert one.ruled_out("p1")["p1"] == {"n0", min(part.nodes)}


def test_only_so_many_are_submitted_at_once_and_the_others_follow() -> None:
    one, apart = waiting_crowd(nodes=9, pods=8, at_once=2)
    turns = [one.turn(f"p{number}", [apart[number]]) for number in range(1, 5)]
    assert turns == [Turn.NOW, Turn.NOW, Turn.LATER, Turn.LATER]
    assert one.looked_at() == [], "two are in the queue, and call the next"
    assert one.lets_go("p1") == ["p5", "p6"]
    assert one.lets_go("p2") == ["p7", "p3"], "who was held back again stands at the end"
    assert one.looked_at() == ["p4"], "nobody would call the last"


def test_who_finds_no_room_anywhere_waits_in_the_queue_in_nobodys_way() -> None:
    one, apart = waiting_crowd(nodes=3, pods=3)
    large = deepcopy(apart[1])
    large["spec"]["containers"] = [{"resources": {"requests": {"cpu": "5"}}}]
    assert one.turn("p1", [large]) is Turn.NOW
    assert one.slice_of("p1") is None
    assert not one.claims("p1")
    assert one.turn("p2", [apart[2]]) is Turn.NOW
    assert one.ruled_out("p2")["p2"] == {"n0"}


def test_a_pod_whose_binding_failed_is_forgotten() -> None:
    one, apart = waiting_crowd(nodes=3, pods=2)
    one.leave("p0")
    assert one.turn("p1", [apart[1]]) is Turn.NOW
    assert one.ruled_out("p1")["p1"] == set()
    assert one.take("p1", [(apart[1], "n0")]) == ""
    assert "rule out n0" in one.take("p0", [(apart[0], "n0")]), "it was submitted when n0 was free"


def test_who_minded_nobody_when_it_was_submitted_is_kept_from_who_came_since() -> None:
    one = crowd()
    assert one.turn("plain", [pod("plain")]) is Turn.NOW
    one.turn("shy", [pod("shy", "b", away_from="a")])
    assert one.take("shy", [(pod("shy", "b", away_from="a"), "n1")]) == ""
    assert "rule out n1" in one.take("plain", [(pod("plain"), "n1")])
    assert one.take("plain", [(pod("plain"), "n2")]) == ""


def test_pods_of_a_gang_count_for_each_other_when_they_are_bound_together() -> None:
    one = crowd()
    two = [pod(name, away_from="a") for name in ("x", "y")]
    one.turn("gang", two)
    assert "rule out n1" in one.take("gang", [(each, "n1") for each in two])
    assert one.take("gang", [(two[0], "n1"), (two[1], "n2")]) == "", "nothing was left of the try before"


def test_who_is_known_to_wait_holds_nobody_back() -> None:
    one = crowd()
    one.turn("large", [pod("large", away_from="a")])
    one.turn("small", [pod("small", away_from="a")])
    assert one.waits("large") == ["small"]
    assert one.waits("large") == [], "it was said already"
    assert one.turn("small", [pod("small", away_from="a")]) is Turn.NOW


def test_what_was_taken_counts_before_the_cluster_tells_of_it() -> None:
    one = crowd()
    for name in ("x", "y"):
        one.turn(name, [pod(name, away_from="a")])
        one.waits(name)
    one.turn("y", [pod("y", away_from="a")])
    assert one.take("x", [(pod("x", away_from="a"), "n1")]) == ""
    assert "rule out n1" in one.take("y", [(pod("y", away_from="a"), "n1")])
    assert one.take("y", [(pod("y", away_from="a"), "n2")]) == ""


def test_a_node_takes_as_many_pods_as_its_kubelet_says() -> None:
    one = crowd(pod("old", node="n1"), most=2)
    assert one.full == set()
    assert one.take("new", [(pod("new"), "n1")]) == ""
    assert one.full == {"n1"}
    assert one.take("more", [(pod("more"), "n1")]) == "node n1 takes no more pods"
    assert "n2" in one.take("two", [(pod(str(number)), "n2") for number in range(3)])
    one.note("DELETED", pod("old", node="n1"))
    assert one.full == set()


def test_somebody_is_to_look_again_when_a_pod_has_left_that_kept_him_out() -> None:
    rival = pod("rival", node="n1")
    one = crowd(rival)
    assert not one.note("DELETED", rival), "nobody waits"
    one.shut_out("shy", by_others=True)
    assert one.note("DELETED", rival)
    assert one.those_shut_out() == ["shy"]


def test_pods_of_a_gang_that_mind_each_other_otherwise_than_by_node_have_no_turn() -> None:
    terms = [{"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "zone"}]
    near = [pod(name) for name in ("x", "y")]
    for one in near:
        one["spec"]["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    assert crowd().turn("gang", near) is Turn.NEVER
    assert crowd().turn("gang", [pod(name, away_from="a") for name in ("x", "y")]) is Turn.NOW
