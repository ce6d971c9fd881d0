"""Nodes that get no more jobs until somebody has looked: a prolog or epilog failed there, or nothing can be started."""

from __future__ import annotations

from bireme.core.model import events as e
from bireme.core.state.state import State


def drained(state: State, nodes: tuple[str, ...], note: str) -> list[e.Event]:
    """A node whose prolog or epilog fails, or that can start nothing, gets no more jobs until somebody has looked."""
    fresh = (node for node in nodes if node in state.nodes and not state.nodes[node].drained)
    return [e.NodeUpdated(node, by_uid=0, drained=True, note=note) for node in fresh]
