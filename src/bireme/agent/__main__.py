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
import os
import sys
from collections.abc import Mapping

from bireme.agent.birth import Before, fork_agent
from bireme.agent.census import living_agents
from bireme.agent.confining.namespaces import shared_user_namespace
from bireme.agent.leftovers import tasks_by_node
from bireme.agent.node import NodeSettings
from bireme.agent.records import LOCK
from bireme.agent.system.processes import process_identity


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
    living = living_agents(home)
    user_namespace = shared_user_namespace(living) if virtual else None
    before = _before(home, nodes, living)
    answers = [(settings, fork_agent(settings, user_namespace, before=before[settings.name])[1]) for settings in nodes]
    failed = False
    for settings, read_fd in answers:
        with open(read_fd, encoding="utf-8") as pipe:
            answer = pipe.read() or json.dumps({"node": settings.name, "error": "the agent died while it started"})
        failed = failed or '"error"' in answer
        print(answer, flush=True)
    return 1 if failed else 0


def _before(home: str, nodes: list[NodeSettings], living: Mapping[int, str]) -> dict[str, Before]:
    """`living`: agents, by one look at the process table for all. Environments are read for a node that looks new."""
    new = any(not (settings.directory / LOCK).exists() for settings in nodes)
    haunted = {*living.values(), *(node for node, _ in tasks_by_node(home))} if new else set()
    found = {}
    for settings in nodes:
        pids = [pid for pid, node in living.items() if node == settings.name]
        agents = [agent for pid in pids if (agent := process_identity(pid)) is not None]
        found[settings.name] = Before(agents, settings.name in haunted)
    return found


if __name__ == "__main__":
    sys.exit(main())
