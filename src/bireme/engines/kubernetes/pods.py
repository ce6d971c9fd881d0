"""A start of a job in Kubernetes: a Secret that owns it, and one pod per node. Pure: values in, JSON out.

The Secret holds each pod's token and settings; the pods name it as their owner, so that deleting it deletes whatever is
left of the start. Pods are made without a node and bound by the engine, all of them or none.

A pod gets what its share of the allocation says, runs as the submitter, without privilege, without Kubernetes
credentials. The agent and its Python come from Bireme's own image, copied into an empty volume by an init container
(see `bundle`), so that the job's image needs neither.

Invariant: the name of every object says job and generation, so that making it twice makes it once.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bireme.agent.pod.gangway import ADDRESS_VARIABLE
from bireme.core.model.jobs import Job, JobSpec, Owner
from bireme.core.model.resources import Allocation, GresShare, NodeShare
from bireme.engines.kubernetes.asked_mounts import asked_mounts
from bireme.engines.kubernetes.crossing.gateway import Berth
from bireme.engines.kubernetes.nodes import GPU_RESOURCES, MIG_PREFIX, Amounts

Object = dict[str, Any]

SCHEDULER = "bireme"
BUNDLE = "/opt/bireme"
"""Where agent and interpreter are found in every pod: the interpreter's loader has this path written into it."""
HOME = "/run/bireme"
"""BIREME_HOME inside a pod."""
SECRETS = "/run/bireme-secrets"
SPOOL = "/run/bireme-output"
"""Where a pod keeps output that is to come back to the daemon's machine."""
INBOX = "/run/bireme-input"
"""Where it keeps input that came from there."""

CLUSTER_LABEL = "bireme.dev/cluster"
JOB_LABEL = "bireme.dev/job"
GENERATION_LABEL = "bireme.dev/generation"
CREW_LABEL = "bireme.dev/crew"
"""The job; of the components of a heterogeneous job, its leader."""
NODE_ANNOTATION = "bireme.dev/node"
OWNER_ANNOTATION = "bireme.dev/owner"

_GRACE_S = 30
_HOSTS = "hosts"
"""In the home of a pod: its /etc/hosts, which the agent may write, as the kubelet's own it may not."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume of the settings: `source` is the volume as Kubernetes writes it, without a name.

    `partition`, `account`: only jobs of these see it; empty: all.
    """

    path: str
    source: Mapping[str, Any]
    read_only: bool = False
    partition: str = ""
    account: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRules:
    """What the settings say about all pods of this cluster."""

    cluster: str
    image: str
    """Bireme's own, which carries agent and interpreter."""
    default_image: str = ""
    """For jobs that name none; empty: Bireme's own."""
    partition_images: Mapping[str, str] = field(default_factory=dict)
    pull_policy: str = "IfNotPresent"
    namespace: str = "default"
    account_namespaces: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] = ()
    priority_class: str = ""
    """Of jobs whose QOS has none of its own; empty: the cluster's default."""
    qos_priority_classes: Mapping[str, str] = field(default_factory=dict)
    gateway_host: str = ""
    gateway_port: int = 0
    authority: str = ""
    """The gateway's certificate, as PEM."""

    @property
    def namespaces(self) -> frozenset[str]:
        """Wherever jobs may be."""
        return frozenset((self.namespace, *self.account_namespaces.values()))

    def namespace_of(self, spec: JobSpec) -> str:
        return self.account_namespaces.get(spec.account, self.namespace)

    def mounts_of(self, job: Job, allocation: Allocation) -> tuple[Mount, ...]:
        """The volumes of a job's pods. Of two with one path that for fewer jobs: an account's, then a partition's."""
        seen = [
            mount
            for mount in self.mounts
            if mount.partition in ("", allocation.partition) and mount.account in ("", job.spec.account)
        ]
        seen.sort(key=lambda mount: (bool(mount.account), bool(mount.partition)))
        return tuple({mount.path.rstrip("/"): mount for mount in seen}.values())

    def mounts_anywhere(self, spec: JobSpec) -> tuple[Mount, ...]:
        """The volumes that a job has in whichever of its partitions it starts."""
        ours = [mount for mount in self.mounts if mount.account in ("", spec.account)]
        return tuple(mount for mount in ours if not mount.partition or {mount.partition} == set(spec.partitions))

    def priority_class_of(self, spec: JobSpec) -> str:
        return self.qos_priority_classes.get(spec.qos, self.priority_class)

    def image_of(self, job: Job, allocation: Allocation) -> str:
        asked = job.spec.container_image.removeprefix("docker://").replace("#", "/", 1)
        return asked or self.partition_images.get(allocation.partition) or self.default_image or self.image


def start_name(rules: PodRules, job_id: int, generation: int) -> str:
    """Two clusters of Bireme may share a namespace; their jobs have the same numbers."""
    return f"{re.sub(r'[^a-z0-9]+', '-', rules.cluster.lower()).strip('-')}-{job_id}-{generation}"


def pod_name(rules: PodRules, job_id: int, generation: int, rank: int) -> str:
    return f"{start_name(rules, job_id, generation)}-{rank}"


def labels(rules: PodRules, job: Job, generation: int) -> dict[str, str]:
    return {
        CLUSTER_LABEL: rules.cluster,
        JOB_LABEL: str(job.id),
        GENERATION_LABEL: str(generation),
        CREW_LABEL: str(crew_of(job)),
    }


def crew_of(job: Job) -> int:
    return job.het_job_id or job.id


def start_of(made: Mapping[str, Any]) -> tuple[int, int] | None:
    """(job, generation) of an object that was made for a start; None if it was not."""
    found = made["metadata"].get("labels") or {}
    try:
        return int(found[JOB_LABEL]), int(found[GENERATION_LABEL])
    except (KeyError, ValueError):
        return None


def berth_of(pod: Mapping[str, Any]) -> Berth | None:
    """Which start of which job a pod of Bireme's belongs to; None if it is not one."""
    start = start_of(pod)
    node = (pod["metadata"].get("annotations") or {}).get(NODE_ANNOTATION)
    return Berth(*start, node) if start is not None and node else None


def crew_of_pod(pod: Mapping[str, Any]) -> int:
    found = pod["metadata"]["labels"]
    return int(found.get(CREW_LABEL) or found[JOB_LABEL])


def owner_of(pod: Mapping[str, Any]) -> Owner:
    """Who submitted the job of a pod of Bireme's, as the engine wrote it there."""
    written = json.loads(pod["metadata"]["annotations"][OWNER_ANNOTATION])
    return Owner(**{**written, "groups": tuple(written["groups"])})


# --- the Secret ---------------------------------------------------------------------------------------------


def secret(
    rules: PodRules,
    job: Job,
    allocation: Allocation,
    tokens: Mapping[str, str],
    sample_s: float,
) -> Object:
    """Everything the agents of this start must know; `tokens` by node.

    Kubernetes takes no more than 1 MiB: only the tokens are there once for each pod.
    """
    settings = {
        "home": HOME,
        "host": rules.gateway_host,
        "port": rules.gateway_port,
        "authority": f"{SECRETS}/authority",
        "token_file": f"{SECRETS}/token",
        "sample_s": sample_s,
        "hosts_file": f"{HOME}/{_HOSTS}",
        "spool": SPOOL,
        "inbox": INBOX,
    }
    data = {"authority": rules.authority, "pod": json.dumps(settings)}
    data |= {f"token-{rank}": tokens[node] for rank, node in enumerate(allocation.node_names)}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": start_name(rules, job.id, allocation.generation),
            "namespace": rules.namespace_of(job.spec),
            "labels": labels(rules, job, allocation.generation),
        },
        "immutable": True,
        "type": "Opaque",
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }


# --- the pods -----------------------------------------------------------------------------------------------


def pod(
    rules: PodRules, job: Job, allocation: Allocation, rank: int, owner_uid: str, kill_wait_s: int, offered: Amounts
) -> Object:
    """The pod of the rank-th node. `owner_uid`: of the Secret. `offered`: what the node has."""
    share = allocation.shares[rank]
    size = Size.of(share, offered)
    name = start_name(rules, job.id, allocation.generation)
    mounts = rules.mounts_of(job, allocation)
    mounted, made = asked_mounts(job.spec, mounts)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(rules, job.id, allocation.generation, rank),
            "namespace": rules.namespace_of(job.spec),
            "labels": labels(rules, job, allocation.generation),
            "annotations": {
                NODE_ANNOTATION: share.node,
                OWNER_ANNOTATION: json.dumps(asdict(job.spec.owner)),
                "bireme.dev/job-name": job.spec.name,
            },
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Secret", "name": name, "uid": owner_uid, "blockOwnerDeletion": False}
            ],
        },
        "spec": {
            "schedulerName": SCHEDULER,
            **({"priorityClassName": class_} if (class_ := rules.priority_class_of(job.spec)) else {}),
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "hostname": _hostname(share.node),
            "terminationGracePeriodSeconds": kill_wait_s + _GRACE_S,
            "securityContext": _identity(job.spec),
            "tolerations": [*rules.tolerations, *_NODE_TROUBLE],
            "initContainers": [_carrier(rules, size)],
            "containers": [_container(rules, job, allocation, size, mounts, mounted)],
            "volumes": [
                {"name": "bundle", "emptyDir": {}},
                {"name": "home", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{size.most_memory_mib}Mi"}},
                {"name": "output", "emptyDir": {}},
                {"name": "input", "emptyDir": {}},
                {"name": "secrets", "secret": {"secretName": name, "defaultMode": 0o440, "items": _items(rank)}},
                *({"name": f"volume-{n}", **mount.source} for n, mount in enumerate(mounts)),
                *([{"name": "work", "emptyDir": {}}] if scratch_folder(mounts, job.spec) else []),
                *made,
            ],
        },
    }


_NODE_TROUBLE = tuple(
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute"}
    for what in ("not-ready", "unreachable")
)
"""What becomes of a job on a node that stops answering is decided by Bireme (SlurmdTimeout), not by eviction."""


def _hostname(node: str) -> str:
    """A DNS label: what `hostname` prints on a node that is called like this."""
    return re.sub(r"[^a-z0-9-]+", "-", node.partition(".")[0].lower())[:63].strip("-")


def _identity(spec: JobSpec) -> Object:
    owner = spec.owner
    context: Object = {
        "runAsUser": owner.uid,
        "runAsGroup": owner.gid,
        "fsGroup": owner.gid,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if owner.uid:
        context["runAsNonRoot"] = True
    if owner.groups:
        context["supplementalGroups"] = list(owner.groups)
    return context


_NO_PRIVILEGE = {"allowPrivilegeEscalation": False, "privileged": False, "capabilities": {"drop": ["ALL"]}}


def _carrier(rules: PodRules, size: Size) -> Object:
    """Copies agent and interpreter into the volume, with Bireme's own image.

    What it may take is what the job may: a quota wants it said of every container, and the pod counts as much as the
    larger of the two, since they never run together.
    """
    return {
        "name": "carry",
        "image": rules.image,
        "imagePullPolicy": rules.pull_policy,
        "command": [f"{BUNDLE}/bin/python3", "-IS", f"{BUNDLE}/carry.py", "/bundle", f"{HOME}/{_HOSTS}"],
        "resources": {"requests": size.requests, "limits": size.limits},
        "securityContext": _NO_PRIVILEGE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "bundle", "mountPath": "/bundle"}, {"name": "home", "mountPath": HOME}],
    }


_AGENT = [f"{BUNDLE}/bin/python3", "-IS", f"{BUNDLE}/agent.py", f"{SECRETS}/pod.json"]


def _container(
    rules: PodRules, job: Job, allocation: Allocation, size: Size, mounts: tuple[Mount, ...], asked: list[Object]
) -> Object:
    """`asked`: what is mounted by the job's own wish. As arguments the agent is what the image's entry point runs."""
    mounted = [
        {"name": f"volume-{n}", "mountPath": mount.path, "readOnly": mount.read_only} for n, mount in enumerate(mounts)
    ]
    if scratch := scratch_folder(mounts, job.spec):
        mounted.append({"name": "work", "mountPath": scratch})
    return {
        "name": "job",
        "image": rules.image_of(job, allocation),
        "imagePullPolicy": rules.pull_policy,
        "args" if job.spec.container_entrypoint else "command": _AGENT,
        "securityContext": _NO_PRIVILEGE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": [{"name": ADDRESS_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "resources": {"requests": size.requests | size.gpus, "limits": size.limits | size.gpus},
        "volumeMounts": [
            {"name": "bundle", "mountPath": BUNDLE, "readOnly": True},
            {"name": "home", "mountPath": HOME},
            {"name": "home", "mountPath": "/etc/hosts", "subPath": _HOSTS},
            *([] if any(mount.path.rstrip("/") == _SHM for mount in mounts) else [{"name": "shm", "mountPath": _SHM}]),
            {"name": "output", "mountPath": SPOOL},
            {"name": "input", "mountPath": INBOX},
            {"name": "secrets", "mountPath": SECRETS, "readOnly": True},
            *mounted,
            *asked,
        ],
    }


def scratch_folder(mounts: Iterable[Mount], spec: JobSpec) -> str:
    """Where a job was submitted, if no volume has that folder: each of its pods gets an empty one there.

    Without it a script would begin somewhere else than it thinks. A folder that was asked for (--chdir) is the image's,
    and so is one that images fill themselves: nothing is laid over these.
    """
    folder = spec.work_dir.rstrip("/")
    on_volume = any(f"{folder}/".startswith(f"{mount.path.rstrip('/')}/") for mount in mounts)
    if folder != spec.submit_dir.rstrip("/") or on_volume or folder.count("/") < 2:
        return ""
    return "" if folder.startswith(_OF_IMAGES) else folder


_OF_IMAGES = tuple(f"/{name}/" for name in ("bin", "dev", "etc", "lib", "opt", "proc", "run", "sbin", "sys", "usr"))


@dataclass(frozen=True, slots=True)
class Size:
    """What the kubelet must set aside for a share of an allocation, and what the pod may not exceed."""

    cpus: int
    memory_mib: int
    """What is set aside."""
    most_memory_mib: int
    """The limit; of a job whose cluster does not count memory, all that the node has."""
    gpus: dict[str, str]

    @classmethod
    def of(cls, share: NodeShare, offered: Amounts) -> Size:
        memory = share.memory_mib  # the agent's own is part of it, as slurmstepd's is
        most = memory or max(offered.memory_mib, _LEAST_MIB)
        gpus = Counter(
            resource for gres in share.gres if gres.name == "gpu" for resource in _gpu_resources(gres, offered)
        )
        named = {resource: str(count) for resource, count in sorted(gpus.items())}
        return cls(max(share.cpus, 1), memory or _LEAST_MIB, most, named)

    @property
    def requests(self) -> dict[str, str]:
        return {"cpu": str(self.cpus), "memory": f"{self.memory_mib}Mi"}

    @property
    def limits(self) -> dict[str, str]:
        """What the container may take, always said: a quota refuses pods of which it does not know that."""
        return {"cpu": str(self.cpus), "memory": f"{self.most_memory_mib}Mi"}


_LEAST_MIB = 64
"""What is set aside for a job whose cluster does not count memory: the agent's own."""
_SHM = "/dev/shm"


def _gpu_resources(gres: GresShare, offered: Amounts) -> list[str]:
    """The extended resource that each of these GPUs is: they are numbered through what the node offers, in order."""
    numbered = [resource for resource, count in offered.gpus for _ in range(count)]
    if gres.indices and max(gres.indices) < len(numbered):
        return [numbered[index] for index in gres.indices]
    return [gpu_resource(gres.type, [resource for resource, _ in offered.gpus])] * gres.count


def gpu_resource(type_: str | None, offered: Sequence[str] = ()) -> str:
    """The extended resource that a GPU of this type is, on a node that offers these. MIG profiles look like `1g.10gb`.

    Of a node of which nothing is known it is NVIDIA's.
    """
    if type_ is not None and re.fullmatch(r"\d+g\.\d+gb(\.\w+)?", type_):
        return MIG_PREFIX + type_
    return next((resource for resource in offered if not resource.startswith(MIG_PREFIX)), GPU_RESOURCES[0])


def _items(rank: int) -> list[Object]:
    """Of the start's Secret, a pod sees its own token only."""
    return [
        {"key": "authority", "path": "authority"},
        {"key": f"token-{rank}", "path": "token"},
        {"key": "pod", "path": "pod.json"},
    ]


def binding(pod_object: Mapping[str, Any], node: str) -> Object:
    metadata = pod_object["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def ids_of(pod_object: Mapping[str, Any]) -> tuple[str, ...]:
    """What a node may know a pod by: its UID, `NAMESPACE/NAME`, and once it runs the id of the job's container."""
    metadata = pod_object["metadata"]
    job_container = (pod_object.get("spec") or {}).get("containers", [{}])[0].get("name")
    statuses = (pod_object.get("status") or {}).get("containerStatuses") or ()
    written = (str(each.get("containerID") or "") for each in statuses if each.get("name") == job_container)
    named = f"{metadata['namespace']}/{metadata['name']}"
    return tuple(filter(None, (str(metadata.get("uid") or ""), named, *(id.rpartition("/")[2] for id in written))))


# --- what became of a pod -----------------------------------------------------------------------------------


def is_over(pod_object: Mapping[str, Any]) -> bool:
    """Nothing of it runs any more, nor ever will."""
    return (pod_object.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def trouble(pod_object: Mapping[str, Any]) -> str:
    """Why a pod that has not started will not start by itself; empty while there is hope."""
    status = pod_object.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _HOPELESS:
            return f"{waiting['reason']}: {waiting.get('message') or container.get('image', '')}"
    if status.get("phase") == "Failed":
        return ending(pod_object)
    return ""


_HOPELESS = (
    "ImagePullBackOff",
    "ErrImagePull",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)


def ending(pod_object: Mapping[str, Any]) -> str:
    """How a pod ended that should not have: evicted, out of memory, refused by its kubelet, killed."""
    status = pod_object.get("status") or {}
    if status.get("reason"):
        return f"the pod was ended by Kubernetes ({status['reason']}): {status.get('message', '')}".rstrip(": ")
    for container in (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())):
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("reason") == "OOMKilled":
            return "the pod was out of memory (OOMKilled)"
        if ended and ended.get("exitCode", 0) != 0:
            said = (ended.get("message") or ended.get("reason") or "").strip().splitlines()
            return f"container {container['name']} exited with {ended['exitCode']}: {said[-1] if said else ''}".rstrip(
                ": "
            )
    return "the pod ended"


def sent_away(pod_object: Mapping[str, Any]) -> str:
    """Why somebody else ends a pod that runs: who evicts says so in a condition."""
    conditions = (pod_object.get("status") or {}).get("conditions") or ()
    target = next(
        (each for each in conditions if each["type"] == "DisruptionTarget" and each["status"] == "True"), None
    )
    if target is None:
        return "the pod was deleted"
    return f"the pod was evicted ({target.get('reason', '')}): {target.get('message', '')}".rstrip(": ")


def out_of_memory(pod_object: Mapping[str, Any]) -> bool:
    statuses = (pod_object.get("status") or {}).get("containerStatuses") or ()
    return any(((each.get("state") or {}).get("terminated") or {}).get("reason") == "OOMKilled" for each in statuses)
