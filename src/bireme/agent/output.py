"""Opening the files a task reads and writes, with the rights of the job's user.

Called by the agent before a task starts. Not for the agent's own files.

One thing is Slurm's way: the job's umask decides the mode of a new file. Two are ours: missing folders of an output
are made, where Slurm fails the job without a word (`--output=logs/%j/train.out` is what people write), and a FIFO
nobody reads is an error at once instead of an agent that hangs.

Invariant: what is opened here could have been opened by the user; a root agent never lends its rights.
"""

from __future__ import annotations

import fcntl
import os
from typing import Literal

from bireme.agent.identity import Identity, acting_as

OpenMode = Literal["append", "truncate"]


class OpenFileError(Exception):
    """A task's file could not be opened. `str()` is the line a user reads."""

    def __init__(self, stream: str, path: str, errno: int, why: str = "") -> None:
        """`why`: what the number does not say."""
        super().__init__(f"Could not open {stream} file {path}: {why or os.strerror(errno)}")
        self.stream = stream
        self.path = path
        self.errno = errno
        self.why = why


def open_output(
    path: str,
    mode: OpenMode,
    identity: Identity | None = None,
    *,
    stream: str = "stdout",
    umask: int | None = None,
    make_folders: bool = True,
) -> int:
    """The file open for writing (not inheritable), in a folder that is made when missing. `stream` only words the
    error.
    """
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if mode == "append" else os.O_TRUNC)
    return _open_as(path, flags, identity, stream, umask, make_folders=make_folders)


def open_input(path: str, identity: Identity | None = None) -> int:
    """The file open for reading (not inheritable)."""
    return _open_as(path, os.O_RDONLY, identity, "stdin", None)


def _open_as(
    path: str, flags: int, identity: Identity | None, stream: str, umask: int | None, *, make_folders: bool = False
) -> int:
    previous_umask = os.umask(umask) if umask is not None else None
    try:
        with acting_as(identity):
            fd = _open(path, flags, make_folders)
    except OSError as error:
        raise OpenFileError(stream, path, error.errno or 0) from error
    except ValueError as error:  # a NUL byte in the name
        raise OpenFileError(stream, path.replace("\0", "?"), 22) from error
    finally:
        if previous_umask is not None:
            os.umask(previous_umask)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    return fd


def _open(path: str, flags: int, make_folders: bool) -> int:
    # O_NONBLOCK keeps a FIFO from blocking the open; it is taken off again for the task's sake.
    flags |= os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        if not make_folders:
            raise
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    return os.open(path, flags, 0o666)
