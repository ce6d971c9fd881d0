"""How an agent comes to life: a forked child takes the node's lock, ends what a predecessor left, and serves.

Called by `__main__` (the agents of this machine) and by `pod` (the one agent of a pod).
Invariant: the parent hears exactly one answer, also when the child dies before it could serve.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from bireme.agent.confining.namespaces import enter_virtual_node
from bireme.agent.confining.tracking import Tracking, tracking_name
from bireme.agent.leftovers import kill_leftovers
from bireme.agent.node import NodeSettings
from bireme.agent.records import NodeTakenError, TaskRecords, take_node
from bireme.agent.server import AgentServer
from bireme.agent.starting.spawn import close_on_exec_from_here
from bireme.agent.system.descriptors import raise_limit
from bireme.agent.system.processes import ProcessIdentity, kill_tree
from bireme.rationed_log import RationedHandler

log = logging.getLogger("bireme.agent")


@dataclass(frozen=True, slots=True)
class Before:
    """What the process table says of a node before its agent is started."""

    agents: Sequence[ProcessIdentity] = ()
    """Agents that live. One that does not hold the node's lock lost it with the node's folder, and is to go."""
    had_past: bool = False
    """Something of a job is there, whatever the node's folder says."""


def fork_agent(
    settings: NodeSettings, user_namespace: int | None, *, own_log: bool = True, before: Before | None = None
) -> tuple[int, int]:
    """The agent's pid, and the pipe on which it says that it serves. `own_log`: a file, else this process's stderr."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_fd)
        return pid, read_fd
    os.close(read_fd)
    try:
        _serve(settings, write_fd, user_namespace, own_log, before or Before())
    except BaseException as error:
        _answer(write_fd, {"node": settings.name, "error": f"{type(error).__name__}: {error}"})
        os._exit(1)


def _serve(
    settings: NodeSettings, answer_fd: int, user_namespace: int | None, own_log: bool, before: Before
) -> NoReturn:
    os.setsid()
    private = 0o711 if os.geteuid() == 0 else 0o700
    for folder in (settings.directory.parent, settings.directory):
        folder.mkdir(mode=private, parents=True, exist_ok=True)
    had_past = before.had_past or (settings.directory / "agent.pid").exists()
    try:
        take_node(settings.directory)
    except NodeTakenError:
        _answer(answer_fd, {"node": settings.name, "running": True})
        os._exit(0)
    if own_log:
        _redirect(settings)
    _start_logging()
    close_on_exec_from_here()
    raise_limit()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _end_others(before.agents)
    records = TaskRecords(settings.directory / "tasks.jsonl", had_past=had_past)
    tracking = Tracking.open(tracking_name(settings.home, settings.name), settings.proctrack)
    # Before entering the node: from within one user namespace no process of another shows its environment.
    remains = kill_leftovers(records, settings.home, settings.name, tracking)
    isolation: dict[str, str] = {}
    if settings.virtual:
        entered = enter_virtual_node(settings.name, settings.hosts, settings.directory / "etc", user_namespace)
        isolation = {"kind": entered.kind} | {f"missing {i}": text for i, text in enumerate(entered.missing)}
    if user_namespace is not None:
        os.close(user_namespace)
    server = AgentServer(settings, records, isolation, tracking, remains)
    log.info("serving node %s, isolation %s", settings.name, isolation or "none")
    _answer(answer_fd, {"node": settings.name, "pid": os.getpid()})
    server.run()
    os._exit(0)


def _end_others(agents: Sequence[ProcessIdentity]) -> None:
    """Agents whose folder was removed under them: nobody can reach them any more, and nobody knows what they hold."""
    if agents:
        pids = ", ".join(str(agent.pid) for agent in agents)
        log.error("killing pid %s and all below it: an agent of this node whose folder is gone", pids)
        if not kill_tree(agents):
            log.error("something of it cannot be killed")


def _start_logging() -> None:
    handler = RationedHandler(logging.StreamHandler())
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _redirect(settings: NodeSettings) -> None:
    """The agent's own words go to its log; the terminal it was started from is not its business."""
    null_fd = os.open(os.devnull, os.O_RDONLY)
    log_fd = os.open(settings.directory / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null_fd, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(null_fd)
    os.close(log_fd)
    os.chdir("/")


def _answer(fd: int, answer: dict[str, object]) -> None:
    os.write(fd, json.dumps(answer).encode())
    os.close(fd)
