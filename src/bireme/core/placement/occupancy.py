"""What every node has left: columns for masks (`Free`), and sets of CPU and device numbers (`numbers.Bits`) for the
final choice.

`State` holds one Occupancy, changed only by `apply` (hold, release). The planner works in a `draft()`: the columns are
copied at once, the per-node sets only when they are touched. Invariant: for every node, free + held by allocations
= configured; `hold` of something that is not free raises. A reconfiguration may take away CPUs or devices that a
running job holds: those are left out here, and the node's columns stay below zero until the job ends. A GPU that is out
of service (`shut`) is held as a whole by nobody: no job's share of it is counted, so a release does not bring it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bireme.core.model.cluster import NodeConfig
from bireme.core.model.resources import Allocation, GresShare, NodeShare
from bireme.core.placement.fractions import GresKey
from bireme.core.placement.numbers import Bits, bits_of, numbers_of, up_to, whole_cores
from bireme.core.placement.table import Free, NodeTable

_NONE_SHUT: Mapping[str, Sequence[int]] = {}


class OverCommitted(RuntimeError):  # noqa: N818  (a broken invariant, named for what happened)
    """Something was given out twice: a bug in whoever decided, never a user's mistake."""


@dataclass(slots=True)
class NodeRoom:
    """What one node has left."""

    cpus: Bits
    memory_mib: int
    devices: dict[GresKey, Bits] = field(default_factory=dict)
    counts: dict[GresKey, int] = field(default_factory=dict)
    """Of GRES that are only counted."""
    parts_held: dict[GresKey, dict[int, int]] = field(default_factory=dict)
    """Of GRES that are parts of GPUs: how many of each GPU are in use. Such a GPU is not among the free `devices`."""
    jobs: set[int] = field(default_factory=set)
    whole_node_job: int | None = None

    def copy(self) -> NodeRoom:
        return NodeRoom(
            self.cpus,
            self.memory_mib,
            self.devices.copy(),
            self.counts.copy(),
            {key: dict(held) for key, held in self.parts_held.items()} if self.parts_held else {},
            self.jobs.copy(),
            self.whole_node_job,
        )

    def gpu_is_free(self, gpu: int) -> bool:
        """Neither given whole nor in parts."""
        return any(free >> gpu & 1 for (name, _), free in self.devices.items() if name == "gpu")

    def parts_left(self, key: GresKey, parts: Mapping[int, int], one_gpu: bool = False) -> dict[int, int]:
        """GPU -> parts that can still be had, of those GPUs that have any; `parts` is how many each has in all.

        `one_gpu`: only one GPU of the node may be in use so.
        """
        held = self.parts_held.get(key, {})
        if one_gpu:
            used = {gpu for (name, _), gpus in self.parts_held.items() if name == key[0] for gpu in gpus}
            parts = {gpu: count for gpu, count in parts.items() if used <= {gpu}}
        left = {gpu: count - held.get(gpu, 0) for gpu, count in parts.items() if gpu in held or self.gpu_is_free(gpu)}
        return {gpu: count for gpu, count in left.items() if count > 0}

    def with_gpus_of(self, later: NodeRoom) -> NodeRoom:
        """A copy that has no more of the GPUs left than a later moment has (`room_of_gpus`)."""
        room = self.copy()
        for key in room.devices:
            if key[0] == "gpu":
                room.devices[key] &= later.devices.get(key, 0)
        room.parts_held = later.parts_held
        return room


def empty_room(node: NodeConfig) -> NodeRoom:
    room = NodeRoom(cpus=up_to(node.cpus), memory_mib=node.memory_mib)
    for pool in node.gres:
        key = (pool.name, pool.type)
        if pool.devices:
            room.devices[key] = room.devices.get(key, 0) | bits_of(tuple(device.index for device in pool.devices))
        elif not pool.parts:
            room.counts[key] = room.counts.get(key, 0) + pool.count
    return room


def room_of_gpus(table: NodeTable, free: Free, position: int) -> NodeRoom:
    """The GPUs of a node that gives out parts of them, as `free` has them: at a moment of the calendar."""
    room = empty_room(table.nodes[position])
    for key, gpus in room.devices.items():
        if key[0] == "gpu":
            used = (gpu for gpu in numbers_of(gpus) if any(uses[position, gpu] > 0 for uses in free.uses.values()))
            room.devices[key] = gpus & ~bits_of(tuple(used))
    for key, parts in table.parts[position].items():
        own = free.uses[key[0]][position]
        others = [used[position] for kind, used in free.uses.items() if kind != key[0]]  # in use as that, now or later
        held = {gpu: int(own[gpu]) for gpu in parts if own[gpu] > 0 and all(other[gpu] <= 0 for other in others)}
        if held:
            room.parts_held[key] = held
    return room


NOBODYS_JOB = 0
"""Stands for whatever runs on a node and is no job: among a room's `jobs` it keeps the node from being given whole."""


def outside(share: NodeShare) -> Allocation:
    """What others hold on a node, as something to hold."""
    return Allocation(NOBODYS_JOB, 0, "", (share,))


class Occupancy:
    """What is free on every node, in columns and node by node. Node order is the configuration's order and never
    changes."""

    __slots__ = ("_owned", "changes", "free", "rooms", "table")

    def __init__(self, nodes: Sequence[NodeConfig], shut: Mapping[str, Sequence[int]] = _NONE_SHUT) -> None:
        """`shut`: by node, numbers of GPUs that are out of service."""
        self.table = NodeTable(nodes)
        self.free = Free.of(self.table)
        self.rooms: list[NodeRoom] = [empty_room(node) for node in self.table.nodes]
        self.changes = 0
        """How often something was taken or given back: whoever ranked nodes can tell that they changed."""
        self._owned: set[int] | None = None
        """In a draft: positions whose room no longer belongs to the Occupancy that it was taken from. None: all."""
        for name, gpus in shut.items():
            self.shut(name, gpus, ())

    @property
    def nodes(self) -> tuple[NodeConfig, ...]:
        return self.table.nodes

    @property
    def index(self) -> dict[str, int]:
        return self.table.index

    def draft(self) -> Occupancy:
        """A copy to try things in: changes there are not seen here."""
        copy = Occupancy.__new__(Occupancy)
        copy.table = self.table
        copy.free = self.free.copy()
        copy.rooms = list(self.rooms)
        copy.changes = self.changes
        copy._owned = set()
        return copy

    def room(self, node: str) -> NodeRoom:
        return self.rooms[self.table.index[node]]

    def hold(self, allocation: Allocation) -> None:
        for share in allocation.shares:
            position = self.table.index.get(share.node)
            if position is not None:  # else: the node left the configuration while the job ran
                self._take(position, self.table.share_in_service(share), allocation)

    def release(self, allocation: Allocation) -> None:
        for share in allocation.shares:
            position = self.table.index.get(share.node)
            if position is not None:
                self._give_back(position, self.table.share_in_service(share), allocation)

    def shut(self, node: str, gpus: Sequence[int], held: Iterable[Allocation]) -> None:
        """From now on these GPUs of the node, and no others, are out of service: whole, with all their parts. `held`:
        all that is held there. What of it is on those GPUs is not counted, now or when it is given back."""
        assert self._owned is None, "a draft shares its table with the state"
        position = self.table.index[node]
        config = self.table.nodes[position]
        self.table.shut.pop(position, None)
        self.rooms[position] = room = empty_room(config)
        self.free.empty(position, self.table)
        kinds = ((pool, self._devices(position, (pool.name, pool.type)) & bits_of(tuple(gpus))) for pool in config.gres)
        taken = tuple(
            GresShare(pool.name, pool.type, bits.bit_count(), numbers_of(bits))
            for pool, bits in kinds
            if pool.name == "gpu" and bits
        )
        self._take(position, NodeShare(node, 0, 0, gres=taken), outside(NodeShare(node, 0, 0)))
        if taken:
            self.table.shut[position] = bits_of(tuple(index for share in taken for index in share.indices))
        assert not room.jobs
        for allocation in held:
            for share in allocation.shares:
                if share.node == node:
                    self._take(position, self.table.share_in_service(share), allocation)

    def _own(self, position: int) -> NodeRoom:
        if self._owned is not None and position not in self._owned:
            self._owned.add(position)
            self.rooms[position] = self.rooms[position].copy()
        return self.rooms[position]

    def _take(self, position: int, share: NodeShare, allocation: Allocation) -> None:
        room = self._own(position)
        cpus = bits_of(share.cpu_ids)
        if cpus & ~room.cpus and (missing := cpus & ~room.cpus & up_to(self.table.nodes[position].cpus)):
            taken = list(numbers_of(missing))
            raise OverCommitted(f"CPUs {taken} of {share.node} are taken; job {allocation.job_id}")
        room.cpus &= ~cpus
        room.memory_mib -= share.memory_mib
        for gres in share.gres:
            key = (gres.name, gres.type)
            if gres.parts:
                self._take_parts(position, room, gres, allocation)
            elif gres.indices:
                devices, free = bits_of(gres.indices), room.devices.get(key, 0)
                if missing := devices & ~free & self._devices(position, key):
                    taken = list(numbers_of(missing))
                    raise OverCommitted(f"{gres.name} {taken} of {share.node} are taken; job {allocation.job_id}")
                if key in room.devices:
                    room.devices[key] = free & ~devices
            elif key in room.counts:
                room.counts[key] -= gres.count
        if share.runs:
            room.jobs.add(allocation.job_id)
        if allocation.whole_nodes:
            room.whole_node_job = allocation.job_id
        self._account(position, room, share, allocation.whole_nodes, sign=-1)

    def _give_back(self, position: int, share: NodeShare, allocation: Allocation) -> None:
        room = self._own(position)
        room.cpus |= bits_of(share.cpu_ids) & up_to(self.table.nodes[position].cpus)
        room.memory_mib += share.memory_mib
        for gres in share.gres:
            key = (gres.name, gres.type)
            if gres.parts:
                self._give_back_parts(position, room, gres)
            elif gres.indices:
                if key in room.devices:
                    room.devices[key] |= self._devices(position, key) & bits_of(gres.indices)
            elif key in room.counts:
                room.counts[key] += gres.count
        if share.runs:
            room.jobs.discard(allocation.job_id)
        if room.whole_node_job == allocation.job_id:
            room.whole_node_job = None
        self._account(position, room, share, allocation.whole_nodes, sign=1)

    def _take_parts(self, position: int, room: NodeRoom, gres: GresShare, allocation: Allocation) -> None:
        key = (gres.name, gres.type)
        configured = self.table.parts[position].get(key, {})
        left = room.parts_left(key, configured, gres.name in self.table.fractions.single)
        for gpu, count in gres.parts:
            if gpu not in configured:
                continue  # it left the configuration while the job ran
            if count > left.get(gpu, 0):
                where = f"{self.table.nodes[position].name}'s GPU {gpu}"
                raise OverCommitted(f"{count} {gres.name} of {where} are not left; job {allocation.job_id}")
            held = room.parts_held.setdefault(key, {})
            held[gpu] = held.get(gpu, 0) + count
            for device in room.devices:
                if device[0] == "gpu":
                    room.devices[device] &= ~(1 << gpu)

    def _give_back_parts(self, position: int, room: NodeRoom, gres: GresShare) -> None:
        """A GPU of which no part is held any more is one that can be given whole again."""
        key = (gres.name, gres.type)
        held = room.parts_held.get(key, {})
        for gpu, count in gres.parts:
            if gpu not in held:
                continue
            held[gpu] -= count
            if held[gpu] <= 0:
                del held[gpu]
                for gpu_key in room.devices:
                    if gpu_key[0] == "gpu":
                        room.devices[gpu_key] |= self._devices(position, gpu_key) & 1 << gpu
        if not held:
            room.parts_held.pop(key, None)

    def _devices(self, position: int, key: GresKey) -> Bits:
        """Those that are configured."""
        return self.table.devices[position].get(key, 0)

    def _account(self, position: int, room: NodeRoom, share: NodeShare, whole: bool, sign: int) -> None:
        """Keeps the columns in step with the sets; cores are counted anew, since a job may hold parts of some."""
        self.changes += 1
        node = self.table.nodes[position]
        self.free.add(position, share, node.threads_per_core, sign, whole)
        if node.threads_per_core > 1:
            self.free.cores[position] = len(whole_cores(room.cpus, node.threads_per_core))
