"""How a crew engine ends a gang of which a node was given up: without its word, which it hears later."""

from __future__ import annotations

from collections.abc import Sequence

from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig
from bireme.core.model.jobs import Job, JobSpec, Owner, Starting
from bireme.core.model.resources import Allocation, ExitStatus, NodeShare
from bireme.core.model.steps import Step, StepNode, StepSpec
from bireme.engines.simulated.agents import Run, SimulatedAgent
from bireme.engines.simulated.clock import VirtualClock
from bireme.engines.simulated.crew import Fleet, SimulatedCrew

NODES = ("n1", "n2")
CONFIG = ClusterConfig(
    nodes=tuple(NodeConfig(name=name, cpus=4) for name in NODES),
    partitions=(PartitionConfig(name="main", nodes=NODES),),
)
END = c.TerminateJob(1, 1, NODES, 0, given_up=("n2",))


class Gang:
    """A running gang on two simulated nodes, and what its engine says."""

    def __init__(self) -> None:
        self.clock = VirtualClock(1_000.0)
        self.fleet = Fleet(self.clock, self, "farewells")
        self.crew = SimulatedCrew(self.fleet, CONFIG)
        self.seen: list[o.Observation] = []
        self.steps_begun = 0
        self.crew.begin(self.hear)
        self.pass_time()
        shares = tuple(NodeShare(name, 1, 0, cpu_ids=(0,)) for name in NODES)
        self.allocation = Allocation(1, 1, "main", shares)
        self.job = Job(1, JobSpec(owner=Owner(uid=1, gid=1, user="u")), 0.0, Starting(self.allocation, 0.0), 1)
        self.crew.send([c.LaunchJob(self.job, self.allocation)])
        self.pass_time()
        assert any(isinstance(each, o.JobLaunched) for each in self.seen)

    def hear(self, seen: Sequence[o.Observation]) -> None:
        self.seen.extend(seen)

    def pass_time(self) -> None:
        self.clock.advance(self.clock.now() + 20.0)

    def cleared(self) -> list[tuple[str, ...]]:
        """Of each JobCleared since last asked: where something is left."""
        found = [each.uncleared_on for each in self.seen if isinstance(each, o.JobCleared)]
        self.seen.clear()
        return found

    def end(self, command: c.TerminateJob = END) -> list[tuple[str, ...]]:
        self.crew.send([command])
        self.pass_time()
        return self.cleared()

    # -- agents.Witness

    def held(self, agent: SimulatedAgent, run: Run) -> None: ...

    def prepared(self, agent: SimulatedAgent, run: Run) -> None: ...

    def began(self, agent: SimulatedAgent, run: Run, step: int | None) -> None:
        self.steps_begun += step is not None

    def ended(self, agent: SimulatedAgent, run: Run, step: int | None, status: ExitStatus) -> None: ...


def test_a_node_that_was_given_up_is_not_waited_for_and_is_heard_when_it_is_back() -> None:
    gang = Gang()
    gang.fleet.cut_off("n2")
    assert gang.end() == [("n2",)]
    assert not gang.fleet.agents["n1"].runs
    assert gang.fleet.agents["n2"].runs, "nobody could tell it"
    gang.fleet.restore("n2")
    gang.pass_time()
    assert gang.cleared() == [()]
    assert not gang.fleet.agents["n2"].runs


def test_a_node_that_answers_is_waited_for_although_it_was_given_up() -> None:
    assert Gang().end() == [()]


def test_nobody_is_waited_for_who_was_not_given_up() -> None:
    gang = Gang()
    gang.fleet.cut_off("n2")
    assert gang.end(c.TerminateJob(1, 1, NODES, 0)) == []
    assert gang.end() == [("n2",)], "said again, with the node given up"


def test_all_nodes_may_be_given_up() -> None:
    gang = Gang()
    for node in NODES:
        gang.fleet.cut_off(node)
    assert gang.end(c.TerminateJob(1, 1, NODES, 0, given_up=NODES)) == [NODES]
    for node, left in (("n1", ("n2",)), ("n2", ())):
        gang.fleet.restore(node)
        gang.pass_time()
        assert gang.cleared() == [left], "each says so when it is back"


def test_a_step_that_had_not_reached_the_node_does_not_begin_there_after_the_end() -> None:
    gang = Gang()
    gang.fleet.cut_off("n2")
    step = Step(1, 0, StepSpec(name="run=600"), tuple(StepNode(name, (0,), 1) for name in NODES), 0.0)
    gang.crew.send([c.LaunchStep(gang.job, gang.allocation, step)])
    gang.pass_time()
    gang.end()
    gang.fleet.restore("n2")
    gang.pass_time()
    assert gang.steps_begun == 1, "on n1 only"
