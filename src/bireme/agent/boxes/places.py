"""Paths inside a root that somebody else made: opened, and made where they are missing, without ever leaving it.

Used while a box is built. Images are full of absolute links (`/var/run -> /run`): they mean what they would mean if the
folder were the root, and are followed by the kernel alone (`mounts.open_in_root`). Invariant: nothing is made or opened
outside of the root, whatever the image holds.
"""

from __future__ import annotations

import os
from contextlib import suppress

from bireme.agent.system.mounts import open_in_root


def open_folder(root: int, path: str) -> int:
    """O_PATH; it and what is above it is made where it is missing."""
    names = _names(path)
    fd = os.dup(root)
    for count, name in enumerate(names, start=1):
        inside = "/".join(names[:count])
        try:
            below = open_in_root(root, inside, os.O_PATH | os.O_DIRECTORY)
        except FileNotFoundError:
            with suppress(FileExistsError):  # another made it; or a link that leads nowhere, which the next line says
                os.mkdir(name, 0o755, dir_fd=fd)
            below = open_in_root(root, inside, os.O_PATH | os.O_DIRECTORY)
        finally:
            os.close(fd)
        fd = below
    return fd


def open_file(root: int, path: str) -> int:
    """O_PATH; an empty file is made where nothing is."""
    folder, _, name = "/".join(_names(path)).rpartition("/")
    with suppress(FileNotFoundError):
        return open_in_root(root, path, os.O_PATH)
    above = open_folder(root, folder)
    try:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=above))
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    finally:
        os.close(above)


def write_file(root: int, path: str, data: bytes, mode: int = 0o644) -> None:
    """In place of what is there, be it a link."""
    folder, _, name = "/".join(_names(path)).rpartition("/")
    above = open_folder(root, folder)
    try:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=above)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=above)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
    finally:
        os.close(above)


def make_link(root: int, path: str, leads_to: str) -> None:
    """In place of what is there, unless that is a folder."""
    folder, _, name = "/".join(_names(path)).rpartition("/")
    above = open_folder(root, folder)
    try:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=above)
        os.symlink(leads_to, name, dir_fd=above)
    finally:
        os.close(above)


def read_file(root: int, path: str, most: int = 1 << 20) -> bytes:
    """What an image has there; nothing where there is no such file."""
    try:
        fd = open_in_root(root, path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return b""
    with os.fdopen(fd, "rb") as file:
        return file.read(most)


def is_there(root: int, path: str) -> bool:
    try:
        os.close(open_in_root(root, path, os.O_PATH))
    except OSError:
        return False
    return True


def _names(path: str) -> list[str]:
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise ValueError(f"{path} leads outside of the container")
    return names
