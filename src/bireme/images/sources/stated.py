"""What a root says itself of how to run it, where no configuration came with it: files that Enroot and Apptainer keep.

Enroot writes the environment to /etc/environment and the entrypoint to /etc/rc; Apptainer keeps shell files below
/.singularity.d. Called for folders, .sqsh and .sif; `saving` writes the same files.
Invariant: no link of the root is followed, and what cannot be read says nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from bireme.images.elf import architecture_of
from bireme.images.messages import Image

ENVIRONMENT, RC = "etc/environment", "etc/rc"
_APPTAINER_ENV, _RUNSCRIPT = ".singularity.d/env", ".singularity.d/runscript"
_MOST_BYTES = 1 << 20
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_LINE = re.compile(rf"({_NAME})=(.*)")
_EXPORT = re.compile(rf'export ({_NAME})="?(?:\$\{{{_NAME}:-"?)?([^"$`]*)"?\}}?"?')
_WORKDIR = re.compile(r'cd "([^"$`]+)"')


def stated_in(root: str, *, name: str, read_only: bool, lock: str = "", digest: str = "") -> Image:
    """The image of this root, with what it says of itself."""
    rc = _read(root, RC)
    entrypoint = ("/bin/sh", f"/{RC}") if rc else ()
    if not entrypoint and _read(root, _RUNSCRIPT):
        entrypoint = ("/bin/sh", f"/{_RUNSCRIPT}")
    found = _WORKDIR.search(rc)
    return Image(
        root=root,
        read_only=read_only,
        environment=_environment(root),
        entrypoint=entrypoint,
        workdir=found[1] if found else "",
        architecture=architecture_of(root),
        digest=digest,
        name=name,
        lock=lock,
    )


def _environment(root: str) -> Mapping[str, str]:
    found = dict(_assignments(_read(root, ENVIRONMENT)))
    folder = os.path.join(root, _APPTAINER_ENV)
    if os.path.isdir(folder) and not os.path.islink(folder):
        for each in sorted(os.listdir(folder)):
            found |= dict(_EXPORT.findall(_read(root, f"{_APPTAINER_ENV}/{each}")))
    return found


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if (found := _LINE.fullmatch(line.strip().removeprefix("export "))) is not None:
            yield found[1], _unquoted(found[2])


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _read(root: str, path: str) -> str:
    """A file of the root, without following a link on the way."""
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *above, last = path.split("/")
        for part in above:
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = below
        fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with open(fd, "rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(folder)
