"""What events do to nodes: answering, silence, operators' words, what others hold there, what is left of old starts.

Called by `apply` only. A node that the configuration does not have is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from bireme.core.kinds.kind import Handler
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model.cluster import NodeConfig
from bireme.core.model.jobs import Ending
from bireme.core.model.nodes import Health, Node, Note
from bireme.core.state.state import State

NOTHING: tuple[c.Command, ...] = ()


def new_node(node: NodeConfig, at: float) -> Node:
    initial = node.initial_state.upper()
    note = Note(node.reason, 0, at) if node.reason else None
    drained = initial in {"DRAIN", "DRAINING", "DRAINED", "FAIL"}
    health = Health.DOWN if initial in {"DOWN", "FUTURE"} else Health.UNKNOWN
    return Node(node, health, drained, note)


def _node(state: State, name: str) -> Node | None:
    """The node to change."""
    return state.nodes.get(name)


def _node_registered(state: State, event: e.NodeRegistered, at: float) -> Sequence[c.Command]:
    node = _node(state, event.node)
    if node is not None:
        if node.health is not Health.DOWN:
            node.up_since = event.at if node.health is not Health.UP else node.up_since
            node.health = Health.UP
        node.last_seen, node.agent, node.asks_replicas = event.at, event.agent, event.asks_replicas
    for job in state.holding.values():  # it answers again: what ends there is waited for again
        if isinstance(job.phase, Ending) and event.node in job.phase.given_up:
            left = tuple(name for name in job.phase.given_up if name != event.node)
            job.phase = replace(job.phase, given_up=left)
    return NOTHING


def _node_lost(state: State, event: e.NodeLost, at: float) -> Sequence[c.Command]:
    node = _node(state, event.node)
    if node is not None and node.health is not Health.DOWN:
        if node.health is not Health.LOST:
            node.last_seen = at  # it was well until now, however long ago it said who it is
        node.health = Health.LOST
    return NOTHING


def _leftover_found(state: State, event: e.LeftoverFound, at: float) -> Sequence[c.Command]:
    start, node = (event.job_id, event.generation), state.nodes.get(event.node)
    if state.loss is not None:  # its submission may be among what was lost: no other job gets its id
        state.next_job_id = max(state.next_job_id, event.job_id + 1)
    if node is not None:
        node.leftovers |= {start}
        state.leftovers.setdefault(start, set()).add(node.name)
    return (terminate_leftovers(start, state.leftovers.get(start, set()) | {event.node}),)


def terminate_leftovers(start: tuple[int, int], nodes: Iterable[str]) -> c.TerminateJob:
    """All nodes where something of the start is left: an engine that knew of some would say that the rest is clear.

    Its job is over already: nobody waits, so the nodes are as good as given up.
    """
    named = tuple(sorted(nodes))
    return c.TerminateJob(*start, named, 0, given_up=named)


def _leftover_cleared(state: State, event: e.LeftoverCleared, at: float) -> Sequence[c.Command]:
    start = (event.job_id, event.generation)
    left_on = state.leftovers.pop(start, set())
    for name in left_on.difference(event.still_on):
        state.nodes[name].leftovers -= {start}
    if still := left_on.intersection(event.still_on):
        state.leftovers[start] = still
    return NOTHING


def _others_counted(state: State, event: e.OthersCounted, at: float) -> Sequence[c.Command]:
    node = state.nodes.get(event.node)
    if node is not None:
        state.take_others(node, event.share)
    return NOTHING


def _node_closed(state: State, event: e.NodeClosed, at: float) -> Sequence[c.Command]:
    node = _node(state, event.node)
    if node is not None:
        node.closed = Note(event.why, by_uid=0, at=at) if event.why else None
    return NOTHING


def _node_updated(state: State, event: e.NodeUpdated, at: float) -> Sequence[c.Command]:
    node = _node(state, event.node)
    if node is None:
        return NOTHING
    if event.health is not None:
        node.health = Health(event.health)
    if event.drained is not None:
        node.drained = event.drained
    if event.note is not None:
        node.note = Note(event.note, event.by_uid, at) if event.note else None
    if event.weight is not None:
        node.config = replace(node.config, weight=event.weight)
    if event.features is not None:
        node.config = replace(node.config, features=event.features)
    if event.weight is not None or event.features is not None:
        state.reindex()
    return NOTHING


APPLIES: dict[type[e.Event], Handler] = {
    e.NodeRegistered: _node_registered,
    e.NodeLost: _node_lost,
    e.LeftoverFound: _leftover_found,
    e.LeftoverCleared: _leftover_cleared,
    e.OthersCounted: _others_counted,
    e.NodeClosed: _node_closed,
    e.NodeUpdated: _node_updated,
}
