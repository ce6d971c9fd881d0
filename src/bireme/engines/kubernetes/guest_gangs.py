"""Which pods start together, and how many make the gang: read from the pods and from what made them. Pure.

In this order: the native PodGroup, Bireme's own label and annotation, the owner. An owner that Bireme does not know, or
one whose pods work alone (a Deployment, a Job without indexes), makes single pods. `guests.py` keeps a `Gang` of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Object = Mapping[str, Any]

GANG_LABEL = "bireme.dev/gang"
GANG_SIZE = "bireme.dev/gang-size"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
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


def group_of(pod: Object) -> Group | None:
    """None: the pod is on its own."""
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
            return sum(_of_replicated_job(one) for one in spec.get("replicatedJobs") or ())
        case "RayCluster":
            groups = spec.get("workerGroupSpecs") or ()
            return 1 + sum(int(one.get("minReplicas", one.get("replicas", 0)) or 0) for one in groups)
    return _of_training_job(group.kind, spec)


def _of_job(spec: Object) -> int:
    """Indexes that all run at once are ranks of one program; other jobs' pods take work from a queue."""
    together = spec.get("parallelism", 1)
    ranked = spec.get("completionMode") == "Indexed" and spec.get("completions") == together
    return int(together) if ranked else 1


def _of_replicated_job(one: Object) -> int:
    template = (one.get("template") or {}).get("spec") or {}
    return int(one.get("replicas", 1)) * int(template.get("parallelism", 1))


def _of_training_job(kind: str, spec: Object) -> int:
    policy = (spec.get("runPolicy") or {}).get("schedulingPolicy") or {}
    return int(policy.get("minAvailable") or _replicas(kind, spec))


def _replicas(kind: str, spec: Object) -> int:
    return sum(int(one.get("replicas", 1)) for one in (spec.get(_KUBEFLOW[kind][1]) or {}).values())


def whole_of(group: Group, found: Object) -> int:
    """How many pods its maker is about to make, where it says so; at least those that must start together."""
    spec = found.get("spec") or {}
    every = _replicas(group.kind, spec) if group.kind in _KUBEFLOW else 0
    return max(every, size_of(group, found))


def rank_of(pod: Object) -> tuple[int, int, str]:
    """The order in which pods of a gang are laid out: heads and masters first, then by index, then by name."""
    metadata = pod["metadata"]
    labels = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    role = str(labels.get("training.kubeflow.org/replica-type", labels.get("ray.io/node-type", ""))).lower()
    index = next((labels[key] for key in _RANKS if str(labels.get(key, "")).isdigit()), "0")
    return (0 if role in ("master", "launcher", "head") else 1, int(index), metadata["name"])
