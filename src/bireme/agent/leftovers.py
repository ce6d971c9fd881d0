"""Ending what an agent left behind when it died. Called once, when its successor starts.

Three nets, each for what the one before cannot hold: the pids that were written down, their trees and sessions;
then every process that carries a job marker of this cluster and this node (an orphan of an orphan, or a process
that was started in the instant before its pid could be written down). Cgroups, where there are any, come before
both (`confined`).

Invariant: only processes of this node of this cluster are touched: a recorded pid counts with its start time, a
marker with the home and the node beside it.
"""

from __future__ import annotations

import logging
import os

from bireme.agent.node import JOB_MARKER
from bireme.agent.processes import ProcessIdentity, environment_value, find_marked, kill_tree, process_identity
from bireme.agent.records import Leftover, RecordedProcess, TaskRecords

log = logging.getLogger("bireme.agent")

_START_TOLERANCE_S = 5.0
"""Between the kernel's start time and the agent's note of it lie an exec and, on a busy machine, a wait."""
_LAST_WORDS = ("batch_ended", "refused", "cleared", "vanished")


def kill_leftovers(records: TaskRecords, home: str, node: str) -> None:
    if records.damaged:
        lines = ", ".join(map(str, records.damaged[:10]))
        log.error("the records of an earlier agent are damaged (lines %s): what they said is not known", lines)
    elif records.epoch == 1 and not records.had_past:  # the first agent of this node: there is no past
        return
    recorded = [_still_there(process) for leftover in records.leftovers for process in leftover.processes]
    if not kill_tree([process for process in recorded if process is not None]):
        log.error("some process of an earlier agent cannot be killed")
    for process in _marked(home, node):
        log.warning("killing process %d, left by an earlier agent", process.pid)
        kill_tree([process])


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


def _marked(home: str, node: str) -> list[ProcessIdentity]:
    return [
        stray.process
        for stray in find_marked(JOB_MARKER)
        if environment_value(stray.process.pid, "BIREME_HOME") == home
        and environment_value(stray.process.pid, "SLURMD_NODENAME") == node
    ]
