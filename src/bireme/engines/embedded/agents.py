"""Which agents there should be on this machine, and starting those that are missing.

`launch_entries` turns a cluster into the launch file of `python -m bireme.agent`; `AgentStarter` runs it. Whether an
agent is missing is `link`'s finding; that never two own one node is the agents' own lock.

Invariant: agents are started without any variable of a job around the daemon, so that a cluster started from within
a job does not look like part of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bireme.agent.confining.namespaces import loopback_address
from bireme.core.model.cluster import ClusterConfig

log = logging.getLogger("bireme.engines.embedded")

_STARTING_S = 60.0


def launch_entries(
    config: ClusterConfig, confine: Mapping[str, bool], host: str | None = None
) -> dict[str, dict[str, Any]]:
    """Per node, what its agent must know. A node is virtual unless it is named like this host."""
    host = (host or socket.gethostname()).partition(".")[0]
    addresses = {node.name: loopback_address(index) for index, node in enumerate(config.nodes)}
    binds = "affinity" in config.raw.get("TaskPlugin", "")
    entries: dict[str, dict[str, Any]] = {}
    for node in config.nodes:
        virtual = node.name != host
        entries[node.name] = {
            "name": node.name,
            "virtual": virtual,
            "address": addresses[node.name] if virtual else "127.0.0.1",
            "hosts": addresses if virtual else {},
            "bind_cpus": binds and not virtual,
            # The CPUs of a virtual node are not this machine's: only memory and devices can be held to.
            "confine": {kind: on and not (virtual and kind == "cpus") for kind, on in confine.items()},
            "proctrack": config.raw.get("ProctrackType", ""),
            "sample_s": float(config.settings.account_gather_frequency_s or 30),
            "kill_over_memory": kills_over_memory(config),
        }
    return entries


def kills_over_memory(config: ClusterConfig) -> bool:
    """JobAcctGatherParams=OverMemoryKill, where anything is sampled: with a JobAcctGatherType, and a frequency."""
    gathers = config.raw.get("JobAcctGatherType", "none").rpartition("/")[2].lower() != "none"
    asked = "overmemorykill" in map(str.strip, config.words("JobAcctGatherParams"))
    return asked and gathers and config.settings.account_gather_frequency_s > 0


def _departed_entry(node: str) -> dict[str, Any]:
    """Of a node that left the configuration: enough to end what an earlier agent left on it."""
    bare = {"virtual": False, "address": "127.0.0.1", "hosts": {}, "bind_cpus": False, "confine": {}, "sample_s": 30.0}
    return {"name": node, **bare}


def living_agents(home: Path) -> list[str]:
    """Nodes, configured or not, that have an agent now: it holds the lock of its node."""
    found = []
    for file in sorted(home.glob("agents/*/agent.pid")):
        with contextlib.suppress(OSError), file.open("rb") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(file.parent.name)
    return found


def agent_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("BIREME_JOB", "SLURM"))}


class AgentStarter:
    """Starts agents; requests that come while one start is under way share the next."""

    def __init__(self, home: Path, entries: Mapping[str, dict[str, Any]]) -> None:
        self._home = home
        self.entries = entries
        self._lock = asyncio.Lock()
        self._wanted: set[str] = set()

    async def start(self, nodes: Sequence[str]) -> None:
        """Returns when the agents of these nodes serve, or could not be started (see the log)."""
        self._wanted.update(nodes)
        async with self._lock:
            batch, self._wanted = sorted(self._wanted), set()
            if batch:
                await self._run(batch)

    async def _run(self, nodes: list[str]) -> None:
        launch = self._home / "run" / "agents.json"
        launch.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        launch.write_text(json.dumps([self.entries.get(node) or _departed_entry(node) for node in nodes]))
        command = [sys.executable, "-m", "bireme.agent", "--home", str(self._home), "--launch", str(launch)]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=agent_environment(),
        )
        try:
            async with asyncio.timeout(_STARTING_S):
                out, err = await process.communicate()
        except TimeoutError:
            process.kill()
            log.error("agents of %s did not start within %g s", ",".join(nodes), _STARTING_S)
            return
        for line in out.splitlines():
            answer = json.loads(line)
            if "error" in answer:
                log.error("the agent of node %s did not start: %s", answer["node"], answer["error"])
        if process.returncode and err:
            log.error("starting agents: %s", err.decode(errors="replace").strip())
