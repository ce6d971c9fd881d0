"""Whose rights a process has that the agent starts: the user a job runs as.

Used by `spawn`. A root agent acts for many users; an agent without root acts for its owner alone, and asking it for
anybody else is a `PermissionError`. Invariant: the agent itself never takes on somebody else's rights, not even for a
moment: a child does, and keeps them.
"""

from __future__ import annotations

import grp
import os
import pwd
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
        """Whether acting as this identity needs no switch: nothing would change, or it is our user and we are not root,
        who alone can change groups (`lacks_group`)."""
        if self.uid != os.geteuid() or self.uid != 0:
            return self.uid == os.geteuid()
        return {self.gid, *self.groups} == {os.getegid(), *os.getgroups()} and self.gid == os.getegid()

    def lacks_group(self) -> str:
        """What a user is to know whose job was submitted under a group (`sg`, `newgrp`) that it does not run under."""
        if not self.is_own() or self.gid == os.getegid():
            return ""
        asked, own = group_name(self.gid), group_name(os.getegid())
        return f"group {asked} is not applied: without root jobs run under the group that the cluster has, {own}"


def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def become(identity: Identity) -> None:
    """Take the identity for good, in a child about to exec. Order matters: groups while still root."""
    os.setgroups(identity.groups)
    os.setresgid(identity.gid, identity.gid, identity.gid)
    os.setresuid(identity.uid, identity.uid, identity.uid)
