"""Many pods at once that mind each other, on a real API server, some of whose bindings it refuses for a while."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.kubernetes_cluster.api import ApiError
from tests.kubernetes_cluster.processes import wait_for
from tests.support.guests import PODS, Bireme, on_nodes, pod

HOST, LEAF = "kubernetes.io/hostname", "network.topology.nvidia.com/leaf"
NODES = [f"fake-{number:05d}" for number in (*range(8), *range(16, 24))]
"""Eight of each of two leaves."""
POLICIES = "/apis/admissionregistration.k8s.io/v1"


def alike(app: str) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": {"app": app}}}


def apart(app: str) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": HOST, **alike(app)}]}
    return {"podAntiAffinity": required}


def spread(app: str, *keys: str) -> list[dict[str, Any]]:
    return [{"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", **alike(app)} for key in keys]


def replicas(app: str, count: int, *, disk: str = "", **spec: Any) -> list[dict[str, Any]]:
    """On the nodes of this test."""
    made = []
    for number in range(count):
        there = on_nodes(NODES)["affinity"] | spec.get("affinity", {})
        one = pod(f"{app}{number}", 0, labels={"app": app}, **{**spec, "affinity": there})
        one["spec"]["containers"][0]["resources"]["limits"] |= {"ephemeral-storage": disk} if disk else {}
        made.append(one)
    return made


def places(bireme: Bireme, app: str) -> list[str]:
    found = bireme.kubernetes.api.get(f"{PODS}?labelSelector=app%3D{app}")["items"]
    return [one["spec"]["nodeName"] for one in found if one["spec"].get("nodeName")]


def leaf(node: str) -> int:
    return NODES.index(node) // 8


@contextmanager
def refusing(bireme: Bireme, name: str) -> Iterator[None]:
    """The API server refuses to bind the pod of this name, until the block ends."""
    api = bireme.kubernetes.api
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    said = [{"expression": f"object.metadata.name != '{name}'", "message": "nobody binds this one"}]
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "no-binding"}}
    policy = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]}, "validations": said}
    binding = {"policyName": "no-binding", "validationActions": ["Deny"]}
    kinds = ("ValidatingAdmissionPolicy", policy), ("ValidatingAdmissionPolicyBinding", binding)
    paths = [f"{POLICIES}/validatingadmissionpolicies", f"{POLICIES}/validatingadmissionpolicybindings"]
    for path, (kind, spec) in zip(paths, kinds):
        api.create(path, {**head, "kind": kind, "spec": spec})
    wait_for(lambda: _is_refused(bireme, name), "the policy to be in force")
    try:
        yield
    finally:
        for path in reversed(paths):
            api.delete(f"{path}/no-binding")


def _is_refused(bireme: Bireme, name: str) -> bool:
    """Asked with a binding that is only tried, of a pod whose gate is closed."""
    target = {"apiVersion": "v1", "kind": "Node", "name": NODES[0]}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    try:
        bireme.kubernetes.api.create(f"{PODS}/{name}/binding?dryRun=All", body)
    except ApiError as error:
        return "nobody binds this one" in str(error)
    return False


def test_what_many_pods_ask_of_each_other_holds_when_they_come_at_once(bireme: Bireme) -> None:
    wanted = {
        "lone": replicas("lone", 16, affinity=apart("lone")),
        "even": replicas("even", 33, topologySpreadConstraints=spread("even", LEAF, HOST)),
        "full": replicas("full", 24, disk="400Gi"),
        "door": replicas("door", 12),
        "shy": replicas("shy", 6, affinity=apart("door")),
    }
    for one in wanted["door"]:
        one["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
    bireme.kubernetes.api.create_all(PODS, [one for group in wanted.values() for one in group])
    counts = {app: len(made) for app, made in wanted.items()}

    def all_placed() -> bool:
        return all(len(places(bireme, app)) == count for app, count in counts.items())

    wait_for(all_placed, f"{counts} to be placed", within_s=120)
    lone, even, full, door, shy = (places(bireme, app) for app in wanted)
    assert sorted(lone) == NODES
    by_node, by_leaf = Counter(even), Counter(map(leaf, even))
    assert (sorted(by_node.values()), sorted(by_leaf.values())) == ([2] * 15 + [3], [16, 17])
    assert max(Counter(full).values()) <= 2, "a node has 1 TiB"
    assert max(Counter(door).values()) == 1
    assert not set(door) & set(shy)


def test_a_pod_whose_binding_is_refused_is_in_nobodys_way(bireme: Bireme) -> None:
    """One a node, and as many others as there are nodes: a place that stayed taken would be missing in the end."""
    api, nodes = bireme.kubernetes.api, NODES[:4]
    first, *others = replicas("sole", 5, affinity=apart("sole") | on_nodes(nodes)["affinity"])
    first["spec"]["schedulingGates"] = [{"name": "bireme.test/gate"}]
    api.create(PODS, first)
    with refusing(bireme, "sole0"):
        api.patch(f"{PODS}/sole0", {"spec": {"schedulingGates": None}})
        bireme.message("sole0", "could not be bound")
        api.create_all(PODS, others)
        wait_for(lambda: sorted(places(bireme, "sole")) == nodes, "the others to be placed", within_s=120)
    api.delete(f"{PODS}/sole2")
    wait_for(lambda: bireme.has_node("sole0"), "the first to be placed", within_s=120)
    assert sorted(places(bireme, "sole")) == nodes


def test_who_waited_when_the_daemon_went_away_still_minds_others_when_it_is_back(bireme: Bireme) -> None:
    """A rival came to its only node meanwhile; and the label that it asks for is known again."""
    api, node, label = bireme.kubernetes.api, NODES[0], {"bireme.test/room": "quiet"}
    api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": label}})
    bireme.create("before", 8, nodeSelector={HOST: node})
    bireme.node_of("before")
    bireme.create("quiet", 8, nodeSelector=label)
    bireme.create("shy", 8, nodeSelector=label, affinity=apart("loud"))
    wait_for(lambda: {"quiet", "shy"} <= bireme.queue().keys(), "both to wait")
    bireme.run("down")
    api.create(PODS, pod("loud", 0, labels={"app": "loud"}, schedulerName="nobody", nodeName=node))
    bireme.up()
    api.delete(f"{PODS}/before")
    assert bireme.node_of("quiet") == node
    api.delete(f"{PODS}/quiet")
    wait_for(lambda: "quiet" not in bireme.queue(), "its GPUs to be free")
    assert bireme.message("shy", "of partition main together hold the request")
    assert not bireme.has_node("shy")
    api.delete(f"{PODS}/loud")
    assert bireme.node_of("shy") == node
    api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": dict.fromkeys(label)}})


def test_a_pod_is_in_one_job_whoever_comes_and_goes(bireme: Bireme) -> None:
    """What is ruled out changes while the planner starts those that wait: none of them is submitted a second time."""
    api, nodes = bireme.kubernetes.api, NODES
    for number, node in enumerate(nodes):
        bireme.create(f"filler{number}", 8, labels={"app": "filler"}, nodeSelector={HOST: node})
    wait_for(lambda: sorted(places(bireme, "filler")) == nodes, "all nodes to be full")
    coming = replicas("late", 24, affinity=apart("late"))
    for one in coming:
        one["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "8"
    api.create_all(PODS, coming)
    wait_for(lambda: sum(name.startswith("late") for name in names_in_queue(bireme)) == 24, "all to wait")
    for number in range(len(nodes)):
        api.delete(f"{PODS}/filler{number}")
    wait_for(lambda: sorted(places(bireme, "late")) == nodes, "one to be on each node", within_s=120)

    def settled() -> bool:
        running = [name for name in names_in_queue(bireme) if name.startswith("late")]
        return len(running) == len(set(running)) == len(nodes)

    wait_for(settled, "each of them to be in one job, and the others to be told that no node is left", within_s=60)


def names_in_queue(bireme: Bireme) -> list[str]:
    return bireme.run("squeue", "-h", "-o", "%j").split()
