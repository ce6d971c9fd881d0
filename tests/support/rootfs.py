"""Folders that are images: what a container's root needs, and no more. For tests that run something in one.

`busybox` is Debian's static one: no libc, no loader, no interpreter but `sh`.
"""

from __future__ import annotations

import _ctypes
import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

import pytest


def busybox_root(folder: Path, owner: str | None = None) -> Path:
    """A folder with busybox and all its applets, of this owner."""
    program = shutil.which("busybox")
    if program is None:
        pytest.skip("not installed: busybox (Debian's busybox-static)")
    for name in ("bin", "etc", "tmp"):
        (folder / name).mkdir(parents=True)
    shutil.copy(program, folder / "bin/busybox")
    for applet in subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split():
        if applet != "busybox":
            (folder / "bin" / applet).symlink_to("busybox")
    (folder / "etc/made-by").write_text("the test\n")
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    if owner is not None and os.geteuid() == 0:
        entry = pwd.getpwnam(owner)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)
    return folder


def glibc_root(folder: Path, python: str, *further: str) -> Path:
    """A busybox folder that can run this Python and these programs of the machine's: with the loader and the libraries
    that they are linked with, and none else. Python's own modules are to be mounted (`python_mounts`)."""
    root = busybox_root(folder)
    modules = [str(path) for path in Path(_ctypes.__file__).parent.glob("_ctypes*.so")]
    for program in (os.path.realpath(python), *modules, *further):
        for library in _linked_with(program):
            _copy(Path(library), root)
    for program in (os.path.realpath(python), *further):
        _copy(Path(program), root)
    return root


def python_mounts() -> str:
    """For --container-mounts: the standard library where the interpreter looks for it."""
    library = os.path.dirname(os.__file__)
    return f"{library}:{library}:ro"


def _linked_with(program: str) -> list[str]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return re.findall(r"(/\S+) \(0x", listed)


def _copy(path: Path, root: Path) -> None:
    place = root / str(path).lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        shutil.copy(path, place)
