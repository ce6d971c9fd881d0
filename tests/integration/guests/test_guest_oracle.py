"""kube-scheduler as the oracle: the same random pods, one by one, in the same world.

Bireme places a pod; kube-scheduler is then given the same pod for that very node, and must find nothing against it.
What Bireme leaves waiting, kube-scheduler must leave waiting too. The pods that stay are the world of the next one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from tests.integration.guests.test_guest_constraints import csi_volume
from tests.kubernetes_cluster.processes import wait_for
from tests.support.guests import PODS, Bireme

from bireme.client.transport import Transport

SEED = int(os.environ.get("BIREME_ORACLE_SEED", "7"))
COUNT = int(os.environ.get("BIREME_ORACLE_PODS", "32"))
NODES = ("fake-00000", "fake-00001", "fake-00002", "fake-00016", "fake-00017")
"""Of two leaves."""
LEAF, HOST = "network.topology.nvidia.com/leaf", "kubernetes.io/hostname"
SPECIAL = {"key": "example.com/special", "value": "yes", "effect": "NoSchedule"}
SOFT = {"key": "example.com/rather-not", "value": "", "effect": "PreferNoSchedule"}
NIC = "example.com/nic"
DISKS = ("disk0", "disk1", "disk2")
DRIVER = "disk.example.com"
"""Of which no node attaches more than one; the last two nodes say nothing of it."""
MARK = "bireme.test/oracle"
CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
BIREME, KUBE = "bireme", "default-scheduler"


# --- random pods --------------------------------------------------------------------------------------------


def random_pod(random: Random, number: int) -> dict[str, Any]:
    app = random.choice("abc")
    metadata = {"name": f"p{number}", "labels": {"app": app}}
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {MARK: "yes"},
        "containers": [{"name": "main", "image": "none", "resources": _resources(random)}],
    }
    for change in random.sample(_CHANGES, k=random.choice((0, 1, 1, 2, 3))):
        change(random, spec)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _resources(random: Random) -> dict[str, Any]:
    asked = {"cpu": str(random.choice((1, 2, 16))), "memory": f"{random.choice((1, 4, 200))}Gi"}
    gpus = random.choice((0, 0, 1, 2, 4))
    limits = asked | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    if random.random() < 0.15:
        limits[NIC] = str(random.choice((1, 2, 3)))
    if random.random() < 0.15:
        limits["ephemeral-storage"] = f"{random.choice((100, 600))}Gi"
    return {"limits": limits}


def _selector(random: Random, spec: dict[str, Any]) -> None:
    spec["nodeSelector"][LEAF] = random.choice(("leaf-0", "leaf-1", "leaf-9"))


def _node_affinity(random: Random, spec: dict[str, Any]) -> None:
    rules = [
        {"key": HOST, "operator": "In", "values": random.sample(NODES, 2)},
        {"key": HOST, "operator": "NotIn", "values": random.sample(NODES, 2)},
        {"key": NIC, "operator": random.choice(("Exists", "DoesNotExist"))},
        {"key": "bireme.test/number", "operator": random.choice(("Gt", "Lt")), "values": [str(random.randint(0, 4))]},
    ]
    terms = [{"matchExpressions": random.sample(rules, random.choice((1, 2)))} for _ in range(random.choice((1, 2)))]
    _into(spec, "nodeAffinity", {"nodeSelectorTerms": terms})


def _pod_affinity(random: Random, spec: dict[str, Any]) -> None:
    _into(spec, "podAffinity", [_term(random) for _ in range(random.choice((1, 1, 2)))])


def _anti_affinity(random: Random, spec: dict[str, Any]) -> None:
    _into(spec, "podAntiAffinity", [_term(random)])


def _term(random: Random) -> dict[str, Any]:
    apps = random.sample("abc", random.choice((1, 1, 2)))
    selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": apps}]}
    return {"labelSelector": selector, "topologyKey": random.choice((LEAF, HOST))}


def _into(spec: dict[str, Any], kind: str, required: Any) -> None:
    spec.setdefault("affinity", {})[kind] = {"requiredDuringSchedulingIgnoredDuringExecution": required}


def _spread(random: Random, spec: dict[str, Any]) -> None:
    one = {
        "maxSkew": random.choice((1, 1, 2)),
        "topologyKey": random.choice((LEAF, HOST)),
        "whenUnsatisfiable": random.choice(("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway")),
        "labelSelector": {"matchLabels": {"app": random.choice("abc")}},
        "nodeAffinityPolicy": random.choice(("Honor", "Honor", "Ignore")),
    }
    before = spec.setdefault("topologySpreadConstraints", [])
    if one["topologyKey"] not in [each["topologyKey"] for each in before]:
        before.append(one)


def _port(random: Random, spec: dict[str, Any]) -> None:
    address = random.choice(({}, {}, {"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.2"}))
    spec["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": random.choice((8080, 8081)), **address}]


def _toleration(random: Random, spec: dict[str, Any]) -> None:
    ways = (
        {"key": SPECIAL["key"], "operator": "Exists"},
        {"key": SPECIAL["key"], "value": "yes", "effect": "NoSchedule"},
        {"key": SPECIAL["key"], "value": "no"},
        {"operator": "Exists"},
    )
    spec["tolerations"] = [random.choice(ways)]


def _volume(random: Random, spec: dict[str, Any]) -> None:
    claims = random.choice((("local",), ("absent",), *(tuple(random.sample(DISKS, count)) for count in (1, 1, 2))))
    spec["volumes"] = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]


def _init(random: Random, spec: dict[str, Any]) -> None:
    resources = {"limits": {"cpu": str(random.choice((2, 64))), "memory": "1Gi"}}
    sidecar = {"restartPolicy": "Always"} if random.random() < 0.5 else {}
    spec["initContainers"] = [{"name": "init", "image": "none", "resources": resources, **sidecar}]


_CHANGES = (
    _selector, _node_affinity, _pod_affinity, _pod_affinity, _anti_affinity, _anti_affinity, _spread, _spread, _port,
    _toleration, _volume, _volume, _init,
)  # fmt: skip


# --- the world ----------------------------------------------------------------------------------------------


@pytest.fixture
def oracle(bireme: Bireme) -> Iterator[Bireme]:
    """Five marked nodes, one tainted, one rather not to be used, two with network cards, one with a volume."""
    api = bireme.kubernetes.api
    for number, name in enumerate(NODES):
        labels = {MARK: "yes", "bireme.test/number": str(number)} | ({NIC: "yes"} if number < 2 else {})
        taints = [SPECIAL] if number == 1 else [SOFT] if number == 2 else []
        api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}, "spec": {"taints": taints}})
        more = {NIC: "4"} if number < 2 else {}
        api.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": more, "allocatable": more}})
    _local_volume(bireme)
    for name in NODES[:3]:
        drivers = [{"name": DRIVER, "nodeID": name, "allocatable": {"count": 1}}]
        head = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name}}
        api.create(CSI_NODES, {**head, "spec": {"drivers": drivers}})
    for disk in DISKS:  # after the limits: who knows of a disk knows of these too
        csi_volume(api, disk, DRIVER)
    bireme.kubernetes.plane.start_scheduler()
    try:
        yield bireme
    finally:
        bireme.kubernetes.plane.stop_scheduler()
        api.delete(CSI_NODES)
        for name in NODES:
            labels = dict.fromkeys((MARK, NIC, "bireme.test/number"))
            api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}, "spec": {"taints": None}})


def _local_volume(bireme: Bireme) -> None:
    """One that only the third node has, and a claim that is bound to it."""
    api, claims = bireme.kubernetes.api, "/api/v1/namespaces/default/persistentvolumeclaims"
    rule = {"key": HOST, "operator": "In", "values": [NODES[2]]}
    sizes: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = sizes | {
        "capacity": {"storage": "1Gi"},
        "local": {"path": "/data"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}},
    }
    claim = sizes | {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": "local"}
    head = {"apiVersion": "v1", "metadata": {"name": "local"}}
    api.create("/api/v1/persistentvolumes", {**head, "kind": "PersistentVolume", "spec": volume})
    api.create(claims, {**head, "kind": "PersistentVolumeClaim", "spec": claim})
    wait_for(lambda: api.get(f"{claims}/local")["status"].get("phase") == "Bound", "the claim to be bound")


class Trial:
    """One pod after another, given to both schedulers."""

    def __init__(self, bireme: Bireme, daemon: Transport) -> None:
        self.bireme, self.daemon, self.api = bireme, daemon, bireme.kubernetes.api

    def agree_on(self, body: dict[str, Any], about: str) -> bool:
        """Whether the pod has a place, which it keeps; the schedulers must agree on it."""
        name = body["metadata"]["name"]
        node, why = self.place(body, BIREME)
        if not node:
            twin = body | {"metadata": body["metadata"] | {"name": f"{name}-twin"}}
            theirs, _ = self.place(twin, KUBE)
            self.remove(f"{name}-twin")
            if theirs:  # perhaps Bireme had only not yet heard of all that is there
                wait_for(lambda: self._node(name), f"Bireme: {why}; kube-scheduler: {theirs}; {about}", within_s=20)
            self.remove(name)
            return False
        self.remove(name)
        with self._only(node):
            theirs, objection = self.place(body, KUBE)
            while theirs not in ("", node):  # it had not yet heard that this one is cordoned
                self.remove(name)
                theirs, objection = self.place(body, KUBE)
        assert theirs == node, f"Bireme: {node}; kube-scheduler: {theirs or objection}; {about}"
        return True

    @contextmanager
    def _only(self, node: str) -> Iterator[None]:
        """The other nodes are cordoned, which changes nothing of what counts for spread and affinity."""
        others = [other for other in NODES if other != node]
        for other in others:
            self.api.patch(f"/api/v1/nodes/{other}", {"spec": {"unschedulable": True}})
        try:
            yield
        finally:
            for other in others:
                self.api.patch(f"/api/v1/nodes/{other}", {"spec": {"unschedulable": None}})

    def _node(self, name: str) -> str:
        return str(self.api.get(f"{PODS}/{name}")["spec"].get("nodeName", ""))

    def place(self, body: dict[str, Any], scheduler: str) -> tuple[str, str]:
        """(node, "") or ("", why it waits)."""
        spec = deepcopy(body["spec"]) | {"schedulerName": scheduler}
        self.api.create(PODS, body | {"spec": spec})
        return self._decided(body["metadata"]["name"], scheduler)

    def _decided(self, name: str, scheduler: str) -> tuple[str, str]:
        found: list[tuple[str, str]] = []

        def decided() -> bool:
            pod = self.api.get(f"{PODS}/{name}")
            conditions = pod["status"].get("conditions") or ()
            why = next((one["message"] for one in conditions if one.get("reason") == "Unschedulable"), "")
            if pod["spec"].get("nodeName") or why:
                found.append((pod["spec"].get("nodeName", ""), why))
            return bool(found)

        wait_for(decided, f"{scheduler} to decide about {name}")
        return found[0]

    def remove(self, name: str) -> None:
        self.api.delete(f"{PODS}/{name}")
        selected = f"{PODS}?fieldSelector=metadata.name%3D{name}"
        wait_for(lambda: not self.api.get(selected)["items"], f"{name} to go")
        self.settle()

    def settle(self) -> None:
        """Until Bireme counts what is on the nodes as they are: GPUs and CPUs of all pods that have one."""
        try:
            wait_for(lambda: self._counted() == self._there(), "Bireme to know of all pods")
        except TimeoutError as error:
            raise AssertionError(f"Bireme counts {self._counted()}, there is {self._there()}") from error

    def _there(self) -> dict[str, int]:
        """CPUs that pods ask for, by node, as Bireme counts them: whole ones."""
        found = dict.fromkeys(NODES, 0)
        for pod in self.api.get(PODS)["items"]:
            if pod["spec"].get("nodeName"):
                found[pod["spec"]["nodeName"]] += _cpus(pod["spec"])
        return found

    def _counted(self) -> dict[str, int]:
        nodes = self.daemon.get("/v1/nodes")["nodes"]
        return {node["name"]: node["cpus_allocated"] for node in nodes if node["name"] in NODES}


def _cpus(spec: dict[str, Any]) -> int:
    def asked(container: dict[str, Any]) -> int:
        return int(container["resources"]["requests"]["cpu"])

    main = sum(asked(one) for one in spec["containers"])
    first = spec.get("initContainers") or ()
    sidecars = sum(asked(one) for one in first if one.get("restartPolicy") == "Always")
    return max([main + sidecars, *(asked(one) for one in first)])


def test_no_pod_is_where_kube_scheduler_forbids_it_and_none_waits_that_it_would_place(oracle: Bireme) -> None:
    random = Random(SEED)
    placed = 0
    with Transport(str(oracle.home)) as daemon:
        trial = Trial(oracle, daemon)
        for number in range(COUNT):
            body = random_pod(random, number)
            trial.settle()
            placed += trial.agree_on(body, f"seed {SEED}, pod {number}: {body}")
    assert COUNT // 4 < placed < COUNT, "a trial in which nothing or everything fits says little"
