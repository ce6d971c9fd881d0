"""How many tasks each chosen node gets, and how much of the job-wide GRES: numbers only, no CPU or device ids.

Input are candidates in order of preference, with their capacity. Invariant: a spread places all tasks of the demand on
as many nodes as it asks for, none above its capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bireme.core.model.resources import GresRequest
from bireme.core.placement.demand import Demand
from bireme.core.placement.table import Free


class Candidate(NamedTuple):
    """A node that can hold at least one task of the demand, and how many it can hold."""

    position: int
    capacity: int
    required: bool = False
    share: int = 1
    """Tasks for which one core is given out: fewer cost as much."""


Spread = list[tuple[Candidate, int]]


def spread(demand: Demand, able: Sequence[Candidate], free: Free | None) -> Spread | None:
    """Nodes and tasks of a job; None if all of it does not fit on these candidates. `free`: what they have; None: each
    is known to have all."""
    if demand.nodes_max is not None and demand.nodes_wanted > demand.nodes_max:
        return None
    chosen = _in_order(demand, able, free)
    if chosen is None and free is not None and demand.gres_per_job and len(able) > demand.nodes_wanted:
        chosen = _in_order(demand, _richest_first(demand, able, free), free)
    return chosen


def _in_order(demand: Demand, able: Sequence[Candidate], free: Free | None) -> Spread | None:
    """On those that come first, as far as tasks tell; what they have of --gpus together is looked at afterwards."""
    if demand.tasks_per_node:
        chosen = _fixed(demand, able, demand.tasks_per_node)
        return chosen if chosen and _enough_gres(demand, chosen, free) else None
    if len(able) < demand.nodes_wanted:
        return None
    if demand.nodes_max is not None and demand.nodes_max == demand.nodes_min:
        chosen = _filled(demand, able)
        return chosen if chosen and _enough_gres(demand, chosen, free) else None
    return _packed(demand, able, free)


def _richest_first(demand: Demand, able: Sequence[Candidate], free: Free) -> list[Candidate]:
    """Those with the most of what the job asks for as a whole: the others may be too poor to make it up together."""
    asked = demand.gres_per_job

    def worth(candidate: Candidate) -> float:
        return sum(min(1.0, _gres_on(free, gres, candidate) / gres.count) for gres in asked if gres.count)

    return sorted(able, key=lambda candidate: (not candidate.required, -worth(candidate)))


def _fixed(demand: Demand, able: Sequence[Candidate], per_node: int) -> Spread | None:
    wanted, left = demand.nodes_wanted, demand.ntasks
    chosen: Spread = []
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
    return chosen if len(chosen) == wanted and left == 0 else None


def _filled(demand: Demand, able: Sequence[Candidate]) -> Spread | None:
    """Exactly N nodes, as Slurm shares them out: the first is filled, as far as a core's worth is left for each of
    the others; then the next. But where every node brings its own GPUs (`-N2 -n8 --gpus-per-node=4`), all nodes get
    as many tasks, for which Slurm would have to be told `--ntasks-per-node`; so they do with --spread-job."""
    chosen = list(able[: demand.nodes_min])
    if sum(candidate.capacity for candidate in chosen) < demand.ntasks:
        chosen = sorted(able, key=lambda c: (not c.required, -c.capacity, c.position))[: demand.nodes_min]
    if sum(candidate.capacity for candidate in chosen) < demand.ntasks or len(chosen) > demand.ntasks:
        return None
    chosen.sort(key=lambda candidate: candidate.position)
    if demand.gres_per_node or demand.tasks_per_gpu or demand.spread:
        together = demand.tasks_per_gpu or 1  # who shares a GPU stays on its node
        groups = _evenly(-(-demand.ntasks // together), [candidate.capacity // together for candidate in chosen])
        return list(zip(chosen, (count * together for count in groups)))
    tasks, left = [1] * len(chosen), demand.ntasks - len(chosen)
    for kept_back in (True, False):  # what small nodes at the end cannot take comes back to the first
        for i, candidate in enumerate(chosen):
            rest = sum(other.share - 1 for other in chosen[i + 1 :]) if kept_back else 0
            more = max(0, min(candidate.capacity - tasks[i], left - rest))
            tasks[i] += more
            left -= more
    return list(zip(chosen, tasks))


def _evenly(ntasks: int, capacities: list[int]) -> list[int]:
    """Round by round, as long as there is room; the first ones take the remainder."""
    tasks = [0] * len(capacities)
    while ntasks:
        for i, capacity in enumerate(capacities):
            if ntasks and tasks[i] < capacity:
                tasks[i] += 1
                ntasks -= 1
    return tasks


def _packed(demand: Demand, able: Sequence[Candidate], free: Free | None) -> Spread | None:
    """Any number of nodes: one node that holds everything if there is one, else filled one after another."""
    if demand.nodes_wanted == 1:
        for candidate in able:
            if candidate.capacity >= demand.ntasks and _enough_gres(demand, [(candidate, demand.ntasks)], free):
                return [(candidate, demand.ntasks)]
    left = demand.ntasks
    chosen: Spread = []
    for candidate in able:
        still_needed = max(0, demand.nodes_wanted - len(chosen) - 1)
        tasks = min(candidate.capacity, left - still_needed)
        if 0 < left - tasks < candidate.share < tasks:  # the next node gives out a whole core anyway
            tasks -= candidate.share - (left - tasks)
        if tasks < 1:
            if not demand.gres_per_job or _enough_gres(demand, chosen, free):
                break
            tasks = 0
        chosen.append((candidate, tasks))
        left -= tasks
        if left == 0 and len(chosen) >= demand.nodes_wanted and _enough_gres(demand, chosen, free):
            break
    limit = demand.nodes_max
    fits = left == 0 and len(chosen) >= demand.nodes_wanted and (limit is None or len(chosen) <= limit)
    return chosen if fits and _enough_gres(demand, chosen, free) else None


def _enough_gres(demand: Demand, chosen: Spread, free: Free | None) -> bool:
    """--gpus counts over the whole job."""
    return all(
        (free is None or sum(_gres_on(free, gres, candidate) for candidate, _ in chosen) >= gres.count)
        and (len(chosen) <= gres.count or demand.gres_per_task != ())
        for gres in demand.gres_per_job
    )


def _gres_on(free: Free, gres: GresRequest, candidate: Candidate) -> int:
    return int(free.gres_of(gres.name, gres.type)[candidate.position])


def split_job_gres(demand: Demand, chosen: Spread, free: Free) -> list[list[GresRequest]]:
    """How much of --gpus each node gives: the first all it has, as long as one is left for each of the others."""
    result: list[list[GresRequest]] = [[] for _ in chosen]
    if by_tasks := _by_tasks(demand, chosen):
        return by_tasks
    for gres in demand.gres_per_job:
        there = [_gres_on(free, gres, candidate) for candidate, _ in chosen]
        left = gres.count
        for i, has in enumerate(there):
            others = sum(1 for other in there[i + 1 :] if other)
            count = min(has, max(min(left, 1), left - others))
            left -= count
            if count:
                result[i].append(GresRequest(gres.name, gres.type, count))
    return result


def _by_tasks(demand: Demand, chosen: Spread) -> list[list[GresRequest]] | None:
    """With --ntasks-per-gpu the GPUs of a node are those of its tasks; None where the tasks do not say."""
    if not demand.tasks_per_gpu or len(demand.gres_per_job) != 1:
        return None
    (gres,) = demand.gres_per_job
    counts = [-(-tasks // demand.tasks_per_gpu) for _, tasks in chosen]
    if sum(counts) != gres.count or not all(counts):
        return None
    return [[GresRequest(gres.name, gres.type, count)] for count in counts]
