"""Others' pods in Bireme's words: what they ask for, where they may be, which of them start together."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.core.model.node_rules import LabelRule
from bireme.core.model.resources import ExitStatus
from bireme.engines.kubernetes.guests import words as guest_words
from bireme.engines.kubernetes.guests.gangs import Group, group_of, rank_of, size_of, stages_of, whole_of
from bireme.engines.kubernetes.guests.pods import is_guest, needs_of, requests_of, selects, unsupported


def pod(
    name: str = "p", *, labels: Any = None, annotations: Any = None, owner: Any = None, **spec: Any
) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "labels": labels, "annotations": annotations}
    if owner:
        metadata["ownerReferences"] = [{**owner, "controller": True}]
    return {"metadata": metadata, "spec": {"schedulerName": "bireme", "containers": [], **spec}}


def asking(**requests: str) -> dict[str, Any]:
    return {"resources": {"requests": {name.replace("_", "/"): value for name, value in requests.items()}}}


def test_a_guest_names_bireme_and_was_not_made_by_it() -> None:
    assert is_guest(pod())
    assert not is_guest(pod(schedulerName="default-scheduler"))
    assert not is_guest(pod(labels={"bireme.dev/job": "7"}))


def test_containers_add_up_and_the_largest_init_container_counts() -> None:
    sidecar = {**asking(cpu="100m"), "restartPolicy": "Always"}
    found = requests_of(
        {
            "containers": [asking(cpu="500m", memory="1Gi"), asking(cpu="1")],
            "initContainers": [sidecar, asking(cpu="3")],
            "overhead": {"cpu": "50m"},
        }
    )
    assert float(found["cpu"]) == pytest.approx(3.15)
    assert found["memory"] == 2**30


def test_whole_cpus_memory_rounded_up_and_gpus() -> None:
    needs = needs_of(
        pod(containers=[{"resources": {"requests": {"cpu": "1500m", "memory": "1", "nvidia.com/gpu": "2"}}}])
    )
    assert (needs.cpus, needs.memory_mib, needs.gpus) == (2, 1, (("nvidia.com/gpu", 2),))
    request = needs.request(4)
    assert (request.ntasks, request.cpus_per_task) == (4, 2)
    assert [(one.name, one.type, one.count) for one in request.gres_per_task] == [("gpu", None, 2)]


def test_a_mig_resource_is_a_type_of_gpu() -> None:
    needs = needs_of(pod(containers=[{"resources": {"requests": {"nvidia.com/mig-1g.10gb": "1"}}}]))
    assert [one.type for one in needs.request(1).gres_per_task] == ["1g.10gb"]


def test_selectors_and_affinity_become_rules() -> None:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    rules = needs_of(pod(nodeSelector={"disk": "ssd"}, affinity=affinity)).rules
    assert rules.all_of == (LabelRule("disk", "In", ("ssd",)),)
    assert rules.any_of == ((LabelRule("zone", "In", ("a", "b")),),)


def test_anti_affinity_to_itself_by_host_is_one_pod_a_node() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    assert needs_of(pod(labels={"app": "x"}, affinity=affinity)).request(3).ntasks_per_node == 1
    assert needs_of(pod(labels={"app": "y"}, affinity=affinity)).request(3).ntasks_per_node is None


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"resourceClaims": [{"name": "gpu"}]}, "resourceClaims (dynamic resource allocation)"),
        (
            {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1", "amd.com/gpu": "1"}}}]},
            "several kinds of GPU in one pod",
        ),
    ],
)
def test_what_cannot_be_promised_is_named(spec: dict[str, Any], named: str) -> None:
    assert named in unsupported(pod(**spec))


def test_a_selector_of_labels() -> None:
    assert not selects(None, {"a": "b"})
    assert selects({}, {"a": "b"})
    assert selects({"matchLabels": {"a": "b"}}, {"a": "b"})
    assert not selects({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, {"a": "b"})


def test_where_gangs_come_from() -> None:
    native = group_of(pod(schedulingGroup={"podGroupName": "g"}))
    assert native is not None
    assert (native.kind, native.name, native.size) == ("PodGroup", "g", None)
    own = group_of(pod(labels={"bireme.dev/gang": "mine"}, annotations={"bireme.dev/gang-size": "3"}))
    assert own == Group("Gang", "team", "mine", 3)
    job = group_of(pod(owner={"kind": "Job", "name": "j", "apiVersion": "batch/v1", "uid": "1"}))
    assert job is not None
    assert job.path == "/apis/batch/v1/namespaces/team/jobs/j"
    torch = group_of(pod(owner={"kind": "PyTorchJob", "name": "t", "apiVersion": "kubeflow.org/v1", "uid": "1"}))
    assert torch is not None
    assert torch.path == "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/t"
    assert group_of(pod(owner={"kind": "ReplicaSet", "name": "r", "apiVersion": "apps/v1", "uid": "1"})) is None
    assert group_of(pod()) is None


@pytest.mark.parametrize(
    ("kind", "spec", "size"),
    [
        ("PodGroup", {"schedulingPolicy": {"gang": {"minCount": 5}}}, 5),
        ("PodGroup", {"schedulingPolicy": {"basic": {}}}, 1),
        ("Job", {"parallelism": 4, "completions": 4, "completionMode": "Indexed"}, 4),
        ("Job", {"parallelism": 4, "completions": 8, "completionMode": "Indexed"}, 1),
        ("Job", {"parallelism": 4}, 1),
        ("JobSet", {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 3}}}, {"replicas": 1}]}, 7),
        ("PyTorchJob", {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}}, 4),
        ("PyTorchJob", {"runPolicy": {"schedulingPolicy": {"minAvailable": 2}}, "pytorchReplicaSpecs": {}}, 2),
        ("MPIJob", {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 2}}}, 3),
        ("RayCluster", {"workerGroupSpecs": [{"replicas": 4, "minReplicas": 2}, {"replicas": 1}]}, 4),
    ],
)
def test_how_many_start_together(kind: str, spec: dict[str, Any], size: int) -> None:
    assert size_of(Group(kind, "team", "x"), {"spec": spec}) == size


def test_the_launcher_of_an_mpi_operators_job_is_not_of_its_gang() -> None:
    """It is a pod of a Job of its own, which may be made only when the workers run."""
    group = group_of(pod(owner={"kind": "MPIJob", "name": "m", "apiVersion": "kubeflow.org/v2beta1", "uid": "1"}))
    assert group is not None
    policy = {"runPolicy": {"schedulingPolicy": {"minAvailable": 3}}}
    spec = {"mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}}}
    assert size_of(group, {"spec": spec}) == size_of(group, {"spec": spec | policy}) == 2


def test_parts_of_a_jobset_that_come_later_are_stages() -> None:
    parts = [{"name": "a"}, {"name": "b", "replicas": 2}, {"name": "c", "dependsOn": [{"name": "a"}], "replicas": 4}]
    together = {"spec": {"replicatedJobs": parts}}
    assert stages_of(together) == {"a": "", "b": "", "c": "c"}
    assert size_of(Group("JobSet", "team", "x"), together) == 3
    assert size_of(Group("JobSet", "team", "x", stage="c"), together) == 4
    in_order = {"spec": {"replicatedJobs": parts, "startupPolicy": {"startupPolicyOrder": "InOrder"}}}
    assert stages_of(in_order) == {"a": "a", "b": "b", "c": "c"}


def test_how_many_are_to_come_is_what_the_maker_says() -> None:
    replicas = {"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 3}}}
    policy = {"runPolicy": {"schedulingPolicy": {"minAvailable": 2}}}
    assert whole_of(Group("PyTorchJob", "team", "x"), {"spec": replicas | policy}) == 4
    assert whole_of(Group("PodGroup", "team", "x"), {"spec": {"schedulingPolicy": {"gang": {"minCount": 5}}}}) == 5


def test_ranks_are_laid_out_in_order_with_masters_first() -> None:
    def replica(role: str, index: int) -> dict[str, Any]:
        labels = {"training.kubeflow.org/replica-type": role, "training.kubeflow.org/replica-index": str(index)}
        return pod(f"{role}-{index}", labels=labels)

    made = [replica("worker", 10), replica("worker", 2), replica("master", 0)]
    assert [one["metadata"]["name"] for one in sorted(made, key=rank_of)] == ["master-0", "worker-2", "worker-10"]


def test_how_a_pod_ended() -> None:
    def failed(**terminated: Any) -> dict[str, Any]:
        return {"status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": terminated}}]}}

    assert guest_words.exit_status({"status": {"phase": "Succeeded"}}).ok
    assert guest_words.exit_status(failed(exitCode=3)) == ExitStatus(code=3)
    assert guest_words.exit_status(failed(exitCode=143)) == ExitStatus(signal=15)
    assert guest_words.exit_status(failed(exitCode=137, reason="OOMKilled")).out_of_memory
    assert guest_words.exit_status({"status": {"phase": "Failed"}}) == ExitStatus(code=1)
