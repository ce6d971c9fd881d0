"""Which GPUs a rehearsal's nodes play: those of the configuration, by number. Pure."""

from __future__ import annotations

from bireme.core.state.state import State
from bireme.gather.rehearsal.scene import NodeGpus


def played_gpus(state: State) -> tuple[NodeGpus, ...]:
    """Nodes without GPUs play none."""
    found = (
        NodeGpus(
            name, tuple(pool.type or "" for pool in node.config.gres if pool.name == "gpu" for _ in range(pool.count))
        )
        for name, node in state.nodes.items()
    )
    return tuple(each for each in found if each.models)
