"""`--container-mounts` of a job in pods: what it names must lie on a volume that the settings give to its jobs. Pure.

A pod may mount no folder of its node (hostPath): it would be the node's, whichever node that is, and most clusters
forbid it. So `SRC` is a path as jobs see it, on one of `kubernetes.volumes`, and is shown at `DST` too; `tmpfs` is
memory of the pod's own. Called by `pods`, and by the engine when a job is submitted.
Invariant: what is not refused at the submission is mounted, or the volumes have changed since.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Any, Protocol

from bireme.core.model.jobs import JobSpec
from bireme.slurm.containers import TMPFS, mounts

Object = dict[str, Any]


class Volume(Protocol):
    """What is asked of a volume here (`pods.Mount`)."""

    @property
    def path(self) -> str: ...
    @property
    def read_only(self) -> bool: ...


def refusal(spec: JobSpec, volumes: Sequence[Volume]) -> str:
    """Why they cannot be had; empty: they can."""
    for asked in mounts(spec.container_mounts) if spec.container_mounts else ():
        if asked.source != TMPFS and _volume_of(_absolute(asked.source, spec), volumes) is None:
            paths = ", ".join(volume.path for volume in volumes) or "none"
            return (
                f"--container-mounts: {asked.source} is on no volume of this cluster's jobs ({paths}): "
                "a setting gives them volumes (kubernetes.volumes)"
            )
    return ""


def asked_mounts(spec: JobSpec, volumes: Sequence[Volume]) -> tuple[list[Object], list[Object]]:
    """Entries of `volumeMounts`, with those of `volumes` that they need besides `volume-N`."""
    mounted: list[Object] = []
    made: list[Object] = []
    for number, asked in enumerate(mounts(spec.container_mounts) if spec.container_mounts else ()):
        if asked.source == TMPFS:
            made.append({"name": f"memory-{number}", "emptyDir": {"medium": "Memory"}})
            mounted.append({"name": f"memory-{number}", "mountPath": asked.target})
            continue
        source = _absolute(asked.source, spec)
        if (index := _volume_of(source, volumes)) is None:
            continue
        volume = volumes[index]
        below = posixpath.relpath(source, volume.path)
        entry: Object = {"name": f"volume-{index}", "mountPath": asked.target}
        entry["readOnly"] = volume.read_only or "ro" in asked.flags
        mounted.append(entry if below == "." else {**entry, "subPath": below})
    return mounted, made


def _absolute(path: str, spec: JobSpec) -> str:
    return posixpath.normpath(posixpath.join(spec.work_dir, path))


def _volume_of(path: str, volumes: Sequence[Volume]) -> int | None:
    """The one that lies deepest, of those that hold it."""
    holding = [index for index, volume in enumerate(volumes) if f"{path}/".startswith(f"{volume.path.rstrip('/')}/")]
    return max(holding, key=lambda index: len(volumes[index].path), default=None)
