"""Fake nodes for scale: KWOK plays their kubelets, with stages of our own. A pod on them runs without running anything.

Nodes are created ready-made, with GPUs, a type and topology labels as NVIDIA's and the cloud's discovery write them:
16 nodes under a leaf, 8 leaves under a spine, so that thousands of nodes have a shape to place gangs in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kubernetes_cluster.api import Api
from tests.kubernetes_cluster.binaries import program
from tests.kubernetes_cluster.control_plane import ControlPlane
from tests.kubernetes_cluster.processes import Keeper, wait_for

LEAF, LEAVES_PER_SPINE = 16, 8
_MARK = "kwok.x-k8s.io/node"
_LEASE_S = 1200
"""Long: thousands of heartbeats a second would be all the API server does."""

STAGES = Path(__file__).resolve().parent / "stages.yaml"


def start(keeper: Keeper, plane: ControlPlane) -> None:
    """Starts KWOK; nodes are added with `add`."""
    keeper.start(
        "kwok",
        program("kwok"),
        f"--kubeconfig={plane.identity('kwok', 'system:masters')}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={_MARK}=fake",
        f"--node-lease-duration-seconds={_LEASE_S}",
        f"--config={STAGES}",
        "--v=WARN",
    )


def add(api: Api, count: int, gpus: int = 8, first: int = 0) -> None:
    """Creates the nodes and waits until all are Ready."""
    api.create_all("/api/v1/nodes", [node(index, gpus) for index in range(first, first + count)])
    wait_for(lambda: _ready(api) >= first + count, f"{count} fake nodes", within_s=120, every_s=0.5)


def node(index: int, gpus: int) -> dict[str, Any]:
    leaf = index // LEAF
    name = f"fake-{index:05d}"
    amounts = {"cpu": "128", "memory": "2Ti", "pods": "250", "nvidia.com/gpu": str(gpus), "ephemeral-storage": "1Ti"}
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "nvidia.com/gpu.product": "NVIDIA-H200",
        "nvidia.com/gpu.count": str(gpus),
        "network.topology.nvidia.com/leaf": f"leaf-{leaf}",
        "network.topology.nvidia.com/spine": f"spine-{leaf // LEAVES_PER_SPINE}",
        "topology.kubernetes.io/zone": f"zone-{leaf // LEAVES_PER_SPINE}",
    }
    condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kwok"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {_MARK: "fake", "node.alpha.kubernetes.io/ttl": "0"},
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [condition],
            "addresses": [{"type": "InternalIP", "address": f"198.18.255.{index % 250 + 1}"}],
            "nodeInfo": {"operatingSystem": "linux", "architecture": "amd64", "kubeletVersion": "fake"}
            | dict.fromkeys(("machineID", "systemUUID", "bootID", "kernelVersion", "osImage"), "")
            | {"containerRuntimeVersion": "", "kubeProxyVersion": ""},
        },
    }


def _ready(api: Api) -> int:
    nodes = api.get("/api/v1/nodes?resourceVersion=0")["items"]
    return sum(
        any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions", ()))
        for node in nodes
    )
