"""What a start of a job looks like in Kubernetes, where that depends on the job."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from bireme.core.model.jobs import Job, JobSpec, Owner, Pending
from bireme.core.model.resources import Allocation, GresShare, NodeShare
from bireme.engines.kubernetes.crossing.gateway import Berth, Gateway
from bireme.engines.kubernetes.nodes import Amounts, autodetect
from bireme.engines.kubernetes.pods import Mount, PodRules, Size, ids_of, pod, scratch_folder, secret, start_name

RULES = PodRules(cluster="c", image="bireme", mounts=(Mount("/data", {}),))


@pytest.mark.parametrize(
    ("work_dir", "submit_dir", "scratch"),
    [
        ("/home/ada/run", "/home/ada/run", "/home/ada/run"),
        ("/home/ada/run/", "/home/ada/run", "/home/ada/run"),
        ("/data/run", "/data/run", ""),
        ("/data", "/data", ""),
        ("/workspace/app", "/home/ada", ""),
        ("/", "/", ""),
        ("/root", "/root", ""),
        ("/usr/share/app", "/usr/share/app", ""),
    ],
)
def test_the_folder_of_submission_is_there_unless_the_image_or_a_volume_has_it(
    work_dir: str, submit_dir: str, scratch: str
) -> None:
    spec = JobSpec(owner=Owner(uid=1000, gid=1000, user="ada"), work_dir=work_dir, submit_dir=submit_dir)
    assert scratch_folder(RULES.mounts, spec) == scratch


@pytest.mark.parametrize(("cluster", "name"), [("bireme", "bireme-7-1"), ("Team_A.prod", "team-a-prod-7-1")])
def test_names_of_two_clusters_in_one_namespace_differ(cluster: str, name: str) -> None:
    assert start_name(PodRules(cluster=cluster, image="bireme"), 7, 1) == name


@pytest.mark.parametrize(
    ("account", "partition", "seen"),
    [
        ("other", "main", {"/data": "everybody"}),
        ("other", "gpu", {"/data": "gpu"}),
        ("ml", "main", {"/data": "everybody", "/models": "ml"}),
        ("ml", "gpu", {"/data": "gpu", "/models": "ml"}),
    ],
)
def test_volumes_are_those_of_everybody_of_the_partition_and_of_the_account(
    account: str, partition: str, seen: dict[str, str]
) -> None:
    rules = PodRules(
        cluster="c",
        image="bireme",
        mounts=(
            Mount("/data", {"name": "gpu"}, partition="gpu"),
            Mount("/data/", {"name": "everybody"}),
            Mount("/models", {"name": "ml"}, account="ml"),
        ),
    )
    spec = JobSpec(owner=Owner(uid=1000, gid=1000, user="ada"), account=account)
    job = Job(id=7, spec=spec, submitted_at=0.0, phase=Pending(0.0))
    found = rules.mounts_of(job, Allocation(7, 1, partition, ()))
    assert {mount.path.rstrip("/"): mount.source["name"] for mount in found} == seen


MOST_SECRET_BYTES = 1 << 20
"""Of what a Secret holds, as Kubernetes counts it."""


@pytest.mark.parametrize("name", ["node-{}", "{:0>253}"], ids=["short names", "the longest names"])
def test_the_secret_of_two_thousand_nodes_is_one_that_kubernetes_takes(name: str, tmp_path: Path) -> None:
    nodes = [name.format(number) for number in range(2000)]
    gateway = Gateway(tmp_path, tmp_path, b"key", tmp_path, *3 * [lambda *_: None])  # type: ignore[arg-type]
    tokens = {node: gateway.token(Berth(123_456, 12, node)) for node in nodes}
    job = Job(id=123_456, spec=JobSpec(owner=Owner(uid=1, gid=1, user="ada")), submitted_at=0.0, phase=Pending(0.0))
    allocation = Allocation(123_456, 12, "main", tuple(NodeShare(node, 1, 0) for node in nodes))
    made = secret(PodRules(cluster="c", image="bireme", authority="x" * 1000), job, allocation, tokens, 30.0)
    held = [base64.b64decode(value) for value in made["data"].values()]
    assert sum(map(len, held)) < 0.7 * MOST_SECRET_BYTES
    assert set(tokens.values()) <= {value.decode() for value in held}


def job_of(**spec: str) -> Job:
    owner = Owner(uid=1, gid=1, user="ada")
    return Job(id=7, spec=JobSpec(owner=owner, **spec), submitted_at=0.0, phase=Pending(0.0))  # type: ignore[arg-type]


NVIDIA, AMD, XE = "nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/xe"


@pytest.mark.parametrize(
    ("offered", "indices", "type_", "asked"),
    [
        (((NVIDIA, 8),), (0, 7), None, {NVIDIA: "2"}),
        (((AMD, 8),), (0, 7), "amd_instinct_mi300x", {AMD: "2"}),
        (((XE, 4),), (3,), None, {XE: "1"}),
        (((AMD, 2), (NVIDIA, 2)), (1, 2, 3), None, {AMD: "1", NVIDIA: "2"}),
        (((NVIDIA, 1), ("nvidia.com/mig-1g.10gb", 7)), (1, 2), "1g.10gb", {"nvidia.com/mig-1g.10gb": "2"}),
        (((AMD, 8),), (), None, {AMD: "1"}),
        ((), (0,), "1g.10gb", {"nvidia.com/mig-1g.10gb": "1"}),
        ((), (0,), None, {NVIDIA: "1"}),
    ],
)
def test_gpus_are_asked_for_by_the_name_that_the_node_offers_them_under(
    offered: tuple[tuple[str, int], ...], indices: tuple[int, ...], type_: str | None, asked: dict[str, str]
) -> None:
    gres = GresShare("gpu", type_, len(indices) or 1, indices)
    assert Size.of(NodeShare("n", 1, 10, gres=(gres,)), Amounts(gpus=offered)).gpus == asked


@pytest.mark.parametrize(
    ("offered", "maker"),
    [((NVIDIA,), "nvml"), (("nvidia.com/mig-1g.10gb", NVIDIA), "nvml"), ((AMD,), "rsmi"), ((XE,), "oneapi"),
     (("gpu.intel.com/i915", XE), "oneapi"), ((AMD, NVIDIA), ""), ((), "")],
)  # fmt: skip
def test_whose_gpus_a_node_has(offered: tuple[str, ...], maker: str) -> None:
    assert autodetect(Amounts(gpus=tuple((name, 1) for name in offered))) == maker


@pytest.mark.parametrize(("memory", "request_", "limit"), [(300, "300Mi", "300Mi"), (0, "64Mi", "4096Mi")])
def test_every_container_says_what_it_takes_and_may_take(memory: int, request_: str, limit: str) -> None:
    """Of a cluster that does not count memory: hardly anything is set aside, and the node is the limit."""
    allocation = Allocation(7, 1, "main", (NodeShare("n", 2, memory),))
    made = pod(RULES, job_of(), allocation, 0, "uid", 30, Amounts(64_000, 4096))["spec"]
    wanted = {"requests": {"cpu": "2", "memory": request_}, "limits": {"cpu": "2", "memory": limit}}
    assert [each["resources"] for each in (*made["initContainers"], *made["containers"])] == [wanted, wanted]
    (shm,) = [volume["emptyDir"] for volume in made["volumes"] if volume["name"] == "shm"]
    assert shm == {"medium": "Memory", "sizeLimit": limit}


def test_a_volume_of_the_settings_may_be_the_shared_memory() -> None:
    rules = PodRules(cluster="c", image="bireme", mounts=(Mount("/dev/shm/", {"hostPath": {"path": "/dev/shm"}}),))
    made = pod(rules, job_of(), Allocation(7, 1, "main", (NodeShare("n", 2, 1),)), 0, "uid", 30, Amounts())["spec"]
    paths = [mount["mountPath"].rstrip("/") for mount in made["containers"][0]["volumeMounts"]]
    assert paths.count("/dev/shm") == 1


@pytest.mark.parametrize(("qos", "name"), [("normal", "usual"), ("high", "high-class"), ("", "usual")])
def test_the_priority_class_is_that_of_the_qos(qos: str, name: str) -> None:
    rules = PodRules(cluster="c", image="b", priority_class="usual", qos_priority_classes={"high": "high-class"})
    assert rules.priority_class_of(job_of(qos=qos).spec) == name


def test_a_node_knows_a_pod_by_its_uid_its_name_or_the_container_of_the_job() -> None:
    named = {"uid": "u1", "namespace": "team", "name": "c-7-1-0"}
    made = {"metadata": named, "spec": {"containers": [{"name": "job"}, {"name": "sidecar"}]}}
    assert ids_of(made) == ("u1", "team/c-7-1-0")
    statuses = [
        {"name": "sidecar", "containerID": "containerd://s1"},
        {"name": "job", "containerID": "containerd://c1"},
    ]
    assert ids_of({**made, "status": {"containerStatuses": statuses}}) == ("u1", "team/c-7-1-0", "c1")
    assert ids_of({**made, "status": {"containerStatuses": [{"name": "job"}]}}) == ("u1", "team/c-7-1-0")
