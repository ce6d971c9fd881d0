"""The network as the planner sees it: which nodes share a switch, from the tightest level to the widest.

Built once from a Topology (tree, block or flat). `tightest_first` answers the planner's question: in which groups of
nodes should this gang be tried, so that it crosses as few switches as it can and leaves the large holes whole.
A tree is a wish: a gang that finds no room under one switch goes under a wider one. Blocks are a rule, as in Slurm: a
gang that a base block is made for waits for one, a larger one for the smallest aggregate that is made for it.
Invariant: level 0 are the leaves; every level partitions the nodes, each group of a level lies in one of the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bireme.core.model.cluster import NodeConfig, Switch, Topology

IntArray = NDArray[np.int64]
NumberArray = NDArray[np.int64] | NDArray[np.float64]
_ALL = "all"
_NO_BLOCK = "(no block)"


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """One height of the network: for each node the number of its group, and the groups' names."""

    group_of: IntArray
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Fabric:
    levels: tuple[Level, ...]
    """At least one. Jobs do not span groups of the last."""
    block_sizes: tuple[int, ...] = ()
    """Of topology/block: how many nodes a group of each level is made for, but for the last, which holds any."""

    @property
    def flat(self) -> bool:
        return self.levels[0].names == (_ALL,)

    @property
    def segment_max(self) -> int | None:
        """The largest --segment there can be; None where segments mean nothing."""
        return self.block_sizes[0] if self.block_sizes else None

    def leaves_used(self, positions: Sequence[int]) -> int:
        return len(np.unique(self.levels[0].group_of[list(positions)])) if positions else 0

    def fewest_leaves(self, count: int) -> int:
        """The best any job of so many nodes can get: leaves used on an empty cluster."""
        sizes = np.sort(np.bincount(self.levels[0].group_of))[::-1]
        return int(np.searchsorted(np.cumsum(sizes), count) + 1) if count <= sizes.sum() else len(sizes)

    def tightest_first(
        self, able: IntArray, worth: IntArray, needed: int, whole_nodes: bool = False
    ) -> Iterator[IntArray]:
        """Groups of the able nodes that together are worth `needed`, the tightest first, each in its best order.

        `able` are positions, ascending in preference; `worth` says for each of them what it contributes (1 for a
        node that is needed whole, its task capacity else). Inside a group that spans leaves, the fullest leaves come
        first, so that whoever takes a prefix crosses as few as possible. `whole_nodes`: `needed` counts nodes, which
        is what blocks are measured by; a demand that counts tasks may use any level.
        """
        for height in self._heights(needed if whole_nodes else None):
            level = self.levels[height]
            groups = level.group_of[able]
            sums = np.bincount(groups, weights=worth, minlength=len(level.names))
            large_enough = np.flatnonzero(sums >= needed)
            order = np.lexsort((sums[large_enough], self._leaves_needed(height, large_enough, able, worth, needed)))
            for group in large_enough[order]:
                chosen = able[groups == group]
                if height:
                    chosen = self._by_leaves(chosen, worth[groups == group], needed)
                yield chosen

    def beside(self, able: IntArray, kept: IntArray, needed: int) -> IntArray | None:
        """The able nodes (ascending in preference), those in front that are kept, then the nearest to these; None: the
        first `needed` of them would cross more leaves than those that were kept did."""
        far = np.full(len(able), len(self.levels) + 1)
        for height in range(len(self.levels) - 1, -1, -1):
            groups = self.levels[height].group_of
            far[np.isin(groups[able], groups[kept])] = height + 1
        far[np.isin(able, kept)] = 0
        order = able[np.argsort(far, kind="stable")]
        if self.block_sizes and len(order):  # a rule, other than trees: all in one block that is made for so many
            groups = self.levels[self._heights(needed)[0]].group_of
            order = order[groups[order] == groups[order[0]]]
        tight = len(order) >= needed and self.leaves_used(order[:needed].tolist()) <= self.leaves_used(kept.tolist())
        return order if tight else None

    def in_segments(self, able: IntArray, needed: int, size: int) -> IntArray | None:
        """`needed` of the able nodes (ascending in preference), each `size` of them in one base block, or None.

        As few blocks as possible; of those that hold all that is left, the one with the fewest nodes to spare.
        """
        blocks = self.levels[0].group_of[able]
        whole = np.bincount(blocks, minlength=len(self.levels[0].names)) // size * size
        if whole.sum() < needed:
            return None
        chosen: list[int] = []
        for block in _filling_order(whole, needed):
            here = able[blocks == block][: min(int(whole[block]), needed - len(chosen))]
            chosen.extend(int(position) for position in here)
        return np.array(chosen, dtype=np.int64)

    def _heights(self, nodes: int | None) -> Sequence[int]:
        """The levels to look at: of blocks only the lowest that is made for so many nodes."""
        if not self.block_sizes or nodes is None:
            return range(len(self.levels))
        return (int(np.searchsorted(self.block_sizes, nodes)),)

    def _leaves_needed(self, height: int, groups: IntArray, able: IntArray, worth: IntArray, needed: int) -> IntArray:
        """For each of these groups, all large enough, how many leaves it would take."""
        if height == 0 or len(groups) < 2:
            return np.ones(len(groups), dtype=np.int64)
        leaf = self.levels[0].group_of[able]
        sums = np.bincount(leaf, weights=worth, minlength=len(self.levels[0].names))
        group_of_leaf = np.full(len(sums), -1, dtype=np.int64)
        group_of_leaf[leaf] = self.levels[height].group_of[able]
        richest = [np.cumsum(np.sort(sums[group_of_leaf == group])[::-1]) for group in groups]
        return np.array([np.searchsorted(total, needed) + 1 for total in richest], dtype=np.int64)

    def _by_leaves(self, positions: IntArray, worth: IntArray, needed: int) -> IntArray:
        """Whole leaves, in the order in which they should be filled."""
        leaves = self.levels[0].group_of[positions]
        sums = np.bincount(leaves, weights=worth)
        order = _filling_order(sums, needed)
        rank = np.full(len(sums), len(sums), dtype=np.int64)
        rank[order] = np.arange(len(order))
        return positions[np.argsort(rank[leaves], kind="stable")]


def _filling_order(sums: NumberArray, needed: int) -> list[int]:
    """Leaves by what they hold: the richest first; the last one needed is the smallest that is enough."""
    order = [int(leaf) for leaf in np.argsort(-sums, kind="stable") if sums[leaf] > 0]
    left = float(needed)
    taken: list[int] = []
    while order and left > 0:
        enough = [leaf for leaf in order if sums[leaf] >= left]
        leaf = min(enough, key=lambda candidate: sums[candidate]) if enough else order[0]
        order.remove(leaf)
        taken.append(leaf)
        left -= sums[leaf]
    return taken + order


def build_fabric(topology: Topology, nodes: Sequence[NodeConfig]) -> Fabric:
    position = {node.name: index for index, node in enumerate(nodes)}
    if topology.switches:
        return Fabric(_tree_levels(topology.switches, position))
    if topology.blocks:
        sizes = _block_sizes(topology)
        return Fabric(_block_levels(topology, sizes, position), sizes)
    return Fabric((_everything(len(nodes)),))


def _everything(count: int) -> Level:
    return Level(np.zeros(count, dtype=np.int64), (_ALL,))


def _tree_levels(switches: Sequence[Switch], position: dict[str, int]) -> tuple[Level, ...]:
    """Leaves, then their parents, up to the root. Nodes under no switch form a group of their own."""
    parent = {child: switch.name for switch in switches for child in switch.switches}
    chains: dict[int, list[str]] = {}
    for switch in switches:
        for node in switch.nodes:
            if node in position:
                chains[position[node]] = _upwards(switch.name, parent)
    height = max((len(chain) for chain in chains.values()), default=0)
    levels = tuple(_level(chains, step, len(position)) for step in range(height))
    return levels or (_everything(len(position)),)


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


def _block_sizes(topology: Topology) -> tuple[int, ...]:
    """BlockSizes, the base first; without any, a base block is as large as the smallest."""
    smallest = min(len(block.nodes) for block in topology.blocks)
    return tuple(sorted(set(topology.block_sizes))) or (max(1, smallest),)


def _block_levels(topology: Topology, sizes: tuple[int, ...], position: dict[str, int]) -> tuple[Level, ...]:
    """Base blocks, then aggregates (so many base blocks in a row), then all blocks. Nodes in no block stay apart."""
    block_of = {node: index for index, block in enumerate(topology.blocks) for node in block.nodes}
    count = len(topology.blocks)
    base = np.array([block_of.get(name, count) for name in position], dtype=np.int64)
    levels = [Level(base, (*(block.name for block in topology.blocks), _NO_BLOCK))]
    for span in (*(max(1, size // sizes[0]) for size in sizes[1:]), count):
        aggregates = -(-count // span)
        groups = np.where(base == count, aggregates, base // span)
        names = (*(f"aggregate{number + 1}" for number in range(aggregates)), _NO_BLOCK)
        levels.append(Level(groups, names))
    return tuple(levels)
