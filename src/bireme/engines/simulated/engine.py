"""The simulated engine: obeys commands at virtual times, and knows beforehand how long every script runs.

It keeps the truth about what runs where (`holds`); what it says of it goes over a `Wire`, which in a fault world loses,
delays, doubles and reorders commands and reports. Used by the simulator with a workload's run times, and by scenarios,
where a script runs until it is told to end. Decides nothing, draws no random number.

Invariant: a (job, generation) is started at most once, and every command about it is answered, also when repeated:
how it ended is remembered until that is acknowledged, and said again whenever a node answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Protocol

from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.jobs import Job
from bireme.core.model.resources import NO_USAGE, SUCCESS, Allocation, ExitStatus
from bireme.engines.simulated.clock import VirtualClock
from bireme.ports import Capabilities, Report, StepEndpoint

KILL, TERM = 9, 15
AGENT = "simulated"


@dataclass(frozen=True, slots=True)
class Script:
    """What a job will do once it is launched."""

    run_s: float = inf
    status: ExitStatus = SUCCESS
    launch_s: float = 0.0
    term_s: float = 0.0
    """How long it goes on after SIGTERM; it is killed when its grace is over."""
    refused: str = ""
    """Why it cannot be started at all."""


ScriptOf = Callable[[Job, Allocation], Script]


class Wire(Protocol):
    """The way between Bireme and the nodes. Each method: what arrives of it, and after how many seconds."""

    def down(self, command: c.Command) -> Iterable[tuple[float, c.Command]]: ...

    def up(self, seen: o.Observation) -> Iterable[tuple[float, o.Observation]]: ...


class PerfectWire:
    """Everything arrives once and at once."""

    def down(self, command: c.Command) -> Iterable[tuple[float, c.Command]]:
        return ((0.0, command),)

    def up(self, seen: o.Observation) -> Iterable[tuple[float, o.Observation]]:
        return ((0.0, seen),)


@dataclass(slots=True)
class Held:
    """One start of a job, from its launch until its end is acknowledged."""

    job_id: int
    generation: int
    nodes: tuple[str, ...]
    script: Script
    batch: bool
    launched_at: float | None = None
    status: ExitStatus | None = None
    """How the script ended, once it has."""
    ended_at: float = 0.0
    left_s: float = inf
    """Of the script's run time, when it last began or went on."""
    going_since: float | None = None
    """None: not launched, suspended or over."""
    terminating: bool = False
    gone: bool = False
    """Nothing of it is left on any node."""
    steps: dict[int, set[str]] = field(default_factory=dict)
    """Running steps -> the nodes on which they run."""
    alarms: int = 0
    """Counts what was planned: an alarm with an older number has been overtaken."""


class SimulatedEngine:
    """A `ports.Engine`."""

    name = "simulated"
    problem = ""
    about = ""

    def __init__(self, clock: VirtualClock, script_of: ScriptOf, wire: Wire | None = None) -> None:
        self.clock = clock
        self.holds: dict[tuple[int, int], Held] = {}
        self.nodes: dict[str, bool] = {}
        """name -> whether it is up."""
        self._script_of = script_of
        self._wire = wire or PerfectWire()
        self._report: Report = lambda seen: None

    # -- ports.Engine --------------------------------------------------------------------------------------------------

    capabilities = Capabilities()

    async def start(self, report: Report) -> None:
        self.connect(report)

    def connect(self, report: Report) -> None:
        self._report = report
        for node in [node for node, up in self.nodes.items() if up]:
            self.answer(node)

    async def stop(self) -> None:
        self._report = lambda seen: None

    async def end_jobs(self, grace_s: float) -> None:
        for held in self.holds.values():
            held.alarms += 1
        self.holds.clear()

    def reconfigure(self, config: ClusterConfig) -> None:
        known = self.nodes
        self.nodes = {node.name: known.get(node.name, True) for node in config.nodes}
        for node in self.nodes:
            if node not in known:
                self.answer(node)

    def send(self, commands: Sequence[c.Command]) -> None:
        for command in commands:
            for delay_s, arriving in self._wire.down(command):
                self._after(delay_s, partial(self.obey, arriving))

    def step_endpoints(self, job_id: int, step_id: int) -> tuple[StepEndpoint, ...]:
        return ()

    async def live_usage(self, job_id: int) -> dict[str, Any]:
        return {}

    def acknowledge(self, job_id: int, generation: int) -> None:
        """What is gone need not be remembered any more; what is not is left alone."""
        held = self.holds.get((job_id, generation))
        if held is not None and held.gone:
            del self.holds[job_id, generation]

    # -- commands --------------------------------------------------------------------------------------------------

    def obey(self, command: c.Command) -> None:
        match command:
            case c.LaunchJob(job, allocation):
                self._launch(job, allocation)
            case c.TerminateJob(job_id, generation, _, grace_s, _):
                self._terminate(job_id, generation, grace_s)
            case c.SignalJob(job_id, generation, _, signal, scope):
                held = self.holds.get((job_id, generation))
                if held is not None and signal in (KILL, TERM) and scope != "steps":
                    self._script_ends(held, ExitStatus(signal=signal))
            case c.SuspendJob(job_id, generation):
                self._suspend(job_id, generation)
            case c.ResumeJob(job_id, generation):
                self._resume(job_id, generation)
            case c.LaunchStep(job, allocation, step):
                self._launch_step(job, allocation.generation, step.id, [node.node for node in step.nodes])
            case c.SignalStep(job_id, generation, step_id, nodes, signal):
                if signal in (KILL, TERM):
                    self.finish_step(job_id, generation, step_id, nodes, ExitStatus(signal=signal))
            case c.TerminateStep(job_id, generation, step_id, nodes, _, _):
                self.finish_step(job_id, generation, step_id, nodes, ExitStatus(signal=TERM))

    def _launch(self, job: Job, allocation: Allocation) -> None:
        key = (job.id, allocation.generation)
        held = self.holds.get(key)
        if held is not None:
            self._say_again(held)
            return
        script = self._script_of(job, allocation)
        away = [node for node in allocation.node_names if not self.nodes.get(node, False)]
        if script.refused or away:
            self.post(o.JobRefused(*key, script.refused or f"no answer from {away[0]}", self.clock.now()))
            return
        held = Held(*key, allocation.node_names, script, job.runs_script, left_s=script.run_s)
        self.holds[key] = held
        self._alarm(held, script.launch_s, self._launched)

    def _launched(self, held: Held) -> None:
        now = self.clock.now()
        held.launched_at = held.going_since = now
        self.post(o.JobLaunched(held.job_id, held.generation, now))
        self._await_end(held)

    def _await_end(self, held: Held) -> None:
        if held.batch and held.left_s < inf:
            self._alarm(held, held.left_s, lambda ended: self._script_ends(ended, ended.script.status))

    def _terminate(self, job_id: int, generation: int, grace_s: int) -> None:
        held = self.holds.get((job_id, generation))
        if held is None:
            self.post(o.JobCleared(job_id, generation, self.clock.now()))
            return
        held.terminating = True
        if held.gone:
            self._say_again(held)
            self.post(o.JobCleared(job_id, generation, self.clock.now()))
            return
        killed = held.script.term_s >= grace_s
        status = ExitStatus(signal=KILL if killed else TERM)
        self._alarm(held, min(held.script.term_s, float(grace_s)), lambda ended: self._clear(ended, status))

    def _clear(self, held: Held, status: ExitStatus) -> None:
        """Ends everything that is left of it."""
        for step_id in list(held.steps):
            self.finish_step(held.job_id, held.generation, step_id, held.nodes, status)
        if held.batch and held.status is None:
            self._script_ends(held, status)
        held.gone = True
        self.post(o.JobCleared(held.job_id, held.generation, self.clock.now()))

    def _suspend(self, job_id: int, generation: int) -> None:
        held = self.holds.get((job_id, generation))
        if held is not None and held.going_since is not None:
            held.left_s -= self.clock.now() - held.going_since
            held.going_since = None
            held.alarms += 1

    def _resume(self, job_id: int, generation: int) -> None:
        held = self.holds.get((job_id, generation))
        if held is not None and held.launched_at is not None and held.going_since is None and held.status is None:
            held.going_since = self.clock.now()
            self._await_end(held)

    def _launch_step(self, job: Job, generation: int, step_id: int, nodes: Sequence[str]) -> None:
        held = self.holds.get((job.id, generation))
        if held is not None:
            held.steps.setdefault(step_id, set(nodes))
        self.post(o.StepBegan(job.id, generation, step_id, self.clock.now()))

    # -- what happens by itself, or because somebody makes it happen -------------------------------------------------

    def fail(self, job_id: int, generation: int, status: ExitStatus) -> None:
        """The script of that start ends so, now; nothing happens where it is over."""
        held = self.holds.get((job_id, generation))
        if held is not None and held.launched_at is not None:
            self._script_ends(held, status)

    def adopt(self, job: Job, allocation: Allocation, left_s: float) -> None:
        """A job that runs already, as in a snapshot of a live cluster; its script has so long to go."""
        now = self.clock.now()
        key, nodes = (job.id, allocation.generation), allocation.node_names
        held = Held(*key, nodes, Script(left_s), job.runs_script, now, left_s=left_s)
        held.going_since = now
        self.holds[key] = held
        self._await_end(held)

    def finish_step(self, job_id: int, generation: int, step_id: int, nodes: Iterable[str], status: ExitStatus) -> None:
        """All tasks of the step end on these nodes."""
        held = self.holds.get((job_id, generation))
        running = held.steps.get(step_id, set()) if held is not None else set()
        for node in nodes:
            if node in running:
                running.discard(node)
                self.post(o.StepNodeFinished(job_id, generation, step_id, node, status, NO_USAGE, self.clock.now()))
        if held is not None and not running:
            held.steps.pop(step_id, None)

    def _script_ends(self, held: Held, status: ExitStatus) -> None:
        if held.status is not None:
            return
        held.status, held.going_since = status, None
        held.ended_at = self.clock.now()
        held.alarms += 0 if held.terminating else 1
        held.gone = not held.steps and not held.terminating
        self.post(o.BatchFinished(held.job_id, held.generation, status, held.ended_at, cleared=held.gone))

    def answer(self, node: str) -> None:
        """The node's agent says that it is there, what it holds, and again what may not have been heard."""
        self.nodes[node] = True
        here = [held for held in self.holds.values() if node in held.nodes]
        holds = tuple((held.job_id, held.generation) for held in here)
        self.post(o.NodeAnswered(node, AGENT, holds, self.clock.now()))
        for held in here:
            if node == held.nodes[0]:
                self._say_again(held)

    def _say_again(self, held: Held) -> None:
        key = (held.job_id, held.generation)
        if held.launched_at is not None:
            self.post(o.JobLaunched(*key, held.launched_at))
        if held.status is not None:
            self.post(o.BatchFinished(*key, held.status, held.ended_at, cleared=held.gone))
        elif held.gone:
            self.post(o.JobCleared(*key, self.clock.now()))

    def forget(self, node: str) -> None:
        """The node's agent died and took what ran there with it; the rest of a gang cannot go on without it."""
        for key in [key for key, held in self.holds.items() if node in held.nodes]:
            self.holds.pop(key).alarms += 1

    def lose(self, node: str, reason: str = "no answer") -> None:
        """The node is gone, with all that ran on it."""
        self.nodes[node] = False
        self.forget(node)
        self.post(o.NodeSilent(node, reason, self.clock.now()))

    def post(self, seen: o.Observation) -> None:
        """Says it, as far as the wire lets it through."""
        for delay_s, arriving in self._wire.up(seen):
            self._after(delay_s, partial(self._deliver, arriving))

    # -- time ----------------------------------------------------------------------------------------------------------

    def _deliver(self, seen: o.Observation) -> None:
        self._report((seen,))

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        if delay_s:
            self.clock.call_at(self.clock.now() + delay_s, action)
        else:
            action()

    def _alarm(self, held: Held, delay_s: float, action: Callable[[Held], None]) -> None:
        """One at a time: a later one replaces it."""
        held.alarms += 1
        number = held.alarms

        def ring() -> None:
            if held.alarms == number:
                action(held)

        self._after(delay_s, ring)
