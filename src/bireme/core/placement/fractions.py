"""GPUs that are given out in parts (`shard`, `mps`), as columns: which GPU of which node is in use, and as what.

A GPU is given whole or in parts of one kind, never both. So what is left is no sum of what jobs hold: two jobs with
parts of one GPU take one GPU from those who want a whole one. `Uses` counts what is held of each GPU, which does add
up over jobs and over time; what is left is worked out from it. Used by `table.Free` and by the calendar, and only
for nodes that have parts: a cluster without them pays nothing. Which GPU a job gets is decided in `shares`.

Invariant: parts left of a kind lie only on GPUs that are neither given whole nor in use as another kind.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bireme.core.model.cluster import NodeConfig
from bireme.core.model.resources import GresShare

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
GresKey = tuple[str, str | None]
Uses = dict[str, IntArray]
"""GRES name (gpu, shard, mps) -> nodes x GPUs: whole claims of a GPU, or how many of its parts are held."""
WHOLE = "gpu"


def parts_of(node: NodeConfig) -> dict[GresKey, dict[int, int]]:
    """GRES -> GPU number -> how many parts that GPU has. Empty for a node that gives out no parts."""
    found: dict[GresKey, dict[int, int]] = {}
    for pool in node.gres:
        if pool.parts:
            found.setdefault((pool.name, pool.type), {}).update(pool.parts)
    return found


class Fractions:
    """What can be shared on which node. Fixed, like the table it belongs to."""

    __slots__ = ("_gpus", "_parts", "nodes", "shape", "single")

    def __init__(self, nodes: Sequence[NodeConfig]) -> None:
        self.nodes: BoolArray = np.array([any(pool.parts for pool in node.gres) for node in nodes], dtype=np.bool_)
        numbers = [device.index for node in nodes for pool in node.gres for device in pool.devices]
        self.shape = (len(nodes), max(numbers, default=-1) + 1)
        self.single = frozenset(pool.name for node in nodes for pool in node.gres if pool.one_sharing)
        """GRES of which only one GPU of a node is in use at a time."""
        self._gpus: dict[GresKey, IntArray] = {}
        self._parts: dict[GresKey, IntArray] = {}
        for position in np.flatnonzero(self.nodes).tolist():
            for pool in nodes[position].gres:
                key = (pool.name, pool.type)
                if pool.name == WHOLE:
                    column = self._gpus.setdefault(key, np.zeros(self.shape, dtype=np.int64))
                    column[position, [device.index for device in pool.devices]] = 1
                elif pool.parts:
                    column = self._parts.setdefault(key, np.zeros(self.shape, dtype=np.int64))
                    for gpu, count in pool.parts:
                        column[position, gpu] += count

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def kinds(self) -> tuple[str, ...]:
        return (WHOLE, *dict.fromkeys(name for name, _ in self._parts))

    @property
    def keys(self) -> tuple[GresKey, ...]:
        """The GRES that are given out in parts."""
        return tuple(self._parts)

    def no_uses(self) -> Uses:
        return {kind: np.zeros(self.shape, dtype=np.int64) for kind in self.kinds} if self else {}

    def claims(self, position: int, gres: GresShare) -> list[tuple[str, int, int]]:
        """(kind, GPU, how much) of each GPU that the share claims on this node."""
        if not self.nodes[position]:
            return []
        if gres.name == WHOLE:
            return [(WHOLE, gpu, 1) for gpu in gres.indices if gpu < self.shape[1]]
        return [(gres.name, gpu, count) for gpu, count in gres.parts if gpu < self.shape[1] and gres.name in self.kinds]

    def parts(self, key: GresKey) -> IntArray:
        """Nodes x GPUs: how many parts each has."""
        return self._parts[key]

    def largest_parts(self, key: GresKey) -> IntArray:
        """Of each node: the most parts that one of its GPUs has."""
        largest: IntArray = self._parts[key].max(axis=1, initial=0)
        return largest

    def left(self, uses: Uses, first: int, last: int) -> tuple[dict[GresKey, IntArray], dict[GresKey, IntArray]]:
        """(free in all, most on one GPU) for nodes first..last-1; GPUs have no entry in the second."""
        rows = slice(first, last)
        claims = uses[WHOLE][rows] + sum((uses[kind][rows] > 0).astype(np.int64) for kind in self.kinds[1:])
        total = {key: (gpus[rows] * (1 - claims)).sum(axis=1) for key, gpus in self._gpus.items()}
        largest: dict[GresKey, IntArray] = {}
        for key, parts in self._parts.items():
            used = uses[key[0]][rows]
            open_ = (parts[rows] > 0) & (claims - (used > 0) <= 0)
            if key[0] in self.single:
                others = (used > 0).sum(axis=1, keepdims=True) - (used > 0)
                open_ &= others == 0
            left = np.where(open_, parts[rows] - used, 0)
            largest[key] = left.max(axis=1, initial=0)
            total[key] = largest[key] if key[0] in self.single else left.sum(axis=1)
        return total, largest
