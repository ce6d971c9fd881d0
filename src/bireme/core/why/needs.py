"""What a demand comes to, in a few words: `4 nodes x 8 gpu:h100, 64 CPUs`; and what is free of it. For people only."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bireme.core.model.resources import GresRequest
from bireme.core.placement.demand import Demand, requested_tres
from bireme.core.placement.occupancy import Occupancy
from bireme.core.placement.table import BoolArray, IntArray
from bireme.core.why.answers import Spare

_GIB = 1024


def needs_of(demand: Demand) -> str:
    nodes = demand.nodes_wanted
    words = [f"{nodes} node{'s' * (nodes > 1)}"]
    each = [
        *(_gres(gres) for gres in demand.gres_per_node),
        *(f"{_gres(gres)} per socket" for gres in demand.gres_per_socket),
    ]
    if each:
        words[0] += " x " + " + ".join(each)
    words += [f"{_gres(gres)} in all" for gres in demand.gres_per_job]
    words += [f"{_gres(gres)} for each of {demand.ntasks} tasks" for gres in demand.gres_per_task]
    cpus = requested_tres(demand)["cpu"]
    words.append("whole" if demand.whole_nodes else f"{cpus} CPU{'s' * (cpus > 1)}")
    words += _memory(demand)
    if demand.node_rules is not None and str(demand.node_rules):
        words.append(f"label {demand.node_rules}")
    if demand.features.text:
        words.append(f"feature {demand.features.text}")
    if demand.nodelist:
        words.append("those named by --nodelist")
    return ", ".join(words)


def spare_of(demand: Demand, occupancy: Occupancy, nodes: BoolArray) -> Iterator[Spare]:
    """Of all that it asks for, what the node among these has free that has most of it. No node: nothing to tell."""
    if not nodes.any():
        return
    table, free = occupancy.table, occupancy.free
    yield _spare("CPUs", free.cpus, table.cpus, nodes)
    if demand.memory_per_node_mib or demand.memory_per_cpu_mib or demand.memory_per_gpu_mib or demand.whole_memory:
        yield _spare("MiB", free.memory, table.memory, nodes)
    asked = (*demand.gres_per_node, *demand.gres_per_socket, *demand.gres_per_job, *demand.gres_per_task)
    for kind in dict.fromkeys(gres.kind for gres in asked):
        name, _, make = kind.partition(":")
        keys = [key for key in table.gres if key[0] == name and make in ("", key[1])]
        if keys:
            left, whole = (np.sum([columns[key] for key in keys], axis=0) for columns in (free.gres, table.gres))
            yield _spare(kind, left, whole, nodes)


def _spare(what: str, free: IntArray, of: IntArray, nodes: BoolArray) -> Spare:
    return Spare(what, max(0, int(free[nodes].max())), int(of[nodes].max()))


def _gres(gres: GresRequest) -> str:
    return f"{gres.count} {gres.kind}"


def _memory(demand: Demand) -> list[str]:
    for amount, unit in (
        (demand.memory_per_node_mib, "node"),
        (demand.memory_per_cpu_mib, "CPU"),
        (demand.memory_per_gpu_mib, "GPU"),
    ):
        if amount:
            return [f"{_size(amount)} per {unit}"]
    return ["all memory of a node (no --mem)"] if demand.whole_memory and not demand.whole_nodes else []


def _size(mib: int) -> str:
    return f"{mib // _GIB} GiB" if mib % _GIB == 0 else f"{mib} MiB"
