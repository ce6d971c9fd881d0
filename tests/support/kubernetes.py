"""Bireme on the Kubernetes of `tests/kubernetes_cluster`: the daemon on this machine, jobs in pods of real kubelets."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.kubernetes_cluster import images
from tests.kubernetes_cluster.cluster import Kubernetes
from tests.support.cluster import Cluster

IMAGE = "bireme.test/bireme:1"
BASH = "bireme.test/bash:1"


def load_bireme(kubernetes: Kubernetes) -> None:
    """Makes Bireme's own image of this checkout and gives it to every node."""
    bundle = kubernetes.slot.folder / "bundle"
    subprocess.run([sys.executable, "-m", "bireme", "bundle", str(bundle)], check=True, stdout=subprocess.DEVNULL)
    archive = kubernetes.slot.folder / "bireme.tar"
    images.from_files(archive, IMAGE, [(bundle, "/opt/bireme")], ["/opt/bireme/bin/python3"])
    for node in kubernetes.nodes:
        node.load(archive)


class KubernetesCluster(Cluster):
    """`bireme up --engine kubernetes`. Its working folder is a volume that all pods see under the same path."""

    def __init__(self, kubernetes: Kubernetes, slurm_conf: str = "", **settings: str | int | list[str]) -> None:
        """`slurm_conf`: without nodes, which are the cluster's own; none: no configuration file at all."""
        super().__init__(slurm_conf)
        self._has_conf = bool(slurm_conf)
        self.kubernetes = kubernetes
        self.work.chmod(0o777)
        self._settings = {
            "config": str(kubernetes.kubeconfig),
            "image": IMAGE,
            "job_images": [images.BUSYBOX],
            "pull_policy": "Never",
            "gateway": kubernetes.slot.host_address,
            "volumes": [f"host:{self.work}:{self.work}"],
            **settings,
        }

    def up(self) -> KubernetesCluster:
        self.home.mkdir(mode=0o700, exist_ok=True)
        lines = [f"{key} = {json.dumps(value)}" for key, value in self._settings.items()]
        (self.home / "bireme.toml").write_text("[kubernetes]\n" + "\n".join(lines) + "\n")
        self.bireme(
            "up", "--quiet", "--engine", "kubernetes", "--conf", str(self.conf_file) if self._has_conf else "none"
        )
        return self

    def script(self, body: str, name: str = "job.sh") -> Path:
        """The image of the jobs has a plain shell and no bash."""
        return super().script(body if body.startswith("#!") else f"#!/bin/sh\n{body}", name)

    def pods(self) -> list[str]:
        """Names of all pods that the API server knows."""
        return [pod["metadata"]["name"] for pod in self.kubernetes.api.get("/api/v1/pods")["items"]]

    def secrets(self) -> list[str]:
        """Names of all Secrets of starts."""
        found = self.kubernetes.api.get("/api/v1/secrets?labelSelector=bireme.dev/job")["items"]
        return [secret["metadata"]["name"] for secret in found]


def load_bash(kubernetes: Kubernetes) -> None:
    """An image with this machine's bash and the programs of busybox, for scripts that begin with #!/bin/bash."""
    root = kubernetes.slot.folder / "bash"
    (root / "bin").mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, root / "bin" / "busybox")
    for applet in subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split():
        if applet not in ("busybox", "bash"):
            (root / "bin" / applet).symlink_to("busybox")
    shutil.copy("/bin/bash", root / "bin" / "bash")
    linked = subprocess.run(["ldd", "/bin/bash"], check=True, capture_output=True, text=True).stdout
    for library in re.findall(r"(/\S+) \(0x", linked):
        (root / library.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, root / library.lstrip("/"))
    archive = images.from_files(kubernetes.slot.folder / "bash.tar", BASH, [(root, "/")], ["/bin/bash"])
    for node in kubernetes.nodes:
        node.load(archive)
