"""The simulated engines on the bench: the crew over simulated agents, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from math import inf
from pathlib import Path
from typing import ClassVar

from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig
from bireme.core.model.jobs import JobKind, JobSpec, Owner
from bireme.core.model.resources import ExitStatus
from bireme.core.model.steps import StepSpec
from bireme.engines.simulated.agents import Behaviour, Run, SimulatedAgent
from bireme.engines.simulated.clock import VirtualClock
from bireme.engines.simulated.crew import Fleet, SimulatedCrew
from bireme.testing.conformance.port import Bench
from bireme.testing.conformance.programs import Program

TERM, USR1 = 15, 10


class CrewBench(Bench):
    patience_s = 5.0
    inapplicable: ClassVar = {"what_a_script_writes_is_in_its_output": "nothing runs, nothing is written"}

    def __init__(self, _folder: Path) -> None:
        self.clock = VirtualClock(1_000.0)
        self.fleet = Fleet(self.clock, self, "bench")
        self.config = ClusterConfig(
            nodes=tuple(NodeConfig(name=name, cpus=4) for name in self.nodes),
            partitions=(PartitionConfig(name="main", nodes=self.nodes),),
        )
        self._runs: Counter[int] = Counter()

    def new_engine(self) -> SimulatedCrew:
        return SimulatedCrew(self.fleet, self.config)

    def job_spec(self, program: Program, kind: JobKind) -> JobSpec:
        return JobSpec(owner=Owner(uid=1, gid=1, user="u"), kind=kind, comment=str(behaviour_of(program)))

    def impossible_spec(self) -> JobSpec:
        return JobSpec(owner=Owner(uid=1, gid=1, user="u"), comment=str(Behaviour(refuse=1)))

    def step_spec(self, program: Program) -> StepSpec:
        return StepSpec(name=str(behaviour_of(program)))

    def open_gate(self, name: str) -> None:
        for agent in self.fleet.agents.values():
            agent.open_gate(name)

    def runs(self, job_id: int) -> int:
        return self._runs[job_id]

    def beats(self, job_id: int) -> int:
        """Its work so far; a simulated program beats a thousand times a second."""
        tasks = [task for agent in self.fleet.agents.values() for task in _tasks(agent, job_id)]
        return int(1_000 * sum(self.clock.now() - task.going_since for task in tasks if task.going_since is not None))

    def output(self, job_id: int) -> str:
        raise NotImplementedError

    async def restart_node(self, node: str) -> None:
        self.fleet.restart(node, remembers=False)

    async def moment(self) -> None:
        self.clock.advance(self.clock.now() + 0.05)
        await asyncio.sleep(0)

    def now(self) -> float:
        return self.fleet.wall()

    # -- Witness -------------------------------------------------------------------------------------------------------

    def held(self, agent: SimulatedAgent, run: Run) -> None: ...

    def prepared(self, agent: SimulatedAgent, run: Run) -> None: ...

    def began(self, agent: SimulatedAgent, run: Run, step: int | None) -> None:
        self._runs[run.key[0]] += 1

    def ended(self, agent: SimulatedAgent, run: Run, step: int | None, status: ExitStatus) -> None: ...


def _tasks(agent: SimulatedAgent, job_id: int) -> list:
    run = agent.runs.get(job_id)
    return [task for _, task in run.living()] if run is not None else []


def behaviour_of(program: Program) -> Behaviour:
    """The same program, as a simulated node understands it."""
    listens = dict(program.on_signal)
    return Behaviour(
        run=inf if program.waits_for else 0.0,
        code=program.exits,
        signal=program.dies_of,
        gate=program.waits_for,
        term=inf if TERM in program.ignores else 0.0,
        term_code=listens.get(TERM, 0),
        usr1=listens.get(USR1, 0),
    )
