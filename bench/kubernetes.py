"""`python -m bench.kubernetes`: Bireme and kube-scheduler place the same pods, in turn, on the same fake nodes.

One API server for the whole run; each scheduler runs alone, with its client's limits raised. Pods are watched by us, so
that both are timed by the same clock. KWOK plays the nodes. What must be reached is written beside each figure.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kubernetes_cluster import fake_nodes
from tests.kubernetes_cluster.cluster import Kubernetes, missing, running
from tests.kubernetes_cluster.processes import wait_for

from bench import machine
from bench.results import Report, Row, Target
from bench.sections import add_only
from bireme.client.transport import Transport
from bireme.daemon import process

PODS = "/api/v1/namespaces/default/pods"
GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
KUBE, BIREME = "kube-scheduler", "Bireme"
_NAMES = {KUBE: "default-scheduler", BIREME: "bireme"}
_IDLE_S = 30.0
_NEVER_S = 30.0
"""A gang that has not begun to start so long after its last pod was created does not start."""


@dataclass(frozen=True, slots=True)
class Sizes:
    nodes: int = 1000
    singles: int = 4000
    gang: int = 512
    gangs: int = 100
    gang_pods: int = 8
    late_gang: int = 400
    minding: int = 600
    idle_nodes: int = 5000
    idle_jobs: int = 10_000


QUICK = Sizes(
    nodes=40, singles=80, gang=16, gangs=4, gang_pods=4, late_gang=20, minding=30, idle_nodes=60, idle_jobs=100
)


# --- the two schedulers -------------------------------------------------------------------------------------


@contextmanager
def scheduler(kubernetes: Kubernetes, name: str) -> Iterator[int | None]:
    """Alone, until the block ends; Bireme's pid."""
    if name == KUBE:
        kubernetes.plane.start_scheduler()
        try:
            yield None
        finally:
            kubernetes.plane.stop_scheduler()
        return
    home = kubernetes.slot.folder / f"home-{time.monotonic_ns()}"
    os.environ["KUBECONFIG"] = str(kubernetes.kubeconfig)
    pid = process.start(str(home), engine="kubernetes")
    os.environ["BIREME_HOME"] = str(home)
    try:
        yield pid
    finally:
        with Transport(str(home)) as transport:
            process.stop(str(home), ask=lambda: transport.post("/v1/shutdown", {"end_jobs": False}))


# --- pods ---------------------------------------------------------------------------------------------------


def pod(name: str, scheduler_name: str, gpus: int, group: str = "") -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus), "cpu": "1", "memory": "1Gi"}
    spec: dict[str, Any] = {
        "schedulerName": scheduler_name,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
    }
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def with_storage(body: dict[str, Any]) -> None:
    """Eight such pods fill the GPUs of a node before its disk is full."""
    body["spec"]["containers"][0]["resources"]["limits"]["ephemeral-storage"] = "20Gi"


def spread_by(key: str) -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        body["metadata"]["labels"] = {"app": "bench"}
        one = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": _ALIKE}
        body["spec"]["topologySpreadConstraints"] = [one]

    return change


def apart(body: dict[str, Any]) -> None:
    """One a node."""
    body["metadata"]["labels"] = {"app": "bench"}
    terms = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": _ALIKE}]
    body["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


_ALIKE = {"matchLabels": {"app": "bench"}}
MINDING: dict[str, Callable[[dict[str, Any]], None]] = {
    "ephemeral-storage": with_storage,
    "spread over leaves": spread_by("network.topology.nvidia.com/leaf"),
    "spread over nodes": spread_by("kubernetes.io/hostname"),
    "anti-affinity": apart,
}
"""Pods whose places depend on each other's."""


def pod_group(name: str, size: int) -> dict[str, Any]:
    policy = {"gang": {"minCount": size}}
    head = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": name}}
    return {**head, "spec": {"schedulingPolicy": policy}}


@dataclass(slots=True)
class Bound:
    """When each pod got its node, as a watch tells it."""

    kubernetes: Kubernetes
    at: dict[str, float] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    _stopped: bool = False

    @contextmanager
    def watching(self) -> Iterator[Bound]:
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stopped = True

    def _watch(self) -> None:
        """Pods appear in a watch for those with a node at the moment they get one.

        The API server ends a watch that does not keep up; the next begins with all that have a node by then.
        """
        path = f"{PODS}?watch=1&fieldSelector=spec.nodeName%21%3D"
        while not self._stopped:
            with self.kubernetes.api.stream(path) as lines:
                for line in lines:
                    if self._stopped:
                        return
                    self._heard(json.loads(line))

    def _heard(self, event: dict[str, Any]) -> None:
        name = event["object"].get("metadata", {}).get("name")
        if event["type"] in ("ADDED", "MODIFIED") and name not in self.at:
            self.at[name] = time.monotonic()
            self.nodes[name] = event["object"]["spec"]["nodeName"]

    def wait(self, count: int, within_s: float) -> bool:
        try:
            wait_for(lambda: len(self.at) >= count, f"{count} pods bound", within_s)
        except TimeoutError:
            return False
        return True


def clear(kubernetes: Kubernetes) -> None:
    """Nothing is left of the last measurement."""
    for path in (PODS, GROUPS, "/api/v1/namespaces/default/events"):
        kubernetes.api.delete(path)
    wait_for(lambda: not kubernetes.api.get(f"{PODS}?limit=1")["items"], "no pods", within_s=300, every_s=0.5)


def requests_made(kubernetes: Kubernetes) -> dict[str, int]:
    """Writes that the API server counted: bindings and events."""
    text = kubernetes.api.text("/metrics")
    pattern = r'apiserver_request_total\{[^}]*resource="(\w+)"[^}]*subresource="(\w*)"[^}]*verb="POST"[^}]*\} (\S+)'
    found: dict[str, int] = {"binding": 0, "events": 0}
    for resource, subresource, count in re.findall(pattern, text):
        name = subresource or resource
        if name in found:
            found[name] += int(float(count))
    return found


# --- what is measured ---------------------------------------------------------------------------------------


def singles(
    kubernetes: Kubernetes, name: str, count: int, change: Callable[[dict[str, Any]], None] = lambda _: None
) -> tuple[float, dict[str, Any]]:
    """Bound per second, of pods that all wait before the scheduler starts."""
    bodies = [pod(f"s{number}", _NAMES[name], 1) for number in range(count)]
    for body in bodies:
        change(body)
    kubernetes.api.create_all(PODS, bodies)
    before = requests_made(kubernetes)
    with Bound(kubernetes).watching() as bound, scheduler(kubernetes, name):
        if not bound.wait(count, 600):
            raise RuntimeError(f"{name} bound {len(bound.at)} of {count} pods")
        times = sorted(bound.at.values())
        made = wait_for_events(kubernetes, before, count)
        return (count - 1) / (times[-1] - times[0]), {**made, "nodes_used": len(set(bound.nodes.values()))}


def wait_for_events(kubernetes: Kubernetes, before: dict[str, int], count: int) -> dict[str, int]:
    def made() -> dict[str, int]:
        now = requests_made(kubernetes)
        return {what: now[what] - before[what] for what in now}

    wait_for(lambda: made()["events"] >= count, "an event for every pod", within_s=60, every_s=0.5)
    return made()


def one_gang(kubernetes: Kubernetes, name: str, size: int) -> float:
    """Seconds from the creation of the last pod to the binding of the last one."""
    with Bound(kubernetes).watching() as bound, scheduler(kubernetes, name):
        kubernetes.api.create(GROUPS, pod_group("gang", size))
        kubernetes.api.create_all(PODS, [pod(f"g{number}", _NAMES[name], 8, "gang") for number in range(size)])
        created = time.monotonic()
        if not bound.wait(size, 300):
            raise RuntimeError(f"{name} bound {len(bound.at)} of {size} pods")
        return max(bound.at.values()) - created


def many_gangs(kubernetes: Kubernetes, name: str, count: int, size: int) -> float:
    """Seconds from the creation of the first pod to the binding of the last one."""
    kubernetes.api.create_all(GROUPS, [pod_group(f"gang-{number}", size) for number in range(count)])
    bodies = [pod(f"g{g}-{p}", _NAMES[name], 8, f"gang-{g}") for g in range(count) for p in range(size)]
    with Bound(kubernetes).watching() as bound, scheduler(kubernetes, name):
        begun = time.monotonic()
        kubernetes.api.create_all(PODS, bodies)
        if not bound.wait(len(bodies), 600):
            raise RuntimeError(f"{name} bound {len(bound.at)} of {len(bodies)} pods")
        return max(bound.at.values()) - begun


def gang_after_singles(kubernetes: Kubernetes, name: str, count: int, size: int) -> bool:
    """Whether the gang finds its nodes after many small pods were placed."""
    with Bound(kubernetes).watching() as bound, scheduler(kubernetes, name):
        kubernetes.api.create_all(PODS, [pod(f"s{number}", _NAMES[name], 1) for number in range(count)])
        if not bound.wait(count, 600):
            raise RuntimeError(f"{name} bound {len(bound.at)} of {count} pods")
        kubernetes.api.create(GROUPS, pod_group("late", size))
        kubernetes.api.create_all(PODS, [pod(f"late{number}", _NAMES[name], 8, "late") for number in range(size)])
        bound.wait(count + 1, _NEVER_S)
        return len(bound.at) > count and bound.wait(count + size, 120)


def idle(kubernetes: Kubernetes, sizes: Sizes) -> Iterator[Row]:
    """What a daemon costs that has much to know and nothing to do."""
    fake_nodes.add(kubernetes.api, sizes.idle_nodes - sizes.nodes, first=sizes.nodes)
    kubernetes.api.patch("/api/v1/nodes/fake-00000", {"spec": {"unschedulable": True}})
    without = _requests_a_second(kubernetes)
    with scheduler(kubernetes, BIREME) as pid, Transport(os.environ["BIREME_HOME"]) as transport:
        assert pid is not None
        spec = {"name": "wide", "resources": {"nodes_min": sizes.idle_nodes, "nodes_max": sizes.idle_nodes}}
        for first in range(0, sizes.idle_jobs, 1000):
            count = min(1000, sizes.idle_jobs - first)
            transport.post("/v1/jobs", {"jobs": [{"spec": spec}] * count, "script": "#!/bin/sh\ntrue\n"})
        wait_for(lambda: _cpu_share(pid, 3) < 0.1, "the passes that the submissions caused", within_s=300, every_s=0.1)
        begun, cpu = time.monotonic(), _cpu_s(pid)
        requests = _requests_a_second(kubernetes)
        spent = time.monotonic() - begun
        what = f"{sizes.idle_jobs} waiting jobs, {sizes.idle_nodes} nodes"
        yield Row("idle", f"{what}: memory of the daemon", _rss_mib(pid), "MiB")
        share = 100 * (_cpu_s(pid) - cpu) / spent
        yield Row("idle", f"{what}: CPU of the daemon", share, "% of a core", target=Target("<", 1.0))
        made = max(0.0, requests - without)
        yield Row("idle", f"{what}: requests to the API server", made, "/s", target=Target("<", 1.0))


def _requests_a_second(kubernetes: Kubernetes) -> float:
    """Over half a minute, by everybody."""
    begun, before = time.monotonic(), _requests_answered(kubernetes)
    time.sleep(_IDLE_S)
    return (_requests_answered(kubernetes) - before) / (time.monotonic() - begun)


def _requests_answered(kubernetes: Kubernetes) -> float:
    """By the API server, but for leases: fake nodes renew thousands of them, and Bireme one every few seconds."""
    text = kubernetes.api.text("/metrics")
    lines = re.findall(r"apiserver_request_total\{([^}]*)\} (\S+)", text)
    return sum(float(count) for labels, count in lines if 'resource="leases"' not in labels)


def _cpu_share(pid: int, seconds: float) -> float:
    begun, before = time.monotonic(), _cpu_s(pid)
    time.sleep(seconds)
    return (_cpu_s(pid) - before) / (time.monotonic() - begun)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mib(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found.group(1)) / 1024 if found else 0.0


# --- the run ------------------------------------------------------------------------------------------------


def compared(kubernetes: Kubernetes, what: Callable[[str], Any]) -> tuple[Any, Any]:
    """(kube-scheduler's figure, Bireme's), each on an empty cluster."""
    figures = []
    for name in (KUBE, BIREME):
        clear(kubernetes)
        figures.append(what(name))
        print(f"  {name}: {figures[-1]}", file=sys.stderr, flush=True)
    return figures[0], figures[1]


def minding(kubernetes: Kubernetes, count: int) -> Iterator[Row]:
    """Pods that mind each other, as plain ones: beside kube-scheduler, and how many times slower than plain ones."""
    (_, _), (plain, _) = compared(kubernetes, lambda name: singles(kubernetes, name, count))
    for what, change in MINDING.items():
        (theirs, _), (ours, facts) = compared(
            kubernetes, lambda name, change=change: singles(kubernetes, name, count, change)
        )
        label = f"{count} pods with {what}"
        yield Row("minding", f"{label} bound", ours, "/s", theirs, Target(">=", 1.0, True), details={"bireme": facts})
        yield Row("minding", f"{label}: times slower than plain", plain / ours, "", target=Target("<", 2.0))


def measure(kubernetes: Kubernetes, sizes: Sizes, only: tuple[str, ...]) -> Iterator[Row]:
    if "singles" in only:
        (theirs, their_facts), (ours, facts) = compared(
            kubernetes, lambda name: singles(kubernetes, name, sizes.singles)
        )
        yield Row("singles", f"{sizes.singles} one-GPU pods bound", ours, "/s", theirs, Target(">=", 1.0, True),
                  details={"bireme": facts, "kube-scheduler": their_facts})  # fmt: skip
        for what in ("binding", "events"):
            yield Row("singles", f"{what} a pod", facts[what] / sizes.singles, "", target=Target("<", 1.01))
    if "gang" in only:
        theirs, ours = compared(kubernetes, lambda name: one_gang(kubernetes, name, sizes.gang))
        yield Row(
            "gang", f"{sizes.gang} pods x 8 GPUs: last created to last bound", ours, "s", theirs, Target("<", 0.5, True)
        )
    if "gangs" in only:
        theirs, ours = compared(kubernetes, lambda name: many_gangs(kubernetes, name, sizes.gangs, sizes.gang_pods))
        label = f"{sizes.gangs} gangs of {sizes.gang_pods} pods x 8 GPUs"
        yield Row("gangs", f"{label}: first created to last bound", ours, "s", theirs, Target("<", 1.0, True))
    if "late" in only:
        theirs, ours = compared(
            kubernetes, lambda name: gang_after_singles(kubernetes, name, sizes.singles, sizes.late_gang)
        )
        label = f"{sizes.late_gang} x 8 GPUs after {sizes.singles} one-GPU pods"
        yield Row("late gang", f"{label}: starts", float(ours), "", float(theirs) or None, Target(">=", 1.0))
    if "minding" in only:
        yield from minding(kubernetes, sizes.minding)
    if "idle" in only:
        clear(kubernetes)
        yield from idle(kubernetes, sizes)


SECTIONS = ("singles", "gang", "gangs", "late", "minding", "idle")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kubernetes", description=__doc__)
    add_only(parser, SECTIONS)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it works, not how fast")
    parser.add_argument("--out", default="bench-results", help="folder for the JSON file")
    given = parser.parse_args()
    why = missing(fake=True, scheduler=True)
    if why:
        print(why, file=sys.stderr)
        return 1
    sizes = QUICK if given.quick else Sizes()
    report = Report(machine.facts() | {"quick": given.quick})
    with running(fake=sizes.nodes) as kubernetes:
        for row in measure(kubernetes, sizes, given.only):
            report.rows.append(row)
    report.show()
    print(f"\nwritten to {report.write(Path(given.out), 'kubernetes.json')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
