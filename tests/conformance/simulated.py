"""The simulated engines on the bench, on a virtual clock: the crew over simulated agents, and the one that replays."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import ClassVar

from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig
from bireme.core.model.jobs import Job, JobKind, JobSpec, Owner
from bireme.core.model.resources import Allocation, ExitStatus
from bireme.core.model.steps import StepSpec
from bireme.engines.simulated.agents import Behaviour, Run, SimulatedAgent, read_behaviour
from bireme.engines.simulated.clock import VirtualClock
from bireme.engines.simulated.crew import Fleet, SimulatedCrew
from bireme.engines.simulated.engine import Script, SimulatedEngine
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


class SlowWire:
    """Everything arrives once, a moment later: an engine never reports from within `send`."""

    def down(self, command: c.Command) -> Iterable[tuple[float, c.Command]]:
        return ((0.001, command),)

    def up(self, seen: o.Observation) -> Iterable[tuple[float, o.Observation]]:
        return ((0.001, seen),)


class ReplayBench(CrewBench):
    """The engine that replays workloads: one for all daemons, since it is its own cluster."""

    inapplicable: ClassVar = {
        **CrewBench.inapplicable,
        **dict.fromkeys(
            (
                "a_signal_reaches_the_script",
                "an_ended_job_is_asked_first",
                "a_step_runs_on_all_its_nodes_and_each_tells_its_end",
                "a_step_said_twice_runs_once",
                "a_step_is_signalled_and_ended_alone",
            ),
            "it knows how long scripts run, not what they or their steps do",
        ),
    }

    def __init__(self, _folder: Path) -> None:
        super().__init__(_folder)
        self.engine = SimulatedEngine(self.clock, self._script_of, SlowWire())
        self.engine.reconfigure(self.config)
        self._opened: set[str] = set()

    def _script_of(self, job: Job, allocation: Allocation) -> Script:
        does = read_behaviour(job.spec.comment)
        self._runs[job.id] += not does.refuse
        refused = "it cannot be started" if does.refuse else ""
        return Script(does.run, does.status, term_s=does.term, refused=refused)

    def new_engine(self) -> SimulatedEngine:  # type: ignore[override]
        return self.engine

    def open_gate(self, name: str) -> None:
        for held in list(self.engine.holds.values()):
            self.engine._script_ends(held, held.script.status)

    def beats(self, job_id: int) -> int:
        going = [held.going_since for held in self.engine.holds.values() if held.job_id == job_id]
        return int(1_000 * sum(self.clock.now() - since for since in going if since is not None))

    async def restart_node(self, node: str) -> None:
        self.engine.forget(node)
        self.engine.answer(node)

    def now(self) -> float:
        return self.clock.now()
