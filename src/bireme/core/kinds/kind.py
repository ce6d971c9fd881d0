"""The shape of a kind: all that the kernel has to know of a job, a step, a node, a reservation, the account book.

A kind is one value of `Kind`, made of plain functions of its own folder; `registry.py` lists them in order, and the
kernel names none. Whoever adds a kind writes its functions, its value and its line there. About events there is no
default: each is applied, governed, followed or passed over (`tests/tidy/test_kinds.py`).

Invariant: all of it is pure but for `applies` and `follows`, which change the state and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bireme.core.kinds.life import Life
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.jobs import Job, Phase
from bireme.core.model.steps import Step
from bireme.core.state.shelf import Shelf
from bireme.core.state.state import State

Handler = Callable[[State, Any, float], Sequence[c.Command]]
Follower = Callable[[State, Any, float], None]
Interpreter = Callable[[State, Any, float], Sequence[e.Event]]
Decider = Callable[[State, float, Sequence[e.Event]], Iterable[e.Event]]
Times = Callable[[State, float], Iterable[float | None]]


@dataclass(frozen=True, slots=True)
class RunOver:
    """A job's run that goes into the history, as it is with this phase; its script and steps go with it."""

    job: Job
    phase: Phase


@dataclass(frozen=True, slots=True)
class StepOver:
    """A step that goes into the history: all of its tasks are gone."""

    job: Job
    step: Step


Entry = RunOver | StepOver
"""What a kind puts into the history. How it is written down is the business of whoever keeps it (`ports.Records`)."""


@dataclass(frozen=True, slots=True)
class Aside:
    """What a report of an engine comes to besides events: nothing of it is journaled."""

    history: Sequence[Entry] = ()
    commands: Sequence[c.Command] = ()
    forgettable: Sequence[tuple[int, int]] = ()
    """Starts, as (job, generation), that the engine need not keep."""


Remark = Callable[[State, Any, float], Aside]
Chronicler = Callable[[State, Any, float], Iterable[Entry]]


def nothing(*_: object) -> tuple[()]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of thing that has a life."""

    life: Life
    """Its table, and how to find the thing that an event is about. Events of other kinds may be governed by it too: a
    step starts in a running job only."""
    applies: Mapping[type[e.Event], Handler]
    """Its own events: what each does to the state, and the commands that it gives. Every event has one kind."""
    follows: Mapping[type[e.Event], tuple[Follower, ...]] = field(default_factory=dict)
    """What it does after an event, its own or another kind's: indexes, counts, charges."""
    passes_over: frozenset[type[e.Event]]
    """Events that mean nothing to it, each by its name."""
    keeps: tuple[Shelf[Any, Any], ...] = ()
    """Where its things lie in the state, if not in fields of it."""

    interprets: Mapping[type[o.Observation], Interpreter] = field(default_factory=dict)
    """What engines report of it, judged against what is known: events. Every observation has one kind."""
    remarks: Mapping[type[o.Observation], Remark] = field(default_factory=dict)
    """What it does about a report besides events, asked when those were applied."""
    widens: Callable[[State, Sequence[e.Event]], list[e.Event]] | None = None
    """What events that were decided mean for others of its things: the events, and those that go with them."""
    settles: Callable[[State, float], Iterable[e.Event]] = nothing
    """What it decides in every turn, whether time has passed or not. Each event is applied before the next is asked
    for: what is decided later in the same turn sees it."""
    decides: Decider = nothing
    """What time alone makes happen. The last argument: what the kinds before it have decided in this moment."""
    concludes: Decider = nothing
    """What follows from all that was decided in this moment."""
    entails: Mapping[type[e.Event], Callable[[State], Sequence[e.Event]]] = field(default_factory=dict)
    """What an event makes happen at once, in the same group."""
    times: Times = nothing
    """When `decides` may next have something new to say; None or the past: nothing known."""
    idle_times: Times = nothing
    """As `times`, for what can wait until somebody is awake anyway."""

    chronicles: Mapping[type[e.Event], Chronicler] = field(default_factory=dict)
    """What an event puts into the history, said before it is applied."""
    chronicles_after: Mapping[type[e.Event], Chronicler] = field(default_factory=dict)
    """What an event puts into the history, said when it was applied."""
    closes: Mapping[type[e.Event], Callable[[Any], bool]] = field(default_factory=dict)
    """Events after which the engine may forget the start that they name, if so."""
    reopens: frozenset[type[e.Event]] = frozenset()
    """Events after which the engine has to hear the start out that they name."""
    outstanding: Callable[[State], Iterable[c.Command]] = nothing
    """Commands that the state says were given and that nothing has confirmed."""

    @property
    def name(self) -> str:
        return self.life.kind
