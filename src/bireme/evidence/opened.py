"""Opening an output of a job, whatever lies in its place: a pipe, a device, a link to another's file, nothing.

Used by every reader of outputs: `logs` here, and the commands that show a timeline. Invariant: nobody waits for what
was opened, and what is not the job's owner's is not shown to who may read more than the owner.
"""

from __future__ import annotations

import os
import stat
from typing import BinaryIO


class NotTheirsError(Exception):
    """The refusal to read a file of another user that lies where a job's output should: a link that its owner put there
    for who may read more."""


class NoFileError(Exception):
    """What lies there is no file that could be read from its beginning to its end: a pipe, a device, a socket."""


def open_output(path: str, owner: int | None, *, strictly: bool = False) -> BinaryIO:
    """A regular file, opened for reading. `owner`: whose it has to be; None: anybody's that may be read.

    Who is the owner may read all that they can read; `strictly`: even they only what is theirs, because others will
    see the answer.
    """
    # Non-blocking: a pipe in its place must not make anybody wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NoFileError
        theirs = (status.st_uid,) if strictly else (status.st_uid, os.geteuid())
        if owner is not None and owner not in theirs:
            raise NotTheirsError
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
