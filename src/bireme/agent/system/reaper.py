"""Collecting children that have ended, with what they used.

Called by the agent's loop and by keepers whenever SIGCHLD arrived. Never blocks, keeps no state. It is not a tracker:
which pid belongs to which task is the caller's knowledge.

Because agents and keepers are child subreapers, `reap_exited` also returns processes they did not start:
orphans that the kernel handed to them. Callers must expect pids they do not know.

Invariant: every exited child is returned exactly once. The agent must therefore not wait for children in
any other way (`subprocess.run` beside this would lose its exit status to the loop).
"""

from __future__ import annotations

import ctypes
import os
import resource
from dataclasses import dataclass

from bireme.agent.system.usage import TaskUsage

_PR_SET_CHILD_SUBREAPER = 36
_WALL = 0x40000000  # children that were cloned without a signal for their end count too
_BYTES_PER_BLOCK = 512  # ru_inblock and ru_oublock count these, whatever the file system uses


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: an exit code, or the signal that ended it, never both."""

    code: int
    signal: int = 0
    core: bool = False

    @classmethod
    def from_wait(cls, status: int) -> ExitStatus:
        """Reads the status word that wait(2) returns."""
        if os.WIFSIGNALED(status):
            return cls(code=0, signal=os.WTERMSIG(status), core=os.WCOREDUMP(status))
        return cls(code=os.WEXITSTATUS(status))

    @property
    def ok(self) -> bool:
        return self.code == 0 and self.signal == 0

    def as_wait_status(self) -> int:
        """The status word again: the form Slurm's exit codes are compared and combined in."""
        return self.code << 8 | self.signal | (0x80 if self.core else 0)

    def __str__(self) -> str:
        """As accounting shows it: `CODE:SIGNAL`."""
        return f"{self.code}:{self.signal}"


@dataclass(frozen=True, slots=True)
class ReapedChild:
    pid: int
    status: ExitStatus
    usage: TaskUsage


def become_subreaper() -> bool:
    """Have the kernel hand orphaned descendants to this process instead of to init.

    False where the kernel refuses (before 3.4); orphans then escape to init and only a cgroup or `find_marked` finds
    them.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def has_children() -> bool:
    """Whether this process has any child at all: living, stopped, dead and not waited for, or a clone."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WALL)
    except ChildProcessError:
        return False
    return True


def reap_exited() -> list[ReapedChild]:
    """Every child that has ended by now; returns at once when there is none."""
    return reap_all()[0]


def reap_all() -> tuple[list[ReapedChild], bool]:
    """Every child that has ended by now, and whether any other child is left (`has_children`)."""
    ended: list[ReapedChild] = []
    while True:
        try:
            pid, status, rusage = os.wait4(-1, os.WNOHANG | _WALL)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended.append(ReapedChild(pid, ExitStatus.from_wait(status), usage_from_rusage(rusage)))


def usage_from_rusage(rusage: resource.struct_rusage) -> TaskUsage:
    """The kernel's figures for a process and all of its descendants that were waited for."""
    return TaskUsage(
        user_cpu_s=rusage.ru_utime,
        system_cpu_s=rusage.ru_stime,
        max_rss_kib=rusage.ru_maxrss,
        read_bytes=rusage.ru_inblock * _BYTES_PER_BLOCK,
        written_bytes=rusage.ru_oublock * _BYTES_PER_BLOCK,
        major_page_faults=rusage.ru_majflt,
    )
