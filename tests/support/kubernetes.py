"""Bireme on the Kubernetes of `tests/kubernetes_cluster`: the daemon on this machine, jobs in pods of real kubelets."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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

    def __init__(
        self,
        kubernetes: Kubernetes,
        slurm_conf: str = "",
        *,
        for_everyone: bool = False,
        engine: str = "kubernetes",
        beside: str = "",
        **settings: str | int | list[str],
    ) -> None:
        """`slurm_conf`: without nodes, which are the cluster's own; none: no configuration file at all. `beside`: what
        bireme.toml has beside the settings of Kubernetes."""
        super().__init__(slurm_conf, for_everyone=for_everyone)
        self._engine, self._beside = engine, beside
        self._has_conf = bool(slurm_conf)
        self.kubernetes = kubernetes
        self.work.chmod(0o777)
        self.settings = {
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
        lines = [f"{key} = {json.dumps(value)}" for key, value in self.settings.items()]
        (self.home / "bireme.toml").write_text(self._beside + "[kubernetes]\n" + "\n".join(lines) + "\n")
        self.bireme(
            "up", "--quiet", "--engine", self._engine, "--conf", str(self.conf_file) if self._has_conf else "none"
        )
        return self

    @contextmanager
    def running(self) -> Iterator[KubernetesCluster]:
        """Up for a while; what it then leaves on this machine or in Kubernetes is an error."""
        with super().running():
            yield self
        self.until(lambda: not self.pods() and not self.secrets(), 120)

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


def add_busybox(root: Path) -> None:
    """A shell and the usual programs for an image whose files lie here. `bash` is left to those who want a real one."""
    (root / "bin").mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, root / "bin" / "busybox")
    for applet in subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split():
        if applet not in ("busybox", "bash"):
            (root / "bin" / applet).symlink_to("busybox")


def load_bash(kubernetes: Kubernetes) -> None:
    """An image with this machine's bash and the programs of busybox, for scripts that begin with #!/bin/bash.

    Its `python3` is the one that every pod of a job is given.
    """
    root = kubernetes.slot.folder / "bash"
    add_busybox(root)
    shutil.copy("/bin/bash", root / "bin" / "bash")
    python = root / "bin" / "python3"
    python.write_text('#!/bin/sh\nexec /opt/bireme/bin/python3 "$@"\n')
    python.chmod(0o755)
    linked = subprocess.run(["ldd", "/bin/bash"], check=True, capture_output=True, text=True).stdout
    for library in re.findall(r"(/\S+) \(0x", linked):
        (root / library.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, root / library.lstrip("/"))
    archive = images.from_files(kubernetes.slot.folder / "bash.tar", BASH, [(root, "/")], ["/bin/bash"])
    for node in kubernetes.nodes:
        node.load(archive)
