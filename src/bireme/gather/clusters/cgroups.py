"""Whose a process is, read from its cgroup: a step of a Slurm job, a container of a Kubernetes pod, or nobody's. Pure.

Only paths that Slurm or a kubelet made count, and only from where they begin: below its own cgroup a job may make
others and call them as it likes (`.../job_7/step_0/user/job_8/...` is job 7's), and so may a user's session. A path
may begin with `..`, where it is read from inside a container, or with the cgroup of a container in which the node is.
Invariant: no name that an unprivileged user can choose makes a process another job's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bireme.core.model.steps import BATCH_STEP, EXTERN_STEP, INTERACTIVE_STEP

_ABOVE = r"^(?:/\.\.)*(?:/docker/[0-9a-f]{64}|/system\.slice/docker-[0-9a-f]{64}\.scope)?"
"""What may stand before the part that is known: nothing that a user's session is below of."""
_NODE = r"[A-Za-z0-9._-]+"
_STEP = r"step_(?P<step>\d{1,10}|batch|extern|interactive)(?:\+\d+)?"

_V1 = re.compile(
    rf"{_ABOVE}/slurm(?:_(?P<node>{_NODE}))?/uid_\d+/job_(?P<job>\d{{1,10}})/{_STEP}(?:/task_(?P<task>\d+))?"
)
_V2 = re.compile(
    rf"{_ABOVE}(?:/system\.slice)?/(?:(?P<node>{_NODE})_)?slurmstepd\.scope/job_(?P<job>\d{{1,10}})/{_STEP}"
    r"/user(?:/task_(?P<task>\d+))?"
)
_END = r"(?:/|$)"
_NAMED = {"batch": BATCH_STEP, "extern": EXTERN_STEP, "interactive": INTERACTIVE_STEP}

_UID = r"[0-9a-f]{8}(?P<dash>[-_])[0-9a-f]{4}(?P=dash)[0-9a-f]{4}(?P=dash)[0-9a-f]{4}(?P=dash)[0-9a-f]{12}|[0-9a-f]{32}"
_PODS = (
    re.compile(rf"{_ABOVE}(?:/kubelet)?(?:/kubepods)?(?:/burstable|/besteffort)?/pod(?P<uid>{_UID})(?P<rest>{_END}.*)"),
    re.compile(
        rf"{_ABOVE}(?:/kubelet\.slice)?(?:/(?:kubelet-)?kubepods\.slice)?"
        r"(?:/(?:kubelet-)?kubepods-(?:burstable|besteffort)\.slice)?"
        rf"/(?:kubelet-)?kubepods(?:-burstable|-besteffort)?-pod(?P<uid>{_UID})\.slice(?P<rest>{_END}.*)"
    ),
)
_CONTAINER = re.compile(rf"(?:{_ABOVE}/k8s\.io|^/\.\.)/(?P<uid>[0-9a-f]{{64}})(?P<rest>{_END}.*)")
"""Read from inside a container it is the one beside it, and where both are is not said."""


@dataclass(frozen=True, slots=True)
class OfSlurm:
    """A process of a step. `node`: where several slurmd share a machine, the one whose it is; empty: the machine's."""

    job: int
    step: int
    task: int | None
    """On this node, counted from 0; None: the cgroup holds the whole step."""
    node: str = ""


@dataclass(frozen=True, slots=True)
class OfPod:
    """A process of a pod, by the UID that the API server gave to the pod; where the kubelet makes no cgroups of pods
    (`cgroupsPerQOS: false`), by the id that containerd gave to the container."""

    uid: str


def owner_in(text: str) -> OfSlurm | OfPod | None:
    """`text`: /proc/PID/cgroup. Of several hierarchies (v1) the one counts that says the most."""
    found: OfSlurm | OfPod | None = None
    for line in text.splitlines():
        owner = owner_of_path(line.split(":", 2)[-1])
        if owner is None:
            continue
        if found is None or (isinstance(owner, OfSlurm) and owner.task is not None):
            found = owner
    return found


def owner_of_path(path: str) -> OfSlurm | OfPod | None:
    """Of one cgroup."""
    match = _V1.match(path) or _V2.match(path)
    if match is not None and path[match.end() : match.end() + 1] in ("", "/"):
        task = match["task"]
        return OfSlurm(int(match["job"]), step_number(match["step"]), int(task) if task else None, match["node"] or "")
    for pattern in (*_PODS, _CONTAINER):
        if (match := pattern.match(path)) is not None:
            return OfPod(_with_dashes(match["uid"]))
    return None


def step_number(word: str) -> int:
    """As Slurm numbers steps: `batch` and its like are below 0. Raises ValueError."""
    return _NAMED[word] if word in _NAMED else int(word)


def _with_dashes(uid: str) -> str:
    """systemd's names of slices have other signs between the parts; a static pod's UID has none."""
    return uid.replace("_", "-")
