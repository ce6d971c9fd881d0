"""Healing on real kubelets: a node that dies under a gang, which runs again from its checkpoint with another one."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.kubernetes_cluster.cluster import Kubernetes, missing, running
from tests.support.kubernetes import KubernetesCluster, load_bireme

pytestmark = pytest.mark.skipif(bool(missing(nodes=True)), reason=missing(nodes=True) or "-")
LONG_S = 180.0
CONF = "ClusterName=healing\nSlurmctldHost=localhost\nSlurmdTimeout=5\nKillWait=2\nMinJobAge=3600\n"
CONF += "BatchStartTimeout=40\nMaxBatchRequeue=100\nSelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n"
CONF += "PartitionName=main Nodes=ALL Default=YES\nPartitionName=unready Nodes=ALL\n"
TRAIN = """#!/bin/sh
#SBATCH --nodes=2 --ntasks-per-node=1
#BIREME --heal=restart --checkpoint=run-%j
echo "$SLURM_JOB_NODELIST ${BIREME_CHECKPOINT:-nothing}" >> starts-$SLURM_JOB_ID
[ -z "$SLURM_RESTART_COUNT" ] || exec srun hostname
mkdir run-$SLURM_JOB_ID
/opt/bireme/bin/python3 - run-$SLURM_JOB_ID/step-1.safetensors <<'PROGRAM'
import json, sys
header = json.dumps({"w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
open(sys.argv[1], "wb").write(len(header).to_bytes(8, "little") + header + b"12345678")
PROGRAM
srun sleep 1000
"""


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[Kubernetes]:
    """Of its own: a gang of two, and a node that takes the place of the lost one."""
    with running(nodes=3, gpus=1) as cluster:
        load_bireme(cluster)
        yield cluster


@pytest.fixture(scope="module")
def cluster(kubernetes: Kubernetes) -> Iterator[KubernetesCluster]:
    made = KubernetesCluster(kubernetes, CONF, start_timeout_s=0)
    made.settings["volumes"] = [*made.settings["volumes"], "partition=unready:pvc:nowhere:/data"]
    made.variables |= {"BIREME_CHECKPOINTS_INTERVAL_S": "1", "BIREME_HEALING_MODE": "act"}
    with made.running() as bireme:
        yield bireme
        kubernetes.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")  # of the node that lost power


def cause_of(cluster: KubernetesCluster, job: str) -> str:
    return str(json.loads(cluster.bireme("diagnose", job, "--json").stdout)["cause"])


def reasons(cluster: KubernetesCluster, job: str) -> list[str]:
    told = json.loads(cluster.bireme("healings", "--all", "--json").stdout)["healings"]
    return [each["reason"] for each in told if str(each["place"]).startswith(f"job {job}.")]


def test_what_kept_or_took_a_pod_is_the_cause_of_its_jobs_end(cluster: KubernetesCluster) -> None:
    """As its events, its status and its conditions say it. A node from which a pod was taken is not blamed."""
    unmounted = cluster.sbatch("-p", "unready", "--wrap", "true")
    unpulled = cluster.sbatch("--container-image=bireme.test/nothing:1", "--wrap", "true")
    cluster.until(lambda: cause_of(cluster, unpulled) == "image_pull", LONG_S)
    cluster.run("scancel", unpulled)
    mark = "touch on-$SLURM_JOB_ID-$SLURM_RESTART_COUNT; until test -e end; do sleep 0.1; done"
    healed = cluster.sbatch(str(cluster.script(f"#BIREME --heal=restart\n{mark}\n", "healed.sh")))
    left = cluster.sbatch("--no-requeue", "--wrap", mark)
    for job in (healed, left):
        cluster.until(lambda job=job: list(cluster.work.glob(f"on-{job}-*")), LONG_S)
        evict(cluster, job)
    assert cluster.wait(left, LONG_S)["state"] == "NODE_FAIL"
    assert cause_of(cluster, left) == "pod_lost"
    cluster.until(lambda: (cluster.work / f"on-{healed}-1").exists(), LONG_S)
    (cluster.work / "end").touch()
    assert cluster.wait(healed, LONG_S)["state"] == "COMPLETED"
    assert reasons(cluster, healed) == ["Its pod was taken away: started again."]
    cluster.until(lambda: "FailedMount" in cluster.bireme("why", unmounted).stdout, LONG_S)
    assert cause_of(cluster, unmounted) == "container_start"
    cluster.run("scancel", unmounted)


def evict(cluster: KubernetesCluster, job: str) -> None:
    path = f"/api/v1/namespaces/default/pods?labelSelector=bireme.dev/job%3D{job}"
    (pod,) = (each["metadata"]["name"] for each in cluster.kubernetes.api.get(path)["items"])
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "default"}}
    cluster.kubernetes.api.create(f"/api/v1/namespaces/default/pods/{pod}/eviction", body)


def test_a_gang_that_loses_the_node_of_its_script_goes_on_with_another_one(cluster: KubernetesCluster) -> None:
    job = cluster.sbatch(str(cluster.script(TRAIN, "train.sh")))
    saved = cluster.work / f"run-{job}" / "step-1.safetensors"
    cluster.until(lambda: saved.exists() and "sleep" in cluster.run("squeue", "-h", "-s", "-o", "%j").stdout, LONG_S)
    cluster.kubernetes.nodes[0].power_off()
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    starts = (cluster.work / f"starts-{job}").read_text().splitlines()
    assert starts == ["node[1-2] nothing", f"node[2-3] {saved}"]
    assert set(cluster.output(job).split()) >= {"node2", "node3"}
    assert reasons(cluster, job) == ["A node was lost: started again, without node1."]
