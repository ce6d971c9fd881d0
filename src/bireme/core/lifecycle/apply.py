"""apply(state, recorded): the one function that changes the state. Events in, commands out, no IO.

It knows the shape of a kind and no kind: who checks, changes and follows an event is in the registry. A replay calls
`apply` and drops the commands; `outstanding.py` derives again those that nothing has confirmed yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from bireme.core.lifecycle.registry import PROGRAMME
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.state.state import State


def apply(state: State, recorded: e.Recorded) -> Sequence[c.Command]:
    """Checks the event against the tables, lets it happen, and checks where it left what it was about.

    Raises IllegalTransition: before anything has changed, or, when a handler did not do what its table says, after.
    """
    event, at = recorded.event, recorded.at
    law, others, handler, followers = PROGRAMME[type(event)]
    key_of, phase_of, rows, life = law
    key = key_of(event)
    after = rows.get(phase_of(state, key))
    if after is None:
        raise life.forbids(state, key, phase_of(state, key), event)
    standing = [each.stands(state, event) for each in others] if others else ()
    commands = handler(state, event, at)
    if phase_of(state, key) not in after:
        raise life.broken(state, key, phase_of(state, key), event)
    for each, stood in zip(others, standing):
        each.check(state, event, *stood)
    for follow in followers:
        follow(state, event, at)
    state.seq = recorded.seq
    return commands
