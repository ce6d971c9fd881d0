"""An OCI bundle as an image: a folder with a root and the `config.json` that says how to run it (`--container`).

Called by `fetching`. Of `config.json` what a task has use for is read: where the root is and whether it is read-only,
the variables, the folder where programs begin, and mounts of folders and of memory; without one the root is `rootfs`.
The program is the task's own, as under Slurm; its user, namespaces and devices are as in every box.
Invariant: only the user's own rights decide what of it can be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from bireme.images.messages import Image, ImageMount
from bireme.images.refusing import RefusedError
from bireme.images.sources.folder import plain_folder

CONFIG, ROOT = "config.json", "rootfs"
_MOST_BYTES = 4 << 20
_OF_EVERY_BOX = ("/proc", "/sys", "/dev", "/run")


class _Root(msgspec.Struct, frozen=True):
    path: str = ROOT
    readonly: bool = False


class _Process(msgspec.Struct, frozen=True):
    env: tuple[str, ...] = ()
    cwd: str = ""


class _Mount(msgspec.Struct, frozen=True):
    destination: str
    type: str = ""
    source: str = ""
    options: tuple[str, ...] = ()


class _Config(msgspec.Struct, frozen=True):
    root: _Root = _Root()
    process: _Process = _Process()
    mounts: tuple[_Mount, ...] = ()


def is_bundle(names: set[str]) -> bool:
    """Of the names in a folder that is no root itself."""
    return CONFIG in names or ROOT in names


def bundled_folder(path: str) -> Image:
    """Raises RefusedError, OSError."""
    config = _read(path)
    root = os.path.normpath(os.path.join(path, config.root.path))
    if not os.path.isdir(root):
        raise RefusedError(f"{path} is an OCI bundle without its root: {root} is not a folder")
    image = plain_folder(root)
    said = dict(each.split("=", 1) for each in config.process.env if "=" in each)
    return msgspec.structs.replace(
        image,
        name=path,
        environment={**image.environment, **said},
        workdir=config.process.cwd or image.workdir,
        sealed=config.root.readonly,
        mounts=tuple(_mounts(path, config)),
    )


def _read(path: str) -> _Config:
    try:
        with open(os.path.join(path, CONFIG), "rb") as file:
            data = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return _Config()
    try:
        return msgspec.json.decode(data, type=_Config)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RefusedError(
            f"{path}/{CONFIG} cannot be read: {str(error)[:200]}; `runc spec` writes a whole one"
        ) from None


def _mounts(path: str, config: _Config) -> Iterator[ImageMount]:
    """Those of the kernel's own file systems every box has already."""
    for each in config.mounts:
        target = os.path.normpath(f"/{each.destination}")
        if target == "/" or any(target == own or target.startswith(f"{own}/") for own in _OF_EVERY_BOX):
            continue
        if each.type == "tmpfs":
            yield ImageMount("tmpfs", target, each.options)
        elif each.type == "bind" or not {"bind", "rbind"}.isdisjoint(each.options):
            yield ImageMount(os.path.normpath(os.path.join(path, each.source)), target, each.options)
