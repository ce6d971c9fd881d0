"""Which tasks of a step run on which of its nodes, for each `--distribution`.

A pure function of numbers: not on which CPUs. Called when a step is created, and for SLURM_TASKS_PER_NODE.
Invariant: every task id from 0 to ntasks - 1 is on exactly one node, and a node's ids ascend; while there are as many
tasks as nodes, no node stays empty.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from bireme.core.model.distribution import DEFAULT_DISTRIBUTION, Distribution, NodeMethod


class LayoutError(ValueError):
    """The tasks cannot be laid out as asked; the message says why."""


def layout(
    ntasks: int,
    cpus_per_node: Sequence[int],
    cpus_per_task: int = 1,
    distribution: Distribution = DEFAULT_DISTRIBUTION,
    ntasks_per_node: int | None = None,
    *,
    nodes: Sequence[str] = (),
    hosts: Sequence[str] = (),
) -> list[list[int]]:
    """Global task ids for each node, as Slurm lays out a step.

    A node takes as many tasks as its CPUs hold, at most `ntasks_per_node`; when all are full the rest is shared
    out beyond that. Block spreads evenly and numbers node after node; packed block fills the first nodes, keeping
    one task for each of the others. `nodes` and `hosts` (one host per task) are for arbitrary only.
    """
    if distribution.nodes is NodeMethod.ARBITRARY and hosts:
        return _arbitrary(ntasks, nodes, hosts)
    room = _room(ntasks, cpus_per_node, cpus_per_task, ntasks_per_node)
    if distribution.nodes is NodeMethod.CYCLIC:
        return _dealt(ntasks, _raised_together(room, ntasks), 1)
    if distribution.nodes is NodeMethod.PLANE:
        size = distribution.plane_size or 1
        return _dealt(ntasks, _plane_counts(ntasks, room, size), size)
    return _consecutive(_block_counts(ntasks, room, pack=bool(distribution.pack)))


def _room(ntasks: int, cpus_per_node: Sequence[int], cpus_per_task: int, ntasks_per_node: int | None) -> list[int]:
    """How many tasks each node holds; at least one, since a node without room would not be in the step."""
    if not cpus_per_node:
        raise LayoutError("Invalid task layout: a step needs at least one node")
    room = [max(1, cpus // max(1, cpus_per_task)) for cpus in cpus_per_node]
    if ntasks_per_node is None:
        return room
    capped = [min(tasks, ntasks_per_node) for tasks in room]
    # A promised number per node is kept even where the CPUs are too few for it.
    return capped if sum(capped) >= ntasks else [ntasks_per_node] * len(room)


def _block_counts(ntasks: int, room: Sequence[int], *, pack: bool) -> list[int]:
    if sum(room) <= ntasks:
        return _raised_in_turn(room, ntasks, 1)
    if not pack:
        return [len(tasks) for tasks in _dealt(ntasks, room, 1)]
    counts = [1 if index < ntasks else 0 for index in range(len(room))]
    spare = ntasks - sum(counts)
    for index, most in enumerate(room):
        extra = min(spare, max(0, most - counts[index]))
        counts[index] += extra
        spare -= extra
    return counts


def _plane_counts(ntasks: int, room: Sequence[int], size: int) -> list[int]:
    """Planes in turn, but never so many that a node after this one would get none."""
    if size == 1:  # Slurm deals planes of one task to all nodes alike, whatever their room
        return _raised_in_turn([0] * len(room), ntasks, 1)
    if sum(room) <= ntasks:
        return _raised_in_turn(room, ntasks, size)
    counts = [0] * len(room)
    left = ntasks
    while left:
        for index, most in enumerate(room):
            kept = sum(1 for later in counts[index + 1 :] if later == 0)
            taken = max(0, min(size, most - counts[index], left - kept))
            counts[index] += max(taken, 1 if left and not counts[index] else 0)
            left = ntasks - sum(counts)
    return counts


def _raised_together(room: Sequence[int], ntasks: int) -> list[int]:
    """Every node's room plus the same number, just enough to hold all tasks."""
    lacking = max(0, ntasks - sum(room))
    return [tasks + -(-lacking // len(room)) for tasks in room]


def _raised_in_turn(room: Sequence[int], ntasks: int, size: int) -> list[int]:
    """The nodes take what does not fit in turn, `size` at a time."""
    rounds, rest = divmod(max(0, ntasks - sum(room)), size * len(room))
    return [tasks + rounds * size + min(size, max(0, rest - index * size)) for index, tasks in enumerate(room)]


def _dealt(ntasks: int, room: Sequence[int], size: int) -> list[list[int]]:
    """Task ids dealt like cards, `size` to a node and round, to nodes that have room."""
    dealt: list[list[int]] = [[] for _ in room]
    next_id = 0
    while next_id < ntasks:
        for tasks, most in zip(dealt, room):
            taken = max(0, min(size, most - len(tasks), ntasks - next_id))
            tasks.extend(range(next_id, next_id + taken))
            next_id += taken
    return dealt


def _consecutive(counts: Sequence[int]) -> list[list[int]]:
    ends = list(itertools.accumulate(counts))
    return [list(range(end - count, end)) for count, end in zip(counts, ends)]


def _arbitrary(ntasks: int, nodes: Sequence[str], hosts: Sequence[str]) -> list[list[int]]:
    """Task i runs on the i-th host of the list."""
    if len(hosts) < ntasks:
        raise LayoutError(f"Invalid host list: {len(hosts)} hosts for {ntasks} tasks; name one host per task")
    place = {node: index for index, node in enumerate(nodes)}
    tasks: list[list[int]] = [[] for _ in nodes]
    for task_id, host in enumerate(hosts[:ntasks]):
        if host not in place:
            raise LayoutError(f"Invalid host list: {host} is not one of this step's nodes")
        tasks[place[host]].append(task_id)
    return tasks
