"""What a demand takes of each node that it uses, as amounts that can be held against a node at any moment.

`part_of` says it for demands of which every node's part is known beforehand (one node, or a gang with as many tasks on
each): the calendar then needs no columns of the future for them. `exact` says whether it is all of it; otherwise it is
the least, and only good for saying who cannot. Used by the calendar and by `plan/hope.py`.
Invariant: a node that lacks one of the amounts cannot hold the part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bireme.core.model.cluster import NodeConfig, Settings
from bireme.core.model.hashing import HashedOnce
from bireme.core.placement.demand import Demand
from bireme.core.placement.table import Free, IntArray, NodeTable

CPU, CORE, MEMORY, WHOLE, JOBS = "cpu", "core", "mem", "whole", "jobs"
Amount = tuple[str, str | None]
"""(CPU, None) and so on, or a GRES name and type; type None: of all types together."""


@dataclass(frozen=True, slots=True)
class Need(HashedOnce):
    tasks: int
    """Of one node."""
    exact: bool
    cpus: int
    threads_used: int | None
    memory_mib: int
    memory_per_cpu_mib: int
    memory_all: bool
    gres: tuple[tuple[str, str | None, int], ...]
    gres_per_socket: tuple[tuple[str, str | None, int], ...]
    whole_node: bool

    __hash__ = HashedOnce.hash_once

    def on(self, node: NodeConfig, settings: Settings) -> tuple[tuple[Amount, int], ...]:
        """What it takes of such a node."""
        amounts: dict[Amount, int] = {(WHOLE, None): 0}
        if self.whole_node:
            amounts[JOBS, None] = 0
        for name, type_, count in (*self.gres, *((n, t, c * node.sockets) for n, t, c in self.gres_per_socket)):
            amounts[name, type_] = amounts.get((name, type_), 0) + count
        if settings.select_by_core and node.threads_per_core > 1:
            used = min(self.threads_used or node.threads_per_core, node.threads_per_core)
            amounts[CORE, None] = -(-self.cpus // used)
            cpus = amounts[CORE, None] * node.threads_per_core
        else:
            cpus = self.cpus
        amounts[CPU, None] = cpus
        if settings.memory_is_consumable:
            least = max(self.memory_mib, self.memory_per_cpu_mib * cpus)
            amounts[MEMORY, None] = node.memory_mib if self.memory_all else least
        return tuple(amounts.items())


def part_of(demand: Demand) -> Need:
    """Of one node: all of a demand for one node, the tasks of a node where all have as many, else one task."""
    tasks, exact = _tasks_of_a_node(demand)
    gres = [(each.name, each.type, each.count) for each in demand.gres_per_node]
    gres += [(each.name, each.type, each.count * tasks) for each in demand.gres_per_task]
    if exact and demand.nodes_wanted == 1:
        gres += [(each.name, each.type, each.count) for each in demand.gres_per_job]
    gpus = sum(count for name, _, count in gres if name == "gpu")
    for_tasks = 1 if demand.overcommit else tasks * demand.cpus_per_task
    cpus = max(for_tasks, demand.cpus_per_node_min, gpus * (demand.cpus_per_gpu or 0))
    return Need(
        tasks,
        exact,
        cpus,
        demand.threads_used,
        max(demand.memory_per_node_mib or 0, (demand.memory_per_gpu_mib or 0) * gpus),
        demand.memory_per_cpu_mib or 0,
        demand.whole_memory or demand.memory_per_node_mib == 0,
        tuple(gres),
        tuple((each.name, each.type, each.count) for each in demand.gres_per_socket),
        demand.whole_nodes,
    )


def _tasks_of_a_node(demand: Demand) -> tuple[int, bool]:
    """(how many, whether every node that it uses gets exactly so many)."""
    nodes = demand.nodes_wanted
    certain = not (demand.tasks_per_core or demand.tasks_per_socket or demand.threads_per_core)
    certain = certain and not (demand.gres_per_socket and demand.cpus_per_gpu) and not demand.features.counts()
    if nodes == demand.nodes_most == 1 and (demand.nodes_max == 1 or demand.ntasks == 1):
        return demand.ntasks, certain
    if demand.gres_per_job or nodes != demand.nodes_most:
        return 1, False
    if demand.tasks_per_node and demand.ntasks == demand.tasks_per_node * nodes:
        return demand.tasks_per_node, certain
    return 1, certain and demand.ntasks == nodes and demand.nodes_max == nodes


def column_of(free: Free, key: Amount) -> IntArray:
    """What all nodes have left of an amount; of what must not be there, how much is: below zero."""
    name, type_ = key
    if name == CPU:
        return free.cpus
    if name == CORE:
        return free.cores
    if name == MEMORY:
        return free.memory
    if name == WHOLE:
        return -free.whole.astype(np.int64)
    return -free.jobs if name == JOBS else free.gres_of(name, type_)


def columns_of(free: Free, key: Amount) -> list[IntArray]:
    """The columns that add up to what nodes have left of an amount, kept as things are taken; none of what must not be
    there."""
    name, type_ = key
    if name in (WHOLE, JOBS):
        return []
    if name in (CPU, CORE, MEMORY):
        return [column_of(free, key)]
    return [column for mine, column in free.gres.items() if mine[0] == name and type_ in (None, mine[1])]


def wanted_on(need: Need, settings: Settings, table: NodeTable) -> dict[Amount, IntArray]:
    """By amount, how much each node must have left; nothing where its make does not count it."""
    found: dict[Amount, IntArray] = {}
    for node, positions in table.kinds:
        for key, amount in need.on(node, settings):
            column = found.setdefault(key, np.full(len(table), -(2**62), dtype=np.int64))
            column[positions] = amount
    return found
