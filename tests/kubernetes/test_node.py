"""`bireme node` on the nodes of a real Kubernetes: what the pods of jobs use, by the cgroups that kubelets make."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes_cluster.cluster import Kubernetes, missing
from tests.kubernetes_cluster.images import BUSYBOX
from tests.kubernetes_cluster.real_nodes import Node
from tests.support.cluster import ROOT
from tests.support.cluster_nodes import VARIABLES, Nodes
from tests.support.kubernetes import KubernetesCluster
from tests.support.measured import ask, curves, until, values_of

from bireme.client.sdk import Client

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
PODS = "/api/v1/namespaces/default/pods"
BURNS = "trap exit TERM; while :; do :; done"


@pytest.fixture(scope="module")
def nodes(kubelets: Kubernetes) -> Iterator[Nodes]:
    """Both kubelets are on this machine: each `bireme node` sees all pods, and is believed of those on its node."""
    made = KubernetesCluster(kubelets)
    made.variables |= VARIABLES
    with made.running() as cluster:
        found = Nodes(cluster, {"PATH": "/nowhere"})
        with found.ended_at_last():
            for node in kubelets.nodes:
                script = play(found, node)
                kubelet = node.folder / "kubelet" / "pod-resources" / "kubelet.sock"
                scripted = {"BIREME_NVML_MODULE": "bireme.testing.scripted_nvml", "BIREME_NVML_SCRIPT": str(script)}
                found.start(node.name, "--pod-resources", str(kubelet), env=scripted)
            yield found


def play(nodes: Nodes, node: Node, **xids: int) -> Path:
    """The cards of a node from now on: all of them busy, and on some an Xid, by their UUIDs."""
    values = {"gpu_util": 97, "gpu_copy_util": 1}
    cards = [{"uuid": uuid, "values": values, "xids": [xids[uuid]] if uuid in xids else []} for uuid in gpus(node)]
    script, written = nodes.both.folder / f"{node.name}-cards.json", nodes.both.folder / "written.json"
    written.write_text(json.dumps({"cards": cards}))
    return written.rename(script)


def gpus(node: Node) -> list[str]:
    """As the device plugin of the test cluster calls them (`device_plugin/main.go`)."""
    hashed = 0x811C9DC5
    for byte in node.name.encode():
        hashed = (hashed ^ byte) * 0x01000193 % 2**32
    return [f"GPU-{hashed:08x}-0000-4000-8000-{index:012x}" for index in range(node.gpus)]


def most(curve: dict[str, Any]) -> float:
    return max((value or 0.0 for value in curve["high"]), default=0.0)


def test_what_the_pods_of_a_job_use_is_measured_on_each_node(nodes: Nodes) -> None:
    job = int(nodes.both.sbatch("-N2", "-n2", "--wrap", f"srun sh -c '{BURNS}'"))

    def busy() -> list[dict[str, Any]] | None:
        found = [curve for curve in curves(nodes.both, job, "cpu_user") if most(curve) > 0]
        return found if {curve["node"] for curve in found} == {"node1", "node2"} else None

    pods = until(busy, "nothing is measured of its pods")
    assert {(curve["node"], curve["id"]) for curve in pods} == {
        ("node1", f"{job}.1.-4.0"),
        ("node2", f"{job}.1.-4.0"),
    }
    assert (values_of(nodes.both, job) or {})["memory"] > 1
    assert {node["node"] for node in ask(nodes.both, "/v1/telemetry/now")["nodes"]} == {"node1", "node2"}
    nodes.both.kill_daemon()
    spool = nodes.folder("node2") / "rounds"
    size = spool.stat().st_size
    until(lambda: True if spool.stat().st_size > size + 2000 else None, "no round is made without a daemon")
    nodes.both.up_again()
    until(lambda: True if values_of(nodes.both, job) else None, "its pods are not measured any more")
    nodes.both.run("scancel", str(job))
    until(lambda: True if values_of(nodes.both, job) is None else None, f"job {job} is still measured")

    def kept() -> bool | None:
        return True if {curve["node"] for curve in curves(nodes.both, job, "memory")} == {"node1", "node2"} else None

    until(kept, "what a node told before it found the new daemon is lost")


def test_the_gpus_of_a_job_are_those_that_the_kubelets_gave_to_its_pods(nodes: Nodes, kubelets: Kubernetes) -> None:
    """By the pod-resources API; a pod that is nobody's job has another one. A daemon that comes back knows it still."""
    other = {"name": "main", "image": BUSYBOX, "command": ["sleep", "3600"], "imagePullPolicy": "Never"}
    other["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    spec = {"nodeName": "node1", "terminationGracePeriodSeconds": 0, "containers": [other]}
    kubelets.api.create(PODS, {"metadata": {"name": "other"}, "spec": spec})
    kubelets.wait_for_pod("other", "Running")
    step = "srun sh -c 'echo $NVIDIA_VISIBLE_DEVICES > given-$SLURMD_NODENAME; until test -e over; do sleep 0.1; done'"
    job = int(nodes.both.sbatch("-N2", "-n2", "--gres=gpu:2", "--wrap", step))

    def given() -> set[tuple[str, str]]:
        """By the kubelets' word to the containers themselves."""
        files = nodes.both.work.glob("given-*")
        by_node = {file.name.removeprefix("given-"): file.read_text().strip() for file in files}
        return {(node, uuid) for node, uuids in by_node.items() for uuid in uuids.split(",")}

    def measured() -> bool | None:
        held = {(curve["node"], curve["id"]) for curve in curves(nodes.both, job, "gpu_util") if most(curve) == 97}
        return True if len(held) == 4 and held == given() else None

    def blamed() -> set[int]:
        """Jobs that have findings: the driver names no process, and no GPU has a number here."""
        with Client(str(nodes.both.home)) as client:
            return {int(found["job_id"]) for found in client.findings() if found["job_id"]}

    try:
        until(measured, "its GPUs are not those of its pods")
        nodes.both.kill_daemon()
        nodes.both.up_again()
        until(measured, "its GPUs are not known to the next daemon")
        now = ask(nodes.both, "/v1/telemetry/now")["gpus"]
        assert {(gpu["node"], gpu["uuid"]) for gpu in now if gpu["job_ids"] == [job]} == given()
        faulty = next(uuid for node, uuid in sorted(given()) if node == "node1")
        play(nodes, kubelets.nodes[0], **{faulty: 13})
        until(lambda: found if (found := blamed()) else None, "nobody hears of the Xid of its GPU")
        assert blamed() == {job}
    finally:
        (nodes.both.work / "over").touch()
        kubelets.api.delete(f"{PODS}/other")
    assert nodes.both.wait(str(job))["state"] == "COMPLETED"
    assert measured(), "a job that is over has lost its GPUs"


def test_the_daemon_set_is_what_an_api_server_takes(kubernetes: Kubernetes, tmp_path: Path) -> None:
    """Every field is known to it, and the pod has no right that the file does not name."""
    folder = shutil.copytree(ROOT / "deploy" / "kubernetes" / "telemetry", tmp_path / "telemetry")
    settings = folder / "kustomization.yaml"
    settings.write_text(settings.read_text().replace("namespace: bireme", "namespace: default"))
    words = ("apply", "--dry-run=server", "--validate=strict", "-k", str(folder), "-o", "json")
    made = {item["kind"]: item for item in json.loads(kubernetes.kubectl(*words))["items"]}
    assert set(made) == {"Service", "DaemonSet"}
    pod = made["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["securityContext"]["capabilities"] == {"add": ["SYS_PTRACE"], "drop": ["ALL"]}
    assert not pod.get("hostNetwork")
    assert not container["securityContext"].get("privileged")
    assert [volume["name"] for volume in pod["volumes"] if "hostPath" in volume] == ["spool", "pod-resources"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    program, *words_of_it = container["args"]
    assert program == "node"
    assert mounts["pod-resources"] == "/var/lib/kubelet/pod-resources"
    assert words_of_it == ["--pass", f"{mounts['pass']}/node.json", "--folder", mounts["spool"]]
