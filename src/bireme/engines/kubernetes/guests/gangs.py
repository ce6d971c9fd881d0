"""Which pods start together, and how many make the gang: read from the pods and from what made them. Pure.

In this order: the native PodGroup, Bireme's own label and annotation, the owner. An owner that Bireme does not know, or
one whose pods work alone (a Deployment, a Job without indexes), makes single pods. `scheduler.py` keeps a `Gang` of
each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Object = Mapping[str, Any]

GANG_LABEL = "bireme.dev/gang"
GANG_SIZE = "bireme.dev/gang-size"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
_KUBEFLOW = {
    "PyTorchJob": ("pytorchjobs", "pytorchReplicaSpecs"),
    "MPIJob": ("mpijobs", "mpiReplicaSpecs"),
    "TFJob": ("tfjobs", "tfReplicaSpecs"),
    "XGBoostJob": ("xgboostjobs", "xgbReplicaSpecs"),
    "PaddleJob": ("paddlejobs", "paddleReplicaSpecs"),
    "JAXJob": ("jaxjobs", "jaxReplicaSpecs"),
}
_RANKS = (
    "batch.kubernetes.io/job-completion-index",
    "training.kubeflow.org/replica-index",
    "apps.kubernetes.io/pod-index",
)


@dataclass(frozen=True, slots=True)
class Group:
    """What a pod belongs to. `size` None: the object at `path` says (`size_of`)."""

    kind: str
    namespace: str
    name: str
    size: int | None = None
    path: str = ""
    stage: str = ""
    """Of a JobSet whose parts come one after another: the part, which is a gang of its own (`stage_of`)."""

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}" + (f"/{self.stage}" if self.stage else "")


@dataclass(slots=True)
class Gang:
    """Pods that wait together; a single pod is a gang of one."""

    key: str
    group: Group | None
    size: int | None
    whole: int = 0
    """How many are to come, where it is known; for those beyond `size` it is waited only a moment."""
    enough_at: float | None = None
    """When there were first as many as it needs."""
    waiting: dict[str, Object] = field(default_factory=dict)
    """By uid: no node yet, no gate closed."""
    placed: set[str] = field(default_factory=set)
    """Uids of members that have a node."""
    submitted: tuple[str, ...] = ()
    """Uids of the pods of the job that waits in the queue."""
    job_ids: tuple[int, ...] = ()
    attempt: int = 0
    busy: bool = False
    """Something about it is being asked of the queue or of the API server."""
    refused: str = ""
    told: str = ""
    ruled_out: dict[str, set[str]] = field(default_factory=dict)
    """Nodes, by pod, that its neighbours ruled out when it was submitted."""


def submission_key(gang: Gang, pods: Sequence[Object]) -> str:
    """Of this try to submit these pods of a gang, never used twice: a gang of the same name may come again, with other
    pods, and its tries are counted from one."""
    return f"{gang.key}#{gang.attempt}@{pods[0]['metadata']['uid']}"


def attempt_of(key: str) -> tuple[str, int]:
    """The gang's key, and which try it was."""
    base, _, rest = key.partition("#")
    return base, int(rest.partition("@")[0] or 0)


def group_of(pod: Object) -> Group | None:
    """The gang that a pod is of; None: the pod is on its own."""
    metadata, namespace = pod["metadata"], pod["metadata"]["namespace"]
    native = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
    if native:
        path = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{namespace}/podgroups/{native}"
        return Group("PodGroup", namespace, native, path=path)
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if GANG_LABEL in labels:
        size = annotations.get(GANG_SIZE, "")
        return Group("Gang", namespace, labels[GANG_LABEL], size=int(size) if size.isdigit() else 1)
    if JOBSET_LABEL in labels:
        name = labels[JOBSET_LABEL]
        return Group(
            "JobSet", namespace, name, path=f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/{name}"
        )
    owner = next((one for one in metadata.get("ownerReferences") or () if one.get("controller")), None)
    return None if owner is None else _group_of_owner(owner, namespace)


def _group_of_owner(owner: Object, namespace: str) -> Group | None:
    kind, name, version = owner["kind"], owner["name"], owner["apiVersion"]
    group = version.partition("/")[0]
    if kind == "Job" and group == "batch":
        return Group(kind, namespace, name, path=f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}")
    if group == "kubeflow.org" and kind in _KUBEFLOW:
        return Group(kind, namespace, name, path=f"/apis/{version}/namespaces/{namespace}/{_KUBEFLOW[kind][0]}/{name}")
    if kind == "RayCluster" and group == "ray.io":
        return Group(kind, namespace, name, path=f"/apis/{version}/namespaces/{namespace}/rayclusters/{name}")
    return None


def size_of(group: Group, found: Object) -> int:
    """How many pods of the group must start together; 1: each for itself."""
    spec = found.get("spec") or {}
    match group.kind:
        case "PodGroup":
            gang = (spec.get("schedulingPolicy") or {}).get("gang") or {}
            return int(gang.get("minCount", 1))
        case "Job":
            return _of_job(spec)
        case "JobSet":
            stages = stages_of(found)
            parts = spec.get("replicatedJobs") or ()
            return sum(_of_replicated_job(one) for one in parts if stages[one.get("name", "")] == group.stage)
        case "RayCluster":
            groups = spec.get("workerGroupSpecs") or ()
            return 1 + sum(int(one.get("minReplicas", one.get("replicas", 0)) or 0) for one in groups)
    return _of_training_job(group, spec)


def _of_job(spec: Object) -> int:
    """Indexes that all run at once are ranks of one program; other jobs' pods take work from a queue."""
    together = spec.get("parallelism", 1)
    ranked = spec.get("completionMode") == "Indexed" and spec.get("completions") == together
    return int(together) if ranked else 1


def _of_replicated_job(one: Object) -> int:
    template = (one.get("template") or {}).get("spec") or {}
    return int(one.get("replicas", 1)) * int(template.get("parallelism", 1))


def _of_training_job(group: Group, spec: Object) -> int:
    policy = (spec.get("runPolicy") or {}).get("schedulingPolicy") or {}
    every, least = _replicas(group, spec), int(policy.get("minAvailable") or 0)
    return min(least or every, every) if _launches_later(group) else least or every


def _replicas(group: Group, spec: Object) -> int:
    """Of an MPIJob of the MPI operator without its launcher: that is a pod of a Job of its own, and may be made only
    when the workers run."""
    made = dict(spec.get(_KUBEFLOW[group.kind][1]) or {})
    if _launches_later(group):
        made.pop("Launcher", None)
    return sum(int(one.get("replicas", 1)) for one in made.values())


def _launches_later(group: Group) -> bool:
    return group.kind == "MPIJob" and "/v2" in group.path


def stages_of(found: Object) -> dict[str, str]:
    """Replicated job of a JobSet -> the stage that it belongs to. Those of the first ("") start together; one that is
    made only when others are ready or complete is a stage of its own."""
    spec = found.get("spec") or {}
    in_order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    parts = spec.get("replicatedJobs") or ()
    names = ((one.get("name", ""), in_order or bool(one.get("dependsOn"))) for one in parts)
    return {name: name if later else "" for name, later in names}


def stage_of(pod: Object, stages: Mapping[str, str]) -> str:
    return stages.get((pod["metadata"].get("labels") or {}).get(_REPLICATED_JOB, ""), "")


def whole_of(group: Group, found: Object) -> int:
    """How many pods its maker is about to make, where it says so; at least those that must start together."""
    spec = found.get("spec") or {}
    every = _replicas(group, spec) if group.kind in _KUBEFLOW else 0
    return max(every, size_of(group, found))


def rank_of(pod: Object) -> tuple[int, int, str]:
    """The order in which pods of a gang are laid out: heads and masters first, then by index, then by name."""
    metadata = pod["metadata"]
    labels = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    role = str(labels.get("training.kubeflow.org/replica-type", labels.get("ray.io/node-type", ""))).lower()
    index = next((labels[key] for key in _RANKS if str(labels.get(key, "")).isdigit()), "0")
    return (0 if role in ("master", "launcher", "head") else 1, int(index), metadata["name"])
