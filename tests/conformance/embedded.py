"""The embedded engine on the bench: real agents, real processes, two virtual nodes in a folder."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tests.conformance.in_folder import FolderBench

from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig, Settings
from bireme.engines.embedded import EmbeddedEngine


class EmbeddedBench(FolderBench):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        nodes = tuple(NodeConfig(name=name, cpus=4, memory_mib=1000) for name in self.nodes)
        partition = PartitionConfig(name="main", nodes=self.nodes, default=True)
        self.config = ClusterConfig(nodes=nodes, partitions=(partition,), settings=Settings())

    def new_engine(self) -> EmbeddedEngine:
        return EmbeddedEngine(self.folder, self.config, self)

    async def restart_node(self, node: str) -> None:
        """Its agent is killed; the engine starts another, which ends what the first one left."""
        pid_file = self.folder / "agents" / node / "agent.pid"
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        await asyncio.sleep(0)
