"""How many tasks of a demand each node could hold, for all nodes at once: the scarcest resource decides.

A column function: it reads a `Free` (of now, or of a moment in the calendar) and knows no CPU or device numbers.
Invariant: a node with capacity n > 0 can be given 1..n tasks and everything that the demand asks per node.
"""

from __future__ import annotations

import numpy as np

from bireme.core.model.cluster import Settings
from bireme.core.placement.demand import Demand, count_of
from bireme.core.placement.table import BoolArray, Free, IntArray, NodeTable


def capacity(demand: Demand, table: NodeTable, free: Free, settings: Settings) -> IntArray:
    """Tasks per node, at most `demand.ntasks`; 0 where the node cannot take part."""
    able = _basics(demand, table, free)
    fixed_gpus: IntArray | int = count_of(demand.gres_per_node, "gpu")
    for gres in demand.gres_per_node:
        able &= free.room_for(gres.name, gres.type, gres.count)
    for gres in demand.gres_per_socket:
        wanted = gres.count * table.sockets
        able &= free.gres_of(gres.name, gres.type) >= wanted
        if gres.name == "gpu":
            fixed_gpus = fixed_gpus + wanted
    for gres in demand.gres_per_job:
        able &= free.gres_of(gres.name, gres.type) >= 1
    cpus = usable_cpus(demand, table, free, settings)
    able &= cpus >= np.maximum(demand.cpus_per_node_min, fixed_gpus * (demand.cpus_per_gpu or 0))
    tasks = np.full(len(table), demand.ntasks, dtype=np.int64)
    if not demand.overcommit:
        tasks = np.minimum(tasks, cpus // demand.cpus_per_task)
    if demand.tasks_per_socket:
        tasks = np.minimum(tasks, table.sockets * demand.tasks_per_socket)
    if settings.memory_is_consumable:
        tasks = np.minimum(tasks, _by_memory(demand, table, free, fixed_gpus))
    for gres in demand.gres_per_task:
        if gres.count:
            tasks = np.minimum(tasks, free.most_at_once(gres.name, gres.type) // gres.count)
    if demand.tasks_per_gpu and demand.gres_per_job:
        by_gpus = free.gres_of("gpu", None) * demand.tasks_per_gpu
        tasks = np.minimum(tasks // demand.tasks_per_gpu * demand.tasks_per_gpu, by_gpus)
    return np.where(able, _by_tasks_per_node(demand, tasks), 0)


def _basics(demand: Demand, table: NodeTable, free: Free) -> BoolArray:
    able = ~free.whole & (free.cpus >= demand.cpus_per_node_min)
    if demand.threads_per_core:
        able &= table.threads >= demand.threads_per_core
    if demand.sockets_min > 1 or demand.cores_per_socket_min > 1:
        able &= (table.sockets >= demand.sockets_min) & (table.cores_per_socket >= demand.cores_per_socket_min)
    if demand.whole_nodes:
        able &= free.jobs == 0
    if demand.tmp_disk_mib:
        able &= table.tmp_disk >= demand.tmp_disk_mib
    return able


def usable_cpus(demand: Demand, table: NodeTable, free: Free, settings: Settings) -> IntArray:
    """CPUs a job may use: of whole free cores where the cluster counts cores, as many threads of each as it takes."""
    if not (settings.select_by_core and table.multithreaded):
        return free.cpus
    used_per_core = table.threads
    if demand.threads_used:
        used_per_core = np.minimum(table.threads, demand.threads_used)
    return np.where(table.threads == 1, free.cpus, free.cores * used_per_core)


def tasks_per_core(demand: Demand, table: NodeTable, settings: Settings) -> IntArray:
    """How many tasks share what is given out as one: a core where the cluster counts cores."""
    if not settings.select_by_core:
        return np.ones(len(table), dtype=np.int64)
    threads: IntArray = np.minimum(table.threads, demand.threads_used or table.threads)
    together: IntArray = np.maximum(1, threads // demand.cpus_per_task)
    return together


def _by_memory(demand: Demand, table: NodeTable, free: Free, fixed_gpus: IntArray | int) -> IntArray:
    enough = np.full(len(table), demand.ntasks, dtype=np.int64)
    if demand.whole_memory or demand.memory_per_node_mib == 0:
        return np.where(free.memory >= table.memory, enough, 0)
    if demand.memory_per_node_mib is not None:
        return np.where(free.memory >= demand.memory_per_node_mib, enough, 0)
    if demand.memory_per_gpu_mib is not None:
        left = free.memory - fixed_gpus * demand.memory_per_gpu_mib
        per_task = count_of(demand.gres_per_task, "gpu") * demand.memory_per_gpu_mib
        return np.where(left >= 0, left // per_task if per_task else enough, 0)
    if demand.memory_per_cpu_mib and demand.overcommit:
        return np.where(free.memory >= demand.memory_per_cpu_mib * demand.cpus_per_node_min, enough, 0)
    if demand.memory_per_cpu_mib:
        return free.memory // (demand.memory_per_cpu_mib * demand.cpus_per_task)
    return enough


def _by_tasks_per_node(demand: Demand, tasks: IntArray) -> IntArray:
    """A node that holds only part of what --ntasks-per-node asks may still be the last, shorter one."""
    if not demand.tasks_per_node:
        return tasks
    tasks = np.minimum(tasks, demand.tasks_per_node)
    if demand.ntasks % demand.tasks_per_node:
        return tasks
    return np.where(tasks >= min(demand.tasks_per_node, demand.ntasks), tasks, 0)
