"""Volumes of others' pods: rules about nodes, or the reason to wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bireme.engines.kubernetes.guests.census import Census
from bireme.engines.kubernetes.guests.crowd import Sight
from bireme.engines.kubernetes.guests.neighbours import Ground, World, is_particular, lacking, room_left, ruled_out
from bireme.engines.kubernetes.guests.pods import needs_of
from bireme.engines.kubernetes.guests.volumes import Stock, attachments_of, volume_rules, why_not_yet


def pod(*volumes: dict[str, Any], **spec: Any) -> dict[str, Any]:
    metadata = {"name": "p", "namespace": "team", "uid": "u"}
    return {"metadata": metadata, "spec": {"containers": [], "volumes": list(volumes), **spec}}


def claimed(name: str) -> dict[str, Any]:
    return {"name": name, "persistentVolumeClaim": {"claimName": name}}


def claim(volume: str = "", storage: str = "", *modes: str) -> dict[str, Any]:
    return {"metadata": {}, "spec": {"volumeName": volume, "storageClassName": storage, "accessModes": list(modes)}}


def local_to(*nodes: str) -> dict[str, Any]:
    rule = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
    return {
        "metadata": {},
        "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}}},
    }


STOCK = Stock(
    claims={
        "team/bound": claim("pv"),
        "team/zonal": claim("zoned"),
        "team/late": claim("", "wait"),
        "team/soon": claim("", "now"),
        "team/alone": claim("pv", "", "ReadWriteOncePod"),
        "team/p-scratch": claim("pv"),
    },
    volumes={
        "pv": local_to("n1"),
        "zoned": {"metadata": {"labels": {"topology.kubernetes.io/zone": "a__b"}}, "spec": {}},
    },
    classes={"wait": {"volumeBindingMode": "WaitForFirstConsumer"}, "now": {"volumeBindingMode": "Immediate"}},
)


def admitted(asked: dict[str, Any], nodes: dict[str, dict[str, str]]) -> set[str]:
    rules = needs_of(asked, (), volume_rules(asked, STOCK)).rules
    return {name for name, labels in nodes.items() if rules.admit(name, labels, ())}


HOSTS = {name: {"kubernetes.io/hostname": name} for name in ("n1", "n2")}


def test_a_bound_volume_ties_the_pod_to_its_nodes() -> None:
    assert admitted(pod(claimed("bound")), HOSTS) == {"n1"}
    assert admitted(pod({"name": "scratch", "ephemeral": {}}), HOSTS) == {"n1"}
    zones = {"x": {"topology.kubernetes.io/zone": "b"}, "y": {"topology.kubernetes.io/zone": "c"}}
    assert admitted(pod(claimed("zonal")), zones) == {"x"}


def test_the_pods_own_affinity_and_the_volumes_hold_together() -> None:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]} for name in ("n1", "n2")]
    own = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    assert admitted(pod(claimed("bound"), affinity={"nodeAffinity": own}), HOSTS) == {"n1"}
    nothing = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}
    assert admitted(pod(affinity={"nodeAffinity": nothing}), HOSTS) == set(), "an empty term selects no node"


def test_what_is_not_there_yet_is_named() -> None:
    assert why_not_yet(pod(claimed("bound"), claimed("zonal")), STOCK) == ()
    assert why_not_yet(pod(claimed("none")), STOCK) == ("persistentvolumeclaim none not found",)
    assert why_not_yet(pod(claimed("soon")), STOCK) == ("persistentvolumeclaim soon is not bound",)
    (late,) = why_not_yet(pod(claimed("late")), STOCK)
    assert "WaitForFirstConsumer" in late
    (alone,) = why_not_yet(pod(claimed("alone")), STOCK)
    assert "ReadWriteOncePod" in alone


# --- how many volumes a node can have ------------------------------------------------------------------------

DISK = "disk.example.com"


def csi_node(**limits: int | None) -> dict[str, Any]:
    drivers = [{"name": name.replace("disk", DISK), "allocatable": {"count": most}} for name, most in limits.items()]
    return {"metadata": {}, "spec": {"drivers": drivers}}


DISKS = Stock(
    claims={f"team/d{number}": claim(f"disk-{number}") for number in range(4)},
    volumes={
        f"disk-{number}": {"metadata": {}, "spec": {"csi": {"driver": DISK, "volumeHandle": f"h{number}"}}}
        for number in range(4)
    },
    csi_nodes={"n1": csi_node(disk=2), "n2": csi_node(disk=1), "n3": csi_node(other=1)},
)
NODES: dict[str, dict[str, str]] = {"n1": {}, "n2": {}, "n3": {}, "n4": {}}


def with_disks(*numbers: int, node: str = "") -> dict[str, Any]:
    return pod(*(claimed(f"d{number}") for number in numbers), **({"nodeName": node} if node else {}))


def disks_on(**nodes: tuple[int, ...]) -> World:
    placed = tuple(with_disks(*numbers, node=node) for node, numbers in nodes.items())
    for number, one in enumerate(placed):
        one["metadata"]["uid"] = str(number)
    return World(Census(placed), Ground(NODES), DISKS)


def test_only_limited_volumes_make_pods_wait_for_each_other() -> None:
    unlimited = Stock(DISKS.claims, DISKS.volumes)
    assert is_particular(with_disks(0), DISKS)
    assert not is_particular(with_disks(0), unlimited)
    assert not is_particular(pod({"name": "scratch", "emptyDir": {}}), DISKS)


def test_a_node_gets_no_more_volumes_than_it_can_attach() -> None:
    assert ruled_out(with_disks(0), disks_on(n1=(1, 2))) == {"n1"}
    assert ruled_out(with_disks(0, 3), disks_on(n1=(1,))) == {"n1", "n2"}
    assert ruled_out(with_disks(0), disks_on(n1=(0, 2), n2=(0,))) == set(), "it is attached there already"
    assert room_left(with_disks(0), disks_on())["n1"] == 2


def test_pods_that_share_a_volume_are_as_many_on_a_node_as_there_is_room_for() -> None:
    def most(*pods: dict[str, Any]) -> int:
        return Sight(pods, disks_on(n1=(1,))).most_a_node(pods[0])

    assert most(with_disks(0), with_disks(0)) == 0, "any number"
    assert most(with_disks(0), with_disks(2)) == 1


def test_who_may_use_no_node_at_all_lacks_nothing_else() -> None:
    nowhere = with_disks(0)
    nowhere["spec"]["nodeSelector"] = {"zone": "nowhere"}
    assert lacking(nowhere, disks_on()) == []


def test_what_no_node_can_attach_is_named() -> None:
    everywhere = replace(disks_on(n1=(1, 2), n2=(3,)), ground=Ground({"n1": {}, "n2": {}}))
    everywhere = replace(everywhere, stock=replace(DISKS, csi_nodes={"n1": csi_node(disk=2), "n2": csi_node(disk=1)}))
    assert lacking(with_disks(0), everywhere) == [f"volumes of {DISK} that can be attached"]
    tied = with_disks(0)
    tied["spec"]["nodeSelector"] = {"host": "n1"}
    assert lacking(tied, replace(disks_on(n1=(1, 2)), ground=Ground({"n1": {"host": "n1"}, "n4": {}})))
    assert lacking(with_disks(0), disks_on(n1=(1, 2), n2=(3,))) == [], "there are nodes without a limit"


def test_volumes_of_old_kinds_are_those_of_their_drivers() -> None:
    aws = {"name": "data", "awsElasticBlockStore": {"volumeID": "vol-1"}}
    assert attachments_of(pod(aws), Stock()) == {("ebs.csi.aws.com", "vol-1")}
    inline = {"name": "data", "csi": {"driver": DISK}}
    assert attachments_of(pod(inline), Stock()) == frozenset()
