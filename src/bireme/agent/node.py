"""The one node an agent stands for: its settings, and what its jobs and steps share.

`Node` is what `jobs` and `steps` see of the agent: the loop, the records, a way to report. They do not know the
server, nor each other's jobs.

Invariant: an event about a job goes through `Node.report` and nowhere else, so that it is recorded before it is
sent and numbered in the order in which things happened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bireme.agent.confined import NodeConfinement
from bireme.agent.identity import Identity
from bireme.agent.loop import Loop
from bireme.agent.processes import Stray, environment_value, read_process, strays
from bireme.agent.protocol import Message
from bireme.agent.records import JobKey, TaskRecords

JOB_MARKER = "BIREME_JOB"
"""In the environment of every process of a job: `<job>.<generation>`."""

_SHORT_LIFE_S = 10.0
_FEW_PIDS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """One entry of the launch file. `virtual` nodes share this machine: their CPUs are not its CPUs."""

    name: str
    home: str
    virtual: bool = False
    address: str = ""
    hosts: dict[str, str] = field(default_factory=dict)
    bind_cpus: bool = False
    confine: dict[str, bool] = field(default_factory=dict)
    sample_s: float = 30.0

    @property
    def directory(self) -> Path:
        return Path(self.home) / "agents" / self.name


@dataclass(slots=True)
class Node:
    settings: NodeSettings
    loop: Loop
    records: TaskRecords
    send: Callable[[Message], None]
    confinement: NodeConfinement
    isolation: dict[str, str] = field(default_factory=dict)
    directory: str = field(init=False)
    on_task: Callable[[], None] = field(default=lambda: None)
    """Called after a task was started."""

    def __post_init__(self) -> None:
        self.directory = str(self.settings.directory)

    @property
    def name(self) -> str:
        return self.settings.name

    def report(self, event: str, key: JobKey, **facts: object) -> None:
        self.send({"ev": event, "job": key[0], "gen": key[1], **facts, "at": time.time()})

    def task_started(self, key: JobKey, pid: int) -> None:
        """Writes the pid down at once: a successor of this agent must find the process."""
        self.records.started(key, pid)
        self.on_task()

    def strays_of(self, key: JobKey) -> list[Stray]:
        """Orphans of the job's tasks: living processes the kernel handed to this agent."""
        marker = f"{key[0]}.{key[1]}"
        return [stray for stray in strays(JOB_MARKER, self.loop.children) if stray.marker == marker]

    def left_orphans(self, key: JobKey, leader: int, started_at: float) -> bool:
        """Whether a job whose only task just ended left a process behind. The cheap form of `strays_of`.

        Most jobs leave nothing, and thousands end in a minute: only processes that can be this job's are looked
        at. Pids are given out in order, so a young job's orphans lie between its leader's pid and the newest.
        """
        if not self.loop.children and not _has_children():
            return False
        if _group_exists(leader):
            return True
        if time.time() - started_at > _SHORT_LIFE_S:
            return bool(self.strays_of(key))
        agent, marker = os.getpid(), f"{key[0]}.{key[1]}"
        for pid in _pids_since(leader):
            if pid in self.loop.children:
                continue
            entry = read_process(pid)
            if entry is None or entry.ppid != agent or entry.is_dead:
                continue
            if environment_value(pid, JOB_MARKER) == marker:
                return True
        return False


def identity_from(message: Message) -> Identity | None:
    """Whom the job runs as; None when that is the agent itself."""
    identity = Identity(message["uid"], message["gid"], tuple(message.get("groups", ())))
    return None if identity.is_own() else identity


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _pids_since(first: int) -> Iterable[int]:
    """Pids that may have been given out after `first`, whose numbers start over at some point."""
    with open("/proc/loadavg", "rb") as file:
        newest = int(file.read().split()[-1])
    if 0 <= newest - first <= _FEW_PIDS:
        return range(first + 1, newest + 1)
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    if newest >= first:
        return (pid for pid in pids if first < pid <= newest)
    return (pid for pid in pids if pid > first or pid <= newest)


def _group_exists(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
