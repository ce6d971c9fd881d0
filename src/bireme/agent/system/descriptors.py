"""The agent's own descriptors: as many as the machine lets it have, and some that are never given to users.

`birth` raises the limit, `spawn` gives tasks the one that was found, `server` and `steps` ask before they open
something for a user; `keepers` and their agents hand each other some. Invariant: when users' connections and tasks have
taken all they may, the agent can still accept its daemon, read /proc and start a process.
"""

from __future__ import annotations

import array
import errno
import os
import resource
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

RESERVED = 128
"""For the agent's own needs: its daemon, its files, what a start holds for a moment, reads of /proc."""

_VARIABLE = "BIREME_FILE_LIMIT"
"""In the environment of agents: the limit that their daemon had before it took more."""
_found: list[tuple[int, int]] = []
"""The limit that tasks are to have, once the agent has another."""


def tell_agents() -> None:
    """In a daemon, before it raises its own limit: agents inherit that, and their jobs are to have this one."""
    os.environ[_VARIABLE] = str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def raise_limit() -> None:
    """Raises the limit of open files as high as may be, for this process alone. Called once, when the agent starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = os.environ.pop(_VARIABLE, "")
    if told.isdigit():
        soft = int(told) if hard == resource.RLIM_INFINITY else min(int(told), hard)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _found[:] = [(soft, hard)]


def restore_limit() -> None:
    """In a child: the limit that was found, which programs expect (some close every number below it)."""
    if _found:
        resource.setrlimit(resource.RLIMIT_NOFILE, _found[0])


@contextmanager
def limit_of_tasks() -> Iterator[None]:
    """Within the block, what is spawned gets the limit that was found."""
    if not _found or _found[0][0] == _found[0][1]:
        yield
        return
    soft, hard = _found[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def close_all_but(kept: Iterable[int]) -> None:
    """Closes every other descriptor of this process, one call for each gap; numbers above the highest cost nothing."""
    numbers = sorted(kept)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    for lower, upper in zip([-1, *numbers], [*numbers, highest + 1], strict=True):
        if lower + 1 < upper:  # closerange(0, 0) would close everything
            os.closerange(lower + 1, upper)


def receive_fds(channel: socket.socket, most_bytes: int, most_fds: int) -> tuple[bytes, list[int], int]:
    """Data, descriptors that no program inherits, and the message's flags. Raises OSError.

    `socket.recv_fds` drops the flags that it is given (Python 3.11), and with them the one that says so.
    """
    room = socket.CMSG_LEN(most_fds * array.array("i").itemsize)
    data, parts, flags, _ = channel.recvmsg(most_bytes, room, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, part in parts:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(part[: len(part) - len(part) % fds.itemsize])
    return data, list(fds), flags


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def check_for_user(fd: int) -> None:
    """Raises OSError when this newest descriptor is one of the reserve. The kernel gives the lowest free number, so
    that its height tells how many are taken."""
    if fd >= limit() - RESERVED:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
