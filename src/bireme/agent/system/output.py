"""Opening the files a task reads and writes, in a process that has the rights of the job's user.

Called by the child that becomes a task (`spawn`), and by children of the Kubernetes engine. Never by the agent itself:
every one of these calls may take as long as the user's file system likes. Not for the agent's own files.

One thing is Slurm's way: the job's umask decides the mode of a new file. One is ours: missing folders of an output are
made, where Slurm fails the job without a word (`--output=logs/%j/train.out` is what people write).

Invariant: nothing here changes whose rights are used.
"""

from __future__ import annotations

import fcntl
import os
from typing import Literal

OpenMode = Literal["read", "append", "truncate", "existing"]
"""How a stream is opened. Outputs are appended to in any case, as by Slurm: tasks that share a file do not overwrite
each other. "truncate" empties it first; "existing" makes no file, and does not wait for a FIFO's reader."""
_FLAGS: dict[OpenMode, int] = {
    "read": os.O_RDONLY,
    "append": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "truncate": os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC,
    "existing": os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK,
}


class OpenFileError(Exception):
    """A task's file could not be opened. `str()` is the line a user reads."""

    def __init__(self, stream: str, path: str, errno: int, why: str = "") -> None:
        """`why`: what the number does not say."""
        super().__init__(f"Could not open {stream} file {path}: {why or os.strerror(errno)}")
        self.stream = stream
        self.path = path
        self.errno = errno
        self.why = why


def open_stream(path: str, mode: OpenMode, *, stream: str, make_folders: bool = True, wait: bool = True) -> int:
    """The file open (not inheritable) with this process's rights; an output in a folder that is made when missing.

    `stream` only words the error. `wait`: for the other side of a FIFO, as any program does.
    """
    flags = _FLAGS[mode] | os.O_CLOEXEC | os.O_NOCTTY | (0 if wait else os.O_NONBLOCK)
    try:
        fd = _open(path, flags, make_folders=make_folders and mode != "read")
    except OSError as error:
        raise OpenFileError(stream, path, error.errno or 0) from error
    except ValueError as error:  # a NUL byte in the name
        raise OpenFileError(stream, path.replace("\0", "?"), 22) from error
    if not wait:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    return fd


def open_output(path: str, mode: OpenMode, *, stream: str = "stdout", umask: int | None = None) -> int:
    """The file open for writing, made with this umask, without waiting for a FIFO's reader."""
    previous_umask = os.umask(umask) if umask is not None else None
    try:
        return open_stream(path, mode, stream=stream, wait=False)
    finally:
        if previous_umask is not None:
            os.umask(previous_umask)


def open_input(path: str) -> int:
    """The file open for reading, without waiting for a FIFO's writer."""
    return open_stream(path, "read", stream="stdin", wait=False)


def _open(path: str, flags: int, make_folders: bool) -> int:
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        if not make_folders or not flags & os.O_CREAT:
            raise
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    return os.open(path, flags, 0o666)
