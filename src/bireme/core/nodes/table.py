"""What may happen to a node: its table (law 4). Whether an operator drained it is no phase: it runs what it has."""

from __future__ import annotations

from operator import attrgetter

from bireme.core.kinds.life import Absent, Life, Phase, Rows
from bireme.core.model import events as e
from bireme.core.model.nodes import Health
from bireme.core.state.state import State

_WHEREVER = (Absent, *Health)
"""What may be said of a node whatever its health, and of one that the configuration does not have (any more)."""

_NODE: Rows = {
    (Health.UNKNOWN, e.NodeRegistered): (Health.UP,),
    (Health.UNKNOWN, e.NodeLost): (Health.LOST,),
    (Health.UNKNOWN, e.NodeUpdated): (Health.UNKNOWN, Health.DOWN, Health.UP),
    (Health.UP, e.NodeRegistered): (Health.UP,),
    (Health.UP, e.NodeLost): (Health.LOST,),
    (Health.UP, e.NodeUpdated): (Health.UP, Health.DOWN),
    (Health.LOST, e.NodeRegistered): (Health.UP,),
    (Health.LOST, e.NodeUpdated): (Health.LOST, Health.DOWN, Health.UP),
    (Health.DOWN, e.NodeRegistered): (Health.DOWN,),
    (Health.DOWN, e.NodeLost): (Health.DOWN,),
    (Health.DOWN, e.NodeUpdated): (Health.DOWN, Health.UP),
    (Absent, e.NodeRegistered): (Absent,),
    (Absent, e.NodeLost): (Absent,),
    (Absent, e.NodeUpdated): (Absent,),
    **{(health, e.NodeClosed): (health,) for health in _WHEREVER},
    **{(health, e.LeftoverFound): (health,) for health in _WHEREVER},
    **{(health, e.OthersCounted): (health,) for health in _WHEREVER},
}


def _node_phase(state: State, name: str) -> Phase:
    node = state.nodes.get(name)
    return Absent if node is None else node.health


NODE = Life("node", _NODE, {event: (attrgetter("node"),) for _, event in _NODE}, _node_phase)
