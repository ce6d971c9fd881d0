"""Pods that come later than their gang: made in the stead of one that has ended, or in a stage of their own."""

from __future__ import annotations

from typing import Any

from tests.kubernetes_cluster.processes import wait_for
from tests.support.guests import PODS, Bireme, on_nodes, pod

BATCH = "/apis/batch/v1/namespaces/default/jobs"
APPS = "/apis/apps/v1/namespaces/default/statefulsets"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"


def indexed_job(name: str, nodes: list[str]) -> dict[str, Any]:
    """One pod with all GPUs for each of these nodes, and for no other."""
    count = len(nodes)
    template = pod("x", 8, **on_nodes(nodes))["spec"] | {"restartPolicy": "Never"}
    spec = {"completions": count, "parallelism": count, "completionMode": "Indexed", "backoffLimit": 20}
    spec |= {"template": {"spec": template}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def nodes_of(bireme: Bireme, selector: str) -> list[str]:
    """Of the pods that run, one for each; without those that are going."""
    found = bireme.kubernetes.api.get(f"{PODS}?labelSelector={selector}")["items"]
    alive = [one for one in found if not one["metadata"].get("deletionTimestamp")]
    return sorted(one["spec"].get("nodeName", "") for one in alive if one["status"]["phase"] == "Running")


def test_a_member_that_is_replaced_takes_the_place_that_its_gang_holds(bireme: Bireme) -> None:
    """No other node is free: before, the new pod waited behind its own gang for ever."""
    api, nodes, selector = bireme.kubernetes.api, ["fake-00004", "fake-00005", "fake-00006"], "job-name%3Dranks"
    api.create(BATCH, indexed_job("ranks", nodes))
    wait_for(lambda: nodes_of(bireme, selector) == nodes, "the gang to run")

    def replace_one(place: int) -> None:
        name = sorted(one["metadata"]["name"] for one in api.get(f"{PODS}?labelSelector={selector}")["items"])[place]
        api.delete(f"{PODS}/{name}")
        wait_for(lambda: name not in names(), f"{name} to be gone")
        wait_for(lambda: nodes_of(bireme, selector) == nodes, f"the one instead of {name} to run in its place")

    def names() -> set[str]:
        return {one["metadata"]["name"] for one in api.get(f"{PODS}?labelSelector={selector}")["items"]}

    replace_one(0)
    replace_one(1)
    assert bireme.queue() == {"ranks": "RUNNING"}
    bireme.run("down")
    bireme.up()
    replace_one(2)
    assert bireme.queue() == {"ranks": "RUNNING"}
    gres = bireme.run("sinfo", "-h", "-N", "-n", ",".join(nodes), "-O", "NodeList,GresUsed:40").splitlines()
    assert all("gpu:" in line and ":8" in line for line in gres), gres
    api.delete(f"{BATCH}/ranks?propagationPolicy=Background")


def test_a_pod_of_the_same_name_that_came_while_nobody_looked_is_another(bireme: Bireme) -> None:
    """A StatefulSet gives its pod's name again: by name alone the old one's job went on, and the new one waited."""
    api, labels = bireme.kubernetes.api, {"app": "db"}
    template = {"metadata": {"labels": labels}, "spec": pod("x", 8, **on_nodes(["fake-00007"]))["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "serviceName": "db", "template": template}
    api.create(APPS, {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": spec})
    assert bireme.node_of("db-0") == "fake-00007"
    before = api.get(f"{PODS}/db-0")["metadata"]["uid"]
    bireme.run("down")
    api.delete(f"{PODS}/db-0")
    bireme.appears("db-0")
    wait_for(lambda: uid_of(bireme, "db-0") not in ("", before), "another pod of that name")
    bireme.up()
    assert bireme.node_of("db-0") == "fake-00007"
    wait_for(lambda: bireme.queue() == {"db-0": "RUNNING"}, "one job, of the pod that is there")
    api.delete(f"{APPS}/db?propagationPolicy=Background")


def uid_of(bireme: Bireme, name: str) -> str:
    found = bireme.kubernetes.api.get(f"{PODS}?fieldSelector=metadata.name%3D{name}")["items"]
    return str(found[0]["metadata"]["uid"]) if found else ""


def test_the_parts_of_a_jobset_that_come_in_order_are_gangs_of_their_own(bireme: Bireme) -> None:
    """Its controller makes the workers only when the driver is ready: who waits for all of them waits for ever."""
    api = bireme.kubernetes.api
    install_jobsets(bireme)
    part = {"template": {"spec": {"parallelism": 2, "completions": 2}}}
    parts = [{"name": "driver"}, {"name": "workers", "replicas": 1, **part}]
    spec = {"startupPolicy": {"startupPolicyOrder": "InOrder"}, "replicatedJobs": parts}
    head = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "train"}}
    api.create(JOBSETS, {**head, "spec": spec})
    bireme.create("driver", **member("driver"))
    bireme.node_of("driver")
    bireme.create("worker-0", **member("workers"))
    bireme.message("worker-0", "the gang needs 2 pods to start together, 1 exist")
    bireme.create("worker-1", **member("workers"))
    bireme.node_of("worker-0")
    bireme.node_of("worker-1")
    api.delete(f"{JOBSETS}/train")


def member(part: str) -> dict[str, Any]:
    """As JobSet's controller labels pods."""
    prefix = "jobset.sigs.k8s.io"
    return {"labels": {f"{prefix}/jobset-name": "train", f"{prefix}/replicatedjob-name": part}}


def install_jobsets(bireme: Bireme) -> None:
    """The kind of object alone: no controller of JobSets is in this cluster."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha2", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "jobsets", "singular": "jobset", "kind": "JobSet"}
    spec = {"group": "jobset.x-k8s.io", "scope": "Namespaced", "names": names, "versions": [version]}
    head = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    kinds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    bireme.kubernetes.api.create(kinds, {**head, "metadata": {"name": "jobsets.jobset.x-k8s.io"}, "spec": spec})

    def served() -> bool:
        conditions = bireme.kubernetes.api.get(f"{kinds}/jobsets.jobset.x-k8s.io").get("status", {}).get("conditions")
        return any(one["type"] == "Established" and one["status"] == "True" for one in conditions or ())

    wait_for(served, "JobSets to be known")
