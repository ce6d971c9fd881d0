"""First fit: which nodes, CPUs and devices hold a demand right now, all of it or nothing.

Called by the planner with a draft, and at submission with an empty cluster ("could it ever run?"). Invariant: what
`place` returns can be held in the given occupancy without over-committing anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bireme.core.model.cluster import NodeConfig, Settings
from bireme.core.model.resources import GresRequest, GresShare, NodeShare
from bireme.core.placement.demand import Demand, count_of
from bireme.core.placement.occupancy import NodeRoom, Occupancy


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that can hold at least one task of the demand, and how many it can hold."""

    position: int
    node: NodeConfig
    room: NodeRoom
    capacity: int


@dataclass(frozen=True, slots=True)
class Fit:
    """Either the shares, or why not: how many nodes it takes and how many could hold their part."""

    shares: tuple[NodeShare, ...] = ()
    nodes_needed: int = 0
    nodes_able: int = 0

    @property
    def found(self) -> bool:
        return bool(self.shares)


def place(demand: Demand, occupancy: Occupancy, positions: Sequence[int], settings: Settings) -> Fit:
    """Nodes are tried by weight, then in configuration order; required nodes come first and must all be there.

    The shares come in configuration order whatever was tried first: the first node of a job runs its script.
    """
    ordered = _order(demand, occupancy, positions)
    best = Fit(nodes_needed=demand.nodes_wanted)
    for features in demand.features.alternatives():
        able = [
            candidate
            for position in ordered
            if features.matches(set(occupancy.nodes[position].features))
            and (candidate := _candidate(demand, occupancy, position, settings)) is not None
        ]
        best = Fit(nodes_needed=demand.nodes_wanted, nodes_able=max(best.nodes_able, len(able)))
        tasks = sorted(_spread(demand, able) or (), key=lambda chosen: chosen[0].position)
        if tasks and _has_required(demand, tasks) and (shares := _shares(demand, tasks, settings)):
            return Fit(shares=shares, nodes_needed=demand.nodes_wanted, nodes_able=len(able))
    return best


def _order(demand: Demand, occupancy: Occupancy, positions: Sequence[int]) -> list[int]:
    excluded = set(demand.exclude)
    required = set(demand.nodelist)
    nodes = occupancy.nodes
    return sorted(
        (p for p in positions if nodes[p].name not in excluded),
        key=lambda p: (nodes[p].name not in required, nodes[p].weight, p),
    )


def _has_required(demand: Demand, tasks: list[tuple[Candidate, int]]) -> bool:
    return set(demand.nodelist) <= {candidate.node.name for candidate, _ in tasks}


def _candidate(demand: Demand, occupancy: Occupancy, position: int, settings: Settings) -> Candidate | None:
    node, room = occupancy.nodes[position], occupancy.rooms[position]
    if room.whole_node_job is not None or (demand.whole_nodes and room.jobs):
        return None
    if node.tmp_disk_mib < demand.tmp_disk_mib or len(room.cpus) < demand.cpus_per_node_min:
        return None
    if not all(room.gres_free(gres.name, gres.type) >= gres.count for gres in _fixed_gres(demand, node)):
        return None
    capacity = _capacity(demand, node, room, settings)
    return Candidate(position, node, room, capacity) if capacity >= 1 else None


def _fixed_gres(demand: Demand, node: NodeConfig) -> tuple[GresRequest, ...]:
    """GRES that a node needs however many tasks it gets."""
    per_socket = tuple(GresRequest(g.name, g.type, g.count * node.sockets) for g in demand.gres_per_socket)
    return demand.gres_per_node + per_socket


def _capacity(demand: Demand, node: NodeConfig, room: NodeRoom, settings: Settings) -> int:
    """How many tasks the node can hold: the scarcest of CPUs, memory and GRES decides."""
    cpus = _usable_cpus(demand, node, room, settings)
    fixed_gpus = count_of(_fixed_gres(demand, node), "gpu")
    if cpus < max(demand.cpus_per_node_min, fixed_gpus * (demand.cpus_per_gpu or 0)):
        return 0
    limits = [demand.ntasks if demand.overcommit else cpus // demand.cpus_per_task]
    if settings.memory_is_consumable:
        limits.append(_tasks_by_memory(demand, node, room, fixed_gpus))
    for gres in demand.gres_per_task:
        limits.append(room.gres_free(gres.name, gres.type) // gres.count if gres.count else demand.ntasks)
    for gres in demand.gres_per_job:
        if room.gres_free(gres.name, gres.type) < 1:
            return 0
    if demand.tasks_per_node:
        limits.append(demand.tasks_per_node)
        if min(limits) < min(demand.tasks_per_node, demand.ntasks):
            # A node that holds only part of what --ntasks-per-node asks may still be the last, shorter one.
            return min(limits) if demand.ntasks % demand.tasks_per_node else 0
    return max(0, min(limits))


def _tasks_by_memory(demand: Demand, node: NodeConfig, room: NodeRoom, fixed_gpus: int) -> int:
    enough = demand.ntasks
    if demand.whole_memory or demand.memory_per_node_mib == 0:
        return enough if room.memory_mib >= node.memory_mib else 0
    if demand.memory_per_node_mib is not None:
        return enough if room.memory_mib >= demand.memory_per_node_mib else 0
    if demand.memory_per_gpu_mib is not None:
        per_task = count_of(demand.gres_per_task, "gpu") * demand.memory_per_gpu_mib
        left = room.memory_mib - fixed_gpus * demand.memory_per_gpu_mib
        if left < 0:
            return 0
        return left // per_task if per_task else enough
    if demand.memory_per_cpu_mib:
        return room.memory_mib // (demand.memory_per_cpu_mib * demand.cpus_per_task)
    return enough


def _usable_cpus(demand: Demand, node: NodeConfig, room: NodeRoom, settings: Settings) -> int:
    threads = node.threads_per_core
    if threads == 1 or not settings.select_by_core:
        return len(room.cpus)
    used_per_core = min(demand.threads_per_core or threads, threads)
    return len(_free_cores(node, room)) * used_per_core


def _free_cores(node: NodeConfig, room: NodeRoom) -> list[int]:
    threads = node.threads_per_core
    return [
        core
        for core in range(node.cpus // threads)
        if all(core * threads + thread in room.cpus for thread in range(threads))
    ]


def _spread(demand: Demand, able: list[Candidate]) -> list[tuple[Candidate, int]] | None:
    """How many tasks each chosen node gets, or None if all of it does not fit."""
    if demand.tasks_per_node:
        return _spread_fixed(demand, able, demand.tasks_per_node)
    if len(able) < demand.nodes_wanted:
        return None
    if demand.nodes_max is not None and demand.nodes_max == demand.nodes_min:
        return _spread_even(demand, able)
    return _spread_packed(demand, able)


def _spread_fixed(demand: Demand, able: list[Candidate], per_node: int) -> list[tuple[Candidate, int]] | None:
    wanted, left = demand.nodes_wanted, demand.ntasks
    chosen: list[tuple[Candidate, int]] = []
    full = [candidate for candidate in able if candidate.capacity >= min(per_node, demand.ntasks)]
    shorter = [candidate for candidate in able if candidate.capacity < min(per_node, demand.ntasks)]
    for candidate in full + shorter:
        missing_nodes = wanted - len(chosen)
        if missing_nodes == 0:
            break
        tasks = min(per_node, left - (missing_nodes - 1))
        if tasks < 1 or candidate.capacity < tasks:
            continue
        chosen.append((candidate, tasks))
        left -= tasks
    return chosen if len(chosen) == wanted and left == 0 and _enough_gres(demand, chosen) else None


def _spread_even(demand: Demand, able: list[Candidate]) -> list[tuple[Candidate, int]] | None:
    """Exactly N nodes: as even as their capacities allow, the first ones take the remainder."""
    required = set(demand.nodelist)
    chosen = able[: demand.nodes_min]
    if sum(candidate.capacity for candidate in chosen) < demand.ntasks:
        chosen = sorted(able, key=lambda c: (c.node.name not in required, -c.capacity, c.position))
        chosen = sorted(chosen[: demand.nodes_min], key=lambda c: c.position)
    if sum(candidate.capacity for candidate in chosen) < demand.ntasks:
        return None
    tasks = [0] * len(chosen)
    left = demand.ntasks
    while left:
        open_ = [i for i, candidate in enumerate(chosen) if tasks[i] < candidate.capacity]
        rounds = max(1, left // len(open_))
        for i in open_:
            take = min(rounds, chosen[i].capacity - tasks[i], left)
            tasks[i] += take
            left -= take
    spread = list(zip(chosen, tasks))
    return spread if all(tasks) and _enough_gres(demand, spread) else None


def _spread_packed(demand: Demand, able: list[Candidate]) -> list[tuple[Candidate, int]] | None:
    """Any number of nodes: one node that holds everything if there is one, else filled one after another."""
    if demand.nodes_wanted == 1:
        for candidate in able:
            if candidate.capacity >= demand.ntasks and _enough_gres(demand, [(candidate, demand.ntasks)]):
                return [(candidate, demand.ntasks)]
    left, chosen = demand.ntasks, list[tuple[Candidate, int]]()
    for candidate in able:
        still_needed = max(0, demand.nodes_wanted - len(chosen) - 1)
        tasks = min(candidate.capacity, left - still_needed)
        if tasks < 1:
            if not demand.gres_per_job or _enough_gres(demand, chosen):
                break
            tasks = 0
        chosen.append((candidate, tasks))
        left -= tasks
        if left == 0 and len(chosen) >= demand.nodes_wanted and _enough_gres(demand, chosen):
            break
    limit = demand.nodes_max
    fits = left == 0 and len(chosen) >= demand.nodes_wanted and (limit is None or len(chosen) <= limit)
    return chosen if fits and _enough_gres(demand, chosen) else None


def _enough_gres(demand: Demand, chosen: list[tuple[Candidate, int]]) -> bool:
    """--gpus counts over the whole job."""
    return all(
        sum(candidate.room.gres_free(gres.name, gres.type) for candidate, _ in chosen) >= gres.count
        and (len(chosen) <= gres.count or demand.gres_per_task != ())
        for gres in demand.gres_per_job
    )


def _shares(demand: Demand, tasks: list[tuple[Candidate, int]], settings: Settings) -> tuple[NodeShare, ...] | None:
    job_gres = _split_job_gres(demand, tasks)
    shares = []
    for (candidate, count), from_job in zip(tasks, job_gres):
        share = _share(demand, candidate, count, from_job, settings)
        if share is None:
            return None
        shares.append(share)
    return tuple(shares)


def _split_job_gres(demand: Demand, tasks: list[tuple[Candidate, int]]) -> list[list[GresRequest]]:
    """How much of --gpus each node gives: one each first, then as even as what is free allows."""
    result: list[list[GresRequest]] = [[] for _ in tasks]
    for gres in demand.gres_per_job:
        free = [candidate.room.gres_free(gres.name, gres.type) for candidate, _ in tasks]
        given = [0] * len(tasks)
        left = gres.count
        while left:
            open_ = [i for i in range(len(tasks)) if given[i] < free[i]]
            if not open_:
                break
            for i in open_:
                if left:
                    given[i] += 1
                    left -= 1
        for i, count in enumerate(given):
            if count:
                result[i].append(GresRequest(gres.name, gres.type, count))
    return result


def _share(
    demand: Demand, candidate: Candidate, tasks: int, from_job: list[GresRequest], settings: Settings
) -> NodeShare | None:
    node, room = candidate.node, candidate.room
    wanted = [*_fixed_gres(demand, node), *from_job]
    wanted += [GresRequest(g.name, g.type, g.count * tasks) for g in demand.gres_per_task]
    gres = _all_gres(node) if demand.whole_nodes else _pick_gres(room, wanted)
    if gres is None:
        return None
    gpus = sum(share.count for share in gres if share.name == "gpu")
    cpu_ids = _pick_cpus(demand, node, room, tasks, gpus, settings)
    if cpu_ids is None:
        return None
    memory = _memory_on(demand, node, len(cpu_ids), gpus, settings)
    if settings.memory_is_consumable and memory > room.memory_mib:
        return None
    return NodeShare(node.name, len(cpu_ids), memory, cpu_ids, gres, tasks)


def _all_gres(node: NodeConfig) -> tuple[GresShare, ...]:
    """--exclusive gives every device of the node, as Slurm does."""
    return tuple(
        GresShare(pool.name, pool.type, pool.count, tuple(device.index for device in pool.devices))
        for pool in node.gres
    )


def _pick_gres(room: NodeRoom, wanted: Sequence[GresRequest]) -> tuple[GresShare, ...] | None:
    """Lowest free indices first. Typed requests choose before untyped ones, which take what is left."""
    free = {key: sorted(indices) for key, indices in room.devices.items()}
    counts = dict(room.counts)
    picked: dict[tuple[str, str | None], list[int]] = {}
    counted: dict[tuple[str, str | None], int] = {}
    for request in sorted(wanted, key=lambda r: r.type is None):
        left = request.count
        for key in free:
            if left and key[0] == request.name and request.type in (None, key[1]):
                take, free[key] = free[key][:left], free[key][left:]
                picked.setdefault(key, []).extend(take)
                left -= len(take)
        for key in counts:
            if left and key[0] == request.name and request.type in (None, key[1]):
                amount = min(left, counts[key])
                counts[key] -= amount
                counted[key] = counted.get(key, 0) + amount
                left -= amount
        if left:
            return None
    shares = [GresShare(*key, len(indices), tuple(indices)) for key, indices in picked.items() if indices]
    shares += [GresShare(*key, count) for key, count in counted.items() if count]
    return tuple(shares)


def _pick_cpus(
    demand: Demand, node: NodeConfig, room: NodeRoom, tasks: int, gpus: int, settings: Settings
) -> tuple[int, ...] | None:
    """The lowest free CPUs; whole cores where the cluster counts cores."""
    if demand.whole_nodes:
        return tuple(sorted(room.cpus))
    need = max(tasks * demand.cpus_per_task, demand.cpus_per_node_min, gpus * (demand.cpus_per_gpu or 0), 1)
    if demand.overcommit:
        need = max(1, demand.cpus_per_node_min)
    threads = node.threads_per_core
    if threads == 1 or not settings.select_by_core:
        return tuple(sorted(room.cpus)[:need]) if len(room.cpus) >= need else None
    cores = _free_cores(node, room)
    cores_needed = -(-need // min(demand.threads_per_core or threads, threads))
    if len(cores) < cores_needed:
        return None
    return tuple(core * threads + thread for core in cores[:cores_needed] for thread in range(threads))


def _memory_on(demand: Demand, node: NodeConfig, cpus: int, gpus: int, settings: Settings) -> int:
    if demand.memory_per_node_mib:
        return demand.memory_per_node_mib
    if demand.memory_per_node_mib == 0 or demand.whole_memory:
        return node.memory_mib if settings.memory_is_consumable else 0
    if demand.memory_per_gpu_mib is not None:
        return demand.memory_per_gpu_mib * gpus
    return (demand.memory_per_cpu_mib or 0) * cpus
