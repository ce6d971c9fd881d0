"""The first half of the conformance suite: an engine alone, spoken to through `ports.Engine`.

Whoever writes an engine subclasses `Bench` (how to make one, how to disturb its nodes) and runs every check of
`PORT_CHECKS` with `run_port_check`. The runtime, the store and the clock of the daemon have no part in this.
Invariant: a check sees only what the engine reported and what the programs left behind, never the engine's insides.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from signal import SIGKILL, SIGSEGV, SIGTERM, SIGUSR1
from typing import Any, TypeVar

from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.core.model.jobs import Job, JobKind, JobSpec, Starting
from bireme.core.model.resources import Allocation, ExitStatus, NodeShare
from bireme.core.model.steps import Step, StepNode, StepSpec
from bireme.ports import Engine
from bireme.testing.conformance.checks import Check, CheckList
from bireme.testing.conformance.programs import Program

Seen = TypeVar("Seen", bound=o.Observation)
NOBODYS_JOB = 9_000_000
"""Ids from here on belong to no job: they are used to ask a node whether it has done all it was told."""


class Bench(ABC):
    """Nodes, and engines over them. Subclass it for your engine; every check gets a fresh one."""

    nodes: tuple[str, ...] = ("n1", "n2")
    """Two or more that can run a job each."""
    inapplicable: Mapping[str, str] = {}
    """Names of checks that say nothing about this engine -> why."""
    patience_s: float = 60.0
    """How long something may take before it counts as never."""

    @abstractmethod
    def new_engine(self) -> Engine:
        """A new engine over the same nodes, as a daemon that starts makes one."""

    async def end(self, engine: Engine) -> None:
        """Ends every job and lets go: nothing is left when it returns."""
        await engine.end_jobs(0.0)
        await engine.stop()

    @abstractmethod
    def job_spec(self, program: Program, kind: JobKind) -> JobSpec:
        """A job that does what the program says."""

    @abstractmethod
    def step_spec(self, program: Program) -> StepSpec:
        """A step whose tasks do what the program says."""

    @abstractmethod
    def impossible_spec(self) -> JobSpec:
        """A job that no node can start (its script is gone, its image does not exist)."""

    @abstractmethod
    def open_gate(self, name: str) -> None:
        """Lets every program go on that waits for it, now or later."""

    @abstractmethod
    def runs(self, job_id: int) -> int:
        """How often a program of this job (script or task) began."""

    @abstractmethod
    def beats(self, job_id: int) -> int:
        """Grows while a program with `beats` works."""

    @abstractmethod
    def output(self, job_id: int) -> str:
        """What its script wrote."""

    @abstractmethod
    async def restart_node(self, node: str) -> None:
        """The node dies with everything on it, and comes back without a memory of it."""

    async def moment(self) -> None:
        """A moment in which something may happen. A simulated engine moves its clock instead."""
        await asyncio.sleep(0.02)

    def now(self) -> float:
        """The engine's time, as its reports tell it."""
        return asyncio.get_running_loop().time()


class Talk:
    """One conversation with one engine: what it is told, and everything it says."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.engine = bench.new_engine()
        self.seen: list[o.Observation] = []
        self._asked = NOBODYS_JOB

    async def begin(self) -> None:
        await self.engine.start(self.seen.extend)
        for node in self.bench.nodes:
            await self.until(o.NodeAnswered, node=node)

    async def begin_again(self) -> None:
        """The daemon stops and another starts: it hears everything anew."""
        await self.engine.stop()
        self.seen.clear()
        self.engine = self.bench.new_engine()
        await self.begin()

    # -- saying ------------------------------------------------------------------------------------------------------

    def tell(self, *commands: c.Command) -> None:
        before = len(self.seen)
        self.engine.send(commands)
        assert len(self.seen) == before, "it reported from within send: the runtime is in the middle of its turn"

    def launch(
        self,
        job_id: int,
        program: Program | None = None,
        *,
        nodes: int = 1,
        generation: int = 1,
        spec: JobSpec | None = None,
    ) -> c.LaunchJob:
        """The order to start a job on the first `nodes` nodes; without a program it is held for steps."""
        if spec is None:
            kind = JobKind.INTERACTIVE if program is None else JobKind.BATCH
            spec = self.bench.job_spec(program or Program(), kind)
        shares = tuple(NodeShare(node, 1, 64, cpu_ids=(0,)) for node in self.bench.nodes[:nodes])
        allocation = Allocation(job_id, generation, "main", shares)
        now = self.bench.now()
        return c.LaunchJob(Job(job_id, spec, now, Starting(allocation, now), generation), allocation)

    def step(self, launch: c.LaunchJob, program: Program, step_id: int = 0) -> c.LaunchStep:
        """One task on each of the job's nodes."""
        names = launch.allocation.node_names
        nodes = tuple(StepNode(name, (task,), 1, 32, (0,)) for task, name in enumerate(names))
        step = Step(launch.job.id, step_id, self.bench.step_spec(program), nodes, self.bench.now())
        return c.LaunchStep(launch.job, launch.allocation, step)

    async def launched(self, launch: c.LaunchJob) -> c.LaunchJob:
        self.tell(launch)
        await self.until(o.JobLaunched, job_id=launch.job.id, generation=launch.job.generation)
        return launch

    # -- hearing -----------------------------------------------------------------------------------------------------

    def heard(self, kind: type[Seen], **facts: Any) -> list[Seen]:
        return [
            seen
            for seen in self.seen
            if isinstance(seen, kind) and all(getattr(seen, name) == value for name, value in facts.items())
        ]

    async def until(self, kind: type[Seen], **facts: Any) -> Seen:
        """The first observation of this kind with these facts."""
        await self.until_so(lambda: self.heard(kind, **facts), f"{kind.__name__} {facts}")
        return self.heard(kind, **facts)[0]

    async def until_so(self, is_so: Callable[[], object], what: str) -> None:
        deadline = asyncio.get_running_loop().time() + self.bench.patience_s
        while not is_so():
            assert asyncio.get_running_loop().time() < deadline, f"never came: {what}; heard: {self.seen}"
            await self.bench.moment()

    async def settled(self) -> None:
        """Every node has obeyed what it was told before: for what must not have happened."""
        self._asked += 1
        self.tell(c.TerminateJob(self._asked, 1, self.bench.nodes, 0))
        await self.until(o.JobCleared, job_id=self._asked)
        self.engine.acknowledge(self._asked, 1)


PortBody = Callable[[Talk], Awaitable[None]]
PORT_CHECKS: CheckList[PortBody] = CheckList()


async def run_port_check(check: Check[PortBody], bench: Bench) -> None:
    """Runs one check on a fresh bench. Raises AssertionError, or NotApplicable with the reason."""
    talk = Talk(bench)
    check.require(places_by_itself=talk.engine.capabilities.queue is not None, inapplicable=bench.inapplicable)
    unknown = [name for name in bench.inapplicable if name not in PORT_CHECKS]
    assert not unknown, f"no such checks: {unknown}"
    try:
        await talk.begin()
        await check.body(talk)
    finally:
        await bench.end(talk.engine)


def end(launch: c.LaunchJob, grace_s: int = 0) -> c.TerminateJob:
    return c.TerminateJob(launch.job.id, launch.job.generation, launch.allocation.node_names, grace_s)


def _signal(launch: c.LaunchJob, number: int) -> c.SignalJob:
    return c.SignalJob(launch.job.id, launch.job.generation, launch.allocation.node_names, number, "batch")


# -- a job's life --------------------------------------------------------------------------------------------------


@PORT_CHECKS.say()
async def a_job_is_launched_and_its_exit_code_told(talk: Talk) -> None:
    talk.tell(talk.launch(1, Program(says="hello", exits=7)))
    ended = await talk.until(o.BatchFinished, job_id=1, generation=1)
    assert ended.status == ExitStatus(code=7)
    launched = talk.heard(o.JobLaunched, job_id=1)
    assert not launched or talk.seen.index(launched[0]) < talk.seen.index(ended), "its start was told after its end"
    assert talk.bench.runs(1) == 1


@PORT_CHECKS.say()
async def a_script_that_dies_of_a_signal_is_told_apart(talk: Talk) -> None:
    talk.tell(talk.launch(1, Program(dies_of=SIGSEGV)))
    ended = await talk.until(o.BatchFinished, job_id=1)
    assert ended.status == ExitStatus(signal=SIGSEGV)


@PORT_CHECKS.say()
async def what_a_script_writes_is_in_its_output(talk: Talk) -> None:
    talk.tell(talk.launch(1, Program(says="one line")))
    await talk.until(o.BatchFinished, job_id=1)
    assert "one line\n" in talk.bench.output(1)


@PORT_CHECKS.say()
async def a_job_that_is_over_is_cleared_by_itself_or_when_told(talk: Talk) -> None:
    launch = talk.launch(1, Program())
    talk.tell(launch)
    ended = await talk.until(o.BatchFinished, job_id=1)
    if not ended.cleared:
        talk.tell(end(launch))
        await talk.until(o.JobCleared, job_id=1, generation=1)


@PORT_CHECKS.say()
async def a_signal_reaches_the_script(talk: Talk) -> None:
    launch = talk.launch(1, Program(waits_for="never", on_signal=((SIGUSR1, 5),), beats=True))
    await talk.launched(launch)
    await talk.until_so(lambda: talk.bench.beats(1), "the script's first beat")
    talk.tell(_signal(launch, SIGUSR1))
    assert (await talk.until(o.BatchFinished, job_id=1)).status.code == 5


# -- the end of a job ------------------------------------------------------------------------------------------------


@PORT_CHECKS.say()
async def an_ended_job_is_asked_first(talk: Talk) -> None:
    launch = talk.launch(1, Program(waits_for="never", on_signal=((SIGTERM, 6),), beats=True))
    await talk.launched(launch)
    await talk.until_so(lambda: talk.bench.beats(1), "the script's first beat")
    talk.tell(end(launch, grace_s=30))
    assert (await talk.until(o.BatchFinished, job_id=1)).status.code == 6
    await talk.until(o.JobCleared, job_id=1, generation=1)


@PORT_CHECKS.say()
async def a_job_that_does_not_listen_is_killed(talk: Talk) -> None:
    launch = talk.launch(1, Program(waits_for="never", ignores=(SIGTERM,), beats=True))
    await talk.launched(launch)
    await talk.until_so(lambda: talk.bench.beats(1), "the script's first beat")
    talk.tell(end(launch, grace_s=1))
    assert (await talk.until(o.BatchFinished, job_id=1)).status.signal == SIGKILL
    await talk.until(o.JobCleared, job_id=1, generation=1)


@PORT_CHECKS.say()
async def the_end_of_a_job_that_nobody_knows_is_confirmed(talk: Talk) -> None:
    talk.tell(c.TerminateJob(99, 3, talk.bench.nodes, 0))
    assert (await talk.until(o.JobCleared, job_id=99)).generation == 3


@PORT_CHECKS.say()
async def a_job_is_ended_while_it_is_launched(talk: Talk) -> None:
    """The two orders may overtake each other inside the engine; nothing may be left either way."""
    launch = talk.launch(1, Program(waits_for="never"), nodes=2)
    talk.tell(launch, end(launch))
    await talk.until(o.JobCleared, job_id=1, generation=1)
    talk.engine.acknowledge(1, 1)
    await talk.settled()
    await talk.begin_again()
    assert (1, 1) not in _held(talk)


# -- orders said again -------------------------------------------------------------------------------------------------


@PORT_CHECKS.say()
async def a_launch_said_twice_starts_the_job_once(talk: Talk) -> None:
    launch = talk.launch(1, Program(waits_for="gate", exits=3))
    talk.tell(launch, launch)
    await talk.until(o.JobLaunched, job_id=1)
    talk.tell(launch)
    await talk.settled()
    talk.bench.open_gate("gate")
    assert (await talk.until(o.BatchFinished, job_id=1)).status.code == 3
    assert talk.bench.runs(1) == 1


@PORT_CHECKS.say()
async def a_launch_said_again_is_confirmed_again(talk: Talk) -> None:
    """A daemon that crashed before it noted the start hears of it when it repeats the order."""
    launch = await talk.launched(talk.launch(1, Program(waits_for="gate")))
    await talk.begin_again()
    talk.tell(launch)
    await talk.until(o.JobLaunched, job_id=1, generation=1)
    assert talk.bench.runs(1) == 1


@PORT_CHECKS.say()
async def a_launch_said_again_after_the_end_tells_the_end_again(talk: Talk) -> None:
    """Nobody acknowledged the end: the daemon crashed before it was on disk. It must not run a second time."""
    launch = talk.launch(1, Program(exits=4))
    talk.tell(launch)
    await talk.until(o.BatchFinished, job_id=1)
    await talk.begin_again()
    talk.tell(launch)
    assert (await talk.until(o.BatchFinished, job_id=1)).status.code == 4
    await talk.settled()
    assert talk.bench.runs(1) == 1


@PORT_CHECKS.say()
async def an_end_said_twice_is_confirmed(talk: Talk) -> None:
    launch = await talk.launched(talk.launch(1, Program(waits_for="never")))
    talk.tell(end(launch), end(launch))
    await talk.until(o.JobCleared, job_id=1)
    await talk.begin_again()
    talk.tell(end(launch))
    await talk.until(o.JobCleared, job_id=1)


# -- generations -------------------------------------------------------------------------------------------------------


@PORT_CHECKS.say()
async def the_end_of_an_old_start_leaves_the_new_one_alone(talk: Talk) -> None:
    first = await talk.launched(talk.launch(1, Program(waits_for="never")))
    talk.tell(end(first))
    await talk.until(o.JobCleared, job_id=1, generation=1)
    talk.engine.acknowledge(1, 1)
    await talk.launched(talk.launch(1, Program(waits_for="gate", exits=2), generation=2))
    talk.tell(end(first))
    await talk.settled()
    talk.bench.open_gate("gate")
    ended = await talk.until(o.BatchFinished, job_id=1, generation=2)
    assert ended.status == ExitStatus(code=2), "the new start was ended with the old one"


@PORT_CHECKS.say()
async def reports_carry_the_generation_they_are_about(talk: Talk) -> None:
    talk.tell(talk.launch(1, Program(exits=3), generation=7))
    await talk.until(o.BatchFinished, job_id=1)
    about = {getattr(seen, "generation", 7) for seen in talk.seen}
    assert about == {7}


# -- gangs -------------------------------------------------------------------------------------------------------------


@PORT_CHECKS.say()
async def a_gang_is_launched_when_all_its_nodes_are(talk: Talk) -> None:
    launch = await talk.launched(talk.launch(1, Program(waits_for="never"), nodes=2))
    assert len(talk.heard(o.JobLaunched, job_id=1)) == 1, "one start, told once"
    assert talk.bench.runs(1) <= 1, "the script runs on the first node only"
    talk.tell(end(launch))
    await talk.until(o.JobCleared, job_id=1)
    assert len(talk.heard(o.JobCleared, job_id=1)) == 1, "cleared is said once all nodes are"


@PORT_CHECKS.say()
async def a_launch_that_cannot_be_done_is_refused_whole(talk: Talk) -> None:
    talk.tell(talk.launch(1, nodes=2, spec=talk.bench.impossible_spec()))
    refused = await talk.until(o.JobRefused, job_id=1, generation=1)
    assert refused.reason.strip(), "it must say why"
    talk.engine.acknowledge(1, 1)
    await talk.settled()
    assert talk.bench.runs(1) == 0
    await talk.begin_again()
    assert (1, 1) not in _held(talk)


# -- the daemon goes and comes -------------------------------------------------------------------------------------


@PORT_CHECKS.say()
async def jobs_run_on_without_the_daemon_and_are_found_again(talk: Talk) -> None:
    await talk.launched(talk.launch(1, Program(waits_for="gate", exits=4)))
    await talk.begin_again()
    assert (1, 1) in _held(talk), "a node must say what it still holds"
    talk.bench.open_gate("gate")
    assert (await talk.until(o.BatchFinished, job_id=1)).status.code == 4
    assert talk.bench.runs(1) == 1


@PORT_CHECKS.say()
async def what_ended_while_no_daemon_was_there_is_told_to_the_next(talk: Talk) -> None:
    await talk.launched(talk.launch(1, Program(waits_for="gate", exits=4)))
    await talk.engine.stop()
    talk.bench.open_gate("gate")
    talk.seen.clear()
    talk.engine = talk.bench.new_engine()
    await talk.begin()
    assert (await talk.until(o.BatchFinished, job_id=1)).status.code == 4


@PORT_CHECKS.say()
async def an_end_is_told_until_it_is_acknowledged_and_then_no_more(talk: Talk) -> None:
    talk.tell(talk.launch(1, Program(exits=4)))
    ended = await talk.until(o.BatchFinished, job_id=1)
    await talk.begin_again()
    await talk.until(o.BatchFinished, job_id=1, status=ended.status)
    talk.tell(c.TerminateJob(1, 1, talk.bench.nodes[:1], 0))
    await talk.until(o.JobCleared, job_id=1)
    talk.engine.acknowledge(1, 1)
    await talk.settled()
    await talk.begin_again()
    await talk.settled()
    assert not talk.heard(o.BatchFinished, job_id=1), "it was acknowledged"
    assert (1, 1) not in _held(talk)


# -- suspending ----------------------------------------------------------------------------------------------------


@PORT_CHECKS.say()
async def a_suspended_job_stands_still_and_goes_on_when_resumed(talk: Talk) -> None:
    launch = await talk.launched(talk.launch(1, Program(waits_for="gate", exits=2, beats=True)))
    await talk.until_so(lambda: talk.bench.beats(1), "the script's first beat")
    nodes = launch.allocation.node_names
    talk.tell(c.SuspendJob(1, 1, nodes), c.SuspendJob(1, 1, nodes))
    await talk.until_so(_stands_still(talk, 1), "a moment without a beat")
    still = talk.bench.beats(1)
    talk.tell(c.ResumeJob(1, 1, nodes))
    await talk.until_so(lambda: talk.bench.beats(1) > still, "the next beat")
    talk.bench.open_gate("gate")
    assert (await talk.until(o.BatchFinished, job_id=1)).status.code == 2


@PORT_CHECKS.say()
async def a_suspended_job_can_be_ended(talk: Talk) -> None:
    launch = await talk.launched(talk.launch(1, Program(waits_for="never", beats=True)))
    talk.tell(c.SuspendJob(1, 1, launch.allocation.node_names))
    await talk.settled()
    talk.tell(end(launch, grace_s=30))
    await talk.until(o.JobCleared, job_id=1)


def _stands_still(talk: Talk, job_id: int, looks: int = 25) -> Callable[[], bool]:
    """True once so many looks in a row saw the same."""
    seen: list[int] = []

    def is_so() -> bool:
        seen.append(talk.bench.beats(job_id))
        return len(seen) >= looks and len(set(seen[-looks:])) == 1

    return is_so


# -- steps -------------------------------------------------------------------------------------------------------------


@PORT_CHECKS.say()
async def a_step_runs_on_all_its_nodes_and_each_tells_its_end(talk: Talk) -> None:
    launch = await talk.launched(talk.launch(1, nodes=2))
    talk.tell(talk.step(launch, Program(exits=3)))
    for node in launch.allocation.node_names:
        ended = await talk.until(o.StepNodeFinished, job_id=1, generation=1, step_id=0, node=node)
        assert ended.status.code == 3
    assert talk.heard(o.StepBegan, job_id=1, step_id=0)
    assert talk.bench.runs(1) == 2


@PORT_CHECKS.say()
async def a_step_said_twice_runs_once(talk: Talk) -> None:
    launch = await talk.launched(talk.launch(1))
    step = talk.step(launch, Program(waits_for="gate"))
    talk.tell(step, step)
    await talk.until(o.StepBegan, job_id=1, step_id=0)
    talk.tell(step)
    await talk.settled()
    talk.bench.open_gate("gate")
    await talk.until(o.StepNodeFinished, job_id=1, step_id=0)
    assert talk.bench.runs(1) == 1


@PORT_CHECKS.say()
async def a_step_is_signalled_and_ended_alone(talk: Talk) -> None:
    launch = await talk.launched(talk.launch(1))
    nodes = launch.allocation.node_names
    for number, order in (
        (0, c.SignalStep(1, 1, 0, nodes, SIGUSR1)),
        (1, c.TerminateStep(1, 1, 1, nodes, 0)),
    ):
        talk.tell(talk.step(launch, Program(waits_for="never"), number))
        await talk.until(o.StepBegan, job_id=1, step_id=number)
        talk.tell(order)
        ended = await talk.until(o.StepNodeFinished, job_id=1, step_id=number)
        assert ended.status.signal == (SIGUSR1 if number == 0 else SIGKILL)
    assert not talk.heard(o.JobCleared, job_id=1), "the job goes on"


# -- nodes -------------------------------------------------------------------------------------------------------------


@PORT_CHECKS.say()
async def a_node_that_restarted_says_that_the_job_is_gone(talk: Talk) -> None:
    """Honest NODE_FAIL: either it is reported as vanished, or the node answers and does not hold it."""
    launch = await talk.launched(talk.launch(1, Program(waits_for="never")))
    talk.seen.clear()
    node = launch.allocation.first_node
    await talk.bench.restart_node(node)
    await talk.until_so(lambda: _said_gone(talk, node), "a word about the lost job")
    talk.tell(end(launch))
    await talk.until(o.JobCleared, job_id=1, generation=1)
    talk.engine.acknowledge(1, 1)
    talk.tell(talk.launch(2, Program(exits=2)))
    assert (await talk.until(o.BatchFinished, job_id=2)).status.code == 2, "the node serves again"


def _said_gone(talk: Talk, node: str) -> bool:
    if talk.heard(o.JobVanished, job_id=1, generation=1):
        return True
    answers = talk.heard(o.NodeAnswered, node=node)
    return bool(answers) and (1, 1) not in answers[-1].holds


def _held(talk: Talk) -> set[tuple[int, int]]:
    """What the nodes said they hold when the engine began."""
    return {key for answered in talk.heard(o.NodeAnswered) for key in answered.holds}
