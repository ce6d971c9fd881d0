"""What time alone makes happen, kind by kind: `due` says what, `next_due` when to ask again at the latest.

Asked by the runtime's timer, or the simulator's clock. Neither reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterator

from bireme.core.kinds.kind import nothing
from bireme.core.lifecycle.registry import KINDS, widened
from bireme.core.model import events as e
from bireme.core.state.state import State

_SETTLES = tuple(kind.settles for kind in KINDS if kind.settles is not nothing)
_TIMES = tuple(kind.times for kind in KINDS if kind.times is not nothing)
_IDLE_TIMES = tuple(kind.idle_times for kind in KINDS if kind.idle_times is not nothing)
"""Asked in every turn: most kinds have nothing to say to these."""


def due(state: State, now: float) -> list[e.Event]:
    """What each kind decides, seeing what those before it did; what goes with it; and what follows from all of it."""
    events: list[e.Event] = []
    for kind in KINDS:
        events.extend(list(kind.decides(state, now, events)))
    events = widened(state, events)
    for kind in KINDS:
        events.extend(list(kind.concludes(state, now, events)))
    return events


def settled(state: State, now: float) -> Iterator[e.Event]:
    """What the kinds decide in every turn, whether time has passed or not; each event is to be applied before the
    next is asked for."""
    return (event for settles in _SETTLES for event in settles(state, now))


def next_due(state: State, now: float, *, forgetting: bool = True) -> float | None:
    """The earliest time at which `due` may have something new to say; None if only an event can change that.

    For when `due` has just been asked: what is already over is not named again. `forgetting` False: nobody need be
    woken for what can wait, such as forgetting a job that ended; it can be done whenever `due` is next asked.
    """
    asked = (*_TIMES, *_IDLE_TIMES) if forgetting else _TIMES
    return min((at for times in asked for at in times(state, now) if at is not None and at > now), default=None)
