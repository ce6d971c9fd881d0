"""Whether a short job left a process behind: told exactly, without reading the whole process table for each job.

Thousands of jobs end in a minute and hardly one leaves anything. Each new pid of the machine is looked at once, by
its session and if need be its parent, and put down to the task it descends from; when a task ends, only what was
put down to it is looked at again. (`/proc/*/task/*/children` would tell at once; not every kernel has it.)

`Node` asks it and tells it of the beginning and end of tasks. Where looks lie too far apart for pids to be in
order it says so, and the process table is read after all (`processes.strays`).

Invariant: "nothing" is only said of a task all of whose processes were looked at, however often they forked and
whether or not they left their session.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from bireme.agent.processes import environment_value, read_process

FRESH_S = 5.0
"""Pids are given out in order and start over after 32768 of them or more: in so short a time they do not."""
_MANY = 4096


class OrphanWatch:
    def __init__(self, marker_variable: str) -> None:
        self._variable = marker_variable
        self._agent = os.getpid()
        self._members: dict[int, set[int]] = {}
        """By task: the pids that were put down to it, its own left out."""
        self._task_of: dict[int, int] = {}
        """The task (of itself, too) of every pid that was put down to one."""
        self._orphans: dict[str, set[int]] = {}
        """By job marker: what was the agent's own child already when first looked at, or outlived its task."""
        self._unsure: set[int] = set()
        """Tasks some of whose processes may never have been looked at."""
        self._looked_to = 0
        self._looked_at = 0.0

    def started(self, task: int) -> None:
        """A task was started, under this pid."""
        if not self._members:  # what came before is of no interest
            self._looked_to, self._looked_at = task, time.monotonic()
        self._members[task] = set()
        self._task_of[task] = task

    def left_something(self, task: int, marker: str) -> bool | None:
        """Whether a process of this ended task, or an orphan of its job, lives. None: nobody can tell cheaply."""
        self._look_at_new_pids()
        if task in self._unsure or task not in self._members:
            return None
        suspects = self._members[task] | self._orphans.get(marker, set())
        return any(self._lives(pid, marker) for pid in suspects)

    def task_ended(self, task: int, marker: str) -> None:
        """After the question. Processes that outlive the task are its job's from now on."""
        for pid in self._members.pop(task, ()):
            if self._task_of.get(pid) == task:
                del self._task_of[pid]
            if self._lives(pid, marker):
                self._orphans.setdefault(marker, set()).add(pid)
        self._task_of.pop(task, None)
        self._unsure.discard(task)

    def job_ended(self, marker: str) -> None:
        self._orphans.pop(marker, None)

    def _look_at_new_pids(self) -> None:
        now, newest = time.monotonic(), _newest_pid()
        if now - self._looked_at < FRESH_S:
            foreign: set[int] = set()
            for pid in _pids_between(self._looked_to, newest):
                self._look_at(pid, foreign)
        else:
            self._unsure.update(self._members)
        self._looked_to, self._looked_at = newest, now

    def _look_at(self, pid: int, foreign: set[int]) -> None:
        """`foreign`: sessions found to be nobody's of ours, in this look."""
        if pid in self._members:
            return
        try:
            session = os.getsid(pid)
        except OSError:  # gone
            return
        if session in foreign:
            return
        task = self._task_of.get(session)
        if task is None:
            parent = _parent_of(pid)
            task = self._task_of.get(parent)
            if task is None and parent == self._agent:
                self._adopt(pid)
                return
        if task is None:
            foreign.add(session)
        else:
            self._put_down(pid, task)

    def _adopt(self, pid: int) -> None:
        marker = environment_value(pid, self._variable)
        if marker is not None:
            self._orphans.setdefault(marker, set()).add(pid)

    def _put_down(self, pid: int, task: int) -> None:
        members = self._members[task]
        if len(members) >= _MANY:  # it forks for hours: not worth remembering
            self._unsure.add(task)
            members.clear()
        members.add(pid)
        self._task_of[pid] = task

    def _lives(self, pid: int, marker: str) -> bool:
        """The marker tells it from a later process under the same pid."""
        entry = read_process(pid)
        return entry is not None and not entry.is_dead and environment_value(pid, self._variable) == marker


def _newest_pid() -> int:
    with open("/proc/loadavg", "rb") as file:
        return int(file.read().split()[-1])


def _pids_between(first: int, newest: int) -> Iterable[int]:
    """Pids that may have been given out after `first`, up to `newest`."""
    if 0 <= newest - first <= _MANY:
        return range(first + 1, newest + 1)
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    if newest >= first:
        return [pid for pid in pids if first < pid <= newest]
    return [pid for pid in pids if pid > first] + [pid for pid in pids if pid <= newest]


def _parent_of(pid: int) -> int:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return 0
    try:
        text = os.read(fd, 512)
    except OSError:
        return 0
    finally:
        os.close(fd)
    return int(text[text.rindex(b")") + 2 :].split(None, 2)[1])
