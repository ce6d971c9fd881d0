"""`python -m bireme.agent`: starts the agents of this machine's nodes and steps aside.

One process reads the launch file and forks an agent for each node, so that the interpreter and its modules are
loaded once however many virtual nodes there are. Each child becomes a session of its own, takes the node's lock,
enters the node's namespaces and serves until it is told to exit. The parent prints one JSON line per node
(`{"node", "pid"}`, with "error" or "running" where no agent was started) and exits when all of them answered.

The launch file: `[{"name": "n1", "virtual": true, "address": "127.0.1.1", "hosts": {"n1": "127.0.1.1"}, ...}]`, the
fields of `node.NodeSettings` without `home`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from bireme.agent.leftovers import kill_leftovers
from bireme.agent.namespaces import enter_virtual_node, shared_user_namespace
from bireme.agent.node import NodeSettings
from bireme.agent.records import NodeTakenError, TaskRecords, take_node
from bireme.agent.server import AgentServer
from bireme.agent.spawn import close_on_exec_from_here


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bireme.agent",
        description="Start the agents that run jobs on this machine's (virtual) nodes. Normally the daemon does this.",
    )
    parser.add_argument("--home", required=True, metavar="DIR", help="the cluster's state folder (BIREME_HOME)")
    parser.add_argument("--launch", required=True, metavar="FILE", help="JSON list of the nodes to start agents for")
    options = parser.parse_args(arguments)
    home = os.path.abspath(options.home)
    try:
        with open(options.launch, encoding="utf-8") as file:
            nodes = [NodeSettings(home=home, **entry) for entry in json.load(file)]
    except (OSError, ValueError, TypeError) as error:
        parser.error(f"cannot read the launch file {options.launch}: {error}")
    sys.stdout.flush()
    virtual = any(settings.virtual for settings in nodes)
    user_namespace = shared_user_namespace(_living_agents(home)) if virtual else None
    answers = [(settings, _fork_agent(settings, user_namespace)) for settings in nodes]
    failed = False
    for settings, read_fd in answers:
        with open(read_fd, encoding="utf-8") as pipe:
            answer = pipe.read() or json.dumps({"node": settings.name, "error": "the agent died while it started"})
        failed = failed or '"error"' in answer
        print(answer, flush=True)
    return 1 if failed else 0


def _living_agents(home: str) -> Iterator[int]:
    """Agents of this cluster, by their pid files; a pid that went to somebody else is not one."""
    for file in sorted(Path(home, "agents").glob("*/agent.pid")):
        try:
            pid = int(file.read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if b"bireme.agent" in words and os.fsencode(home) in words:
            yield pid


def _fork_agent(settings: NodeSettings, user_namespace: int | None) -> int:
    """Returns the pipe on which the agent says that it serves."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_fd)
        return read_fd
    os.close(read_fd)
    try:
        _serve(settings, write_fd, user_namespace)
    except BaseException as error:
        _answer(write_fd, {"node": settings.name, "error": f"{type(error).__name__}: {error}"})
        os._exit(1)


def _serve(settings: NodeSettings, answer_fd: int, user_namespace: int | None) -> NoReturn:
    os.setsid()
    private = 0o711 if os.geteuid() == 0 else 0o700
    for folder in (settings.directory.parent, settings.directory):
        folder.mkdir(mode=private, parents=True, exist_ok=True)
    try:
        take_node(settings.directory)
    except NodeTakenError:
        _answer(answer_fd, {"node": settings.name, "running": True})
        os._exit(0)
    _redirect(settings)
    close_on_exec_from_here()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    records = TaskRecords(settings.directory / "tasks.jsonl")
    # Before entering the node: from within one user namespace no process of another shows its environment.
    kill_leftovers(records, settings.home, settings.name)
    isolation: dict[str, str] = {}
    if settings.virtual:
        entered = enter_virtual_node(settings.name, settings.hosts, settings.directory / "etc", user_namespace)
        isolation = {"kind": entered.kind} | {f"missing {i}": text for i, text in enumerate(entered.missing)}
    if user_namespace is not None:
        os.close(user_namespace)
    server = AgentServer(settings, records, isolation)
    logging.getLogger("bireme.agent").info("serving node %s, isolation %s", settings.name, isolation or "none")
    _answer(answer_fd, {"node": settings.name, "pid": os.getpid()})
    server.run()
    os._exit(0)


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
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True)


def _answer(fd: int, answer: dict[str, object]) -> None:
    os.write(fd, json.dumps(answer).encode())
    os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
