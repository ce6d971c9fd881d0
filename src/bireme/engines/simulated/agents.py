"""Node agents that run nothing: they speak the agents' protocol, and are the truth about what runs where.

Each `SimulatedAgent` does what `bireme.agent` does, in its order and words, except that a task is a number of seconds
on a virtual clock. They outlive daemons, die and come back, forget, and are cut off: `sim/faults` makes them. What a
task does is written in a `Behaviour`, which travels in the job's comment, so that the journal holds it too.

Invariant: a `Run` is listed from the moment its node takes it in until nothing of it is left there; the `Witness` is
told of everything that touches a device or a process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import inf
from typing import Any, Protocol

from bireme.agent.messages import protocol
from bireme.agent.messages.protocol import Message
from bireme.core.model.resources import ExitStatus
from bireme.engines.simulated.clock import VirtualClock

CONT, KILL, TERM, USR1 = 18, 9, 15, 10
ENDING_SIGNALS = (KILL, TERM, USR1)
"""Signals that end a task; the others do nothing to it."""
Key = tuple[int, int]
"""(job id, generation)."""
HANGS_S = 10.0
"""A replica that does not answer for so long is dead."""
STARTS_WITHIN_S = 90.0
"""So is one that has not answered by then."""
_LAST_WORDS = ("batch_ended", "refused", "cleared", "vanished")


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What a script or a task will do. As text: `run=60 code=3 term=2`; what is not said is as here."""

    run: float = inf
    code: int = 0
    then: int = -1
    """The exit code when it is started again; -1: the same."""
    signal: int = 0
    refuse: int = 0
    """1: no node starts it."""
    term: float = 0.0
    """Seconds that it goes on after SIGTERM; more than its grace: it is killed."""
    clear: float = 0.0
    """Seconds between the last process's end and a clear node: an epilog, a slow unmount."""
    prepare: float = 0.0
    """Seconds of prolog."""
    gate: str = ""
    """It ends when this gate is opened."""
    term_code: int = 0
    """Exit code after SIGTERM; 0: it dies of it."""
    usr1: int = 0
    """The same of SIGUSR1."""
    ready: float = 0.0
    """Of a service's replica: seconds until it answers its probes; never, if that is infinite."""
    hang: float = inf
    """Seconds after which it answers no more."""

    def __str__(self) -> str:
        said = ((each.name, getattr(self, each.name), each.default) for each in fields(self))
        return " ".join(f"{name}={value}" for name, value, default in said if value != default)

    @property
    def status(self) -> ExitStatus:
        return ExitStatus(code=self.code, signal=self.signal)

    def of_start(self, generation: int) -> Behaviour:
        return replace(self, code=self.then, signal=0) if generation > 1 and self.then >= 0 else self


def read_behaviour(text: str) -> Behaviour:
    said: dict[str, Any] = {}
    plain = Behaviour()
    for word in text.split():
        name, _, value = word.partition("=")
        said[name] = type(getattr(plain, name))(value)
    return Behaviour(**said)


def behaviour_of_replica(text: str, number: int) -> str:
    """A service's replicas do one thing after the other (`run=3 code=1|ready=5`); the last is for all that follow."""
    several = text.split("|")
    return several[min(number, len(several)) - 1]


def _answer(number: int, code: int) -> ExitStatus:
    """To a signal: an exit code of its own, or it dies of it."""
    return ExitStatus(code=code) if code else ExitStatus(signal=number)


class Witness(Protocol):
    """Told the truth as it happens."""

    def held(self, agent: SimulatedAgent, run: Run) -> None:
        """The node took the run in: its devices are its own."""

    def prepared(self, agent: SimulatedAgent, run: Run) -> None: ...

    def began(self, agent: SimulatedAgent, run: Run, step: int | None) -> None:
        """A script (step None) or a step's tasks began."""

    def ended(self, agent: SimulatedAgent, run: Run, step: int | None, status: ExitStatus) -> None: ...


@dataclass(slots=True)
class Task:
    """A script, or a step's tasks on this node: so many seconds of work."""

    behaviour: Behaviour
    left_s: float
    going_since: float | None = None
    """None: stopped, or over."""
    began_at: float = 0.0
    status: ExitStatus | None = None
    alarms: int = 0
    """Counts what was planned for it: an alarm with an older number has been overtaken."""


@dataclass(slots=True)
class Run:
    """One start of a job on this node."""

    key: Key
    share: Message
    """What it was given here: cpu_ids, memory_mib, devices and parts."""
    gang: tuple[str, ...]
    behaviour: Behaviour
    alone: bool = False
    has_batch: bool = False
    ready: bool = False
    ending: bool = False
    stopped: bool = False
    script: Task | None = None
    steps: dict[int, Task] = field(default_factory=dict)
    label: str = ""
    """Its job as people write it: `42_7` of an array's task, whatever its own id is."""
    is_replica: bool = False
    health: str = ""
    """Of a service's replica: what its probes say, once they say anything."""

    def living(self) -> list[tuple[int | None, Task]]:
        tasks: list[tuple[int | None, Task]] = [(None, self.script)] if self.script is not None else []
        tasks += list(self.steps.items())
        return [(step, task) for step, task in tasks if task.status is None]


class SimulatedAgent:
    def __init__(self, node: str, clock: VirtualClock, wall: Callable[[], float], witness: Witness) -> None:
        """`wall`: the machine's clock, which may jump; `clock` is the time that really passes."""
        self.node = node
        self.runs: dict[int, Run] = {}
        self.swallows = 0
        """So many of the next orders to start something are taken and forgotten."""
        self.refuses = 0
        """So many of the next orders to start something are refused."""
        self.opened: set[str] = set()
        """Gates that are open."""
        self._clock = clock
        self._wall = wall
        self._witness = witness
        self._outbox: dict[int, Message] = {}
        self._past: dict[Key, list[Message]] = {}
        """What was said of starts that it was told to forget."""
        self._seq = 0
        self._say: Callable[[Message], None] | None = None
        self._speaker = ""
        self._signals_done: set[tuple[str, int]] = set()
        """Orders that must not be carried out twice."""
        self._epoch = 0
        """Counts its lives: alarms of an earlier one are void."""

    # -- life ----------------------------------------------------------------------------------------------------------

    def connected(self, say: Callable[[Message], None], *, recall: bool = False) -> None:
        """A daemon is there: the newest one counts. It hears everything that nobody acknowledged, and with `recall`
        what was, and is still remembered."""
        self._say = say
        if recall:
            past, self._past = self._past, {}
            for event in (event for events in past.values() for event in events):
                self._seq += 1
                self._outbox[self._seq] = {**event, "seq": self._seq}
        welcome = {"ev": "welcome", "node": self.node, "version": "simulated", "protocol": protocol.VERSION}
        say({**welcome, "holds": sorted(self.held()), "past": sorted(self._past)})
        for event in list(self._outbox.values()):
            say(event)
        for run in self.runs.values():
            self._tell_health(run)

    def disconnected(self, say: Callable[[Message], None]) -> None:
        if self._say == say:
            self._say = None

    def held(self) -> set[Key]:
        return {run.key for run in self.runs.values()} | self.unacknowledged()

    def unacknowledged(self) -> set[Key]:
        return {(event["job"], event["gen"]) for event in self._outbox.values()}

    def dies(self, *, remembers: bool) -> None:
        """With all its processes; `remembers`: its successor has its records, and says honestly what it cannot know."""
        self._epoch += 1
        self._say = None
        runs, self.runs = self.runs, {}
        for run in runs.values():
            for step, task in run.living():
                self._witness.ended(self, run, step, ExitStatus(signal=KILL))
                task.status = ExitStatus(signal=KILL)
        if not remembers:
            self._outbox.clear()
            self._past.clear()
            return
        for key in [run.key for run in runs.values()]:
            said = {event["ev"] for event in self._outbox.values() if (event["job"], event["gen"]) == key}
            if said.isdisjoint(_LAST_WORDS):
                self.report("vanished", key, reason=f"the agent of node {self.node} died while it held the job")

    def open_gate(self, name: str) -> None:
        self.opened.add(name)
        for run in list(self.runs.values()):
            for step, task in run.living():
                if task.behaviour.gate == name and task.going_since is not None:
                    self._task_ends(run, step, task, task.behaviour.status)

    # -- speaking ------------------------------------------------------------------------------------------------------

    def report(self, event: str, key: Key, **facts: Any) -> None:
        self._seq += 1
        message = {"seq": self._seq, "ev": event, "job": key[0], "gen": key[1], "at": self._wall(), **facts}
        self._outbox[self._seq] = message
        if self._say is not None:
            self._say(message)

    def _say_again(self, key: Key) -> None:
        for event in [each for each in self._outbox.values() if (each["job"], each["gen"]) == key]:
            if self._say is not None:
                self._say(event)

    # -- orders --------------------------------------------------------------------------------------------------------

    def obey(self, order: Message) -> None:
        handler = getattr(self, f"_{order.get('op', 'hello')}", None)
        number = order.get("no")
        if handler is not None and (self._speaker, number) not in self._signals_done:
            handler(order)
        if number is None:
            return
        if order["op"] in ("signal", "signal_step"):
            self._signals_done.add((self._speaker, number))
        if self._say is not None:
            self._say({"did": [number]})

    def _hello(self, hello: Message) -> None:
        self._speaker = hello.get("speaker", "")

    def _prepare(self, order: Message) -> None:
        key = (order["job"], order["gen"])
        run = self.runs.get(key[0])
        if self.swallows:
            self.swallows -= 1
        elif run is not None and run.key == key:
            self._said_again(run, order)
        elif key in self.unacknowledged():
            self._say_again(key)
        elif run is not None:
            reason = f"start {run.key[1]} of the job is still being ended on node {self.node}"
            self.report("refused", key, reason=reason, prolog_failed=False)
        elif self.refuses or read_behaviour(order["behaviour"]).refuse:
            self.refuses = max(0, self.refuses - 1)
            self.report("refused", key, reason="it cannot be started here", prolog_failed=False)
        else:
            self._take_in(key, order)

    _start = _prepare

    def _take_in(self, key: Key, order: Message) -> None:
        behaviour = read_behaviour(order["behaviour"]).of_start(key[1])
        run = Run(key, order["share"], tuple(order["gang"]), behaviour, order.get("alone", False), "batch" in order)
        run.label, run.is_replica = order["label"], "replica" in order
        self.runs[key[0]] = run
        self._witness.held(self, run)
        self._after(behaviour.prepare, run, partial(self._is_prepared, run))

    def _is_prepared(self, run: Run) -> None:
        if run.ending:
            return
        run.ready = True
        self._witness.prepared(self, run)
        if run.has_batch:
            self._begin_script(run)
        else:
            self.report("prepared", run.key)

    def _said_again(self, run: Run, order: Message) -> None:
        run.is_replica = run.is_replica or "replica" in order
        if not run.ready:
            run.has_batch = run.has_batch or "batch" in order
        elif run.script is None and "batch" in order and not run.ending:
            self._begin_script(run)
        elif run.script is not None:
            self.report("launched", run.key)
        elif not run.ending:
            self.report("prepared", run.key)

    def _begin_script(self, run: Run) -> None:
        run.has_batch = True
        run.script = Task(run.behaviour, run.behaviour.run)
        self.report("launched", run.key)
        self._begins(run, None, run.script)
        if run.is_replica and run.script.status is None:
            self._after_if_finite(run.behaviour.ready, run, "ready")
            self._after_if_finite(run.behaviour.hang, run, "unready")
            self._after_if_finite(run.behaviour.hang + HANGS_S, run, "dead")
            if run.behaviour.ready == inf:
                self._after_if_finite(STARTS_WITHIN_S, run, "dead")

    def _after_if_finite(self, delay_s: float, run: Run, health: str) -> None:
        if delay_s < inf:
            self._after(delay_s, run, partial(self._is_probed, run, health))

    def _is_probed(self, run: Run, health: str) -> None:
        """Who hung before it was ready is not ready later."""
        if run.script is None or run.script.status is not None or run.health in ("dead", health):
            return
        if health == "ready" and run.health == "unready":
            return
        run.health = health
        self._tell_health(run)

    def _tell_health(self, run: Run) -> None:
        """Neither numbered nor kept: whoever comes is told anew."""
        if run.health and self._say is not None:
            facts = {"ev": "probed", "job": run.key[0], "gen": run.key[1], "at": self._wall(), "health": run.health}
            self._say(facts | ({} if run.health == "ready" else {"why": "it does not answer"}))

    def _terminate(self, order: Message) -> None:
        run = self._run_of(order)
        if run is None:
            self.report("cleared", (order["job"], order["gen"]))
            return
        grace_s = float(order["grace_s"])
        again, run.ending = run.ending, True
        if again and grace_s > 0:
            return
        for step, task in run.living():
            self._end_within(run, step, task, grace_s)
        self._leave_if_over(run)

    def _end_within(self, run: Run, step: int | None, task: Task, grace_s: float) -> None:
        """SIGCONT, SIGTERM, and SIGKILL when the grace is over."""
        self._goes_on(run, step, task)
        if task.behaviour.term >= grace_s:
            status = ExitStatus(signal=KILL)
        else:
            status = _answer(TERM, task.behaviour.term_code)
        self._alarm(run, task, min(task.behaviour.term, grace_s), partial(self._task_ends, run, step, task, status))

    def _signal(self, order: Message) -> None:
        run, scope = self._run_of(order), order.get("scope", "all")
        for step, task in run.living() if run is not None else ():
            if scope == "all" or (scope == "batch") == (step is None):
                assert run is not None
                self._signalled(run, step, task, order["signal"])

    def _signal_step(self, order: Message) -> None:
        run = self._run_of(order)
        task = run.steps.get(order["step"]) if run is not None else None
        if run is not None and task is not None and task.status is None:
            self._signalled(run, order["step"], task, order["signal"])

    def _signalled(self, run: Run, step: int | None, task: Task, number: int) -> None:
        if number not in ENDING_SIGNALS or (number == TERM and task.behaviour.term):
            return
        codes = {TERM: task.behaviour.term_code, USR1: task.behaviour.usr1}
        self._task_ends(run, step, task, _answer(number, codes.get(number, 0)))

    def _suspend(self, order: Message) -> None:
        run = self._run_of(order)
        if run is None or run.ending:
            return
        run.stopped = True
        for _, task in run.living():
            if task.going_since is not None:
                task.left_s -= self._clock.now() - task.going_since
                task.going_since, task.alarms = None, task.alarms + 1

    def _resume(self, order: Message) -> None:
        run = self._run_of(order)
        if run is not None and run.stopped:
            run.stopped = False
            for step, task in run.living():
                self._goes_on(run, step, task)

    def _step(self, order: Message) -> None:
        key, number = (order["job"], order["gen"]), order["step"]
        run = self._run_of(order)
        if run is not None and number in run.steps:
            self.report("step_began", key, step=number)
        elif run is not None and run.ready and not run.ending:
            run.steps[number] = task = Task(read_behaviour(order["behaviour"]), 0.0)
            task.left_s = task.behaviour.run
            self.report("step_began", key, step=number)
            self._begins(run, number, task)
        elif run is None and key in self.unacknowledged():
            self._say_again(key)
        else:
            self.report("step_began", key, step=number)
            failed = {"code": 1, "signal": 0, "out_of_memory": False}
            self.report("step_ended", key, step=number, status=failed, usage={}, note="the job is not here")

    def _terminate_step(self, order: Message) -> None:
        run = self._run_of(order)
        task = run.steps.get(order["step"]) if run is not None else None
        if run is not None and task is not None and task.status is None:
            self._end_within(run, order["step"], task, float(order["grace_s"]))

    def _ack(self, order: Message) -> None:
        key = (order["job"], order["gen"])
        forgotten = [event for event in self._outbox.values() if (event["job"], event["gen"]) == key]
        self._outbox = {seq: event for seq, event in self._outbox.items() if (event["job"], event["gen"]) != key}
        if forgotten:
            self._past[key] = forgotten

    def _run_of(self, order: Message) -> Run | None:
        run = self.runs.get(order["job"])
        return run if run is not None and run.key[1] == order["gen"] else None

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def _begins(self, run: Run, step: int | None, task: Task) -> None:
        task.began_at = self._clock.now()
        self._witness.began(self, run, step)
        if not run.stopped:
            self._goes_on(run, step, task)

    def _goes_on(self, run: Run, step: int | None, task: Task) -> None:
        if task.going_since is not None:
            return
        task.going_since = self._clock.now()
        status = task.behaviour.status
        if task.behaviour.gate and task.behaviour.gate in self.opened:
            self._alarm(run, task, 0.0, partial(self._task_ends, run, step, task, status))
        elif task.left_s < inf:
            self._alarm(run, task, task.left_s, partial(self._task_ends, run, step, task, status))

    def _task_ends(self, run: Run, step: int | None, task: Task, status: ExitStatus) -> None:
        if task.status is not None:
            return
        now = self._clock.now()
        task.left_s -= now - task.going_since if task.going_since is not None else 0.0
        task.status, task.going_since, task.alarms = status, None, task.alarms + 1
        self._witness.ended(self, run, step, status)
        how = {"code": status.code, "signal": status.signal, "out_of_memory": status.out_of_memory}
        if step is not None:
            self.report("step_ended", run.key, step=step, status=how, usage={})
        else:
            cleared = run.alone and not run.ending and not run.living() and not run.behaviour.clear
            self.report("batch_ended", run.key, status=how, usage={}, cleared=cleared, **self._about(run))
            if cleared:
                del self.runs[run.key[0]]
        self._leave_if_over(run)

    def _about(self, run: Run) -> Message:
        """As a real agent says it: what was ordered, and whose task it was."""
        facts: Message = {"ordered": True} if run.ending else {}
        return facts | ({"label": run.label} if "_" in run.label else {})

    def _leave_if_over(self, run: Run) -> None:
        if run.ending and not run.living():
            self._after(run.behaviour.clear, run, partial(self._left, run))

    def _left(self, run: Run) -> None:
        if self.runs.get(run.key[0]) is run:
            del self.runs[run.key[0]]
            self.report("cleared", run.key)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _after(self, delay_s: float, run: Run, action: Callable[[], None]) -> None:
        """Unless the agent dies before, or the run is gone."""
        if delay_s <= 0:
            action()
            return
        epoch = self._epoch

        def ring() -> None:
            if self._epoch == epoch and self.runs.get(run.key[0]) is run:
                action()

        self._clock.call_at(self._clock.now() + delay_s, ring)

    def _alarm(self, run: Run, task: Task, delay_s: float, action: Callable[[], None]) -> None:
        """One at a time for a task: a later one replaces it."""
        task.alarms += 1
        number = task.alarms
        self._after(delay_s, run, lambda: action() if task.alarms == number else None)
