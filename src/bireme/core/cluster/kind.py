"""The cluster as a kind: its configuration and its partitions, and whether its journal has all that happened.

What is done after a loss of events is `loss.py`; what nodes do with a new configuration is theirs (`Kind.follows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bireme.core.cluster import loss
from bireme.core.kinds.kind import Kind
from bireme.core.kinds.life import Life, Rows
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.idling.events import IDLE_EVENTS
from bireme.core.model.serving.events import SERVICE_EVENTS
from bireme.core.nodes.applying import new_node
from bireme.core.state.state import State


class Whole:
    """The phase of a cluster whose journal has all that ever happened."""


class Asking:
    """The phase of a cluster that lost events and has not yet heard from its nodes what they were (`loss.py`)."""


_CLUSTER: Rows = {
    (Whole, e.ClusterConfigured): (Whole,),
    (Whole, e.PartitionUpdated): (Whole,),
    (Whole, e.EventsLost): (Asking,),
    (Asking, e.ClusterConfigured): (Asking,),
    (Asking, e.PartitionUpdated): (Asking,),
    (Asking, e.EventsLost): (Asking,),
    (Asking, e.LossSettled): (Whole,),
}

CLUSTER = Life(
    "cluster",
    _CLUSTER,
    {event: (lambda event: "",) for _, event in _CLUSTER},
    lambda state, key: Whole if state.loss is None else Asking,
    lambda state, key: state.config.name,
)


def _cluster_configured(state: State, event: e.ClusterConfigured, at: float) -> Sequence[c.Command]:
    """Nodes that stay keep their health, note and what runs on them; operators' partition changes are replaced."""
    config = event.config
    known = state.nodes
    state.config = config
    state.nodes = {}
    for node in config.nodes:
        before = known.get(node.name)
        state.nodes[node.name] = replace(before, config=node) if before else new_node(node, at)
    state.partitions = {partition.name: partition for partition in config.partitions}
    state.next_job_id = max(state.next_job_id, config.settings.first_job_id)
    state.reindex()
    return ()


def _partition_updated(state: State, event: e.PartitionUpdated, at: float) -> Sequence[c.Command]:
    state.partitions[event.partition.name] = event.partition
    state.ever_fits = {}
    return ()


def _seen(state: State, seen: o.ClusterSeen, now: float) -> Sequence[e.Event]:
    return [e.ClusterConfigured(seen.config)] if seen.config != state.config else []


def _times(state: State, now: float) -> Iterator[float]:
    if state.loss is not None:
        yield loss.patience_ends_at(state)


CLUSTERS = Kind(
    life=CLUSTER,
    applies={
        e.ClusterConfigured: _cluster_configured,
        e.PartitionUpdated: _partition_updated,
        e.EventsLost: loss.events_lost,
        e.LossSettled: loss.loss_settled,
    },
    interprets={o.ClusterSeen: _seen},
    settles=loss.settled,
    times=_times,
    passes_over=frozenset(
        (
            *e.JOB_EVENTS,
            *e.STEP_EVENTS,
            *e.NODE_EVENTS,
            *e.ACCOUNT_EVENTS,
            *e.RESERVATION_EVENTS,
            *SERVICE_EVENTS,
            *IDLE_EVENTS,
            *e.FAULT_EVENTS,
        )
    ),
)
