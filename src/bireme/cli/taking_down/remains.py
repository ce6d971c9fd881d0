"""What is left of a cluster on this machine, process by process: struck until nothing is, or told by pid.

For `bireme down --end-jobs`, after agents, router and gatherer were ended each in its own way: the processes here lost
the one that would have ended them, came to life meanwhile, or cannot be killed. Not here: cgroups (`agent/sweeping`).
Invariant: a process counts by its command line (its owner the home's) or by the marker of a job of this cluster, and is
signalled only while it is that very process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bireme.agent.census import processes_of
from bireme.agent.leftovers import tasks_by_node
from bireme.agent.system.processes import (
    ProcessIdentity,
    command_words,
    kill_tree,
    owned_by,
    process_identity,
    read_process,
    send_signal,
)
from bireme.daemon.paths import Paths
from bireme.router.census import living as living_router

_PATIENCE_S = 10.0
"""A keeper whose agent has ended kills what is below it for so long."""
_LOOK_S = 0.05
_STATES = {
    "D": "it waits in the kernel, where no signal reaches it",
    "T": "it is stopped",
    "t": "a debugger holds it",
}


@dataclass(frozen=True, slots=True)
class Remnant:
    """One process, and what it is in the cluster."""

    process: ProcessIdentity
    what: str
    strike: Callable[[ProcessIdentity], object]

    def __str__(self) -> str:
        entry = read_process(self.process.pid)
        why = _STATES.get(entry.state, "") if entry is not None else ""
        return f"{self.what} (pid {self.process.pid})" + (f": {why}" if why else "")


def end_remnants(paths: Paths, end_the_rest: Callable[[], None]) -> list[Remnant]:
    """Strikes until nothing is left, or only what cannot be killed, which is told. `end_the_rest` is called in between:
    what was just being started has become something that knows its own end."""
    deadline = time.monotonic() + _PATIENCE_S
    while left := list(_remnants(paths)):
        if time.monotonic() > deadline:
            return left
        for remnant in left:
            remnant.strike(remnant.process)
        time.sleep(_LOOK_S)
        end_the_rest()
    return []


def _remnants(paths: Paths) -> Iterator[Remnant]:
    for pid, node in processes_of(paths.home).items():
        if process := process_identity(pid):  # a stopped keeper sees its agent's end only when it goes on
            yield Remnant(process, f"agent of {node}" if node else "keeper of a job", _go_on)
    for pid in _gatherers(paths):
        if process := process_identity(pid):
            yield Remnant(process, "gatherer", _end)
    for pid in living_router(paths.router).pids:
        if process := process_identity(pid):
            yield Remnant(process, "router", _end)
    for place, process in tasks_by_node(paths.home):
        yield Remnant(process, f"process of a job on {place or 'a node'}", lambda each: kill_tree([each]))


def _gatherers(paths: Paths) -> list[int]:
    """By the process table: one that was started a moment ago has no lock yet."""
    try:
        owner = os.stat(paths.home).st_uid
    except OSError:
        return []
    ours = [b"bireme.gather", b"--folder", os.fsencode(paths.gatherer)]
    return [pid for pid in owned_by(owner) if command_words(pid)[2:5] == ours]


def _go_on(process: ProcessIdentity) -> None:
    send_signal(process, signal.SIGCONT)


def _end(process: ProcessIdentity) -> None:
    send_signal(process, signal.SIGTERM)
    send_signal(process, signal.SIGCONT)
