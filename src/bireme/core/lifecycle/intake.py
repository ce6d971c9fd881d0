"""Observations become events: what an engine reported, judged by the kind that it is about.

Engines may say things late, twice and out of order. What a report comes to besides events is `remarks`.
"""

from __future__ import annotations

from collections.abc import Iterator

from bireme.core.kinds.kind import Aside
from bireme.core.lifecycle.registry import INTERPRETERS, REMARKS, widened
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.state.state import State


def interpret(state: State, seen: o.Observation, now: float) -> list[e.Event]:
    return widened(state, list(INTERPRETERS[type(seen)](state, seen, now)))


def remarks(state: State, seen: o.Observation, now: float) -> Iterator[Aside]:
    """What else a report comes to, when its events were applied: for the history, the engine, its commands."""
    return (remark(state, seen, now) for remark in REMARKS[type(seen)])
