"""The Kubernetes that other tests stand on: a real pod on a real kubelet, and a thousand fake nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes_cluster import slots
from tests.kubernetes_cluster.cluster import Kubernetes, missing, running
from tests.kubernetes_cluster.control_plane import Options
from tests.kubernetes_cluster.images import BUSYBOX
from tests.kubernetes_cluster.processes import wait_for

PODS = "/api/v1/namespaces/default/pods"
needs_nodes = pytest.mark.skipif(bool(missing(nodes=True)), reason=missing(nodes=True) or "-")
needs_fakes = pytest.mark.skipif(
    bool(missing(fake=True, scheduler=True)), reason=missing(fake=True, scheduler=True) or "-"
)


@pytest.fixture(scope="module", autouse=True)
def _leave_no_pods(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if not missing(nodes=True):
        kubelets = request.getfixturevalue("kubelets")
        kubelets.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")


def pod(name: str, node: str, script: str, **limits: str) -> dict[str, Any]:
    container = {"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}
    spec = {"restartPolicy": "Never", "nodeName": node, "terminationGracePeriodSeconds": 1}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {**spec, "containers": [{**container, "resources": {"limits": limits}}]},
    }


@needs_nodes
def test_a_pod_on_a_real_kubelet_sees_its_gpus(kubelets: Kubernetes) -> None:
    kubelets.api.create(PODS, pod("one", "node1", "echo $NVIDIA_VISIBLE_DEVICES", **{"nvidia.com/gpu": "2"}))
    kubelets.wait_for_pod("one", "Succeeded")
    given = kubelets.kubectl("logs", "one").strip().split(",")
    assert len(set(given)) == 2
    assert all(uuid.startswith("GPU-") for uuid in given)


@needs_nodes
def test_pods_of_two_nodes_reach_each_other_by_address(kubelets: Kubernetes) -> None:
    kubelets.api.create(PODS, pod("server", "node1", "while true; do echo hello | nc -l -p 5000; done"))
    address = kubelets.wait_for_pod("server", "Running")["status"]["podIP"]
    asking = f"until nc {address} 5000 < /dev/null | grep hello; do sleep 0.1; done"
    kubelets.api.create(PODS, pod("client", "node2", asking))
    kubelets.wait_for_pod("client", "Succeeded")


@needs_nodes
def test_the_kubelet_refuses_more_gpus_than_are_left(kubelets: Kubernetes) -> None:
    kubelets.api.create(PODS, pod("greedy", "node2", "true", **{"nvidia.com/gpu": "9"}))
    refused = kubelets.wait_for_pod("greedy", "Failed")
    assert refused["status"]["reason"] == "UnexpectedAdmissionError" or "nvidia.com/gpu" in refused["status"]["reason"]


@needs_nodes
def test_a_node_whose_plug_is_pulled_is_noticed(kubelets: Kubernetes) -> None:
    kubelets.nodes[1].power_off()

    def lost() -> bool:
        conditions = kubelets.api.get("/api/v1/nodes/node2")["status"]["conditions"]
        return any(one["type"] == "Ready" and one["status"] == "Unknown" for one in conditions)

    wait_for(lost, "node2 to be missed")
    kubelets.power_on(kubelets.nodes[1])


KILLED = """
import os, signal
from tests.kubernetes_cluster.cluster import running
with running(nodes=1) as cluster:
    print(cluster.slot.folder, cluster.keeper.pid, cluster.nodes[0].keeper.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_nodes
def test_a_killed_run_leaves_no_process_and_the_next_sweeps_the_rest() -> None:
    root = Path(__file__).resolve().parent.parent.parent
    done = subprocess.run([sys.executable, "-c", KILLED], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder, *pids = done.stdout.split()
    for pid in map(int, pids):
        wait_for(lambda pid=pid: _is_gone(pid), f"the end of process {pid}")
    before = slots.Slot(int(Path(folder).name), Path(folder), sys.stdout)
    assert Path(f"/sys/class/net/{before.name}").exists()
    taken = []
    try:
        while not taken or taken[-1].number != before.number:
            taken.append(slots.take())
        assert not Path(f"/sys/class/net/{before.name}").exists()
        assert not any(taken[-1].folder.iterdir())
    finally:
        for slot in taken:
            slot.release()


def _is_gone(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


@needs_fakes
def test_a_thousand_fake_nodes_run_pods() -> None:
    with running(fake=1000, options=Options(scheduler=True)) as cluster:
        limits = {"nvidia.com/gpu": "8"}
        template = {"containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}]}
        ending = {"annotations": {"bireme.test/runs-for": "100ms"}}
        names = [f"fake-{number}" for number in range(16)]
        bodies = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": template} for name in names]
        cluster.api.create_all(PODS, bodies)
        placed = [cluster.wait_for_pod(name, "Running")["spec"]["nodeName"] for name in names]
        assert len(set(placed)) == len(names), "eight GPUs each: a node for every pod"
        brief = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "brief", **ending}, "spec": template}
        cluster.api.create(PODS, brief)
        cluster.wait_for_pod("brief", "Succeeded")
        leaves = cluster.api.get("/api/v1/nodes?labelSelector=network.topology.nvidia.com/leaf%3Dleaf-3")["items"]
        assert len(leaves) == 16


def test_what_is_missing_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    said = missing(nodes=True)
    assert "kube-apiserver" in said
    assert "\n" not in said
