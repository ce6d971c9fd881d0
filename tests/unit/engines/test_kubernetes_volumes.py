"""Volumes of others' pods: rules about nodes, or the reason to wait."""

from __future__ import annotations

from typing import Any

from bireme.engines.kubernetes.guest_pods import needs_of
from bireme.engines.kubernetes.guest_volumes import Stock, volume_rules, why_not_yet


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
