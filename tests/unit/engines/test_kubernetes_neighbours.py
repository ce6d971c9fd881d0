"""Which nodes other pods rule out."""

from __future__ import annotations

from typing import Any

from bireme.engines.kubernetes.guest_neighbours import (
    World,
    cannot_be_kept,
    interact,
    is_particular,
    mind,
    room_left,
    ruled_out,
)

LABELS = {f"n{number}": {"zone": f"z{number // 2}", "host": f"n{number}"} for number in range(4)}


def pod(app: str, node: str = "", namespace: str = "team", **spec: Any) -> dict[str, Any]:
    spec.setdefault("containers", [])
    if node:
        spec["nodeName"] = node
    return {"metadata": {"name": app, "namespace": namespace, "labels": {"app": app}}, "spec": spec}


def term(kind: str, app: str, key: str = "zone", **more: Any) -> dict[str, Any]:
    one = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key, **more}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [one]}}}


def out(mine: dict[str, Any], *placed: dict[str, Any]) -> set[str]:
    return ruled_out(mine, World(placed, LABELS))


def test_nobody_cares() -> None:
    assert not is_particular(pod("a"))
    assert out(pod("a"), pod("b", "n0")) == set()


def test_anti_affinity_rules_out_the_whole_domain_on_both_sides() -> None:
    assert out(pod("a", **term("podAntiAffinity", "b")), pod("b", "n0")) == {"n0", "n1"}
    assert out(pod("b"), pod("a", "n3", **term("podAntiAffinity", "b", "host"))) == {"n3"}
    assert out(pod("a", **term("podAntiAffinity", "b")), pod("b", "n0", namespace="other")) == set()


def test_affinity_leaves_only_the_partners_domain() -> None:
    near = pod("a", **term("podAffinity", "b"))
    assert out(near, pod("b", "n2")) == {"n0", "n1"}
    assert out(near) == set(LABELS), "there is no partner anywhere"


def test_the_first_of_pods_that_want_each_other_may_be_anywhere() -> None:
    assert out(pod("a", **term("podAffinity", "a"))) == set()


def test_spread_rules_out_domains_that_would_get_ahead() -> None:
    selector = {"matchLabels": {"app": "a"}}
    spread = {"maxSkew": 1, "topologyKey": "zone", "labelSelector": selector, "whenUnsatisfiable": "DoNotSchedule"}
    mine = pod("a", topologySpreadConstraints=[spread])
    assert out(mine, pod("a", "n0")) == {"n0", "n1"}
    assert out(mine, pod("a", "n0"), pod("a", "n2")) == set()
    soft = pod("a", topologySpreadConstraints=[{**spread, "whenUnsatisfiable": "ScheduleAnyway"}])
    assert not is_particular(soft)


def test_a_port_of_the_node_is_taken_once() -> None:
    def listening(port: int, node: str = "", protocol: str = "TCP") -> dict[str, Any]:
        return pod("a", node, containers=[{"ports": [{"hostPort": port, "protocol": protocol}]}])

    assert out(listening(80), listening(80, "n1")) == {"n1"}
    assert out(listening(80), listening(80, "n1", "UDP"), listening(81, "n2")) == set()


def test_who_must_wait_for_whom() -> None:
    apart = pod("a", **term("podAntiAffinity", "b"))
    assert interact(apart, pod("b"))
    assert interact(pod("b"), apart)
    assert not interact(apart, pod("c"))


def test_refinements_are_named() -> None:
    refined = pod("a", **term("podAffinity", "b", namespaceSelector={"matchLabels": {"x": "y"}}))
    assert cannot_be_kept(refined) == ("namespaceSelector",)


def test_a_partner_is_one_that_all_terms_speak_of() -> None:
    terms = [
        {"labelSelector": {"matchLabels": {"app": "b"}}, "topologyKey": "zone"},
        {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}, "topologyKey": "host"},
    ]
    near = pod("a", affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
    assert out(near, pod("b", "n2"), pod("c", "n0")) == {"n0", "n1", "n3"}


def test_spread_looks_only_at_domains_that_the_pod_could_use() -> None:
    selector = {"matchLabels": {"app": "a"}}
    spread = {"maxSkew": 1, "topologyKey": "zone", "labelSelector": selector, "whenUnsatisfiable": "DoNotSchedule"}
    mine = pod("a", topologySpreadConstraints=[spread], nodeSelector={"zone": "z0"})
    assert out(mine, pod("a", "n0")) & {"n0", "n1"} == set(), "the empty zone is closed to it"
    with_gpus = {"resources": {"requests": {"nvidia.com/gpu": "1"}}}
    assert out(pod("a", topologySpreadConstraints=[spread], containers=[with_gpus]), pod("a", "n0")) == {"n0", "n1"}
    every = {**spread, "nodeAffinityPolicy": "Ignore"}
    assert {"n0", "n1"} <= out(pod("a", topologySpreadConstraints=[every], nodeSelector={"zone": "z0"}), pod("a", "n0"))
    three = pod("a", topologySpreadConstraints=[{**spread, "minDomains": 3}])
    assert out(three, pod("a", "n0"), pod("a", "n2")) == set(LABELS), "a third zone is to come first"
    leaving = pod("a", "n0")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert out(pod("a", topologySpreadConstraints=[spread]), leaving) == set()


def test_addresses_of_a_node_are_told_apart() -> None:
    def listening(address: str, node: str = "") -> dict[str, Any]:
        return pod("p", node, containers=[{"ports": [{"hostPort": 80, "hostIP": address}]}])

    assert out(listening("10.0.0.1"), listening("10.0.0.2", "n0")) == set()
    assert out(listening("10.0.0.1"), listening("10.0.0.1", "n0")) == {"n0"}
    assert out(listening(""), listening("10.0.0.2", "n0")) == {"n0"}


def test_what_the_planner_does_not_count_is_counted_here() -> None:
    def asking(count: int, node: str = "") -> dict[str, Any]:
        return pod("p", node, containers=[{"resources": {"requests": {"rdma/hca": str(count), "cpu": "1"}}}])

    world = World((asking(3, "n0"),), LABELS, {"n0": {"rdma/hca": "4"}, "n1": {"rdma/hca": "4"}, "n2": {}, "n3": {}})
    assert room_left(asking(2), world) == {"n0": 0, "n1": 2, "n2": 0, "n3": 0}
    assert ruled_out(asking(2), world) == {"n0", "n2", "n3"}
    assert interact(asking(1), asking(1))
    assert not mind(asking(1), asking(1))
