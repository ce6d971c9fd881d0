"""Searches over a state: which nodes of a partition a job may use, and the Search that finds its place among them."""

from __future__ import annotations

import numpy as np

from bireme.core.model.cluster import PartitionConfig
from bireme.core.placement.demand import Demand
from bireme.core.placement.ranking import Ranking
from bireme.core.placement.search import Search
from bireme.core.placement.table import BoolArray
from bireme.core.state.state import State


def all_nodes(state: State, partition: PartitionConfig) -> BoolArray:
    """The partition's nodes, whatever their state. To read only."""
    return state.occupancy.table.mask_of_all(partition.nodes)


def schedulable_nodes(state: State, partition: PartitionConfig) -> BoolArray:
    """The partition's nodes that are up and not drained."""
    up = np.array([node.schedulable for node in state.nodes.values()], dtype=np.bool_)
    return all_nodes(state, partition) & up


def search_for(
    state: State,
    demand: Demand,
    partition: PartitionConfig,
    allowed: BoolArray,
    leaves_max: int | None = None,
    ranking: Ranking | None = None,
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
    )
