"""A node as a record: what it has, what jobs hold of it, and the GRES texts Slurm prints for both.

What only the machine itself knows (load, free memory, boot time) is None here; who measured it fills it in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from bireme.core.jobs.states import node_base_state, node_flags
from bireme.core.model.cluster import NodeConfig
from bireme.core.model.nodes import Node
from bireme.core.model.resources import GresPool, add_gres_tres
from bireme.core.placement.occupancy import NOBODYS_JOB, NodeRoom
from bireme.core.reservations.reserving import reserved_nodes
from bireme.core.state.state import State
from bireme.slurm.arrays import format_task_ids
from bireme.slurm.records.values import with_billing


def node_record(
    state: State,
    node: Node,
    now: float,
    partitions: Sequence[str] | None = None,
    reserved: Sequence[str] | None = None,
    planned: frozenset[str] | None = None,
) -> dict[str, Any]:
    """`partitions` it is in, flags by reservations, nodes `planned` for waiting jobs: where the caller knows them."""
    config = node.config
    room = state.occupancy.room(node.name)
    note = node.out_because
    unused = _unused(state, node)
    if partitions is None:
        partitions = partitions_by_node(state).get(node.name, ())
    if reserved is None:
        reserved = reserved_nodes(state, now).get(node.name, ())
    if planned is None:
        planned = planned_nodes(state)
    return {
        "name": node.name,
        "hostname": config.hostname or node.name,
        "address": config.address or config.hostname or node.name,
        "port": config.port,
        "state": node_base_state(state, node),
        "flags": [*node_flags(state, node, reserved), *(["PLANNED"] if node.name in planned else [])],
        **_hardware(config),
        "cpus_allocated": config.cpus - room.cpus.bit_count(),
        "memory_allocated_mib": config.memory_mib - room.memory_mib,
        "memory_free_mib": None,
        "gres": ",".join(gres_text(pool, config) for pool in config.gres),
        "gres_used": ",".join(_gres_used(config, room, state.config.settings.gres_types, unused)),
        "gres_drained": ",".join(_gres_drained(node)),
        "partitions": list(partitions),
        "reason": note.text if note else _fenced(node),
        "reason_user": None,
        "reason_uid": note.by_uid if note else 0 if node.shut else None,
        "reason_time": note.at if note else min((gpu.since for gpu in node.shut), default=None),
        "cpu_load": None,
        "boot_time": None,
        "up_since": node.up_since,
        "last_busy": now if room.jobs else node.up_since,
        "version": node.agent,
        "arch": None,
        "os": None,
        "tres": node_tres(config),
        "tres_allocated": _tres_allocated(config, room, unused),
        "jobs": sorted(room.jobs - {NOBODYS_JOB}),
        "agent": node.agent,
    }


def node_recorder(state: State, now: float) -> Callable[[Sequence[Node]], list[dict[str, Any]]]:
    """What makes the records of some of the nodes; what is asked of all of them is looked up once."""
    members = partitions_by_node(state)
    reserved = reserved_nodes(state, now)
    planned = planned_nodes(state)

    def records(nodes: Sequence[Node]) -> list[dict[str, Any]]:
        return [
            node_record(state, node, now, members.get(node.name, ()), reserved.get(node.name, ()), planned)
            for node in nodes
        ]

    return records


def planned_nodes(state: State) -> frozenset[str]:
    """Idle nodes on which the latest plan has booked a later start of a waiting job."""
    booked = {share.node for verdict in state.verdicts.values() for share in verdict.slot}
    return frozenset(name for name in booked if not state.occupancy.room(name).jobs)


def partitions_by_node(state: State) -> Mapping[str, list[str]]:
    members: dict[str, list[str]] = {}
    for partition in state.partitions.values():
        for name in partition.nodes:
            members.setdefault(name, []).append(partition.name)
    return members


def _hardware(config: NodeConfig) -> dict[str, Any]:
    return {
        "cpus": config.cpus,
        "boards": config.boards,
        "sockets": config.sockets,
        "cores_per_socket": config.cores_per_socket,
        "threads_per_core": config.threads_per_core,
        "memory_mib": config.memory_mib,
        "tmp_disk_mib": config.tmp_disk_mib,
        "weight": config.weight,
        "features": list(config.features),
    }


def node_tres(config: NodeConfig) -> dict[str, int]:
    totals = {"cpu": config.cpus, "mem": config.memory_mib}
    for pool in config.gres:
        add_gres_tres(totals, pool.name, pool.type, pool.count)
    return with_billing(totals)


def _tres_allocated(config: NodeConfig, room: NodeRoom, unused: Collection[int]) -> dict[str, int]:
    """Empty while nothing runs there, as Slurm shows it."""
    if not room.jobs:
        return {}
    totals = {"cpu": config.cpus - room.cpus.bit_count(), "mem": config.memory_mib - room.memory_mib}
    for pool in config.gres:
        used = _used(pool, room, unused)
        if used:
            add_gres_tres(totals, pool.name, pool.type, used)
    return totals


def gres_text(pool: GresPool, config: NodeConfig) -> str:
    """`gpu:h100:8`, with the sockets behind it where every device's cores are known: `gpu:h100:8(S:0-1)`."""
    name = f"{pool.name}:{pool.type}" if pool.type else pool.name
    sockets = _sockets(pool, config)
    suffix = f"(S:{format_task_ids(sockets, 0)})" if sockets else ""
    return f"{name}:{pool.count}{suffix}"


def _sockets(pool: GresPool, config: NodeConfig) -> list[int]:
    if not pool.devices or not all(device.cores for device in pool.devices):
        return []
    return sorted({core // max(1, config.cores_per_socket) for device in pool.devices for core in device.cores})


def _unused(state: State, node: Node) -> Collection[int]:
    """GPUs that are out of service and that no job from before is still on."""
    if not node.shut:
        return ()
    jobs = (job.held for job in state.holding.values() if job.allocation and node.name in job.allocation.node_names)
    used = {gpu for held in jobs for share in held.shares if share.node == node.name for gpu in share.gpus_seen()}
    return set(node.shut_gpus) - used


def _gres_drained(node: Node) -> list[str]:
    """What is out of service of each pool, in Slurm's form: `gpu:h100:1(IDX:2)`."""
    found = []
    for pool in node.config.gres:
        shut = [device.index for device in pool.devices if pool.name == "gpu" and device.index in node.shut_gpus]
        if shut:
            found.append(f"{pool.name}:{pool.type or '(null)'}:{len(shut)}(IDX:{format_task_ids(shut, 0)})")
    return found


def _fenced(node: Node) -> str:
    """What is said of a node that takes jobs and has GPUs out of service."""
    return "; ".join(f"GPU {gpu.number} fenced: {gpu.why}" for gpu in node.shut)


def _gres_used(config: NodeConfig, room: NodeRoom, gres_types: Sequence[str], unused: Collection[int]) -> list[str]:
    """Of each pool; and of the cluster's other kinds, of which this node has none."""
    absent = [name for name in gres_types if not any(pool.name == name for pool in config.gres)]
    return [gres_used_text(pool, room, unused) for pool in config.gres] + [f"{name}:0" for name in absent]


def gres_used_text(pool: GresPool, room: NodeRoom, unused: Collection[int] = ()) -> str:
    """`gpu:h100:2(IDX:0-1)`; `gpu:(null):0(IDX:N/A)` without a type and with none in use, as Slurm has it. `unused`:
    GPUs that nobody is given and nobody has."""
    if pool.parts:
        held = room.parts_held.get((pool.name, pool.type), {})
        each = ",".join(f"{held.get(gpu, 0)}/{count}" for gpu, count in pool.parts)
        return f"{pool.name}:{pool.type or '(null)'}:{sum(held.values())}({each})"
    if not pool.devices:
        kind = f"{pool.name}:{pool.type}" if pool.type else pool.name
        return f"{kind}:{_used(pool, room, unused)}"
    used = _used_indices(pool, room, unused)
    indices = format_task_ids(used, 0) if used else "N/A"
    return f"{pool.name}:{pool.type or '(null)'}:{len(used)}(IDX:{indices})"


def _used_indices(pool: GresPool, room: NodeRoom, unused: Collection[int]) -> list[int]:
    """Devices given whole: a GPU of which parts are in use is counted with those."""
    free = room.devices.get((pool.name, pool.type), 0)
    in_parts = {gpu for held in room.parts_held.values() for gpu in held} if pool.name == "gpu" else set()
    in_parts |= set(unused) if pool.name == "gpu" else set()
    numbers = (device.index for device in pool.devices)
    return sorted(index for index in numbers if not free >> index & 1 and index not in in_parts)


def _used(pool: GresPool, room: NodeRoom, unused: Collection[int]) -> int:
    if pool.parts:
        return sum(room.parts_held.get((pool.name, pool.type), {}).values())
    if pool.devices:
        return len(_used_indices(pool, room, unused))
    return max(0, pool.count - room.counts.get((pool.name, pool.type), 0))
