"""Which agents of a home live, as the process table says: for when the files that should say so were removed.

An agent's command line names its home; the lock that it holds open names its node, removed or not. A keeper is a fork
of its agent and looks like it, but has no lock: one that outlived its agent holds what could not be killed, and is not
to be taken for an agent. Used where an agent comes to life, where a daemon starts without a journal, and by `bireme
down` and `status`. Not here: who owns a node (`records.take_node`).
Invariant: processes of the home's owner only: a command line is anybody's to choose.
"""

from __future__ import annotations

import os

from bireme.agent.records import LOCK
from bireme.agent.system.processes import command_words, owned_by

_MODULE = b"bireme.agent"


def living_agents(home: str) -> dict[int, str]:
    """Pid and node of each agent of this cluster on this machine."""
    return {pid: node for pid, node in processes_of(home).items() if node}


def processes_of(home: str) -> dict[int, str]:
    """The same with those that have no node: keepers, and agents that are just being started."""
    try:
        owner = os.stat(home).st_uid
    except OSError:
        return {}
    return {pid: _node_of(pid, home) for pid in owned_by(owner) if _serves(pid, os.fsencode(home))}


def _serves(pid: int, home: bytes) -> bool:
    words = command_words(pid)
    return _MODULE in words and b"--home" in words and words[words.index(b"--home") + 1 :][:1] == [home]


def _node_of(pid: int, home: str) -> str:
    """Whose lock it holds open; empty: nobody's."""
    folder = os.path.join(home, "agents") + "/"
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            node, _, file = os.readlink(f"/proc/{pid}/fd/{fd}").removeprefix(folder).partition("/")
            if file.removesuffix(" (deleted)") == LOCK:
                return node
    except OSError:
        pass  # it ended
    return ""
