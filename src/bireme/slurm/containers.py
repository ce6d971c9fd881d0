"""What the options of containers say, in the words of Pyxis: mounts, names, variables. Pure.

`CHECKS` is asked when an option is read (`options/values`), with Pyxis' messages for what it refuses; `mounts`, `name`
and `variables` read the same texts again for whoever runs a job in an image (`engines/crew/payloads`). A text that
passed its check can be read. Not here: what an image is called (`bireme.images.references`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from bireme.slurm.errors import SlurmSyntaxError

TMPFS, UMOUNT = "tmpfs", "umount"
"""Sources of mounts that are no path."""
NAME_FLAGS = ("auto", "create", "exec", "no_exec")
_PROPAGATIONS = ("private", "shared", "slave", "unbindable")
_MOUNT_FLAGS = frozenset(
    (
        *("ro", "rw", "nosuid", "suid", "nodev", "dev", "noexec", "exec", "noatime", "nodiratime", "relatime"),
        *("bind", "rbind", "nofail", "silent", *_PROPAGATIONS, *(f"r{each}" for each in _PROPAGATIONS)),
    )
)


_OWN = ("/", "/proc", "/dev")
"""Of every container: no program would run without."""


class ContainerError(SlurmSyntaxError):
    """A value that Pyxis refuses; its lines are Pyxis'."""


class Mount(NamedTuple):
    source: str
    target: str
    """Absolute, inside."""
    flags: tuple[str, ...]


class Name(NamedTuple):
    name: str
    flag: str


def mounts(text: str) -> Iterator[Mount]:
    """`SRC:DST[:FLAGS],...`, or `SRC` alone for the same place inside. Raises ContainerError."""
    for entry in text.split(","):
        source, *rest = entry.split(":", 2)
        if not source or (rest and not rest[0]):
            raise ContainerError(f"--container-mounts: invalid format: {entry}")
        target = rest[0] if rest else source
        flags = tuple(flag for flag in rest[1].split("+") if flag) if len(rest) > 1 else ()
        _check_mount(source, target, flags)
        yield Mount(source, "/" + posixpath.normpath(target).lstrip("/"), flags)


def _check_mount(source: str, target: str, flags: tuple[str, ...]) -> None:
    added = f"could not add mount entry: {source}:{target}"
    if source[0] not in "./" and source not in (TMPFS, UMOUNT):
        why = 'mount source must be a relative path, an absolute path, "tmpfs" or "umount"'
    elif target[0] not in "./":
        why = "mount target must be a relative path or an absolute path"
    elif ".." in posixpath.normpath(target).split("/"):
        why = f"mount target {target} leads outside of the container"
    elif posixpath.normpath(f"/{target.lstrip('/')}") in _OWN:
        why = f"mount target {target} is the container's own: leave this mount out, or name a place below it"
    elif unknown := [flag for flag in flags if flag not in _MOUNT_FLAGS and not flag.startswith("x-create=")]:
        why = f"mount flag {unknown[0]} is not known"
    else:
        return
    raise ContainerError(f"{why}\n{added}")


def name(text: str) -> Name:
    """`NAME[:FLAG]`. Raises ContainerError."""
    named, _, flag = text.partition(":")
    if not named:
        raise ContainerError("--container-name: empty name")
    if "/" in named or len(named) > 255 or not named.isprintable() or named in (".", ".."):
        shown = ascii(named[:64])
        raise ContainerError(f"--container-name: {shown} is not a name: letters, digits, - and _ make one")
    if (flag or NAME_FLAGS[0]) not in NAME_FLAGS:
        raise ContainerError('--container-name: flag must be "auto", "create", "exec" or "no_exec"')
    return Name(named, flag or NAME_FLAGS[0])


def variables(text: str) -> tuple[str, ...]:
    """`NAME[,NAME...]`. Raises ContainerError."""
    names = tuple(text.split(",")) if text else ()
    if not all(names) or any("=" in name for name in names):
        raise ContainerError(f"--container-env: invalid format: {text}")
    return names


def _given(option: str, check: Callable[[str], object] = lambda text: None) -> Callable[[str], str]:
    def checked(text: str) -> str:
        if not text:
            raise ContainerError(f"--{option}: argument required")
        check(text)
        return text

    return checked


def _check_save(text: str) -> None:
    if text.endswith("/"):
        raise ContainerError("--container-save: target is a directory")


_OPTIONS: dict[str, Callable[[str], object]] = {
    "container-image": lambda text: None,
    "container-mounts": lambda text: list(mounts(text)),
    "container-workdir": lambda text: None,
    "container-name": name,
    "container-save": _check_save,
    "container-env": variables,
}


def check_texts(texts: Mapping[str, str]) -> None:
    """Of a specification that came without options: by the option's name. Raises ContainerError."""
    for option, text in texts.items():
        if text and option in CHECKS:
            CHECKS[option](text)


CHECKS: dict[str, Callable[[str], str]] = {option: _given(option, check) for option, check in _OPTIONS.items()}
"""By option: gives the text back. Raises ContainerError."""
