"""Which CPUs and devices a job gets on one node: the last step of placement, on a node that was already chosen.

Lowest free numbers first, whole cores where the cluster counts cores, GPUs that are linked together when the node's
devices say how they are linked, and CPUs near the GPUs when they say that. Invariant: a returned share can be held in
the room it was made from.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from bireme.core.model.cluster import NodeConfig, Settings
from bireme.core.model.resources import Device, GresRequest, GresShare, NodeShare
from bireme.core.placement.demand import Demand
from bireme.core.placement.fractions import GresKey
from bireme.core.placement.numbers import lowest, numbers_of, whole_cores
from bireme.core.placement.occupancy import NodeRoom

_KEPT = 4_096
"""Choices of devices that are kept, since many nodes give out the same ones."""


def make_share(
    demand: Demand,
    node: NodeConfig,
    room: NodeRoom,
    tasks: int,
    from_job: Sequence[GresRequest],
    settings: Settings,
) -> NodeShare | None:
    """The share of a node that runs `tasks` tasks and gives `from_job` of the job-wide GRES; None: not enough."""
    if room.whole_node_job is not None or (demand.whole_nodes and room.jobs):
        return None
    wanted = [*_per_node_gres(demand, node), *from_job]
    wanted += [GresRequest(g.name, g.type, g.count * tasks) for g in demand.gres_per_task]
    gres = pick_gres(node, room, wanted)
    if gres is None:
        return None
    if demand.whole_nodes:
        gres = _all_gres(node, room)
    gpus = sum(share.count for share in gres if share.name == "gpu")
    cpu_ids = _pick_cpus(demand, node, room, tasks, gpus, _near(node, gres), settings)
    if cpu_ids is None:
        return None
    memory = _memory_on(demand, node, len(cpu_ids), gpus, settings)
    if settings.memory_is_consumable and memory > room.memory_mib:
        return None
    return NodeShare(node.name, len(cpu_ids), memory, cpu_ids, gres, tasks)


def _per_node_gres(demand: Demand, node: NodeConfig) -> tuple[GresRequest, ...]:
    if not demand.gres_per_socket:
        return demand.gres_per_node
    per_socket = tuple(GresRequest(g.name, g.type, g.count * node.sockets) for g in demand.gres_per_socket)
    return demand.gres_per_node + per_socket


def _all_gres(node: NodeConfig, room: NodeRoom | None = None) -> tuple[GresShare, ...]:
    """--exclusive gives every device of the node, as Slurm does; GPUs whole, not in parts.

    With a `room`, less what a suspended job keeps there.
    """
    shares = []
    for pool in node.gres:
        key = (pool.name, pool.type)
        indices = tuple(
            device.index for device in pool.devices if room is None or room.devices[key] >> device.index & 1
        )
        count = len(indices) if pool.devices else pool.count if room is None else room.counts.get(key, 0)
        if count and not pool.parts:
            shares.append(GresShare(pool.name, pool.type, count, indices))
    return tuple(shares)


def pick_gres(node: NodeConfig, room: NodeRoom, wanted: Sequence[GresRequest]) -> tuple[GresShare, ...] | None:
    """Typed requests choose before untyped ones, which take what is left."""
    if not wanted:
        return ()
    if len(wanted) == 1 and len(node.gres) == 1 and node.gres[0].devices:
        return _pick_devices(node, room, wanted[0])
    if len(wanted) > 1:
        wanted = sorted(wanted, key=lambda request: request.type is None)
    free = {key: list(numbers_of(devices)) for key, devices in room.devices.items()}
    counts = dict(room.counts)
    picked: dict[GresKey, list[int]] = {}
    counted: dict[GresKey, int] = {}
    parted: list[GresShare] = []
    room_has_parts = any(pool.parts for pool in node.gres)
    if room_has_parts:  # whole GPUs first: parts then lie beside them
        wanted = sorted(wanted, key=lambda request: (request.name != "gpu", request.type is None))
    for request in wanted:
        left = request.count
        for key in free:
            if left and key[0] == request.name and request.type in (None, key[1]):
                take = _best_linked(node, key, free[key], min(left, len(free[key])))
                free[key] = [index for index in free[key] if index not in take]
                picked.setdefault(key, []).extend(take)
                left -= len(take)
        for key in counts:
            if left and key[0] == request.name and request.type in (None, key[1]):
                amount = min(left, counts[key])
                counts[key] -= amount
                counted[key] = counted.get(key, 0) + amount
                left -= amount
        if left and room_has_parts:
            whole = {gpu for key, taken in picked.items() if key[0] == "gpu" for gpu in taken}
            in_parts = _pick_parts(node, room, request, left, whole, parted)
            parted += in_parts
            left -= sum(share.count for share in in_parts)
        if left:
            return None
    shares = [GresShare(*key, len(indices), tuple(sorted(indices))) for key, indices in picked.items() if indices]
    shares += [GresShare(*key, count) for key, count in counted.items() if count]
    return (*shares, *parted)


def _pick_devices(node: NodeConfig, room: NodeRoom, request: GresRequest) -> tuple[GresShare, ...] | None:
    """The plain case: one request, and a node that has nothing but devices of one kind."""
    pool = node.gres[0]
    free = room.devices.get((pool.name, pool.type), 0)
    if pool.name != request.name or request.type not in (None, pool.type) or free.bit_count() < request.count:
        return None if request.count else ()
    if not request.count:
        return ()
    if any(device.links for device in pool.devices):
        linked = _best_linked(node, (pool.name, pool.type), list(numbers_of(free)), request.count)
        return (GresShare(pool.name, pool.type, request.count, tuple(sorted(linked))),)
    return _devices_alone(pool.name, pool.type, lowest(free, request.count))


@lru_cache(_KEPT)
def _devices_alone(name: str, type_: str | None, indices: tuple[int, ...]) -> tuple[GresShare, ...]:
    """One value for all nodes on which the same numbers are given out."""
    return (GresShare(name, type_, len(indices), indices),)


def _pick_parts(
    node: NodeConfig,
    room: NodeRoom,
    request: GresRequest,
    count: int,
    whole: set[int],
    already: Sequence[GresShare],
) -> list[GresShare]:
    """`count` parts of one GPU, the fullest that still has so many; of several only where no GPU has so many at all.

    Empty: there are not enough. `whole` and `already`: GPUs and parts that the same job gets.
    """
    mine = [(share.name, *part) for share in already for part in share.parts]
    for pool in node.gres:
        if pool.name != request.name or request.type not in (None, pool.type) or not pool.parts:
            continue
        key = (pool.name, pool.type)
        closed = whole | {gpu for name, gpu, _ in mine if name != pool.name}
        left = {
            gpu: n for gpu, n in room.parts_left(key, dict(pool.parts), pool.one_sharing).items() if gpu not in closed
        }
        for name, gpu, n in mine:
            if name == pool.name and gpu in left:
                left[gpu] -= n
        taken: list[tuple[int, int]] = []
        missing = count
        if count > max(n for _, n in pool.parts) and not pool.one_sharing:
            for gpu in sorted(left, key=lambda gpu: (-left[gpu], gpu)):
                if missing <= 0 or any(n >= missing for other, n in left.items() if other not in dict(taken)):
                    break
                taken.append((gpu, left[gpu]))
                missing -= left[gpu]
        fitting = [gpu for gpu, n in left.items() if n >= missing and gpu not in dict(taken)]
        if fitting:
            taken.append((min(fitting, key=lambda gpu: (left[gpu], gpu)), missing))
            return [GresShare(*key, count, (), tuple(sorted(taken)))]
    return []


def _best_linked(node: NodeConfig, key: GresKey, free: list[int], count: int) -> list[int]:
    """`count` free devices that are best linked to each other; the lowest ones where links say nothing.

    Grown from each free device in turn by its best-linked neighbours. On equal links the set that lies closest
    together wins, which leaves the other islands whole.
    """
    if count >= len(free) or count == 1:
        return free[:count]
    devices = {device.index: device for pool in node.gres if (pool.name, pool.type) == key for device in pool.devices}
    if not any(devices[index].links for index in free):
        return free[:count]
    best: list[int] = []
    best_score = (-1, 0)
    for seed in free:
        grown = _grow(devices, seed, free, count)
        links = sum(_links(devices[a], b) for a in grown for b in grown if a < b)
        score = (links, -(max(grown) - min(grown)))
        if score > best_score:
            best, best_score = grown, score
    return best


def _grow(devices: dict[int, Device], seed: int, free: list[int], count: int) -> list[int]:
    grown = [seed]
    left = [index for index in free if index != seed]
    while len(grown) < count:
        nearest = max(left, key=lambda index: (sum(_links(devices[index], other) for other in grown), -index))
        grown.append(nearest)
        left.remove(nearest)
    return grown


def _links(device: Device, other: int) -> int:
    """How many links a device has to another; `Links=` rows have -1 at the device itself."""
    return max(0, device.links[other]) if other < len(device.links) else 0


def _near(node: NodeConfig, gres: Sequence[GresShare]) -> frozenset[int]:
    """Cores next to the chosen devices, where the configuration or discovery says."""
    cores: set[int] = set()
    in_parts = {gpu for share in gres for gpu, _ in share.parts}
    if in_parts:
        devices = (device for pool in node.gres if pool.name == "gpu" for device in pool.devices)
        cores.update(core for device in devices if device.index in in_parts for core in device.cores)
    for share in gres:
        for pool in node.gres:
            if (pool.name, pool.type) == (share.name, share.type):
                for device in pool.devices:
                    if device.cores and device.index in share.indices:
                        cores.update(device.cores)
    return frozenset(cores)


def _pick_cpus(
    demand: Demand,
    node: NodeConfig,
    room: NodeRoom,
    tasks: int,
    gpus: int,
    near: frozenset[int],
    settings: Settings,
) -> tuple[int, ...] | None:
    if demand.whole_nodes:
        return numbers_of(room.cpus)
    need = _cpus_needed(demand, tasks, gpus)
    threads = node.threads_per_core
    if threads == 1 or not settings.select_by_core:
        if room.cpus.bit_count() < need:
            return None
        if not near:
            return lowest(room.cpus, need)
        ordered = sorted(numbers_of(room.cpus), key=lambda cpu: (cpu // threads not in near, cpu))
        return tuple(sorted(ordered[:need]))
    cores: Sequence[int] = whole_cores(room.cpus, threads)
    cores_needed = -(-need // min(demand.threads_used or threads, threads))
    if len(cores) < cores_needed:
        return None
    if near:
        cores = sorted(cores, key=lambda core: (core not in near, core))
    return tuple(core * threads + thread for core in sorted(cores[:cores_needed]) for thread in range(threads))


def _cpus_needed(demand: Demand, tasks: int, gpus: int) -> int:
    if demand.overcommit:
        return max(1, demand.cpus_per_node_min)
    return max(tasks * demand.cpus_per_task, demand.cpus_per_node_min, gpus * (demand.cpus_per_gpu or 0), 1)


def share_size(
    demand: Demand,
    node: NodeConfig,
    tasks: int,
    from_job: Sequence[GresRequest],
    settings: Settings,
    room: NodeRoom | None = None,
) -> NodeShare:
    """How much a share would hold, without saying which CPUs and devices: for a start in the future.

    `room`: the GPUs of a node that gives out parts of them, at that moment. There it matters which GPUs they are.
    """
    wanted = [*_per_node_gres(demand, node), *from_job]
    wanted += [GresRequest(g.name, g.type, g.count * tasks) for g in demand.gres_per_task]
    if demand.whole_nodes:
        gres = _all_gres(node) if room else tuple(GresShare(pool.name, pool.type, pool.count) for pool in node.gres)
        cpus = node.cpus
    else:
        picked = pick_gres(node, room, wanted) if room else None
        gres = _sized_gres(node, wanted) if picked is None else picked
        gpus = sum(share.count for share in gres if share.name == "gpu")
        cpus = _cpus_needed(demand, tasks, gpus)
        if settings.select_by_core and node.threads_per_core > 1:
            threads = node.threads_per_core
            cpus = -(-cpus // min(demand.threads_used or threads, threads)) * threads
    gpus = sum(share.count for share in gres if share.name == "gpu")
    return NodeShare(node.name, cpus, _memory_on(demand, node, cpus, gpus, settings), (), gres, tasks)


def _sized_gres(node: NodeConfig, wanted: Sequence[GresRequest]) -> tuple[GresShare, ...]:
    """Untyped requests are counted against the node's first types that have so many."""
    sized: list[GresShare] = []
    for request in sorted(wanted, key=lambda request: request.type is None):
        left = request.count
        for pool in node.gres:
            if left and pool.name == request.name and request.type in (None, pool.type):
                sized.append(GresShare(pool.name, pool.type, min(left, pool.count)))
                left -= sized[-1].count
    return tuple(sized)


def _memory_on(demand: Demand, node: NodeConfig, cpus: int, gpus: int, settings: Settings) -> int:
    if demand.memory_per_node_mib:
        return demand.memory_per_node_mib
    if demand.memory_per_node_mib == 0 or demand.whole_memory:
        return node.memory_mib if settings.memory_is_consumable else 0
    if demand.memory_per_gpu_mib is not None:
        return demand.memory_per_gpu_mib * gpus
    threads = node.threads_per_core
    usable = cpus // threads * min(demand.threads_per_core, threads) if demand.threads_per_core else cpus
    return (demand.memory_per_cpu_mib or 0) * usable
