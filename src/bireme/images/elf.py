"""Which processor programs are for, by their first bytes, and what this machine's is called: Docker's names of both.

Called where an image says nothing of its architecture, and to refuse one that cannot run here.
"""

from __future__ import annotations

import os
import platform
import stat

from bireme.images.refusing import RefusedError

_OF_MACHINE = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "ppc64le": "ppc64le",
    "s390x": "s390x",
    "riscv64": "riscv64",
    "i686": "386",
}
_OF_ELF = {62: "amd64", 183: "arm64", 40: "arm", 21: "ppc64le", 22: "s390x", 243: "riscv64", 3: "386"}
_PROGRAMS = ("bin/sh", "usr/bin/sh", "bin/busybox", "usr/bin/env", "bin/bash", "usr/bin/bash", "bin/true")
_MACHINE_AT, _BIG_ENDIAN_AT = 18, 5
_MOST_LINKS = 10


def own_architecture() -> str:
    machine = platform.machine()
    return _OF_MACHINE.get(machine, machine)


def check_architecture(name: str, architecture: str) -> None:
    """Raises RefusedError for an image that cannot run here; one that says nothing may."""
    own = own_architecture()
    if architecture not in ("", own):
        raise RefusedError(
            f"{name} is made for other processors ({architecture}) than this machine's ({own}): "
            "name an image that is made for these"
        )


def architecture_of(root: str) -> str:
    """Of a root's programs; empty where none of the usual ones is there."""
    for program in _PROGRAMS:
        if (found := _of_program(root, program)) is not None:
            return found
    return ""


def _of_program(root: str, path: str) -> str | None:
    for _ in range(_MOST_LINKS):
        whole = os.path.join(root, path)
        try:
            about = os.lstat(whole)
            if not stat.S_ISLNK(about.st_mode):
                return _of_file(whole) if stat.S_ISREG(about.st_mode) else None
            target = os.readlink(whole)
        except OSError:
            return None
        path = os.path.normpath(os.path.join("/", os.path.dirname(path), target)).lstrip("/")
    return None


def _of_file(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError:
        return None
    if head[:4] != b"\x7fELF" or len(head) < 20:
        return None
    machine = head[_MACHINE_AT : _MACHINE_AT + 2]
    return _OF_ELF.get(int.from_bytes(machine, "big" if head[_BIG_ENDIAN_AT] == 2 else "little"), "")
