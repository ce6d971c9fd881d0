"""What the pods of jobs ask of the cluster, and what it makes of that: quotas, memory, priority, GPUs, large jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes_cluster.binaries import program
from tests.kubernetes_cluster.cluster import Kubernetes, missing
from tests.kubernetes_cluster.images import BUSYBOX
from tests.support.kubernetes import IMAGE, KubernetesCluster

from bireme.core.model.jobs import Job, JobSpec, Owner, Pending
from bireme.core.model.resources import Allocation, NodeShare
from bireme.engines.kubernetes import pods
from bireme.engines.kubernetes.crossing.gateway import Berth, Gateway
from bireme.engines.kubernetes.nodes import Amounts

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
LONG_S = 120.0
CLASSES = {"low": 1000, "express": 2_000_000}


@pytest.fixture(scope="module")
def cluster(kubelets: Kubernetes) -> Iterator[KubernetesCluster]:
    for name, value in CLASSES.items():
        kubelets.kubectl("create", "priorityclass", name, f"--value={value}")
    classes = ["bireme-jobs", "express=express"]
    try:
        with KubernetesCluster(kubelets, priority_classes=classes).running() as bireme:
            yield bireme
    finally:
        kubelets.kubectl("delete", "priorityclass", *CLASSES)


def pods_of(cluster: KubernetesCluster, job: str) -> list[dict[str, Any]]:
    found = cluster.kubernetes.api.get(f"/api/v1/pods?labelSelector=bireme.dev/job={job}")["items"]
    return [pod for pod in found if pod["metadata"]["name"].startswith("bireme-")]


@contextmanager
def holding(cluster: KubernetesCluster, *options: str) -> Iterator[str]:
    """A job that runs until the block ends."""
    gate = cluster.work / "gate"
    gate.unlink(missing_ok=True)
    job = cluster.sbatch(*options, "--wrap", f"touch began; until test -e {gate}; do sleep 0.1; done")
    cluster.until(lambda: (cluster.work / "began").exists(), LONG_S)
    (cluster.work / "began").unlink()
    try:
        yield job
    finally:
        gate.touch()
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()


def test_a_quota_of_cpus_and_memory_takes_jobs_and_counts_what_they_ask_for(cluster: KubernetesCluster) -> None:
    """It refuses pods that do not say of every container what it may take."""
    kinds = ("requests.cpu=4", "limits.cpu=4", "requests.memory=2Gi", "limits.memory=2Gi")
    cluster.kubernetes.kubectl("create", "quota", "compute", f"--hard={','.join(kinds)}")
    try:
        with holding(cluster, "-N2", "--mem=300M", "-c1"):

            def used() -> dict[str, str]:
                path = "/api/v1/namespaces/default/resourcequotas/compute"
                status: dict[str, Any] = cluster.kubernetes.api.get(path)["status"]
                return status.get("used") or {}

            memory = {"requests.memory": "600Mi", "limits.memory": "600Mi"}
            cluster.until(lambda: used() == {"requests.cpu": "2", "limits.cpu": "2"} | memory, LONG_S)
    finally:
        cluster.kubernetes.kubectl("delete", "quota", "compute")


def test_shared_memory_is_as_large_as_the_jobs_and_counts_as_such(cluster: KubernetesCluster) -> None:
    fill = "dd if=/dev/zero of=/dev/shm/filled bs=1M count=100 2>/dev/null && ls -s /dev/shm/filled"
    job = cluster.sbatch("--mem=300M", "--wrap", f"df -m /dev/shm | tail -1; {fill}")
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.output(job)
    sizes, filled = cluster.output(job).splitlines()
    assert sizes.split()[1] == "300"
    assert filled.split()[0] == "102400"
    large = cluster.sbatch("--mem=128M", "--wrap", "dd if=/dev/zero of=/dev/shm/filled bs=1M count=126")
    assert cluster.wait(large, LONG_S)["state"] == "OUT_OF_MEMORY", cluster.output(large)


def test_pods_of_lower_classes_do_not_evict_jobs(cluster: KubernetesCluster) -> None:
    """kube-scheduler ends whatever has less priority where a pod of its own would fit."""
    container = {"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["true"]}
    container["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
    spec = {"priorityClassName": "low", "restartPolicy": "Never", "containers": [container]}
    path = "/api/v1/namespaces/default/pods"
    cluster.kubernetes.plane.start_scheduler()
    try:
        with holding(cluster, "-N2", "--gpus-per-node=8") as job:
            (one, other) = pods_of(cluster, job)
            assert {pod["spec"]["priorityClassName"] for pod in (one, other)} == {"bireme-jobs"}
            cluster.kubernetes.api.create(path, {"metadata": {"name": "pusher"}, "spec": spec})

            def was_looked_at() -> bool:
                conditions = cluster.kubernetes.api.get(f"{path}/pusher")["status"].get("conditions") or ()
                return any("No preemption victims found" in (each.get("message") or "") for each in conditions)

            cluster.until(was_looked_at, LONG_S)
            assert [pod["metadata"]["uid"] for pod in pods_of(cluster, job)] == [
                pod["metadata"]["uid"] for pod in (one, other)
            ]
        cluster.kubernetes.wait_for_pod("pusher", "Succeeded", within_s=LONG_S)
    finally:
        cluster.kubernetes.kubectl("delete", "pod", "pusher", "--ignore-not-found", "--grace-period=0", "--force")
        cluster.kubernetes.plane.stop_scheduler()


def test_a_qos_may_have_a_class_of_its_own(cluster: KubernetesCluster) -> None:
    with holding(cluster, "--qos=express") as job:
        (pod,) = pods_of(cluster, job)
        assert (pod["spec"]["priorityClassName"], pod["spec"]["priority"]) == ("express", 2_000_000)


def test_the_class_of_jobs_is_no_qos(cluster: KubernetesCluster) -> None:
    """As the other classes are: whoever asked for it would go before everybody."""
    found = cluster.run("sacctmgr", "-n", "-P", "show", "qos", "format=name").stdout.split()
    assert "express" in found
    assert "bireme-jobs" not in found


@pytest.mark.parametrize(
    ("index", "resource", "variable"),
    [(0, "amd.com/gpu", "ROCR_VISIBLE_DEVICES"), (1, "gpu.intel.com/xe", "ZE_AFFINITY_MASK")],
)
def test_gpus_of_other_makers_are_asked_for_by_their_own_name(
    cluster: KubernetesCluster, index: int, resource: str, variable: str
) -> None:
    node = cluster.kubernetes.nodes[index]
    flags = (f"--node={node.name}", "--count=4", f"--resource={resource}", "--variable=GIVEN_DEVICES")
    node.keeper.end("device-plugin")
    node.keeper.start("another-plugin", program("device-plugin"), *flags)
    try:
        offered = ("sinfo", "-h", "-n", node.name, "-o", "%G")
        cluster.until(lambda: cluster.run(*offered).stdout.strip() == "gpu:4", LONG_S)
        names = ("ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "CUDA_VISIBLE_DEVICES")
        said = " ".join(f"{name}=${name}" for name in names)
        job = cluster.sbatch("-w", node.name, "--gpus=2", "--wrap", f"echo {said}; echo $GIVEN_DEVICES")
        assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
        variables, given = cluster.output(job).splitlines()
        assert variables.split() == [f"{name}={'0,1' if name == variable else ''}" for name in names]
        assert len(given.split(",")) == 2, "the kubelet gave them"
    finally:
        node.keeper.end("another-plugin")
        node.keeper.start("device-plugin", program("device-plugin"), f"--node={node.name}", f"--count={node.gpus}")
        cluster.kubernetes.wait_for_nodes()
    cluster.until(lambda: cluster.run(*offered).stdout.strip() == "gpu:8", LONG_S)


def test_a_start_on_two_thousand_nodes_is_taken_by_the_api_server(kubernetes: Kubernetes, tmp_path: Path) -> None:
    """The Secret really, the last pod in a dry run: there are not so many nodes here."""
    nodes = [f"node-{number:04}.a-zone.a-cloud.example" for number in range(2000)]
    gateway = Gateway(tmp_path, tmp_path, b"key", tmp_path, *3 * [lambda *_: None])  # type: ignore[arg-type]
    tokens = {node: gateway.token(Berth(7, 1, node)) for node in nodes}
    spec = JobSpec(owner=Owner(uid=1000, gid=1000, user="ada"), name="large")
    job = Job(id=7, spec=spec, submitted_at=0.0, phase=Pending(0.0))
    allocation = Allocation(7, 1, "main", tuple(NodeShare(node, 4, 1024) for node in nodes))
    rules = pods.PodRules(cluster="large", image=IMAGE, authority="x" * 1000)
    path = "/api/v1/namespaces/default"
    made = kubernetes.api.create(f"{path}/secrets", pods.secret(rules, job, allocation, tokens, 30.0))
    try:
        pod = pods.pod(rules, job, allocation, 1999, made["metadata"]["uid"], 30, Amounts())
        taken = kubernetes.api.create(f"{path}/pods?dryRun=All", pod)
        assert taken["metadata"]["annotations"][pods.NODE_ANNOTATION] == nodes[-1]
    finally:
        kubernetes.kubectl("delete", "secret", made["metadata"]["name"])


@pytest.mark.parametrize("command", ["sbatch --wrap true", "srun true", "salloc true"])
def test_a_bundle_on_disk_is_no_image(cluster: KubernetesCluster, command: str) -> None:
    name, *rest = command.split()
    said = cluster.run(name, "--container=/data/bundle", *rest, check=False)
    assert said.returncode != 0
    assert "--container=/data/bundle is the folder of an OCI bundle, which pods cannot run" in said.stderr
    assert "--container-image=REGISTRY/NAME:TAG" in said.stderr


def test_an_image_is_applied_and_a_folder_of_the_node_is_refused(cluster: KubernetesCluster) -> None:
    image = f"--container-image={BUSYBOX}"
    refused = cluster.run("sbatch", image, "--container-mounts=/a:/b", "--wrap", "true", check=False)
    assert refused.returncode
    assert "--container-mounts: /a is on no volume of this cluster's jobs" in refused.stderr
    said = cluster.run("sbatch", image, f"--container-mounts={cluster.work}:/inside", "--wrap", "ls /inside")
    assert said.stderr == ""
    job = said.stdout.split()[-1]
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED"
    assert "slurm-" in cluster.output(job)
    inside = cluster.sbatch("--wrap", "srun --container-image=other:1 true")
    assert cluster.wait(inside, LONG_S)["state"] == "COMPLETED"
    assert "--container-image is accepted but not applied: steps run in the container of their job" in (
        cluster.output(inside)
    )
