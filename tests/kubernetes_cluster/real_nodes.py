"""Real nodes: a kubelet with a containerd of its own and fake GPUs, in namespaces of its own. Needs root on Debian.

A node is one keeper that is process 1 of new PID, mount, network and UTS namespaces: killing it is pulling the plug,
and nothing it mounted or started outlives it. Nodes stand on a bridge of this machine (`slots.py` says the addresses),
pods of all nodes reach each other and this machine by address, and nothing else. There is no DNS and no service proxy.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM

from tests.kubernetes_cluster import images
from tests.kubernetes_cluster.binaries import program
from tests.kubernetes_cluster.control_plane import ControlPlane
from tests.kubernetes_cluster.processes import Keeper, run, wait_for
from tests.kubernetes_cluster.slots import Slot

PACKAGES = ("containerd", "runc", "containernetworking-plugins", "busybox-static", "iproute2")
_PROGRAMS = ("containerd", "ctr", "runc", "ip", "unshare", "nsenter", "mount")
_PLUGINS = "/usr/lib/cni"
_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_SOCKET = "/run/containerd/containerd.sock"

_CONTAINERD = """\
version = 2
root = "{root}"
state = "/run/containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{networks}"
"""


def missing() -> str:
    """Why no kubelet can run here, in one line; empty when it can."""
    if os.geteuid() != 0:
        return "real kubelets need root"
    absent = [name for name in _PROGRAMS if shutil.which(name, path=_SYSTEM_PATH) is None]
    if not os.path.exists(f"{_PLUGINS}/bridge"):
        absent.append(f"{_PLUGINS}/bridge")
    return f"not installed: {', '.join(absent)} (Debian: {' '.join(PACKAGES)})" if absent else images.missing()


def make_bridge(slot: Slot) -> None:
    """What the nodes are plugged into; this machine has an address on it."""
    run("ip", "link", "add", slot.name, "type", "bridge")
    run("ip", "address", "add", f"{slot.host_address}/24", "dev", slot.name)
    run("ip", "link", "set", slot.name, "up")


class Node:
    """One machine of the cluster, as far as Kubernetes can tell."""

    def __init__(self, slot: Slot, plane: ControlPlane, index: int, of: int, gpus: int) -> None:
        self.slot, self.plane, self.index, self.gpus = slot, plane, index, gpus
        self._others = [other for other in range(of) if other != index]
        self.name = f"node{index + 1}"
        self.address = slot.node_address(index)
        self.folder = slot.folder / self.name
        for part in ("logs", "kubelet", "containerd", "networks"):
            (self.folder / part).mkdir(parents=True)
        self.keeper = Keeper(self.folder / "logs", isolated=True)

    def start(self, archives: list[Path]) -> None:
        """Returns when containerd has the images and the kubelet was started; the node is Ready a little later."""
        self._plug_in()
        self._mount()
        self._start_containerd()
        for archive in archives:
            self.load(archive)
        self.start_kubelet()
        self.keeper.start("device-plugin", program("device-plugin"), f"--node={self.name}", f"--count={self.gpus}")

    def load(self, archive: Path) -> None:
        """Gives the node the images of this tar file."""
        self.keeper.inside("ctr", f"--address={_SOCKET}", "--namespace=k8s.io", "images", "import", str(archive))

    def start_kubelet(self) -> None:
        config = self.folder / "kubelet.json"
        config.write_text(json.dumps(self._kubelet_config()))
        self.keeper.start(
            "kubelet",
            program("kubelet"),
            f"--config={config}",
            f"--kubeconfig={self.plane.identity(f'system:node:{self.name}', 'system:nodes')}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
        )

    def stop_kubelet(self, *, kill: bool = False) -> None:
        """Its pods run on."""
        self.keeper.end("kubelet", SIGKILL if kill else SIGTERM)

    def cut_off(self) -> None:
        """Pulls the network cable; everything runs on."""
        run("ip", "link", "set", self._cable, "down")

    def plug_back(self) -> None:
        run("ip", "link", "set", self._cable, "up")

    def power_off(self) -> None:
        """The node and all that ran on it are gone at once."""
        self.keeper.close()

    def power_on(self) -> None:
        """After `power_off`: it boots with the disk it had, images among it. Ready a little later."""
        self.keeper = Keeper(self.folder / "logs", isolated=True)
        self.start([])

    @property
    def _cable(self) -> str:
        return f"{self.slot.name}-{self.index}"

    def _plug_in(self) -> None:
        with suppress(RuntimeError):  # of a node of this name whose namespaces the kernel has not yet taken down
            run("ip", "link", "delete", self._cable)
        run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", str(self.keeper.pid))
        run("ip", "link", "set", self._cable, "master", self.slot.name, "up")
        run("ip", "route", "replace", self.slot.pod_range(self.index), "via", self.address)
        for command in (
            ["ip", "link", "set", "lo", "up"],
            ["ip", "address", "add", f"{self.address}/24", "dev", "eth0"],
            ["ip", "link", "set", "eth0", "up"],
            ["hostname", self.name],
        ):
            self.keeper.inside(*command)
        for other in self._others:
            route = (self.slot.pod_range(other), "via", self.slot.node_address(other))
            self.keeper.inside("ip", "route", "add", *route)
        self.keeper.inside("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")

    def _mount(self) -> None:
        """Where programs insist on a path of their own, the node has its own: no file of this machine is touched."""
        for place in ("/run", "/var/log", "/var/lib"):
            self.keeper.inside("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", place)
        self.keeper.inside("mkdir", "/var/lib/kubelet")
        self.keeper.inside("mount", "--bind", str(self.folder / "kubelet"), "/var/lib/kubelet")

    def _start_containerd(self) -> None:
        config = self.folder / "containerd.toml"
        networks = self.folder / "networks"
        settings = {"root": self.folder / "containerd", "socket": _SOCKET, "plugins": _PLUGINS, "networks": networks}
        config.write_text(_CONTAINERD.format(**settings, pause=images.PAUSE))
        (networks / "pods.conflist").write_text(json.dumps(self._network()))
        self.keeper.start("containerd", "/usr/bin/containerd", f"--config={config}", "--log-level=warn")

        def answers() -> bool:
            try:
                return bool(self.keeper.inside("ctr", f"--address={_SOCKET}", "version"))
            except RuntimeError:
                return False

        wait_for(answers, f"containerd of {self.name} (see {self.keeper.log('containerd')})")

    def _network(self) -> dict[str, object]:
        addresses = {"type": "host-local", "subnet": self.slot.pod_range(self.index), "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "ipMasq": False, "ipam": addresses}
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}

    def _kubelet_config(self) -> dict[str, object]:
        (self.folder / "resolv.conf").write_text("")
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.plane.authority.pair.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{_SOCKET}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "oomScoreAdj": 0,
            "resolvConf": str(self.folder / "resolv.conf"),
            "evictionHard": {
                f"{what}": "0%" for what in ("imagefs.available", "nodefs.available", "nodefs.inodesFree")
            },
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": max(4, self.plane.options.node_grace_s),
            "syncFrequency": "10s",
            "shutdownGracePeriod": "0s",
            "maxPods": 110,
        }
