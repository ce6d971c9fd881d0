"""The order to run a script or a step in an image, from what its options say and the cluster's defaults. Pure.

Called by `payloads`. The words of the options are read by `slurm/containers`; what an order means is the agent's
(`agent/boxing`). Invariant: an order is complete: paths are absolute, and every choice is made.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field

from bireme.agent.boxes.blueprint import TMPFS, UMOUNT, Mount
from bireme.agent.messages.orders import Box
from bireme.core.model.jobs import JobSpec
from bireme.core.model.steps import StepSpec
from bireme.images.messages import Policy
from bireme.slurm import containers


@dataclass(frozen=True, slots=True)
class ContainerDefaults:
    """What holds where nobody says: the settings `containers.*`, as Pyxis' configuration has them, and `images.*`."""

    mount_home: bool = False
    remap_root: bool = True
    entrypoint: bool = False
    writable: bool = True
    images: Policy = field(default_factory=Policy)


DEFAULTS = ContainerDefaults()


def box_of(spec: JobSpec | StepSpec, work_dir: str, defaults: ContainerDefaults | None) -> Box | None:
    """None: it runs on the host. `defaults`: None where an engine's own pods are the containers."""
    if defaults is None or not (spec.container_image or spec.container_bundle or spec.container_name):
        return None
    name = containers.name(spec.container_name) if spec.container_name else containers.Name("", "")
    return Box(
        image=spec.container_image or (spec.container_bundle and _absolute(spec.container_bundle, work_dir)),
        name=name.name,
        name_flag=name.flag,
        mounts=tuple(_mounts(spec.container_mounts, work_dir)),
        workdir=spec.container_workdir,
        save=spec.container_save and _absolute(spec.container_save, work_dir),
        mount_home=_said(spec.container_mount_home, defaults.mount_home),
        remap_root=_said(spec.container_remap_root, defaults.remap_root),
        entrypoint=_said(spec.container_entrypoint, defaults.entrypoint),
        writable=_said(spec.container_writable, defaults.writable),
        kept=containers.variables(spec.container_env),
        images=defaults.images,
    )


def _said(value: bool | None, default: bool) -> bool:
    return default if value is None else value


def _mounts(text: str, work_dir: str) -> list[Mount]:
    found = containers.mounts(text) if text else ()
    return [
        Mount(
            each.source if each.source in (TMPFS, UMOUNT) else _absolute(each.source, work_dir), each.target, each.flags
        )
        for each in found
    ]


def _absolute(path: str, work_dir: str) -> str:
    return posixpath.normpath(posixpath.join(work_dir, path))
