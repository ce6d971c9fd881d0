"""Whose rights an act of the agent uses: the user a job runs as.

Used by `spawn` (tasks) and `output` (files opened before a task exists). A root agent acts for many users;
an agent without root acts for its owner alone, and asking it for anybody else is a `PermissionError`.

Invariant: `acting_as` leaves the process with exactly the rights it found, or ends the process. An agent
that cannot get its rights back must not go on with somebody else's.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    @classmethod
    def of_user(cls, user: str | int, gid: int | None = None) -> Identity:
        """The user's ids as the machine knows them; KeyError when it does not know the user."""
        entry = pwd.getpwnam(user) if isinstance(user, str) else pwd.getpwuid(user)
        group = entry.pw_gid if gid is None else gid
        return cls(entry.pw_uid, group, tuple(os.getgrouplist(entry.pw_name, group)))

    @classmethod
    def own(cls) -> Identity:
        return cls(os.geteuid(), os.getegid(), tuple(os.getgroups()))

    def is_own(self) -> bool:
        """Whether acting as this identity needs no switch at all."""
        return self.uid == os.geteuid() and self.gid == os.getegid()


@contextmanager
def acting_as(identity: Identity | None) -> Iterator[None]:
    """Within the block the file system sees the identity; for a few quick calls, never across a wait.

    Only the effective ids change. The real and saved ones stay root's, so that the user cannot signal the
    agent meanwhile. The switch is process-wide: no other thread may be at work.
    """
    if identity is None or identity.is_own():
        yield
        return
    own_gid, own_groups = os.getegid(), os.getgroups()
    os.setgroups(identity.groups)
    try:
        os.setegid(identity.gid)
        os.seteuid(identity.uid)
        yield
    finally:
        try:
            os.seteuid(0)
            os.setegid(own_gid)
            os.setgroups(own_groups)
        except OSError:
            os._exit(70)


def become(identity: Identity) -> None:
    """Take the identity for good, in a child about to exec. Order matters: groups while still root."""
    os.setgroups(identity.groups)
    os.setresgid(identity.gid, identity.gid, identity.gid)
    os.setresuid(identity.uid, identity.uid, identity.uid)
