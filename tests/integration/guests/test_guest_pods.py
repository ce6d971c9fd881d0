"""Others' pods in Bireme's queue, for real: bound, told, placed together or one by one, by the rules they carry."""

from __future__ import annotations

from typing import Any

from tests.kubernetes_cluster.processes import wait_for
from tests.support.guests import EVENTS, NODES, PODS, Bireme, pod


def test_a_pod_is_bound_told_and_forgotten(bireme: Bireme) -> None:
    bireme.create("single", annotations={"bireme.test/runs-for": "500ms"})
    bireme.kubernetes.wait_for_pod("single", "Succeeded")
    events = bireme.kubernetes.api.get(f"{EVENTS}?fieldSelector=involvedObject.name%3Dsingle")["items"]
    assert [(one["reason"], one["source"]["component"]) for one in events] == [("Scheduled", "bireme")]
    wait_for(lambda: "single" not in bireme.queue(), "its job to end")


def test_small_pods_are_packed_so_that_whole_nodes_stay_free(bireme: Bireme) -> None:
    for number in range(8):
        bireme.create(f"small{number}")
    nodes = [bireme.node_of(f"small{number}") for number in range(8)]
    assert len(set(nodes)) <= 2, "where exactly depends on what kinds of jobs were seen before"


def test_a_gang_waits_for_its_last_pod_and_stands_under_one_leaf(bireme: Bireme) -> None:
    gang = {"labels": {"bireme.dev/gang": "g"}, "annotations": {"bireme.dev/gang-size": "8"}}
    for number in range(7):
        bireme.create(f"g{number}", 8, **gang)
    bireme.message("g0", "needs 8 pods to start together, 7 exist")
    bireme.create("g7", 8, **gang)
    nodes = [bireme.node_of(f"g{number}") for number in range(8)]
    assert len(set(nodes)) == 8
    assert len({int(node.removeprefix("fake-")) // 16 for node in nodes}) == 1


def test_a_native_pod_group_is_a_gang(bireme: Bireme) -> None:
    path = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
    head = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": "native"}}
    bireme.kubernetes.api.create(path, {**head, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})
    bireme.create("n0", 8, schedulingGroup={"podGroupName": "native"})
    bireme.create("n1", 4, schedulingGroup={"podGroupName": "native"})
    assert bireme.node_of("n0") != bireme.node_of("n1")

    def scheduled() -> bool:
        conditions = bireme.kubernetes.api.get(f"{path}/native")["status"].get("conditions") or ()
        return ("PodGroupScheduled", "True", "Scheduled") in [
            (one["type"], one["status"], one["reason"]) for one in conditions
        ]

    wait_for(scheduled, "the group's condition")
    bireme.kubernetes.api.delete(f"{path}/native")


def test_why_answers_for_a_pod_as_for_its_job_and_the_condition_says_the_same(bireme: Bireme) -> None:
    gang = {"labels": {"bireme.dev/gang": "wide"}, "annotations": {"bireme.dev/gang-size": str(NODES)}}
    bireme.create("first", 8)
    bireme.node_of("first")
    for number in range(NODES):
        bireme.create(f"wide{number}", 8, **gang)
    said = bireme.message("wide0", "are free for it now")
    told = bireme.run("why", "pod/wide0")
    assert '"wide" of default: PENDING' in told
    assert said == f"It needs {NODES} node(s) of partition main; {NODES - 1} are free for it now."
    assert "RUNNING" in bireme.run("why", "pod/default/first")


def test_an_indexed_job_is_a_gang_and_a_deployment_is_not(bireme: Bireme) -> None:
    template = pod("x", 8)["spec"] | {"restartPolicy": "Never"}
    spec = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "template": {"spec": template}}
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    bireme.kubernetes.api.create(
        jobs, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "ranks"}, "spec": spec}
    )
    wait_for(lambda: bireme.queue().get("ranks") == "RUNNING", "the job's gang to run")
    labels = {"app": "web"}
    deployed = {
        "replicas": 2,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod("x")["spec"]},
    }
    deployments = "/apis/apps/v1/namespaces/default/deployments"
    bireme.kubernetes.api.create(
        deployments, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": deployed}
    )
    wait_for(lambda: sum(name.startswith("web-") for name in bireme.queue()) == 2, "two replicas, each on its own")
    bireme.kubernetes.api.delete(f"{deployments}/web")
    bireme.kubernetes.api.delete(f"{jobs}/ranks?propagationPolicy=Background")


def test_node_selectors_and_affinity_are_kept(bireme: Bireme) -> None:
    bireme.create("there", nodeSelector={"network.topology.nvidia.com/leaf": "leaf-1"})
    assert bireme.node_of("there") in {f"fake-{number:05d}" for number in range(16, 32)}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["fake-00030"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    bireme.create("named", affinity={"nodeAffinity": required})
    assert bireme.node_of("named") == "fake-00030"


def test_what_never_fits_or_is_not_supported_says_so_and_stays(bireme: Bireme) -> None:
    bireme.create("large", 9)
    bireme.create("nowhere", nodeSelector={"disk": "tape"})
    claim = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}
    bireme.create("dra", 0, **claim)
    bireme.message("large", "9 gpu asked on a node")
    bireme.message("nowhere", "disk=tape")
    bireme.message("dra", "resourceClaims (dynamic resource allocation)")
    told = " ".join(bireme.run("why", "pod/dra").split())
    assert "not in the queue: Bireme cannot schedule this: resourceClaims" in told


def test_a_gate_keeps_a_pod_out_of_the_queue(bireme: Bireme) -> None:
    bireme.create("gated", schedulingGates=[{"name": "example.com/later"}])
    bireme.create("free")
    bireme.node_of("free")
    assert "gated" not in bireme.queue()
    assert "its scheduling gates are closed: example.com/later" in " ".join(bireme.run("why", "pod/gated").split())
    bireme.kubernetes.api.patch(f"{PODS}/gated", {"spec": {"schedulingGates": []}})
    bireme.node_of("gated")
    bireme.kubernetes.api.delete(f"{PODS}/gated")
    wait_for(lambda: "gated" not in bireme.queue(), "its job to end")
    bireme.create("gated", schedulingGates=[{"name": "example.com/again"}])
    bireme.create("next")
    bireme.node_of("next")
    told = " ".join(bireme.run("why", "pod/gated").split())
    assert "its scheduling gates are closed: example.com/again" in told, "of this pod, not of the one before"


def test_a_daemon_that_comes_back_knows_its_guests(bireme: Bireme) -> None:
    bireme.create("stays")
    bireme.create("goes")
    before = bireme.node_of("stays")
    bireme.node_of("goes")
    bireme.run("down")
    bireme.kubernetes.api.delete(f"{PODS}/goes")
    bireme.create("new")
    bireme.up()
    bireme.node_of("new")
    wait_for(lambda: "goes" not in bireme.queue(), "the end of what went meanwhile")
    assert bireme.queue()["stays"] == "RUNNING"
    assert bireme.node_of("stays") == before


def test_a_cordon_that_is_lifted_while_the_daemon_is_away_is_over(bireme: Bireme) -> None:
    def state_of_node() -> str:
        return bireme.run("sinfo", "-h", "-n", "fake-00003", "-o", "%T").strip()

    node = "/api/v1/nodes/fake-00003"
    bireme.kubernetes.api.patch(node, {"spec": {"unschedulable": True}})
    wait_for(lambda: state_of_node() == "drained", "the cordon to be known")
    bireme.run("down")
    bireme.kubernetes.api.patch(node, {"spec": {"unschedulable": None}})
    bireme.up()
    wait_for(lambda: state_of_node() == "idle", "the node to be open")


def test_a_cancelled_job_of_pods_is_evicted(bireme: Bireme) -> None:
    bireme.create("victim")
    bireme.node_of("victim")
    bireme.run("scancel", "--name=victim")
    wait_for(lambda: not bireme.kubernetes.api.get(PODS)["items"], "the pod to go")


def labelled(app: str, **spec: Any) -> dict[str, Any]:
    return {"labels": {"app": app}, **spec}


def required(kind: str, app: str, key: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def leaf_of(node: str) -> int:
    return int(node.removeprefix("fake-")) // 16


def test_replicas_that_keep_apart_stand_on_different_nodes(bireme: Bireme) -> None:
    apart = required("podAntiAffinity", "web", "kubernetes.io/hostname")
    for number in range(4):
        bireme.create(f"web{number}", **labelled("web", **apart))
    assert len({bireme.node_of(f"web{number}") for number in range(4)}) == 4


def test_a_pod_goes_where_its_partner_is_and_away_from_its_rival(bireme: Bireme) -> None:
    leaf = "network.topology.nvidia.com/leaf"
    bireme.create("data", **labelled("data", nodeSelector={leaf: "leaf-1"}))
    assert leaf_of(bireme.node_of("data")) == 1
    bireme.create("near", **required("podAffinity", "data", leaf))
    assert leaf_of(bireme.node_of("near")) == 1
    bireme.create("far", **required("podAntiAffinity", "data", leaf))
    assert leaf_of(bireme.node_of("far")) == 0
    bireme.create("late", **labelled("data", nodeSelector={leaf: "leaf-0"}))
    assert "far" in bireme.queue()
    assert bireme.message("late"), "the rival keeps its leaf for itself, also against those who say nothing"


def test_pods_are_spread_evenly_over_domains(bireme: Bireme) -> None:
    leaf = "network.topology.nvidia.com/leaf"
    selector = {"matchLabels": {"app": "even"}}
    spread = {"maxSkew": 1, "topologyKey": leaf, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    for number in range(4):
        bireme.create(f"even{number}", **labelled("even", topologySpreadConstraints=[spread]))
    leaves = [leaf_of(bireme.node_of(f"even{number}")) for number in range(4)]
    assert sorted(leaves) == [0, 0, 1, 1]


def test_a_host_port_is_given_once_a_node(bireme: Bireme) -> None:
    port = {"ports": [{"containerPort": 80, "hostPort": 8080}]}
    container = {"name": "main", "image": "none", **port}
    for number in range(3):
        bireme.create(f"port{number}", containers=[container])
    assert len({bireme.node_of(f"port{number}") for number in range(3)}) == 3
