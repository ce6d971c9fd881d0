"""The way in: `with running(nodes=4) as kubernetes:` is a real cluster until the block ends, however it ends.

`missing(...)` says in one line why it cannot be had here, for a skip. The control plane listens on loopback, or with
real nodes on the bridge that they share with this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.kubernetes_cluster import binaries, fake_nodes, images, real_nodes, slots
from tests.kubernetes_cluster.api import Api
from tests.kubernetes_cluster.control_plane import ControlPlane, Options
from tests.kubernetes_cluster.processes import Keeper, wait_for

_FAKE_GRACE_S = 3600
"""Fake nodes hardly ever say that they live."""


@dataclass(slots=True)
class Kubernetes:
    slot: slots.Slot
    keeper: Keeper
    plane: ControlPlane
    api: Api
    """As an administrator."""
    nodes: list[real_nodes.Node] = field(default_factory=list)
    keepers: list[Keeper] = field(default_factory=list)
    """All that are to be closed in the end."""

    @property
    def kubeconfig(self) -> Path:
        """An administrator's."""
        return self.plane.admin

    def kubectl(self, *arguments: str, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        return self.plane.kubectl(*arguments, stdin=stdin, kubeconfig=kubeconfig)

    def power_on(self, node: real_nodes.Node) -> None:
        """Boots a node that lost power; returns when it is Ready and its kubelet has counted its GPUs."""
        node.power_on()
        self.keepers.append(node.keeper)
        self.wait_for_nodes()

    def wait_for_nodes(self) -> None:
        count = len(self.nodes)
        wait_for(lambda: _usable(self.api, self.nodes[0].gpus) == count, f"{count} nodes with GPUs", within_s=120)

    def wait_for_pod(self, name: str, phase: str, namespace: str = "default", within_s: float = 60) -> dict[str, Any]:
        """The pod, once it is in this phase."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        seen: dict[str, Any] = {}

        def reached() -> bool:
            seen.update(self.api.get(path))
            return bool(seen["status"].get("phase") == phase)

        try:
            wait_for(reached, f"pod {name} to be {phase}", within_s)
        except TimeoutError as late:
            raise TimeoutError(f"{late}: {seen['status']}") from None
        return seen


def missing(*, nodes: bool = False, fake: bool = False, scheduler: bool = False) -> str:
    """Why such a cluster cannot run here, in one line; empty when it can."""
    names = list(binaries.CONTROL_PLANE)
    names += ["kubelet", "device-plugin"] if nodes else []
    names += ["kwok"] if fake else []
    names += ["kube-scheduler"] if scheduler else []
    return binaries.missing(*names) or (real_nodes.missing() if nodes else "")


@contextmanager
def running(*, nodes: int = 0, gpus: int = 8, fake: int = 0, options: Options | None = None) -> Iterator[Kubernetes]:
    """A cluster of real nodes, of fake ones (`fake=0` with `nodes=0`: the control plane alone)."""
    options = options or Options()
    if fake:
        options = replace(options, node_grace_s=_FAKE_GRACE_S)
    slot = slots.take()
    keepers: list[Keeper] = []
    try:
        keeper = Keeper(slot.folder)
        keepers.append(keeper)
        if nodes:
            real_nodes.make_bridge(slot)
        plane = ControlPlane(keeper, slot.folder, slot.host_address if nodes else "127.0.0.1", options).start()
        kubernetes = Kubernetes(slot, keeper, plane, Api(plane.admin), keepers=keepers)
        wait_for(lambda: _has_default_account(kubernetes.api), "the controller manager")
        if nodes:
            _start_nodes(kubernetes, nodes, gpus)
        if fake:
            fake_nodes.start(keeper, plane)
            fake_nodes.add(kubernetes.api, fake, gpus)
        yield kubernetes
    finally:
        for one in reversed(keepers):
            one.close()
        slot.release()


def _start_nodes(kubernetes: Kubernetes, count: int, gpus: int) -> None:
    archive = images.busybox(kubernetes.slot.folder)
    for index in range(count):
        node = real_nodes.Node(kubernetes.slot, kubernetes.plane, index, count, gpus)
        kubernetes.keepers.append(node.keeper)
        kubernetes.nodes.append(node)
        node.start([archive])
    kubernetes.wait_for_nodes()


def _usable(api: Api, gpus: int) -> int:
    """Nodes that are Ready and whose kubelet has counted its GPUs."""
    return sum(
        node["status"].get("allocatable", {}).get("nvidia.com/gpu") == str(gpus)
        and any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"]["conditions"])
        for node in api.get("/api/v1/nodes")["items"]
    )


def _has_default_account(api: Api) -> bool:
    """Pods can be created from now on."""
    return any(
        one["metadata"]["name"] == "default" for one in api.get("/api/v1/namespaces/default/serviceaccounts")["items"]
    )
