"""Nodes as a kind: what they and their engines say, who is given up, and what old starts have left on them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from bireme.core.cluster.loss import found_by_a_node
from bireme.core.jobs import mirroring
from bireme.core.jobs.due import node_failure
from bireme.core.kinds.kind import Aside, Kind
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.idling.events import IDLE_EVENTS
from bireme.core.model.jobs import Ending, Running, Suspended
from bireme.core.model.nodes import Health
from bireme.core.model.resources import NodeShare
from bireme.core.model.serving.events import SERVICE_EVENTS
from bireme.core.nodes.applying import APPLIES, terminate_leftovers
from bireme.core.nodes.draining import drained
from bireme.core.nodes.table import NODE
from bireme.core.state.state import State

# -- what is said of them --------------------------------------------------------------------------------------------


def _seen(state: State, seen: o.NodeSeen, now: float) -> list[e.Event]:
    return mirroring.node_events(state, seen.seen, seen.at)


def _silent(state: State, seen: o.NodeSilent, now: float) -> list[e.Event]:
    known = state.nodes.get(seen.node)
    return [] if known is None or known.health != Health.UP else [e.NodeLost(seen.node, seen.reason)]


def _unkillable(state: State, seen: o.JobUnkillable, now: float) -> list[e.Event]:
    """What cannot be killed drains its node, also when its start is over for its job."""
    return drained(state, (seen.node,), f"Kill task failed ({seen.why})")


def _node_answered(state: State, seen: o.NodeAnswered, now: float) -> list[e.Event]:
    """Jobs that should run there and that the node has never heard of are lost: its agent died and was replaced."""
    if seen.node not in state.nodes:
        return []
    events: list[e.Event] = [*found_by_a_node(state, seen), _registered(seen)]
    holds = set(seen.holds)
    for job in state.holding.values():
        if not isinstance(job.phase, Running | Suspended) or seen.node not in job.phase.allocation.node_names:
            continue
        if not job.mirrored and (job.id, job.generation) not in holds:
            events.append(node_failure(job, seen.node, state.config.settings.job_requeue))
    events.extend(e.LeftoverFound(seen.node, *key) for key in seen.holds if not state.holds(*key))
    return events


def _registered(seen: o.NodeAnswered) -> e.NodeRegistered:
    return e.NodeRegistered(seen.node, seen.at, seen.agent, seen.asks_replicas)


def _node_closed(state: State, seen: o.NodeClosed, now: float) -> list[e.Event]:
    node = state.nodes.get(seen.node)
    if node is None or seen.why == (node.closed.text if node.closed else ""):
        return []
    return [e.NodeClosed(seen.node, seen.why)]


def _others_seen(state: State, seen: o.OthersSeen, now: float) -> list[e.Event]:
    node = state.nodes.get(seen.share.node)
    if node is None or _sizes(node.others) == _sizes(seen.share):
        return []
    return [e.OthersCounted(node.name, seen.share)]


def _sizes(share: NodeShare | None) -> tuple[object, ...]:
    """How much is held; no matter which CPUs and devices were chosen to stand for it."""
    if share is None:
        return (0, 0, {})
    return (share.cpus, share.memory_mib, {(each.name, each.type): each.count for each in share.gres})


def _end_strangers(state: State, seen: o.NodeAnswered, now: float) -> Aside:
    """What a node holds that nobody knows is ended first; where the state knows the node, events see to that."""
    if seen.node in state.nodes:
        return Aside()
    stale = [key for key in seen.holds if not state.holds(*key) and key not in state.leftovers]
    return Aside(commands=[c.TerminateJob(*key, (seen.node,), 0) for key in stale])


# -- time ------------------------------------------------------------------------------------------------------------


def _silent_too_long(state: State, now: float, decided: Sequence[e.Event]) -> Iterator[e.Event]:
    """A node that has been silent for SlurmdTimeout is given up: its jobs end, and none of them waits for its word."""
    already = {event.job_id for event in decided if isinstance(event, e.JobEnding)}
    timeout = state.config.settings.slurmd_timeout_s
    away = [state.nodes[name] for name in _lost_nodes(state)]
    lost = {node.name for node in away if timeout and now - (node.last_seen or now) >= timeout}
    if lost:
        yield from (event for event in given_up(state, lost) if event.job_id not in already)


def given_up(state: State, nodes: Collection[str]) -> Iterator[e.JobEnding]:
    """Nobody waits for these nodes any more: what ran there ends, and what was ending ends without their word.

    The others of a gang are free as soon as they are clear. A node that comes back is cleared before it is used again.
    """
    for job in state.holding.values():
        phase, allocation = job.phase, job.allocation
        gone = tuple(name for name in allocation.node_names if name in nodes) if allocation is not None else ()
        if job.mirrored or not gone:
            continue
        if not isinstance(phase, Ending):
            yield replace(node_failure(job, gone[0], state.config.settings.job_requeue), given_up=gone)
        elif not set(gone) <= set(phase.given_up):
            yield e.JobEnding(job.id, job.generation, phase.outcome, phase.requeue, phase.hold, given_up=gone)


def _lost_nodes(state: State) -> tuple[str, ...]:
    table = state.timetable
    if table.lost is None:
        table.lost = tuple(node.name for node in state.nodes.values() if node.health is Health.LOST)
    return table.lost


def _times(state: State, now: float) -> Iterator[float]:
    timeout = state.config.settings.slurmd_timeout_s
    for node in (state.nodes[name] for name in _lost_nodes(state)):
        if node.last_seen is not None and timeout:
            yield node.last_seen + timeout


def _look_again(state: State, event: e.Event, at: float) -> None:
    """Which nodes do not answer is looked up when somebody next asks."""
    state.timetable.lost = None


def _outstanding(state: State) -> Iterator[c.Command]:
    return (terminate_leftovers(start, nodes) for start, nodes in sorted(state.leftovers.items()))


NODES = Kind(
    life=NODE,
    applies=APPLIES,
    follows=dict.fromkeys((e.ClusterConfigured, e.NodeRegistered, e.NodeLost, e.NodeUpdated), (_look_again,)),
    interprets={
        o.NodeSeen: _seen,
        o.NodeAnswered: _node_answered,
        o.NodeSilent: _silent,
        o.NodeClosed: _node_closed,
        o.OthersSeen: _others_seen,
        o.JobUnkillable: _unkillable,
    },
    remarks={o.NodeAnswered: _end_strangers},
    decides=_silent_too_long,
    times=_times,
    closes={e.LeftoverCleared: lambda event: not event.still_on},
    reopens=frozenset((e.LeftoverFound,)),
    outstanding=_outstanding,
    passes_over=frozenset(
        (
            *e.JOB_EVENTS,
            *e.STEP_EVENTS,
            *e.LOSS_EVENTS,
            e.PartitionUpdated,
            *e.ACCOUNT_EVENTS,
            *e.RESERVATION_EVENTS,
            *SERVICE_EVENTS,
            *IDLE_EVENTS,
            *e.FAULT_EVENTS,
        )
    ),
)
