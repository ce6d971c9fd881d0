"""The network as the planner sees it: which nodes share a switch, from the tightest level to the widest.

Built once from a Topology (tree, block or flat). `tightest_first` answers the planner's question: in which groups of
nodes should this gang be tried, so that it crosses as few switches as it can and leaves the large holes whole.
Invariant: level 0 are the leaves; every level partitions the nodes, each group of a level lies in one of the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bireme.core.model.cluster import NodeConfig, Switch, Topology

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """One height of the network: for each node the number of its group, and the groups' names."""

    group_of: IntArray
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Fabric:
    levels: tuple[Level, ...]

    def leaves_used(self, positions: Sequence[int]) -> int:
        return len(np.unique(self.levels[0].group_of[list(positions)])) if positions else 0

    def fewest_leaves(self, count: int) -> int:
        """The best any job of so many nodes can get: leaves used on an empty cluster."""
        sizes = np.sort(np.bincount(self.levels[0].group_of))[::-1]
        return int(np.searchsorted(np.cumsum(sizes), count) + 1) if count <= sizes.sum() else len(sizes)

    def tightest_first(self, able: IntArray, worth: IntArray, needed: int) -> Iterator[IntArray]:
        """Groups of the able nodes that together are worth `needed`, the tightest first, each in its best order.

        `able` are positions, ascending in preference; `worth` says for each of them what it contributes (1 for a
        node that is needed whole, its task capacity else). Inside a group that spans leaves, the fullest leaves come
        first, so that whoever takes a prefix crosses as few as possible.
        """
        for height, level in enumerate(self.levels):
            groups = level.group_of[able]
            sums = np.bincount(groups, weights=worth, minlength=len(level.names))
            large_enough = np.flatnonzero(sums >= needed)
            for group in large_enough[np.argsort(sums[large_enough], kind="stable")]:
                chosen = able[groups == group]
                if height:
                    chosen = self._by_leaves(chosen, worth[groups == group], needed)
                yield chosen

    def _by_leaves(self, positions: IntArray, worth: IntArray, needed: int) -> IntArray:
        """Whole leaves, the richest first; the last one needed is the smallest that is enough."""
        leaves = self.levels[0].group_of[positions]
        sums = np.bincount(leaves, weights=worth)
        order = [int(leaf) for leaf in np.argsort(-sums, kind="stable") if sums[leaf] > 0]
        left = float(needed)
        taken: list[int] = []
        while order and left > 0:
            enough = [leaf for leaf in order if sums[leaf] >= left]
            leaf = min(enough, key=lambda candidate: sums[candidate]) if enough else order[0]
            order.remove(leaf)
            taken.append(leaf)
            left -= sums[leaf]
        rank = np.full(len(sums), len(sums), dtype=np.int64)
        rank[taken + order] = np.arange(len(taken) + len(order))
        return positions[np.argsort(rank[leaves], kind="stable")]


def build_fabric(topology: Topology, nodes: Sequence[NodeConfig]) -> Fabric:
    position = {node.name: index for index, node in enumerate(nodes)}
    if topology.switches:
        return Fabric(_tree_levels(topology.switches, position))
    if topology.blocks:
        return Fabric(_block_levels(topology, position))
    return Fabric((_everything(len(nodes)),))


def _everything(count: int) -> Level:
    return Level(np.zeros(count, dtype=np.int64), ("all",))


def _tree_levels(switches: Sequence[Switch], position: dict[str, int]) -> tuple[Level, ...]:
    """Leaves, then their parents, up to the root. Nodes under no switch form a group of their own."""
    parent = {child: switch.name for switch in switches for child in switch.switches}
    chains: dict[int, list[str]] = {}
    for switch in switches:
        for node in switch.nodes:
            if node in position:
                chains[position[node]] = _upwards(switch.name, parent)
    height = max((len(chain) for chain in chains.values()), default=0)
    levels = [_level(chains, step, len(position)) for step in range(height)]
    if not levels or len(levels[-1].names) > 1:
        levels.append(_everything(len(position)))
    return tuple(levels)


def _upwards(name: str, parent: dict[str, str]) -> list[str]:
    chain = [name]
    while chain[-1] in parent and len(chain) <= len(parent):
        chain.append(parent[chain[-1]])
    return chain


def _level(chains: dict[int, list[str]], step: int, count: int) -> Level:
    numbers: dict[str, int] = {}
    group_of = np.zeros(count, dtype=np.int64)
    for position in range(count):
        chain = chains.get(position)
        name = chain[min(step, len(chain) - 1)] if chain else "(no switch)"
        group_of[position] = numbers.setdefault(name, len(numbers))
    return Level(group_of, tuple(numbers))


def _block_levels(topology: Topology, position: dict[str, int]) -> tuple[Level, ...]:
    """Base blocks, then the aggregates that BlockSizes names (so many base blocks in a row), then everything."""
    block_of = {node: index for index, block in enumerate(topology.blocks) for node in block.nodes}
    outside = len(topology.blocks)
    base = np.array([block_of.get(name, outside) for name in position], dtype=np.int64)
    names = (*(block.name for block in topology.blocks), "(no block)")
    levels = [Level(base, names)]
    largest = max((len(block.nodes) for block in topology.blocks), default=1)
    for size in sorted(topology.block_sizes)[1:]:
        span = max(1, size // max(1, min(topology.block_sizes[0], largest)))
        groups = base // span
        levels.append(Level(groups, tuple(f"aggregate{number}" for number in range(int(groups.max()) + 1))))
    levels.append(_everything(len(position)))
    return tuple(levels)
