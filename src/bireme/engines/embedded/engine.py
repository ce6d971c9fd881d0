"""The embedded engine: this machine. One agent per node, started when it is missing and kept across daemons.

The daemon constructs it and the runtime drives it through `ports.Engine`. What agents are told and what their words
mean is the crew's (`engines/crew`); which agents there are is here and in `agents`.

Invariant: a node has one link, for all its jobs, from the moment it is configured or found holding something.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bireme.agent import census
from bireme.agent.messages.orders import Ping
from bireme.agent.messages.told import Welcome
from bireme.core.model import observations as o
from bireme.core.model.cluster import ClusterConfig
from bireme.engines.crew.boxes import DEFAULTS, ContainerDefaults
from bireme.engines.crew.engine import CrewEngine, Key, answered
from bireme.engines.crew.link import AgentLink
from bireme.engines.crew.payloads import PayloadWriter
from bireme.engines.embedded.agents import AgentStarter, kills_over_memory, launch_entries, living_agents
from bireme.images.messages import Policy
from bireme.ports import Blobs, Capabilities, Report
from bireme.slurm.hostlist import compress
from bireme.slurm.variables.cluster import ClusterFacts

log = logging.getLogger("bireme.engines.embedded")

_START_PATIENCE_S = 15.0


class EmbeddedEngine(CrewEngine):
    name = "embedded"

    def __init__(
        self,
        home: Path,
        config: ClusterConfig,
        blobs: Blobs,
        *,
        confine: Mapping[str, bool] | None = None,
        facts: ClusterFacts | None = None,
        containers: ContainerDefaults = DEFAULTS,
        images: Policy | None = None,
    ) -> None:
        """`confine`: which of "memory", "cpus" and "devices" jobs are held to, where the kernel lets us.

        `containers`: how those of jobs are that do not say. `images`: where theirs are kept, and how they are fetched.
        `facts`: what job variables need of gres.conf; worked out from `config` alone when not given.
        """
        held = replace(containers, images=images or Policy(cache=str(home / "images")))
        super().__init__(config, PayloadWriter(home, config, blobs, facts, containers=held))
        self._home = home
        self._capabilities = Capabilities(past=self, confinement=self, agents=self, environments=self, images=self)
        self._confine = dict(confine or {})
        self._starter = AgentStarter(home, launch_entries(config, self._confine))
        self._links: dict[str, AgentLink] = {}
        self.isolation: dict[str, dict[str, str]] = {}
        """Per node, what its agent could and could not set up: for `bireme doctor`."""
        self._tracking: dict[str, tuple[str, str]] = {}
        """Per node, how its agent tracks jobs' processes, and why not better."""

    @property
    def about(self) -> str:
        """How jobs' processes are tracked: all nodes are on one machine, and seldom differ."""
        ways: dict[tuple[str, str], list[str]] = {}
        for node, way in sorted(self._tracking.items()):
            ways.setdefault(way, []).append(node)
        said = []
        for (how, shortfall), nodes in ways.items():
            where = f" on {compress(nodes)}" if len(ways) > 1 else ""
            said.append(f"jobs{where} are tracked by {how}" + (f" ({shortfall})" if shortfall else ""))
        return "; ".join(said)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def hear_again(self) -> None:
        for link in self._links.values():
            link.begin_again()

    def unconfined(self) -> dict[str, str]:
        """See `ports.ConfinesJobs`. What an agent says counts, whoever asks: the caller's own rights are another's."""
        found: dict[str, str] = {}
        for kind in (kind for kind, wanted in self._confine.items() if wanted):
            for node, entry in sorted(self._starter.entries.items()):
                if not entry["confine"].get(kind):
                    found.setdefault(kind, "virtual nodes share the CPUs of this machine")
                elif why := self.isolation.get(node, {}).get(kind):
                    found.setdefault(kind, why)
        if kills_over_memory(self._config) and (not self._confine.get("memory") or "memory" in found):
            every_s = self._config.settings.account_gather_frequency_s
            found["memory"] = (
                f"looked at every {every_s} s: what uses more is ended (JobAcctGatherParams=OverMemoryKill)"
            )
        return found

    async def start(self, report: Report) -> None:
        """Returns when every agent answered, or after some seconds without the rest."""
        self._report = report
        for node in self._config.nodes:
            self._open_link(node.name)
        for name in living_agents(self._home):
            if name not in self._links:  # it left the configuration: heard out, and ended with the others
                self._open_link(name)
        waits = [asyncio.create_task(link.connected.wait()) for link in self._links.values()]
        if waits:
            _, late = await asyncio.wait(waits, timeout=_START_PATIENCE_S)
            for wait in late:
                wait.cancel()

    def reconfigure(self, config: ClusterConfig, facts: ClusterFacts | None = None) -> None:
        """`scontrol reconfigure`: new nodes get an agent; agents that run keep the settings they were started with.

        A node that was taken out keeps its agent until `end_jobs`: something may still run on it.
        """
        before = {node.name for node in self._config.nodes}
        self._config = config
        self._starter.entries = launch_entries(config, self._confine)
        self._payloads.reconfigure(config, facts)
        for node in config.nodes:
            if node.name not in self._links:
                self._open_link(node.name)
            elif node.name not in before:  # it left and is back: it is new to the runtime, and must answer again
                self._links[node.name].begin_again()

    def link(self, node: str, key: Key) -> AgentLink:
        if node not in self._links:  # it left the configuration before this daemon began
            self._open_link(node)
        return self._links[node]

    def _open_link(self, node: str) -> None:
        link = AgentLink(
            node,
            f"unix:{self._home}/agents/{node}/agent.sock",
            start_agent=lambda name: self._starter.start([name]),
            on_welcome=self._welcomed,
            on_events=self._heard,
            on_silent=self._silent,
            recalls=lambda: self.recalls(),
        )
        self._links[node] = link
        link.open()

    async def stop(self) -> None:
        """Agents that hold a job run on; the others have nothing to wait for and end."""
        for deadline in self._deadlines.values():
            deadline.cancel()
        await asyncio.gather(*(link.close(end_if_idle=True) for link in self._links.values()))

    async def end_jobs(self, grace_s: float = 0.0, *, timeout_s: float = 30.0) -> None:
        """Ends every agent and, before that, every job on it."""
        links = [link for link in self._links.values() if link.connected.is_set()]
        await asyncio.gather(*(link.dismiss(grace_s, timeout_s) for link in links))

    def replica_address(self, node: str, key: Key, found: str) -> str:
        """All nodes are this machine: what its agent found, or the node's own address."""
        return found or str(self._starter.entries.get(node, {}).get("address", "127.0.0.1"))

    async def living_agents(self) -> dict[str, bool]:
        """By their locks, and by the process table: the folder of a node may have been removed."""
        seen = set(await asyncio.to_thread(living_agents, self._home))
        seen |= set((await asyncio.to_thread(census.living_agents, str(self._home))).values())
        return {node: node in self._links and self._links[node].connected.is_set() for node in sorted(seen)}

    async def silent_agents(self, within_s: float) -> list[str]:
        asked = {name: link for name, link in sorted(self._links.items()) if link.connected.is_set()}
        answers = await asyncio.gather(*(link.ask(Ping(id=0), within_s) for link in asked.values()))
        return [name for name, answer in zip(asked, answers, strict=True) if answer is None]

    def _welcomed(self, node: str, message: Welcome) -> None:
        for key in message.holds:
            self._touch(key, (node,))
        self.isolation[node] = message.isolation
        how, shortfall = message.tracking
        if how:
            self._tracking[node] = (how, shortfall)
            if "ProctrackType" in shortfall:
                log.warning("node %s: %s", node, shortfall)
        if self._confine.get("devices") and "devices" not in self.isolation[node]:
            self._payloads.confined_devices |= {node}
        self._report([answered(node, message, self.now())])

    def _silent(self, node: str, reason: str) -> None:
        self._report([o.NodeSilent(node, reason, self.now())])
