"""The kinds, in order, and what each event and each observation means to all of them: the one place that lists them.

`apply`, `due`, `intake`, `outstanding` and the runtime's kernel read the tables below and name no kind. A new kind: its
folder, and a line in `KINDS`. The order is that in which kinds are asked; each sees what those before it decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, get_args

from bireme.core.accounts.kind import ACCOUNTS
from bireme.core.cluster.kind import CLUSTERS
from bireme.core.faults.fences.kind import FENCES_KIND
from bireme.core.faults.findings.kind import FINDINGS_KIND
from bireme.core.faults.healings.kind import HEALINGS_KIND
from bireme.core.faults.restarts.kind import RECOVERY
from bireme.core.idle.kind import IDLENESS
from bireme.core.jobs.kind import JOBS
from bireme.core.kinds.kind import Chronicler, Follower, Handler, Interpreter, Kind, Remark
from bireme.core.kinds.life import FREE, Law
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.nodes.kind import NODES
from bireme.core.reservations.kind import RESERVATIONS
from bireme.core.services.kind import REPLICAS, REVISIONS, SERVICES
from bireme.core.state.shelf import Shelf
from bireme.core.state.state import State
from bireme.core.steps.kind import STEPS

KINDS: tuple[Kind, ...] = (
    CLUSTERS,
    JOBS,
    STEPS,
    NODES,
    RESERVATIONS,
    ACCOUNTS,
    SERVICES,
    REVISIONS,
    REPLICAS,
    IDLENESS,
    FINDINGS_KIND,
    HEALINGS_KIND,
    FENCES_KIND,
    RECOVERY,
)


class Programme(NamedTuple):
    """All that `apply` does about an event. Nearly every event is about one thing, and `apply` runs for every event: so
    that law stands by itself."""

    law: Law
    others: tuple[Law, ...]
    """The laws of other things that it is about."""
    handler: Handler
    followers: tuple[Follower, ...]


class Meaning(NamedTuple):
    """What an event comes to outside the state: for the history, for the engine, and what else happens at once."""

    chronicles: tuple[Chronicler, ...]
    chronicles_after: tuple[Chronicler, ...]
    entails: tuple[Callable[[State], Iterable[e.Event]], ...]
    closes: tuple[Callable[[Any], bool], ...]
    reopens: bool


def _programme(event: type[e.Event]) -> Programme:
    laws = [law for kind in KINDS for law in kind.life.laws(event)] or [FREE]
    handler = next(kind.applies[event] for kind in KINDS if event in kind.applies)
    followers = tuple(follower for kind in KINDS for follower in kind.follows.get(event, ()))
    return Programme(laws[0], tuple(laws[1:]), handler, followers)


def _meaning(event: type[e.Event]) -> Meaning:
    return Meaning(
        chronicles=tuple(kind.chronicles[event] for kind in KINDS if event in kind.chronicles),
        chronicles_after=tuple(kind.chronicles_after[event] for kind in KINDS if event in kind.chronicles_after),
        entails=tuple(kind.entails[event] for kind in KINDS if event in kind.entails),
        closes=tuple(kind.closes[event] for kind in KINDS if event in kind.closes),
        reopens=any(event in kind.reopens for kind in KINDS),
    )


PROGRAMME: dict[type[e.Event], Programme] = {event: _programme(event) for event in get_args(e.Event)}
MEANING: dict[type[e.Event], Meaning] = {event: _meaning(event) for event in get_args(e.Event)}

SHELVES: tuple[Shelf[Any, Any], ...] = tuple(shelf for kind in KINDS for shelf in kind.keeps)
"""Where kinds keep things that are not in fields of the state: what a snapshot holds besides those."""

INTERPRETERS: dict[type[o.Observation], Interpreter] = {
    seen: interpreter for kind in KINDS for seen, interpreter in kind.interprets.items()
}
REMARKS: dict[type[o.Observation], tuple[Remark, ...]] = {
    seen: tuple(kind.remarks[seen] for kind in KINDS if seen in kind.remarks) for seen in get_args(o.Observation)
}


def widened(state: State, events: list[e.Event]) -> list[e.Event]:
    """The events, and those that go with them."""
    for kind in KINDS:
        if kind.widens is not None and events:
            events = kind.widens(state, events)
    return events
