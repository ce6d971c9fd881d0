"""Who waits for whom among others' pods, and whether a place is still one when a pod is bound to it."""

from __future__ import annotations

from typing import Any

from bireme.engines.kubernetes.guest_crowd import Crowd, Turn
from bireme.engines.kubernetes.guest_neighbours import World

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
    made = Crowd(lambda: World(placed, HOSTS), lambda _node: most)
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
