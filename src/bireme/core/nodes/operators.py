"""What operators ask of nodes and partitions: down, drain, resume, reasons, states. Events or a Refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from bireme.core.jobs.components import with_companions
from bireme.core.model import events as e
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.nodes import Health
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.nodes.kind import given_up
from bireme.core.state.state import State

PARTITION_FIELDS = {field.name for field in fields(PartitionConfig)}


def update_nodes(
    state: State,
    caller: Caller,
    names: Sequence[str],
    new_state: str | None,
    note: str | None,
    weight: int | None = None,
    features: tuple[str, ...] | None = None,
) -> list[e.Event]:
    """`scontrol update NodeName=... State=...`: DOWN ends what runs there, DRAIN lets it finish, RESUME brings back."""
    if not caller.admin:
        raise Refusal(Why.ACCESS_DENIED)
    unknown = [name for name in names if name not in state.nodes]
    if unknown:
        raise Refusal(Why.INVALID_NODE_NAME, f"no node {unknown[0]!r} here")
    word = (new_state or "").upper()
    if word in ("DOWN", "DRAIN", "FAIL") and not note and not all(state.nodes[n].note for n in names):
        raise Refusal(Why.NOT_SUPPORTED, "a Reason is needed to take a node out")
    health, drained = _meaning(word)
    events: list[e.Event] = []
    for name in names:
        back = "" if word in ("RESUME", "IDLE", "UNDRAIN") else note
        new_health = _resumed_health(state.nodes[name].health) if health == "back" else health
        events.append(e.NodeUpdated(name, caller.uid, new_health, drained, back, weight, features))
    if word == "DOWN":
        events.extend(with_companions(state, list(given_up(state, names))))
    return events


def _meaning(word: str) -> tuple[str | None, bool | None]:
    """(health, drained) that a state word asks for; None leaves it."""
    meanings: dict[str, tuple[str | None, bool | None]] = {
        "": (None, None),
        "DOWN": (Health.DOWN.value, None),
        "DRAIN": (None, True),
        "FAIL": (None, True),
        "RESUME": ("back", False),
        "IDLE": ("back", False),
        "UNDRAIN": (None, False),
    }
    if word not in meanings:
        raise Refusal(Why.NOT_SUPPORTED, f"a node cannot be set to {word}: use DOWN, DRAIN, RESUME, UNDRAIN or IDLE")
    return meanings[word]


def _resumed_health(now: Health) -> str | None:
    """A node set down by hand answers again at once; a silent one is up when it answers."""
    return Health.UP.value if now is Health.DOWN else None


def update_partition(state: State, caller: Caller, name: str, changes: Mapping[str, Any]) -> list[e.Event]:
    if not caller.admin:
        raise Refusal(Why.ACCESS_DENIED)
    partition = state.partitions.get(name)
    if partition is None:
        raise Refusal(Why.INVALID_PARTITION_NAME)
    unknown = [node for node in changes.get("nodes", ()) if node not in state.nodes]
    if unknown:
        raise Refusal(Why.INVALID_NODE_NAME, f"no node {unknown[0]!r} here")
    assert changes.keys() <= PARTITION_FIELDS, changes
    return [e.PartitionUpdated(replace(partition, **changes))]
