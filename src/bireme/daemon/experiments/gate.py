"""The gate before an engine: a job's first start waits there for its run, a moment and no longer.

The daemon puts it between the runtime and the engine. All else goes through as it comes. What waits here is not lost
with the daemon: the journal says that it was ordered, and the next daemon orders it again.
Invariants: components of a heterogeneous job go on together; a start that is ended while it waits never begins; no
start waits longer than `prepare` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bireme.core.model import commands as c
from bireme.core.model.cluster import ClusterConfig
from bireme.ports import Capabilities, Engine, Report, StepEndpoint

Prepare = Callable[[c.LaunchJob], Awaitable[None] | None]
"""None: the start goes on at once. Else it goes on when this is done, which never fails and has its own limit."""
Key = tuple[int, int]


class Gate:
    """An engine with a gate before it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name = engine.name
        self.prepare: Prepare = lambda launch: None
        self._held: dict[Key, c.LaunchJob] = {}
        self._waiting: set[asyncio.Task[None]] = set()

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    @property
    def problem(self) -> str:
        return self._engine.problem

    @property
    def about(self) -> str:
        return self._engine.about

    async def start(self, report: Report) -> None:
        await self._engine.start(report)

    async def stop(self) -> None:
        self._let_go()
        await self._engine.stop()

    async def end_jobs(self, grace_s: float) -> None:
        self._let_go()
        await self._engine.end_jobs(grace_s)

    def reconfigure(self, config: ClusterConfig) -> None:
        self._engine.reconfigure(config)

    def step_endpoints(self, job_id: int, step_id: int) -> tuple[StepEndpoint, ...]:
        return self._engine.step_endpoints(job_id, step_id)

    async def live_usage(self, job_id: int) -> dict[str, Any]:
        return await self._engine.live_usage(job_id)

    def acknowledge(self, job_id: int, generation: int) -> None:
        self._engine.acknowledge(job_id, generation)

    # -- the gate ------------------------------------------------------------------------------------------------------

    def send(self, commands: Sequence[c.Command]) -> None:
        for command in commands:
            if isinstance(command, c.TerminateJob):
                self._held.pop((command.job_id, command.generation), None)
        held = self._hold([command for command in commands if isinstance(command, c.LaunchJob)])
        self._engine.send([command for command in commands if id(command) not in held] if held else commands)

    def _hold(self, launches: Sequence[c.LaunchJob]) -> set[int]:
        """Those of a send that do not go on yet, by identity."""
        together: dict[int, list[c.LaunchJob]] = {}
        for launch in launches:
            together.setdefault(launch.job.het_job_id or launch.job.id, []).append(launch)
        held: set[int] = set()
        for group in together.values():
            new = [launch for launch in group if _key(launch) not in self._held]
            waits = [wait for launch in new if (wait := self.prepare(launch)) is not None]
            if waits:
                self._held.update((_key(launch), launch) for launch in new)
                task = asyncio.get_running_loop().create_task(self._pass_on(new, waits))
                self._waiting.add(task)
                task.add_done_callback(self._waiting.discard)
            held.update(id(launch) for launch in group if waits or launch not in new)
        return held

    async def _pass_on(self, group: Sequence[c.LaunchJob], waits: Sequence[Awaitable[None]]) -> None:
        await asyncio.gather(*waits)
        ready = [launch for launch in group if self._held.pop(_key(launch), None) is not None]
        if ready:
            self._engine.send(ready)

    def _let_go(self) -> None:
        """Nothing that waits here begins any more."""
        self._held.clear()


def _key(launch: c.LaunchJob) -> Key:
    return launch.job.id, launch.allocation.generation
