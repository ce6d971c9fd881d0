"""Searches over a state: which nodes of a partition a job may use, and the Search that finds its place among them.

Also where the replicas of a service are (`Crowds`), so that the next one goes elsewhere when that costs nothing: asked
for replicas alone, it only chooses among nodes that are equally good to the placement score, and opens no node of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import Job
from bireme.core.placement.demand import Demand, resolve
from bireme.core.placement.fabric import Fabric
from bireme.core.placement.ranking import Ranking
from bireme.core.placement.search import Search
from bireme.core.placement.table import BoolArray, IntArray, NodeTable
from bireme.core.state.state import State

_NODE = 1_000
"""How many replicas behind the same switch are as bad as one on the same node."""


def all_nodes(state: State, partition: PartitionConfig) -> BoolArray:
    """The partition's nodes, whatever their state. To read only."""
    return state.occupancy.table.mask_of_all(partition.nodes)


def schedulable_nodes(state: State, partition: PartitionConfig) -> BoolArray:
    """The partition's nodes that are up and not drained."""
    up = np.array([node.schedulable for node in state.nodes.values()], dtype=np.bool_)
    return all_nodes(state, partition) & up


_FENCED_NAMED = 3


def fenced_gpus(state: State, partition: PartitionConfig) -> list[str]:
    """Which GPUs of the partition's nodes are fenced, and why: `GPU 2 of n1 is fenced: fell off the bus (finding
    7)`."""
    nodes = (state.nodes[name] for name in partition.nodes if name in state.nodes)
    return [f"GPU {gpu.number} of {node.name} is fenced: {gpu.why}" for node in nodes for gpu in node.shut]


def fenced_in(state: State, partition: PartitionConfig) -> str:
    """The fenced GPUs of a partition's nodes in one line, the first of them by name."""
    found = fenced_gpus(state, partition)
    more = [f"{len(found) - _FENCED_NAMED} more are fenced"] if len(found) > _FENCED_NAMED else []
    return "; ".join((*found[:_FENCED_NAMED], *more))


def unasked_nodes(state: State, job: Job) -> tuple[str, ...]:
    """Nodes that take a job, but no replica of a service: their agents, of an earlier release, would not ask whether it
    is well, and it would never be ready. None for other jobs."""
    if job.spec.replica is None:
        return ()
    return tuple(node.name for node in state.nodes.values() if not node.asks_replicas)


def demand_of(state: State, job: Job, partition: PartitionConfig) -> Demand:
    """What it asks of the partition's nodes, without those that it may not be put on."""
    demand, unasked = resolve(job.spec, partition, state.config.settings), unasked_nodes(state, job)
    return replace(demand, exclude=(*demand.exclude, *unasked)) if unasked else demand


def search_for(
    state: State,
    demand: Demand,
    partition: PartitionConfig,
    allowed: BoolArray,
    leaves_max: int | None = None,
    ranking: Ranking | None = None,
    crowds: IntArray | None = None,
) -> Search:
    return Search(
        demand,
        allowed,
        state.occupancy.table,
        state.fabric,
        state.config.settings,
        least_loaded=partition.lln,
        leaves_max=leaves_max,
        ranking=ranking,
        crowds=crowds,
    )


@dataclass(slots=True)
class Crowds:
    """How many replicas of one service each node has."""

    counts: IntArray

    def add(self, table: NodeTable, nodes: Iterable[str]) -> None:
        for name in nodes:
            position = table.index.get(name)
            if position is not None:
                self.counts[position] += 1

    def column(self, fabric: Fabric) -> IntArray:
        """By node: first those on it count, then those behind the same switch."""
        leaf = fabric.levels[0].group_of
        behind = np.bincount(leaf, weights=self.counts, minlength=len(fabric.levels[0].names)).astype(np.int64)
        column: IntArray = self.counts * _NODE + behind[leaf]
        return column


def crowds_of(state: State, service: str) -> Crowds:
    """Where the replicas of a service are, by the jobs that hold something now."""
    table = state.occupancy.table
    found = Crowds(np.zeros(len(table.nodes), dtype=np.int64))
    for job in state.holding.values():
        of = job.spec.replica
        if of is not None and of.service == service and job.allocation is not None:
            found.add(table, job.allocation.node_names)
    return found
