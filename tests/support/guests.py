"""A daemon that schedules others' pods, on an API server and fake nodes that run what is bound to them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kubernetes_cluster.cluster import Kubernetes
from tests.kubernetes_cluster.processes import wait_for

NODES = 32
PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"


@dataclass(slots=True)
class Bireme:
    kubernetes: Kubernetes
    home: Path

    def run(self, *arguments: str) -> str:
        environment = {**os.environ, "BIREME_HOME": str(self.home), "KUBECONFIG": str(self.kubernetes.kubeconfig)}
        command = [sys.executable, "-m", "bireme", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def up(self) -> None:
        self.run("up", "--engine", "kubernetes", "--home", str(self.home))

    def queue(self) -> dict[str, str]:
        """Name -> state of every job."""
        lines = self.run("squeue", "-h", "-o", "%j %T").splitlines()
        return dict(line.split() for line in lines)

    def create(self, name: str, gpus: int = 1, **more: Any) -> None:
        self.kubernetes.api.create(PODS, pod(name, gpus, **more))

    def appears(self, name: str) -> None:
        """Pods that an operator makes are not there at once."""
        selected = f"{PODS}?fieldSelector=metadata.name%3D{name}"
        wait_for(lambda: self.kubernetes.api.get(selected)["items"], f"pod {name} to be made")

    def node_of(self, name: str) -> str:
        self.appears(name)
        return str(self.kubernetes.wait_for_pod(name, "Running")["spec"]["nodeName"])

    def has_node(self, name: str) -> bool:
        return bool(self.kubernetes.api.get(f"{PODS}/{name}")["spec"].get("nodeName"))

    def message(self, name: str, having: str = "") -> str:
        """What the pod's condition says, once it says something, and this: what was true before may be told first."""
        self.appears(name)
        found = [""]

        def told() -> bool:
            found[0] = self.waits_because(name)
            return bool(found[0]) and having in found[0]

        try:
            wait_for(told, f"a reason for {name}")
        except TimeoutError as late:
            raise TimeoutError(f"{late}: {having!r} is not in {found[0]!r}") from None
        return found[0]

    def waits_because(self, name: str) -> str:
        """What the pod's condition says now; empty: nothing."""
        conditions = self.kubernetes.api.get(f"{PODS}/{name}")["status"].get("conditions") or ()
        return next((one["message"] for one in conditions if one.get("reason") == "Unschedulable"), "")


def on_nodes(nodes: list[str]) -> dict[str, Any]:
    """Of a pod's spec: on these nodes only."""
    rule = {"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}}
    return {"affinity": {"nodeAffinity": required}}


def pod(name: str, gpus: int = 1, *, labels: Any = None, annotations: Any = None, **spec: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus), "cpu": "1", "memory": "1Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}, "annotations": annotations or {}},
        "spec": {
            "schedulerName": "bireme",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
            **spec,
        },
    }
