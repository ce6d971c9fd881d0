"""The one node an agent stands for: its settings, and what its jobs and steps share.

`Node` is what `jobs` and `steps` see of the agent: the loop, the records, a way to report. They do not know the
server, nor each other's jobs.

Invariant: an event about a job goes through `Node.report` and nowhere else, so that it is recorded before it is
sent and numbered in the order in which things happened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bireme.agent.confined import NodeConfinement
from bireme.agent.container import Container
from bireme.agent.identity import Identity
from bireme.agent.inbox import Inbox
from bireme.agent.loop import Loop
from bireme.agent.orphans import OrphanWatch
from bireme.agent.processes import Stray, strays
from bireme.agent.protocol import Message
from bireme.agent.records import JobKey, TaskRecords
from bireme.agent.script_pool import ScriptPool

JOB_MARKER = "BIREME_JOB"
"""In the environment of every process of a job: `<job>.<generation>`."""


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
    container: Container = field(default_factory=Container)

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
    orphans: OrphanWatch = field(init=False)
    scripts: ScriptPool = field(init=False)
    inbox: Inbox = field(init=False)
    on_task: Callable[[], None] = field(default=lambda: None)
    """Called after a task was started."""

    def __post_init__(self) -> None:
        self.directory = str(self.settings.directory)
        self.orphans = OrphanWatch(JOB_MARKER)
        self.scripts = ScriptPool(f"{self.directory}/scripts")
        self.inbox = Inbox(self.loop, self.settings.container.inbox)

    @property
    def name(self) -> str:
        return self.settings.name

    def report(self, event: str, key: JobKey, **facts: object) -> None:
        self.send({"ev": event, "job": key[0], "gen": key[1], **facts, "at": time.time()})

    def task_started(self, key: JobKey, pid: int) -> None:
        """Writes the pid down at once: a successor of this agent must find the process."""
        self.records.started(key, pid)
        self.orphans.started(pid)
        self.on_task()

    def strays_of(self, key: JobKey) -> list[Stray]:
        """Orphans of the job's tasks: living processes the kernel handed to this agent."""
        marker = _marker(key)
        return [stray for stray in strays(JOB_MARKER, self.loop.children) if stray.marker == marker]

    def left_orphans(self, key: JobKey, task: int) -> bool:
        """Whether this ended task left a process behind, or its job has an orphan: `strays_of`, but cheap."""
        if not self.loop.children and not _has_children():
            return False
        if _group_exists(task):
            return True
        answer = self.orphans.left_something(task, _marker(key))
        return bool(self.strays_of(key)) if answer is None else answer

    def task_ended(self, key: JobKey, task: int) -> None:
        self.orphans.task_ended(task, _marker(key))

    def job_ended(self, key: JobKey) -> None:
        self.orphans.job_ended(_marker(key))


def _marker(key: JobKey) -> str:
    return f"{key[0]}.{key[1]}"


def identity_from(message: Message) -> Identity | None:
    """Whom the job runs as; None when that is the agent itself."""
    identity = _asked_for(message)
    return None if identity.is_own() else identity


def notice_from(message: Message) -> str:
    """What the job's user is to read on its stderr about whom it runs as."""
    return _asked_for(message).lacks_group()


def _asked_for(message: Message) -> Identity:
    return Identity(message["uid"], message["gid"], tuple(message.get("groups", ())))


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _group_exists(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
