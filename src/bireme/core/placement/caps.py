"""MaxCPUsPerNode: how many CPUs of each node the jobs of a partition may hold together.

Not a limit on anybody, but on where there is room: nodes look smaller to such a partition's jobs than they are. The
planner keeps count of what its jobs hold (`cpus_held`); submission asks with empty nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bireme.core.model.resources import Allocation
from bireme.core.placement.table import Free, IntArray, NodeTable


def cpus_held(table: NodeTable, allocations: Iterable[Allocation]) -> IntArray:
    """CPUs on each node, by its position."""
    held = np.zeros(len(table), dtype=np.int64)
    for allocation in allocations:
        for share in allocation.shares:
            position = table.index.get(share.node)
            if position is not None:
                held[position] += share.cpus
    return held


def within_cap(free: Free, table: NodeTable, held: IntArray, most: int) -> Free:
    """What is free to jobs of a partition that may hold `most` CPUs of a node and holds so many."""
    room = np.maximum(most - held, 0)
    smaller = free.copy()
    smaller.cpus = np.minimum(free.cpus, room)
    smaller.cores = np.minimum(free.cores, room // table.threads)
    return smaller
