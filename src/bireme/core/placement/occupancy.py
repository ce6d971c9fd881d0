"""What every node has left, as arrays for masks and as sets of CPU and device numbers for the final choice.

`State` holds one Occupancy, changed only by `apply` (hold, release). The planner works in a `draft()`: the arrays are
copied at once, the per-node sets only when they are touched. Invariant: for every node, free + held by allocations
= configured; `hold` of something that is not free raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bireme.core.model.cluster import NodeConfig
from bireme.core.model.resources import Allocation, NodeShare

IntArray = NDArray[np.int64]


class OverCommitted(RuntimeError):  # noqa: N818  (a broken invariant, named for what happened)
    """Something was given out twice: a bug in whoever decided, never a user's mistake."""


@dataclass(slots=True)
class NodeRoom:
    """What one node has left."""

    cpus: set[int]
    memory_mib: int
    devices: dict[tuple[str, str | None], set[int]] = field(default_factory=dict)
    counts: dict[tuple[str, str | None], int] = field(default_factory=dict)
    """Of GRES that are only counted."""
    jobs: set[int] = field(default_factory=set)
    whole_node_job: int | None = None

    def copy(self) -> NodeRoom:
        return NodeRoom(
            set(self.cpus),
            self.memory_mib,
            {key: set(free) for key, free in self.devices.items()},
            dict(self.counts),
            set(self.jobs),
            self.whole_node_job,
        )

    def gres_free(self, name: str, type_: str | None = None) -> int:
        def wanted(key: tuple[str, str | None]) -> bool:
            return key[0] == name and (type_ is None or key[1] == type_)

        free = sum(len(indices) for key, indices in self.devices.items() if wanted(key))
        return free + sum(count for key, count in self.counts.items() if wanted(key))


def empty_room(node: NodeConfig) -> NodeRoom:
    room = NodeRoom(cpus=set(range(node.cpus)), memory_mib=node.memory_mib)
    for pool in node.gres:
        key = (pool.name, pool.type)
        if pool.devices:
            room.devices.setdefault(key, set()).update(device.index for device in pool.devices)
        else:
            room.counts[key] = room.counts.get(key, 0) + pool.count
    return room


class Occupancy:
    """See the module. Node order is the configuration's order and never changes."""

    __slots__ = ("_borrowed", "cpus_free", "gpus_free", "index", "memory_free", "nodes", "rooms")

    def __init__(self, nodes: Sequence[NodeConfig]) -> None:
        self.nodes: tuple[NodeConfig, ...] = tuple(nodes)
        self.index: dict[str, int] = {node.name: position for position, node in enumerate(self.nodes)}
        self.rooms: list[NodeRoom] = [empty_room(node) for node in self.nodes]
        self.cpus_free: IntArray = np.array([node.cpus for node in self.nodes], dtype=np.int64)
        self.memory_free: IntArray = np.array([node.memory_mib for node in self.nodes], dtype=np.int64)
        self.gpus_free: IntArray = np.array([room.gres_free("gpu") for room in self.rooms], dtype=np.int64)
        self._borrowed: set[int] = set()
        """Positions whose room still belongs to the Occupancy this draft was taken from."""

    def draft(self) -> Occupancy:
        """A copy to try things in: changes there are not seen here."""
        copy = Occupancy.__new__(Occupancy)
        copy.nodes = self.nodes
        copy.index = self.index
        copy.rooms = list(self.rooms)
        copy.cpus_free = self.cpus_free.copy()
        copy.memory_free = self.memory_free.copy()
        copy.gpus_free = self.gpus_free.copy()
        copy._borrowed = set(range(len(self.rooms)))
        return copy

    def room(self, node: str) -> NodeRoom:
        return self.rooms[self.index[node]]

    def hold(self, allocation: Allocation) -> None:
        for share in allocation.shares:
            self._take(share, allocation)

    def release(self, allocation: Allocation) -> None:
        for share in allocation.shares:
            position = self.index.get(share.node)
            if position is None:
                continue  # the node left the configuration while the job ran
            self._give_back(position, share, allocation)

    def _own(self, position: int) -> NodeRoom:
        if position in self._borrowed:
            self._borrowed.discard(position)
            self.rooms[position] = self.rooms[position].copy()
        return self.rooms[position]

    def _take(self, share: NodeShare, allocation: Allocation) -> None:
        position = self.index.get(share.node)
        if position is None:
            return
        room = self._own(position)
        ids = set(share.cpu_ids)
        if not ids <= room.cpus:
            raise OverCommitted(f"CPUs {sorted(ids - room.cpus)} of {share.node} are taken; job {allocation.job_id}")
        room.cpus -= ids
        room.memory_mib -= share.memory_mib
        for gres in share.gres:
            key = (gres.name, gres.type)
            if gres.indices:
                free = room.devices.get(key, set())
                taken = set(gres.indices) - free
                if taken:
                    raise OverCommitted(
                        f"{gres.name} {sorted(taken)} of {share.node} are taken; job {allocation.job_id}"
                    )
                free.difference_update(gres.indices)
            else:
                room.counts[key] = room.counts.get(key, 0) - gres.count
        room.jobs.add(allocation.job_id)
        if allocation.whole_nodes:
            room.whole_node_job = allocation.job_id
        self._refresh(position, room)

    def _give_back(self, position: int, share: NodeShare, allocation: Allocation) -> None:
        room = self._own(position)
        room.cpus.update(share.cpu_ids)
        room.memory_mib += share.memory_mib
        for gres in share.gres:
            key = (gres.name, gres.type)
            if gres.indices:
                room.devices.setdefault(key, set()).update(gres.indices)
            else:
                room.counts[key] = room.counts.get(key, 0) + gres.count
        room.jobs.discard(allocation.job_id)
        if room.whole_node_job == allocation.job_id:
            room.whole_node_job = None
        self._refresh(position, room)

    def _refresh(self, position: int, room: NodeRoom) -> None:
        self.cpus_free[position] = len(room.cpus)
        self.memory_free[position] = room.memory_mib
        self.gpus_free[position] = room.gres_free("gpu")

    def holders(self, nodes: Iterable[str]) -> set[int]:
        return {job for node in nodes if node in self.index for job in self.room(node).jobs}
