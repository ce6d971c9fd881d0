"""What goes wrong on a real Kubernetes: told, taken back, tried again; nothing lost, run twice or left over."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kubernetes_cluster import fake_nodes
from tests.kubernetes_cluster.cluster import Kubernetes, missing
from tests.support.kubernetes import KubernetesCluster

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
LONG_S = 120.0
CONF = "ClusterName=failing\nSlurmctldHost=localhost\nSlurmdTimeout=5\nKillWait=2\nGresTypes=gpu\nMinJobAge=3600\n"
CONF += "SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n"
CONF += "PartitionName=main Nodes=ALL Default=YES\n"


@pytest.fixture(scope="module")
def cluster(kubelets: Kubernetes) -> Iterator[KubernetesCluster]:
    with KubernetesCluster(kubelets, slurm_conf=CONF).running() as bireme:
        yield bireme


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    until_clean(request.getfixturevalue("cluster"))


def until_clean(cluster: KubernetesCluster) -> None:
    """No pod and no Secret of any job, once no job holds anything."""
    cluster.until(lambda: not cluster.run("squeue", "-h").stdout, LONG_S)
    cluster.until(lambda: not cluster.pods() and not cluster.secrets(), LONG_S)


def why(cluster: KubernetesCluster, job: str) -> str:
    return " ".join(cluster.bireme("why", job).stdout.split())


def policy(name: str, expression: str, message: str) -> list[dict[str, Any]]:
    """An admission policy that is in force for pods."""
    api = "admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": expression, "message": message}],
    }
    bound = {"policyName": name, "validationActions": ["Deny"]}
    return [
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": bound},
    ]


def test_a_quota_is_named_and_the_job_waits_without_its_gpus(cluster: KubernetesCluster) -> None:
    cluster.kubernetes.kubectl("create", "quota", "none", "--hard=pods=0")
    job = cluster.sbatch("--gpus=8", "--wrap", "true")
    cluster.until(lambda: "exceeded quota: none" in why(cluster, job), LONG_S)
    assert cluster.run("squeue", "-h", "-j", job, "-o", "%T %r").stdout == "PENDING JobLaunchFailure\n"
    assert "gpu:(null):0" in cluster.run("sinfo", "-h", "-N", "-O", "GresUsed:40").stdout
    cluster.kubernetes.kubectl("delete", "quota", "none")
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED"


def test_a_rule_of_admission_is_told_in_its_own_words(cluster: KubernetesCluster) -> None:
    objects = policy("no-two", "!object.metadata.name.endsWith('-1')", "the second pod is not welcome")
    cluster.kubernetes.kubectl(
        "apply", "-f", "-", stdin=json.dumps({"kind": "List", "apiVersion": "v1", "items": objects})
    )

    def refused() -> bool:
        probe = {"metadata": {"name": "x-1"}, "spec": {"containers": [{"name": "x", "image": "x"}]}}
        try:
            cluster.kubernetes.api.create("/api/v1/namespaces/default/pods?dryRun=All", probe)
        except RuntimeError as error:
            return "not welcome" in str(error)
        return False

    cluster.until(refused, LONG_S)
    job = cluster.sbatch("-N2", "--wrap", "true")
    cluster.until(lambda: "the second pod is not welcome" in why(cluster, job), LONG_S)
    cluster.until(lambda: not cluster.pods() and not cluster.secrets(), LONG_S)
    cluster.run("scancel", job)
    cluster.kubernetes.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "no-two")


@pytest.fixture
def fake_node(cluster: KubernetesCluster) -> Iterator[None]:
    """A node without a kubelet, `fake-00000`; whatever becomes of its test, it is not left to the next ones."""
    cluster.kubernetes.api.create("/api/v1/nodes", fake_nodes.node(0, 8))
    yield
    cluster.kubernetes.kubectl("delete", "node", "fake-00000", "--ignore-not-found")


@pytest.mark.usefixtures("fake_node")
def test_a_node_that_vanishes_while_its_job_starts_gets_no_pod(cluster: KubernetesCluster) -> None:
    """Planned on, bound to, and gone: Kubernetes itself takes such a pod for one that is just slow."""
    cluster.until(lambda: "idle" in cluster.run("sinfo", "-h", "-n", "fake-00000", "-o", "%T").stdout, LONG_S)
    job = cluster.sbatch("-w", "fake-00000", "--gpus=8", "--wrap", "true")
    cluster.until(lambda: cluster.pods(), LONG_S)
    cluster.kubernetes.kubectl("delete", "node", "fake-00000")
    cluster.until(lambda: not cluster.pods() and not cluster.secrets(), LONG_S)
    cluster.until(lambda: cluster.records(job)[0]["state"] == "PENDING", LONG_S)
    assert "Node fake-00000 was lost." in why(cluster, job)
    waits = ("squeue", "-h", "-j", job, "-o", "%r")  # for that node, though others are free
    cluster.until(lambda: "UnavailableNodes:fake-00000" in cluster.run(*waits).stdout, LONG_S)
    cluster.run("scontrol", "update", f"jobid={job}", "reqnodelist=")
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()


def test_an_evicted_pod_is_told_and_its_job_runs_again(cluster: KubernetesCluster) -> None:
    job = cluster.sbatch(
        "-N2", "--requeue", "--wrap", "touch e$SLURM_RESTART_COUNT; until test -e evicted; do sleep 0.1; done"
    )
    cluster.until(lambda: list(cluster.work.glob("e*")), LONG_S)
    pod = cluster.pods()[0]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "default"}}
    cluster.kubernetes.api.create(f"/api/v1/namespaces/default/pods/{pod}/eviction", body)
    cluster.until(lambda: (cluster.work / "e1").exists(), LONG_S)
    assert "the pod was evicted (EvictionByEvictionAPI)" in why(cluster, job)
    (cluster.work / "evicted").touch()
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED"
    assert "evicted" in cluster.log_tail()
    rows = cluster.run("sacct", "-D", "-n", "-X", "-P", "-j", job, "-o", "State").stdout.split()
    assert rows == ["REQUEUED", "COMPLETED"] or rows == ["NODE_FAIL", "COMPLETED"], rows


def test_a_job_that_needs_more_memory_than_it_asked_for_is_out_of_memory(cluster: KubernetesCluster) -> None:
    job = cluster.sbatch("--mem=64M", "--wrap", "head -c 200000000 /dev/zero | tail -c 190000000 | wc -c")
    assert cluster.wait(job, LONG_S)["state"] == "OUT_OF_MEMORY", cluster.output(job)
    assert json.loads(cluster.bireme("diagnose", job, "--json").stdout)["cause"] == "host_out_of_memory"


def test_an_api_server_that_is_away_for_a_while_costs_nothing(cluster: KubernetesCluster) -> None:
    before = cluster.sbatch("--wrap", "touch away; until test -e back; do sleep 0.1; done; echo still here")
    cluster.until(lambda: (cluster.work / "away").exists(), LONG_S)
    cluster.kubernetes.plane.stop_api_server()
    meanwhile = cluster.sbatch("-N2", "--wrap", "srun hostname | sort")
    (cluster.work / "back").touch()
    written = cluster.work / f"slurm-{before}.out"
    cluster.until(lambda: written.exists() and "still here" in written.read_text(), LONG_S)
    cluster.kubernetes.plane.start_api_server()
    assert cluster.wait(before, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    assert cluster.wait(meanwhile, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    assert cluster.output(meanwhile) == "node1\nnode2\n"


@pytest.mark.parametrize("seed", range(3))
def test_a_daemon_killed_at_any_moment_of_a_start_starts_the_job_once(cluster: KubernetesCluster, seed: int) -> None:
    moment = random.Random(seed)
    mark = f"once-{seed}"
    job = cluster.sbatch("-N2", "--wrap", f"echo $SLURM_JOB_ID >> {mark}; srun hostname | sort")
    wanted = moment.choice(["a Secret", "a pod", "a bound pod"])

    def reached() -> bool:
        found = cluster.kubernetes.api.get("/api/v1/pods")["items"]
        bound = [pod for pod in found if pod["spec"].get("nodeName")]
        return bool({"a Secret": cluster.secrets(), "a pod": found, "a bound pod": bound}[wanted])

    cluster.until(reached, LONG_S)
    cluster.kill_daemon()
    cluster.up_again()
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    assert cluster.output(job) == "node1\nnode2\n"
    assert (cluster.work / mark).read_text().split() == [job]


def test_what_a_dead_daemon_left_of_a_start_that_is_over_is_swept(cluster: KubernetesCluster) -> None:
    labels = {"bireme.dev/cluster": "failing", "bireme.dev/job": "9999", "bireme.dev/generation": "1"}
    left = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bireme-9999-1", "labels": labels}}
    cluster.kubernetes.api.create("/api/v1/namespaces/default/secrets", left)
    cluster.kill_daemon()
    cluster.up_again()
    cluster.until(lambda: not cluster.secrets(), LONG_S)


def test_a_node_that_loses_power_is_told_and_its_job_runs_elsewhere(cluster: KubernetesCluster) -> None:
    cluster.run("scontrol", "update", "nodename=node1", "state=drain", "reason=elsewhere")
    job = cluster.sbatch("--requeue", "--wrap", "touch on-$SLURMD_NODENAME; until test -e lost; do sleep 0.1; done")
    cluster.until(lambda: (cluster.work / "on-node2").exists(), LONG_S)
    cluster.run("scontrol", "update", "nodename=node1", "state=resume")
    cluster.kubernetes.nodes[1].power_off()
    cluster.until(lambda: (cluster.work / "on-node1").exists(), LONG_S)
    (cluster.work / "lost").touch()
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED"
    assert cluster.run("sinfo", "-h", "-n", "node2", "-o", "%T").stdout.strip() == "down*"
    cluster.kubernetes.power_on(cluster.kubernetes.nodes[1])
    cluster.until(lambda: cluster.run("sinfo", "-h", "-n", "node2", "-o", "%T").stdout.strip() == "idle", LONG_S)
    # Its device plugin offers the GPUs a little later than the kubelet is ready.
    cluster.until(lambda: "gpu:8" in cluster.run("sinfo", "-h", "-n", "node2", "-o", "%G").stdout, LONG_S)
    back = cluster.sbatch("-w", "node2", "--gpus=8", "--wrap", "true")
    assert cluster.wait(back, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
