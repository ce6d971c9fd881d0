"""What only nodes and pods together tell: volumes, resources that no planner knows, resizes, places that come free."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.kubernetes_cluster.api import Api
from tests.kubernetes_cluster.processes import wait_for
from tests.support.guests import PODS, Bireme

FIRST, SECOND = "fake-00000", "fake-00001"
NIC = "example.com/nic"


def here(node: str = FIRST) -> dict[str, Any]:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


@contextmanager
def offering(bireme: Bireme, nodes: tuple[str, ...], **amounts: str) -> Iterator[None]:
    """Nodes whose kubelets offer these amounts, until the block ends."""
    named = {name.replace("nic", NIC): amount for name, amount in amounts.items()}
    paths = [f"/api/v1/nodes/{node}/status" for node in nodes]
    before = {path: bireme.kubernetes.api.get(path)["status"]["allocatable"] for path in paths}
    for path in paths:
        bireme.kubernetes.api.patch(path, {"status": {"capacity": named, "allocatable": named}})
    try:
        yield
    finally:
        for path in paths:
            after = {name: before[path].get(name) for name in named}
            bireme.kubernetes.api.patch(path, {"status": {"capacity": after, "allocatable": after}})


def with_nics(count: int) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": "1", "cpu": "1", "memory": "1Gi", NIC: str(count)}
    return {"containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}]}


def csi_volume(api: Api, name: str, driver: str) -> None:
    """A volume that can be attached anywhere, and a claim that is bound to it."""
    claims = "/api/v1/namespaces/default/persistentvolumeclaims"
    sizes: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    csi = {"driver": driver, "volumeHandle": f"handle-{name}"}
    volume = sizes | {"capacity": {"storage": "1Gi"}, "csi": csi}
    claim = sizes | {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": name}
    head = {"apiVersion": "v1", "metadata": {"name": name}}
    api.create("/api/v1/persistentvolumes", {**head, "kind": "PersistentVolume", "spec": volume})
    api.create(claims, {**head, "kind": "PersistentVolumeClaim", "spec": claim})
    wait_for(lambda: api.get(f"{claims}/{name}")["status"].get("phase") == "Bound", f"claim {name} to be bound")


def test_a_pod_goes_where_its_volume_is_and_waits_for_one_that_is_not_bound(bireme: Bireme) -> None:
    api, claims = bireme.kubernetes.api, "/api/v1/namespaces/default/persistentvolumeclaims"
    rule = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["fake-00020"]}
    place = {"required": {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}}
    usual: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "storageClassName": "by-consumer"}
    storage = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "by-consumer"}}
    binding = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    api.create("/apis/storage.k8s.io/v1/storageclasses", storage | binding)
    head = {"apiVersion": "v1", "metadata": {"name": "data"}}
    asked = usual | {"resources": {"requests": {"storage": "1Gi"}}}
    api.create(claims, {**head, "kind": "PersistentVolumeClaim", "spec": asked})
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    bireme.create("reader", volumes=volumes)
    bireme.message("reader", "persistentvolumeclaim data is to be bound by the scheduler (WaitForFirstConsumer)")
    local = usual | {"capacity": {"storage": "1Gi"}, "local": {"path": "/data"}, "nodeAffinity": place}
    bound = {"namespace": "default", "name": "data"}
    api.create(
        "/api/v1/persistentvolumes",
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "pv"},
            "spec": local | {"claimRef": bound},
        },
    )
    assert bireme.node_of("reader") == "fake-00020"
    api.delete(f"{claims}/data")
    api.delete("/api/v1/persistentvolumes/pv")


def test_a_gang_shares_network_cards_and_none_is_promised_twice(bireme: Bireme) -> None:
    with offering(bireme, (FIRST, SECOND), nic="2"):
        gang = {"labels": {"bireme.dev/gang": "cards"}, "annotations": {"bireme.dev/gang-size": "4"}}
        for number in range(4):
            bireme.create(f"c{number}", **gang, **with_nics(1))
        assert sorted(bireme.node_of(f"c{number}") for number in range(4)) == [FIRST, FIRST, SECOND, SECOND]
        bireme.create("late", **with_nics(1))
        bireme.message("late", f"no node that it may use has enough of {NIC}")
        bireme.kubernetes.api.delete(f"{PODS}/c0")
        bireme.node_of("late")


def test_a_node_gets_no_more_volumes_than_its_driver_attaches(bireme: Bireme) -> None:
    api, driver = bireme.kubernetes.api, "disk.example.com"
    drivers = [{"name": driver, "nodeID": FIRST, "allocatable": {"count": 1}}]
    head = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": FIRST}}
    api.create("/apis/storage.k8s.io/v1/csinodes", {**head, "spec": {"drivers": drivers}})
    for number in range(2):
        csi_volume(api, f"data{number}", driver)
    claimed = [[{"name": "data", "persistentVolumeClaim": {"claimName": f"data{number}"}}] for number in range(2)]
    wait_for(lambda: is_refused(bireme, "both", volumes_of(*claimed), driver), "Bireme to know of the limit")
    bireme.create("reader", volumes=claimed[0], **here())
    assert bireme.node_of("reader") == FIRST
    bireme.create("second-reader", volumes=claimed[0], **here())
    assert bireme.node_of("second-reader") == FIRST, "it is attached there already"
    bireme.create("other", volumes=claimed[1], **here())
    bireme.message("other", f"has enough of volumes of {driver} that can be attached")
    for name in ("reader", "second-reader"):
        api.delete(f"{PODS}/{name}")
    assert bireme.node_of("other") == FIRST
    api.delete(f"/apis/storage.k8s.io/v1/csinodes/{FIRST}")


def volumes_of(*volumes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All of them in one pod."""
    return [{**volume, "name": f"v{number}"} for number, (volume,) in enumerate(volumes)]


def is_refused(bireme: Bireme, name: str, volumes: list[dict[str, Any]], driver: str) -> bool:
    """Whether a pod with more volumes than any driver attaches there waits for that reason; it is gone afterwards."""
    bireme.create(name, volumes=volumes, **here())
    wait_for(lambda: bireme.has_node(name) or bireme.waits_because(name), f"{name} to be decided")
    refused = f"volumes of {driver} that can be attached" in bireme.waits_because(name)
    bireme.kubernetes.api.delete(f"{PODS}/{name}")
    selected = f"{PODS}?fieldSelector=metadata.name%3D{name}"
    wait_for(lambda: not bireme.kubernetes.api.get(selected)["items"], f"{name} to go")
    return refused


def test_what_a_pod_prefers_decides_between_nodes_that_hold_it(bireme: Bireme) -> None:
    rule = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["fake-00021"]}
    term = {"weight": 1, "preference": {"matchExpressions": [rule]}}
    liked = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    bireme.create("anywhere")
    bireme.node_of("anywhere")
    bireme.create("rather", affinity=liked)
    assert bireme.node_of("rather") == "fake-00021"
    bireme.create("neighbour", nodeSelector={"kubernetes.io/hostname": "fake-00021"}, gpus=7)
    bireme.node_of("neighbour")
    bireme.create("elsewhere", affinity=liked)
    assert bireme.node_of("elsewhere") != "fake-00021", "it is full, and nothing was promised"


def test_a_kubelet_gets_no_more_pods_than_it_takes(bireme: Bireme) -> None:
    with offering(bireme, (FIRST,), pods="2"):
        for number in range(2):
            bireme.create(f"few{number}", **here())
            bireme.node_of(f"few{number}")
        bireme.create("third", **here())
        assert bireme.message("third")
        bireme.kubernetes.api.delete(f"{PODS}/few0")
        assert bireme.node_of("third") == FIRST


def test_a_pod_that_was_kept_away_by_a_rival_comes_when_it_has_gone(bireme: Bireme) -> None:
    term = {"labelSelector": {"matchLabels": {"app": "rival"}}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    bireme.create("rival", labels={"app": "rival"}, **here())
    bireme.node_of("rival")
    bireme.create("shy", affinity=apart, **here())
    assert bireme.message("shy")
    bireme.kubernetes.api.delete(f"{PODS}/rival")
    assert bireme.node_of("shy") == FIRST


def test_what_a_pod_was_given_in_place_is_not_given_to_another(bireme: Bireme) -> None:
    def of_cpus(cpus: int) -> dict[str, Any]:
        return {
            "containers": [
                {"name": "main", "image": "none", "resources": {"limits": {"cpu": str(cpus), "memory": "1Gi"}}}
            ]
        }

    bireme.create("grows", **of_cpus(20), **here())
    bireme.node_of("grows")
    statuses = bireme.kubernetes.api.get(f"{PODS}/grows")["status"]["containerStatuses"]
    able = [one | {"resources": {"requests": {"cpu": "20"}}} for one in statuses]  # as of a kubelet that can resize
    bireme.kubernetes.api.patch(f"{PODS}/grows/status", {"status": {"containerStatuses": able}})
    amounts = {"cpu": "100", "memory": "1Gi"}
    larger = {"spec": {"containers": [{"name": "main", "resources": {"limits": amounts, "requests": amounts}}]}}
    bireme.kubernetes.kubectl("patch", "pod", "grows", "--subresource=resize", "--patch", json.dumps(larger))
    wait_for(lambda: "CPUAlloc=100" in bireme.run("scontrol", "show", "node", FIRST), "Bireme to know of it")
    bireme.create("beside", **of_cpus(64), **here())
    assert bireme.message("beside")
    bireme.kubernetes.api.delete(f"{PODS}/grows")
    assert bireme.node_of("beside") == FIRST
