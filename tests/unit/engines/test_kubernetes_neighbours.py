"""Which nodes other pods rule out."""

from __future__ import annotations

from itertools import count
from typing import Any

from bireme.engines.kubernetes.guests.census import Census
from bireme.engines.kubernetes.guests.neighbours import (
    Claim,
    Claims,
    Ground,
    World,
    cannot_be_kept,
    is_kept_away,
    is_particular,
    likeness,
    mind,
    room_left,
    ruled_out,
)
from bireme.engines.kubernetes.guests.pods import own_rules

UIDS = count()
LABELS = {f"n{number}": {"zone": f"z{number // 2}", "host": f"n{number}"} for number in range(4)}


def pod(app: str, node: str = "", namespace: str = "team", **spec: Any) -> dict[str, Any]:
    spec.setdefault("containers", [])
    if node:
        spec["nodeName"] = node
    metadata = {"name": app, "namespace": namespace, "uid": str(next(UIDS)), "labels": {"app": app}}
    return {"metadata": metadata, "spec": spec}


def term(kind: str, app: str, key: str = "zone", **more: Any) -> dict[str, Any]:
    one = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key, **more}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [one]}}}


def out(mine: dict[str, Any], *placed: dict[str, Any]) -> set[str]:
    return ruled_out(mine, World(Census(placed), Ground(LABELS)))


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


def test_who_minds_whom() -> None:
    apart = pod("a", **term("podAntiAffinity", "b"))
    assert mind(apart, pod("b"))
    assert mind(pod("b"), apart)
    assert not mind(apart, pod("c"))
    there = Census([pod("a", "n0", **term("podAntiAffinity", "b"))])
    assert is_kept_away(pod("b"), there)
    assert not is_kept_away(pod("c"), there)


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

    offered: dict[str, dict[str, str]] = {"n0": {"rdma/hca": "4"}, "n1": {"rdma/hca": "4"}, "n2": {}, "n3": {}}
    world = World(Census([asking(3, "n0")]), Ground(LABELS, offered))
    assert room_left(asking(2), world) == {"n0": 0, "n1": 2, "n2": 0, "n3": 0}
    assert ruled_out(asking(2), world) == {"n0", "n2", "n3"}
    assert not mind(asking(1), asking(1))
    claimed = World(
        world.census, world.ground, claims=Claims(Claim(asking(1), ["n0", "n1"]), Claim(asking(2), ["n1", "n2"]))
    )
    assert room_left(asking(1), claimed) == {"n0": 0, "n1": 1, "n2": -2, "n3": 0}, "each counts wherever it may be"


# --- pods in the queue --------------------------------------------------------------------------------------


def beside(mine: dict[str, Any], *claims: Claim, placed: tuple[dict[str, Any], ...] = ()) -> set[str]:
    return ruled_out(mine, World(Census(placed), Ground(LABELS), claims=Claims(*claims)))


def test_who_may_come_to_be_somewhere_is_avoided_there() -> None:
    apart = pod("a", **term("podAntiAffinity", "b", "host"))
    assert beside(apart, Claim(pod("b"), ["n0", "n3"])) == {"n0", "n3"}
    assert beside(pod("b"), Claim(apart, ["n1"])) == {"n1"}
    port = {"containers": [{"ports": [{"hostPort": 80}]}]}
    assert beside(pod("a", **port), Claim(pod("b", **port), ["n2"])) == {"n2"}


def test_who_is_sure_to_come_to_a_domain_is_company_there() -> None:
    near = pod("a", **term("podAffinity", "b"))
    assert beside(near, Claim(pod("b"), ["n0", "n1"])) == {"n2", "n3"}
    assert beside(near, Claim(pod("b"), ["n1", "n2"])) == set(LABELS), "in which zone is not known"
    alike = pod("a", **term("podAffinity", "a"))
    assert beside(alike, Claim(pod("a"), ["n1", "n2"])) == set(LABELS), "it is not the first"


def test_who_may_come_to_a_domain_counts_there_and_only_the_sure_ones_make_it_less_empty() -> None:
    selector = {"matchLabels": {"app": "a"}}
    spread = {"maxSkew": 1, "topologyKey": "zone", "labelSelector": selector, "whenUnsatisfiable": "DoNotSchedule"}
    mine = pod("a", topologySpreadConstraints=[spread])
    assert beside(mine, Claim(pod("a"), ["n0", "n1"])) == {"n0", "n1"}
    assert beside(mine, Claim(pod("a"), ["n0"]), Claim(pod("a"), ["n3"])) == set(), "both zones are sure to have one"
    assert beside(mine, Claim(pod("a"), ["n0", "n2"])) == set(LABELS), "one of them would be ahead"
    assert beside(mine, Claim(pod("b"), ["n0"])) == set()


def test_what_anybody_makes_up_is_not_kept_for_ever() -> None:
    ground, census = Ground(LABELS), Census([pod("a", "n0")])
    world = World(census, ground)
    for number in range(1000):
        mine = pod("a", **term("podAntiAffinity", f"app{number}", f"key{number}"), nodeSelector={f"x{number}": "y"})
        mine["spec"]["containers"] = [{"resources": {"requests": {f"example.com/{number}": "1"}}}]
        assert ruled_out(mine, world) == set()
        assert ground.admitted(own_rules(mine)) == set()
    kept = [*vars(ground).values(), *vars(census).values()]
    assert all(len(each) <= 256 for each in kept if isinstance(each, dict))


def test_pods_are_alike_when_the_same_nodes_are_ruled_out_for_them() -> None:
    def like(app: str = "a", namespace: str = "team", **spec: Any) -> str:
        return likeness(pod(app, namespace=namespace, **spec))

    asking = {"containers": [{"resources": {"requests": {"ephemeral-storage": "1Gi"}}}]}
    plain, token = like(), {"volumes": [{"name": "kube-api-access-x7", "projected": {"sources": []}}]}
    assert plain == like(**token, containers=[{"resources": {"requests": {"cpu": "9"}}}]), "the planner counts these"
    others = [
        like("b"),
        like(namespace="other"),
        like(**term("podAffinity", "b")),
        like(**term("podAntiAffinity", "b")),
        like(topologySpreadConstraints=[{"topologyKey": "zone"}]),
        like(nodeSelector={"zone": "z0"}),
        like(**asking),
        like(containers=[{"ports": [{"hostPort": 80}]}]),
        like(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]),
        like(volumes=[{"name": "data", "gcePersistentDisk": {"pdName": "disk"}}]),
    ]
    assert len({plain, *others}) == 1 + len(others)
