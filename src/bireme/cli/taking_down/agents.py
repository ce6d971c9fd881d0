"""Agents whose daemon is gone: asked to leave when they hold nothing, or ended with all that they hold.

An agent outlives its daemon for the jobs that it holds. Used by `bireme down`, for whose end no daemon has to be there:
it was killed, or hung. Not here: what an agent does then (`agent/server`), and other processes (`remains`).
Invariant: an agent is only asked over its own socket, and signalled only while the process table says that it is one.
"""

from __future__ import annotations

import fcntl
import glob
import itertools
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from bireme.agent.census import living_agents
from bireme.agent.messages.census import Census
from bireme.agent.messages.protocol import connect_endpoint
from bireme.agent.system.processes import read_process
from bireme.commands.voice import CommandFailure
from bireme.daemon.paths import Paths

_END_S, _KILLED_S = 60.0, 10.0
_LEAVE_S = 10.0
"""An agent that holds nothing ends its keepers, and is gone within a moment."""
_ANSWER_S = 5.0
_LOOK_S = 0.02
_ANSWER_BYTES = 1 << 20
_HELLO = b'{"hello": "leave"}\n'


@dataclass(slots=True)
class Leaving:
    """What became of agents that were asked to leave. `holding`: by pid the node, and the jobs that it goes on for;
    `silent`: those that stay and do not say why."""

    holding: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    silent: dict[int, str] = field(default_factory=dict)
    left: dict[int, str] = field(default_factory=dict)


def living(paths: Paths) -> dict[int, str]:
    """Pid and node, by the locks of the nodes and by the process table: the folder of a node may have been removed."""
    files = glob.glob(os.path.join(paths.agents, "*", "agent.pid"))
    by_lock = {pid: os.path.basename(os.path.dirname(file)) for file in files if (pid := _holder(file))}
    return by_lock | living_agents(paths.home)


def let_leave(paths: Paths) -> Leaving:
    """Asks them all to leave as soon as they hold nothing, and waits for those of which that is so now."""
    agents = living(paths)
    answers, hang = _asked(paths, agents)
    holding = {pid: (agents[pid], answer.jobs) for pid, answer in answers.items() if answer.jobs}
    others = agents.keys() - holding.keys()
    silent = hang.union(_not_ended(others - hang, (), _LEAVE_S))
    return Leaving(
        holding, {pid: agents[pid] for pid in silent}, {pid: agents[pid] for pid in others.difference(silent)}
    )


def _asked(paths: Paths, agents: Mapping[int, str]) -> tuple[dict[int, Census], set[int]]:
    """What they say, and those that say nothing. One that hangs up is on its way out."""
    asked = {}
    for pid, node in agents.items():
        with suppress(OSError):
            asked[pid] = connect_endpoint(f"unix:{paths.agents}/{node}/agent.sock", _ANSWER_S)
            asked[pid].sendall(_HELLO)
    deadline = time.monotonic() + _ANSWER_S
    answers, hang = dict[int, Census](), set[int]()
    for pid, connection in asked.items():
        with connection, suppress(OSError, msgspec.DecodeError):
            connection.settimeout(max(_LOOK_S, deadline - time.monotonic()))
            try:
                answers[pid] = msgspec.json.decode(_line(connection), type=Census)
            except TimeoutError:
                hang.add(pid)
    return answers, hang


def _line(connection: socket.socket) -> bytes:
    """All that is said until the end, which the agent makes."""
    said = b""
    while (piece := connection.recv(65536)) and len(said) < _ANSWER_BYTES:
        said += piece
    return said


def end_agents(paths: Paths) -> dict[int, str]:
    """Each ends its tasks, then itself; those that there were. One that was stopped is told to go on, so that it hears;
    one that hangs is killed in the end, and its keepers end with it."""
    agents = living(paths)
    if left := _not_ended(agents, (signal.SIGTERM, signal.SIGCONT), _END_S):
        said = ", ".join(map(str, left))
        print(f"bireme down: agents do not end in {_END_S:g} s, and are killed: pids {said}", file=sys.stderr)
        if left := _not_ended(left, (signal.SIGKILL,), _KILLED_S):
            said = ", ".join(map(str, left))
            raise CommandFailure(f"agents do not end, not even killed: pids {said}; see {paths.agents}/*/agent.log")
    return agents


def _not_ended(pids: Iterable[int], signals: Iterable[signal.Signals], within_s: float) -> list[int]:
    """Sends each of these signals to all of them, and waits; those that are still there then."""
    left = sorted(pids)
    for pid, number in itertools.product(left, signals):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    deadline = time.monotonic() + within_s
    while left and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        left = [pid for pid in left if (entry := read_process(pid)) is not None and not entry.is_dead]
    return left


def _holder(pid_file: str) -> int | None:
    """The agent that holds this file; None when nobody does, whatever it says."""
    try:
        with open(pid_file) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = file.read(20).strip()
                return int(text) if text.isdigit() else None
    except OSError:
        pass  # it went away while we looked
    return None
