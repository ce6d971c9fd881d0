"""Whose processes they are: the tasks of this machine with their first process, and the one above it.

On the embedded engine the agents say it, each of its own node, whenever they are asked. A machine of another cluster
has other owners (`clusters`). Called once for every round.
Invariant: an agent that does not answer in time costs the round its own tasks, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from bireme.agent.messages.census import Census
from bireme.agent.messages.protocol import socket_path
from bireme.gather.messages import Device, HeldDevice

_ANSWER_S = 2.0
_LINE_BYTES = 64 * 1024 * 1024


class OwnedTask(msgspec.Struct, frozen=True):
    """A task of a step, or a batch script, on one node."""

    node: str
    id: str
    """`JOB.GENERATION.STEP.TASK`."""
    pid: int
    keeper: int = 0
    """The process above it that none of its own can leave; orphans of the step are below this one. 0: there is none."""
    folder: str = ""
    """The cgroup that holds its step alone; empty: there is none."""
    pids: tuple[int, ...] = ()
    """All of its processes, where they are known (`pid` is 0 then); none: they are found below its first one."""


class Owners(Protocol):
    """Where the tasks of a machine are asked for."""

    async def tasks(self) -> Sequence[OwnedTask]:
        """All that run now, as far as they answer."""

    async def slurm_files(self) -> list[str]:
        """On a node of Slurm's: the device files of its GPUs, in the order of Slurm's numbers."""

    async def held(self, devices: Sequence[Device]) -> list[HeldDevice]:
        """On a node of Kubernetes': which of these GPUs pods have."""

    @property
    def answer(self) -> bool:
        """Whether anybody answered the last time."""


class AgentOwners:
    """The agents whose sockets lie in `agents`, a folder for each node."""

    def __init__(self, agents: Path) -> None:
        self._agents = agents
        self._open: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    @property
    def answer(self) -> bool:
        return bool(self._open)

    async def slurm_files(self) -> list[str]:
        return []

    async def held(self, devices: Sequence[Device]) -> list[HeldDevice]:
        return []

    async def tasks(self) -> Sequence[OwnedTask]:
        nodes = sorted(path.parent.name for path in self._agents.glob("*/agent.sock"))
        for gone in self._open.keys() - set(nodes):
            self._drop(gone)
        told = await asyncio.gather(*(self._ask(node) for node in nodes))
        return [task for tasks in told for task in tasks]

    async def _ask(self, node: str) -> list[OwnedTask]:
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = self._open.get(node) or await self._connect(node)
                writer.write(b"{}\n")
                census = msgspec.json.decode(await reader.readuntil(b"\n"), type=Census)
        except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError, msgspec.DecodeError):
            self._drop(node)
            return []
        return [
            OwnedTask(node, f"{row.job}.{row.gen}.{row.step}.{row.task}", row.pid, row.keeper, row.folder)
            for row in census.tasks
        ]

    async def _connect(self, node: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        with socket_path(str(self._agents / node / "agent.sock")) as path:
            reader, writer = await asyncio.open_unix_connection(path, limit=_LINE_BYTES)
        writer.write(b'{"hello": "gather"}\n')
        self._open[node] = (reader, writer)
        return reader, writer

    def _drop(self, node: str) -> None:
        if node in self._open:
            with suppress(OSError):
                self._open.pop(node)[1].close()
