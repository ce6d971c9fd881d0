"""Ending what an agent left behind when it died. Called when its successor starts.

Four nets, each for what the one before cannot hold. The cgroups of its keepers, where there are any. Its keepers, which
see their agent go, end what is below them and then themselves; they are waited for. The pids that were written down,
their trees and sessions. And every process that carries a job marker of this cluster and this node (a process that was
started in the instant before its pid could be written down).

What none of them can end (`Remains`) is not forgotten: its job is not reported as cleared before it is gone.

Invariant: only processes of this node of this cluster are touched: a recorded pid counts with its start time, a
marker with the home and the node beside it.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from bireme.agent.confining.tracking import Tracking, TrackingGroup
from bireme.agent.node import JOB_MARKER
from bireme.agent.records import JobKey, Leftover, RecordedKeeper, RecordedProcess, TaskRecords
from bireme.agent.system.loop import Loop
from bireme.agent.system.processes import (
    ProcessIdentity,
    environment_value,
    find_marked,
    is_alive,
    kill_tree,
    living_below,
    process_identity,
    send_signal,
    signal_all,
)

log = logging.getLogger("bireme.agent")

_START_TOLERANCE_S = 5.0
"""Between the kernel's start time and the agent's note of it lie an exec and, on a busy machine, a wait."""
_PATIENCE_S = 10.0
"""How long a start waits for what was killed: the node serves then, but for the jobs of which something is left."""
_LOOK_S = 0.02
_LOOK_AGAIN_S = 0.5
_LAST_WORDS = ("batch_ended", "refused", "cleared", "vanished")


@dataclass(slots=True)
class Remains:
    """What is left of a job that an earlier agent held, and cannot be killed now."""

    key: JobKey
    processes: set[ProcessIdentity] = field(default_factory=set)
    keepers: list[ProcessIdentity] = field(default_factory=list)
    groups: list[TrackingGroup] = field(default_factory=list)

    def strike(self) -> bool:
        """Kills what can be killed; True when nothing is left."""
        for group in self.groups:
            if group.kill():
                group.remove()
        for keeper in self.keepers:
            send_signal(keeper, signal.SIGCONT)  # somebody may have stopped it
        alive = [keeper.pid for keeper in self.keepers if is_alive(keeper)]
        self.processes |= living_below(alive)
        signal_all(self.processes, signal.SIGKILL)
        return not self.living()

    def living(self) -> set[ProcessIdentity]:
        in_groups = {process_identity(pid) for group in self.groups for pid in group.pids()}
        known = self.processes | set(self.keepers) | {process for process in in_groups if process is not None}
        return {process for process in known if is_alive(process)}

    def watch(self, loop: Loop, gone: Callable[[], None]) -> None:
        """Strikes again and again, and calls `gone` once nothing is left."""
        if self.strike():
            gone()
        else:
            loop.call_later(_LOOK_AGAIN_S, lambda: self.watch(loop, gone))


def kill_leftovers(records: TaskRecords, home: str, node: str, tracking: Tracking) -> list[Remains]:
    """Returns what could not be ended, by job."""
    if records.damaged:
        lines = ", ".join(map(str, records.damaged[:10]))
        log.error("the records of an earlier agent are damaged (lines %s): what they said is not known", lines)
    elif records.epoch == 1 and not records.had_past:  # the first agent of this node: there is no past
        return []
    found = [_remains(leftover, tracking) for leftover in records.leftovers]
    for group in tracking.leftovers():
        if group.kill():
            group.remove()
    _wait_for([remains for remains in found if not remains.strike()])
    kill_tree([process for remains in found for process in remains.processes])
    for process in [process for name, process in tasks_by_node(home) if name == node]:
        log.warning("killing process %d, left by an earlier agent", process.pid)
        kill_tree([process])
    left = [remains for remains in found if not remains.strike()]
    for remains in left:
        pids = ", ".join(str(process.pid) for process in remains.living())
        log.error("job %d.%d: pids %s of an earlier agent cannot be killed", *remains.key, pids)
    return left


def _remains(leftover: Leftover, tracking: Tracking) -> Remains:
    recorded = {process for each in leftover.processes if (process := _still_there(each)) is not None}
    groups = [tracking.group_named(keeper.group) for keeper in leftover.keepers]
    named = [group for group in groups if group is not None and group.path.is_dir()]
    return Remains(leftover.key, recorded, _living(leftover.keepers), named)


def _living(keepers: Iterable[RecordedKeeper]) -> list[ProcessIdentity]:
    """A keeper that served several of a job's steps was written down as often."""
    return [process for process in dict.fromkeys(each.process for each in keepers) if is_alive(process)]


def _wait_for(remains: list[Remains]) -> None:
    """Until the keepers have ended themselves, which they do once nothing is left below them."""
    deadline = time.monotonic() + _PATIENCE_S
    while remains and time.monotonic() < deadline:
        select.select([], [], [], _LOOK_S)
        remains = [each for each in remains if not each.strike()]


def needs_vanished(leftover: Leftover) -> bool:
    """Whether nothing the dead agent recorded says how the job ended here."""
    return not any(event["ev"] in _LAST_WORDS for event in leftover.events)


def _still_there(recorded: RecordedProcess) -> ProcessIdentity | None:
    """The recorded process if it still runs: the pid alone could be somebody else's by now."""
    found = process_identity(recorded.pid)
    if found is None or found.boot_id != recorded.boot:
        return None
    started = found.start_ticks / os.sysconf("SC_CLK_TCK")
    return found if abs(started - recorded.started) < _START_TOLERANCE_S else None


def tasks_by_node(home: str) -> Iterator[tuple[str | None, ProcessIdentity]]:
    """Every process with a job marker of this cluster, and the node that it belongs to. Reads all environments."""
    for stray in find_marked(JOB_MARKER):
        if environment_value(stray.process.pid, "BIREME_HOME") == home:
            yield environment_value(stray.process.pid, "SLURMD_NODENAME"), stray.process
