"""The one node an agent stands for: its settings, and what its jobs and steps share.

`Node` is what `jobs` and `steps` see of the agent: the loop, the records, a way to report. They do not know the
server, nor each other's jobs.

Invariant: an event about a job goes through `Node.report` and nowhere else, so that it is recorded before it is
sent and numbered in the order in which things happened.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bireme.agent.confining.confined import NodeConfinement
from bireme.agent.confining.container import Container
from bireme.agent.fetching import Images
from bireme.agent.inbox import Inbox
from bireme.agent.keeping.keepers import Keeper, KeeperPool
from bireme.agent.messages.orders import Prepare
from bireme.agent.messages.told import Event, Probed, Unkillable
from bireme.agent.records import JobKey, TaskRecords
from bireme.agent.starting.script_pool import ScriptPool
from bireme.agent.system.identity import Identity
from bireme.agent.system.loop import Loop
from bireme.agent.system.processes import ProcessIdentity

log = logging.getLogger("bireme.agent")

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
    proctrack: str = ""
    """ProctrackType; empty: the best there is."""
    sample_s: float = 30.0
    kill_over_memory: bool = False
    """JobAcctGatherParams=OverMemoryKill: a step that a sample finds above its job's memory is ended."""
    container: Container = field(default_factory=Container)

    @property
    def directory(self) -> Path:
        return Path(self.home) / "agents" / self.name


@dataclass(slots=True)
class Node:
    settings: NodeSettings
    loop: Loop
    records: TaskRecords
    send: Callable[[Event], None]
    confinement: NodeConfinement
    keepers: KeeperPool
    isolation: dict[str, str] = field(default_factory=dict)
    directory: str = field(init=False)
    scripts: ScriptPool = field(init=False)
    inbox: Inbox = field(init=False)
    images: Images = field(init=False)
    mention: Callable[[Probed], None] = field(default=lambda _: None)
    """Tells the daemon that is there now what is told anew to every one that comes."""
    on_task: Callable[[], None] = field(default=lambda: None)
    """Called after a task was started."""

    def __post_init__(self) -> None:
        self.directory = str(self.settings.directory)
        self.scripts = ScriptPool(f"{self.directory}/scripts")
        self.inbox = Inbox(self.loop, self.settings.container.inbox)
        self.images = Images(self.loop, f"{self.settings.home}/images")

    @property
    def name(self) -> str:
        return self.settings.name

    def report(self, event: Event) -> None:
        event.at = time.time()
        self.send(event)

    def task_started(self, key: JobKey, pid: int) -> None:
        """Writes the pid down at once: a successor of this agent must find the process."""
        self.records.started(key, pid)
        self.on_task()

    def take_keeper(self, key: JobKey, gid: int | None) -> Keeper:
        """A keeper for one of the job's scripts or steps, written down before anything runs below it.

        `gid`: the group that it is to have, where that is not taken on by each task (`group_of_keeper`).
        """
        keeper = self.keepers.take(gid)
        self.records.kept(key, keeper.process, keeper.group.path.name if keeper.group is not None else "")
        return keeper

    def unkillable(self, key: JobKey, left: Iterable[ProcessIdentity], step: int | None = None) -> None:
        """What SIGKILL does not end keeps all that its job has, and nobody else gets this node."""
        pids = ", ".join(str(process.pid) for process in sorted(left, key=lambda each: each.pid)) or "unknown"
        about = f"job {key[0]}" if step is None else f"step {key[0]}.{step}"
        log.error("%s: cannot be killed: pids %s", about, pids)
        self.report(Unkillable(*key, f"{about}: pids {pids}"))


def asked_for(order: Prepare) -> Identity:
    """Whom the job is to run as."""
    return Identity(order.uid, order.gid, order.groups)
