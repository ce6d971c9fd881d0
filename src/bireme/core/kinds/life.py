"""The law of a kind's life: which phases its things go through, and which event takes them from one to the next.

A `Life` is a table and the way to find, in the state, the thing that an event is about. `apply` asks it twice: before
the event whether it may happen, and afterwards whether the thing stands where the table says. Reads the state only.
Invariant: no phase follows another but by a row of the table; a thing that is not there has the phase `Absent`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bireme.core.model import events as e
from bireme.core.state.state import State

Phase = Any
"""A word of the table: a class of phases (jobs) or a member of an enumeration (steps, nodes)."""
Key = Any
"""What names a thing among those of its kind: a job's id, a node's name, (job, step)."""
Phases = tuple[Phase, ...]
Rows = Mapping[tuple[Phase, type[e.Event]], Phases]


class Absent:
    """The phase of a thing that is not there: not yet, or no longer."""


@dataclass(frozen=True, slots=True)
class Life:
    """One kind's table: (phase now, event) -> the phases after; several where the event's own content decides."""

    kind: str
    rows: Rows
    things: Mapping[type[e.Event], tuple[Callable[[Any], Key], ...]]
    """The keys of the things that an event is about. An event of the whole (a configuration) is not in it."""
    phase: Callable[[State, Key], Phase]
    """Where the thing stands now; `Absent` if there is none."""
    label: Callable[[State, Key], str] = lambda state, key: str(key)
    """What people call the thing."""

    def laws(self, event: type[e.Event]) -> tuple[Law, ...]:
        """What is to be checked of an event of this class: one law for each thing that it is about."""
        after = {phase: allowed for (phase, happens), allowed in self.rows.items() if happens is event}
        return tuple(Law(key, self.phase, after, self) for key in self.things.get(event, ()))

    def forbids(self, state: State, key: Key, now: Phase, event: e.Event) -> IllegalTransition:
        """The error of an event that may not happen to the thing as it is."""
        thing = f"{self.kind} {self.label(state, key)}"
        text = f"{thing} is {_word(now)}: {type(event).__name__} may not happen to it"
        return IllegalTransition(self, key, text, event)

    def broken(self, state: State, key: Key, now: Phase, event: e.Event) -> IllegalTransition:
        """The error of a thing that an event left in a phase that the table does not name."""
        thing = f"{self.kind} {self.label(state, key)}"
        return IllegalTransition(self, key, f"{thing} may not be {_word(now)} after {type(event).__name__}", event)


class IllegalTransition(RuntimeError):  # noqa: N818  (named for what happened)
    """An event that a table does not allow, or whose handler did otherwise: a bug. The runtime adds the story."""

    def __init__(self, life: Life, key: Key, text: str, event: e.Event) -> None:
        super().__init__(f"{text} ({event})")
        self.life = life
        self.key = key
        self.event = event

    def is_about(self, event: e.Event) -> bool:
        """Whether another event is about the same thing: a part of its story."""
        return any(key_of(event) == self.key for key_of in self.life.things.get(type(event), ()))


class Law(NamedTuple):
    """One event class and one thing that it is about, made ready for `apply`, which runs for every event."""

    key: Callable[[Any], Key]
    phase: Callable[[State, Key], Phase]
    rows: Mapping[Phase, Phases]
    """Phase now -> phases after the event. A phase that is not here: the event may not happen."""
    life: Life

    def stands(self, state: State, event: e.Event) -> tuple[Key, Phases]:
        """Before the event: the thing's key, and the phases that it may be in afterwards."""
        key = self.key(event)
        after = self.rows.get(self.phase(state, key))
        if after is None:
            raise self.life.forbids(state, key, self.phase(state, key), event)
        return key, after

    def check(self, state: State, event: e.Event, key: Key, after: Phases) -> None:
        """After the event: the thing is in one of those phases."""
        if self.phase(state, key) not in after:
            raise self.life.broken(state, key, self.phase(state, key), event)


FREE = Law(lambda event: None, lambda state, key: None, {None: (None,)}, Life("", {}, {}, lambda state, key: None))
"""The law of an event that is about no single thing."""


def _word(phase: Phase) -> str:
    return phase.__name__.lower() if phase is Absent else getattr(phase, "__name__", str(phase))
