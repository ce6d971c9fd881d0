"""Keeps an image from eviction while anything runs in it: a shared lock on a file in its folder.

The agent holds it from the moment it is told of the image, and may hand the descriptor on to what runs in it: the lock
lasts as long as anybody has it, and ends with the last of them however that dies. Who evicts (`eviction`) takes the
lock for itself first.
Invariant: what is held is there, and stays.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def hold(lock: str) -> int | None:
    """A descriptor that holds the image of this lock file; None where it is gone, or about to be."""
    try:
        fd = _opened(lock)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(lock, follow_symlinks=False)):
            with suppress(OSError):
                os.utime(fd)  # what was used last is evicted last
            return fd
    except OSError:
        pass
    os.close(fd)
    return None


def _opened(lock: str) -> int:
    """Without a link on the way through the user's folder: the agent that asks may be root, and locks nobody else's."""
    folder, *above, name = lock.rsplit("/", 3)
    fd = os.open(folder or "/", _FOLDER)
    try:
        for part in above:
            below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = below
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
    finally:
        os.close(fd)
