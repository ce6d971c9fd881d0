"""Where in the cgroup trees of this machine the agent may work: finding the place and preparing it.

Used by `confinement`, which knows limits and jobs, and by `tracking`; here are mounts, paths and the rules of making
directories in them.

On v1 the place is the agent's own group. On v2 it must be a group without processes of its own, or the
kernel will not pass controllers down; the nearest one upwards from the agent is taken. At the top of a
container, where there is no such group, its processes are moved into a leaf (`agent`) first.

Invariant: a v1 cpuset directory made here is never left empty; no process could enter it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_VACATED_LEAF = "agent"
_V2_CONTROLLERS = {"memory", "cpuset"}


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A cgroup tree and the directory in it below which the agent's groups go."""

    version: Literal[1, 2]
    mount: Path
    home: Path

    def make(self, path: Path, *, below: Path) -> None:
        """Make the directory and those between it and `below`, ready to hold processes or further groups."""
        missing = [path, *path.parents]
        missing = missing[: missing.index(below)]
        for folder in reversed(missing):
            if self.version == 2 and folder.parent != self.home:
                self._pass_on_all(folder.parent)
            folder.mkdir(exist_ok=True)
            if self.version == 1:
                _fill_cpuset(folder)

    def enable(self, group: Path, controller: str) -> None:
        """Have v2's `group` offer the controller to the groups in it; OSError when that cannot be."""
        route = [group, *group.parents]
        route = route[: route.index(self.mount) + 1]
        for folder in reversed(route):
            if controller not in _words(folder / "cgroup.subtree_control"):
                write(folder / "cgroup.subtree_control", f"+{controller}")

    def _pass_on_all(self, parent: Path) -> None:
        passed_on = _words(parent / "cgroup.subtree_control")
        for controller in (_words(parent / "cgroup.controllers") & _V2_CONTROLLERS) - passed_on:
            with suppress(OSError):
                write(parent / "cgroup.subtree_control", f"+{controller}")


def find_v1(controller: str) -> Hierarchy | None:
    """The v1 tree of this controller, if one is mounted."""
    for mount, root, options in _mounts("cgroup"):
        if controller in options:
            own = _own_path(controller)
            return Hierarchy(1, mount, _below(mount, root, own)) if own is not None else None
    return None


def find_v2(controller: str) -> Hierarchy | None:
    """The v2 tree, if it has this controller. Devices need no controller there, only the tree."""
    for mount, root, _ in _mounts("cgroup2"):
        has_it = controller in _words(mount / "cgroup.controllers")
        # A v2 tree beside v1 hierarchies can filter devices, but v1's own controller goes first.
        filters_devices = controller == "devices" and find_v1("devices") is None
        own = _own_path("")
        if own is not None and (has_it or filters_devices):
            return Hierarchy(2, mount, _v2_home(mount, _below(mount, root, own)))
    return None


def own_group_v2() -> Hierarchy | None:
    """This process's own group in the v2 tree, whatever controllers that has: for groups that limit nothing."""
    own = _own_path("")
    for mount, root, _ in _mounts("cgroup2"):
        if own is not None:
            return Hierarchy(2, mount, _below(mount, root, own))
    return None


def _v2_home(mount: Path, own: Path) -> Path:
    """The nearest group upwards that holds no process; at the very top make it so, if it must be."""
    for folder in [own, *own.parents]:
        is_real_root = not (folder / "cgroup.type").exists()
        if is_real_root or not _words(folder / "cgroup.procs"):
            return folder
        if folder == mount:
            _vacate(folder)
            return folder
    return own


def _vacate(folder: Path) -> None:
    """Move the processes of a container's top group into a leaf. What cannot be moved shows up later."""
    with suppress(OSError):
        (folder / _VACATED_LEAF).mkdir(exist_ok=True)
        for pid in _words(folder / "cgroup.procs"):
            with suppress(OSError):
                write(folder / _VACATED_LEAF / "cgroup.procs", pid)


def _fill_cpuset(folder: Path) -> None:
    """A new v1 cpuset is empty; it starts with all its parent has."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        file = folder / name
        if file.exists() and not file.read_text().strip():
            inherited = (folder.parent / name).read_text().strip()
            write(file, inherited)


def _mounts(kind: str) -> list[tuple[Path, str, list[str]]]:
    """Mounted trees of this kind: (where, which part of the tree, options)."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields, (fs_type, _, options) = before.split(), after.split(" ", 2)
        if fs_type == kind:
            found.append((Path(fields[4]), fields[3], options.split(",")))
    return found


def _own_path(controller: str) -> str | None:
    """This process's group in the v1 tree of the controller, or in the v2 tree for ""."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if (not controller and not controllers) or (controller and controller in controllers.split(",")):
            return path
    return None


def _below(mount: Path, root: str, own: str) -> Path:
    """The group as a directory here; a container may see only the part of the tree from `root` on."""
    relative = os.path.relpath(own, root) if own.startswith(root) else "."
    return mount if relative.startswith("..") else mount / relative


def _words(file: Path) -> set[str]:
    try:
        return set(file.read_text().split())
    except OSError:
        return set()


def write(file: Path, text: str) -> None:
    """Writes a value into a cgroup's file. Not by write_text: it must never be created or truncated, and takes its
    value in one write."""
    fd = os.open(file, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
