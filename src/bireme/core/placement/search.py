"""Where a demand fits: the tightest group of nodes that holds all of it, or nothing.

A `Search` is made once for a shape of request and asked again for every job of that shape. Within one draft resources
only shrink, so a node that could not hold the shape need not be looked at again: for one-node shapes a cursor walks the
nodes once for all jobs of the shape. Gangs look at all nodes' columns each time. Called by the planner with a
draft, and at submission with an empty cluster ("could it ever run?").

Invariant: what `find` returns can be held in the given occupancy without over-committing anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bireme.core.model.cluster import Settings
from bireme.core.model.resources import NodeShare
from bireme.core.placement.capacity import capacity, tasks_per_core
from bireme.core.placement.contiguous import is_contiguous, windows
from bireme.core.placement.demand import Demand
from bireme.core.placement.fabric import Fabric
from bireme.core.placement.features import Constraint, Expression, chosen_for_counts
from bireme.core.placement.needs import Need, columns_of, part_of
from bireme.core.placement.numbers import up_to
from bireme.core.placement.occupancy import NodeRoom, Occupancy, room_of_gpus
from bireme.core.placement.ranking import Ranking
from bireme.core.placement.shares import make_share
from bireme.core.placement.spread import Candidate, Spread, split_job_gres, spread
from bireme.core.placement.table import BoolArray, Free, IntArray, NodeTable
from bireme.core.placement.task_layout import layout

Counts = tuple[tuple[Expression, int], ...]
_RANKED_ANEW = 512
"""Nodes: more are ranked once for each draft, since ranking them for every job would cost more than placing it."""


class Fit(NamedTuple):
    """Either the shares, or why not: how many nodes it takes and how many could hold their part."""

    shares: tuple[NodeShare, ...] = ()
    nodes_needed: int = 0
    nodes_able: int = 0
    leaves: int = 0
    """Leaf switches that the shares touch."""
    whole_nodes: bool = False
    """Nobody else gets anything of their nodes."""

    @property
    def found(self) -> bool:
        return bool(self.shares)


class Search:
    def __init__(
        self,
        demand: Demand,
        allowed: BoolArray,
        table: NodeTable,
        fabric: Fabric,
        settings: Settings,
        *,
        least_loaded: bool = False,
        leaves_max: int | None = None,
        ranking: Ranking | None = None,
        crowds: IntArray | None = None,
    ) -> None:
        """`crowds`: by node, how much there is of what it would rather be apart from."""
        self.demand = demand
        self.settings = settings
        self._table = table
        self._fabric = fabric
        self._least_loaded = least_loaded or demand.spread
        self._ranking = None if self._least_loaded else ranking
        self._crowds = crowds
        self._segment = demand.segment if fabric.segment_max else None
        self._leaves_max = leaves_max
        self._required = table.mask(demand.nodelist)
        if any(name not in table.index for name in demand.nodelist):  # it left the cluster: no other stands in for it
            allowed = np.zeros_like(allowed)
        self._kept = np.flatnonzero(table.mask(demand.kept)) if demand.kept else None
        self._liked: IntArray | None = None
        if demand.node_rules is not None:
            allowed = allowed & table.admitted(demand.node_rules)
            self._liked = table.liked(demand.node_rules)
        wishes = _feature_wishes(demand)
        usable = allowed & ~table.mask(demand.exclude)
        self._masks = [usable & _matching(wish, table) for wish in wishes]
        self._counts = [wish.counts() for wish in wishes]
        """Beside each mask: how many of the job's nodes must have what (`[a*2&b*1]`)."""
        self._single = demand.nodes_most == 1 and not demand.nodelist and self._counts == [()]
        self._any_node = self._single and fabric.flat and not (demand.contiguous or self._segment)
        """One node is as near as another: the first is the tightest group."""
        self._share = tasks_per_core(demand, table, settings)
        self._allowed = allowed
        self._need: Need | None = None
        self._walk: list[int] | None = None
        """Of one-node shapes: positions in the order in which they are tried, in one draft."""
        self._tests: dict[int, list[tuple[IntArray, int]]] = {}
        """By make of node: columns of that draft, and what must be left there."""
        self._walks_in: Occupancy | None = None
        self._at = 0
        self._ranked_at = 0

    def find(self, occupancy: Occupancy, free: Free | None = None) -> Fit:
        """`free` may say less than the occupancy has: what the calendar leaves to a job that starts now."""
        if self._single and free is None:
            found = self._next_single(occupancy)
            if found is not None:
                return found
        columns = occupancy.free if free is None else free
        sketch, able = self._sketch(columns)
        if sketch is not None and able > self.demand.nodes_wanted:
            wider = self._wider(able, occupancy, free)
            if wider is not None:
                return wider
        if sketch is not None:
            shares = self._shares(sketch, occupancy, columns)
            if shares is not None:
                leaves = self._fabric.leaves_used([candidate.position for candidate, _ in sketch])
                return Fit(shares, self.demand.nodes_wanted, able, leaves, self.demand.whole_nodes)
        return Fit(nodes_needed=self.demand.nodes_wanted, nodes_able=able)

    @property
    def need(self) -> Need:
        """What it takes of each node that it uses."""
        if self._need is None:
            self._need = part_of(self.demand)
        return self._need

    @property
    def usable(self) -> BoolArray:
        """Nodes that it may use, whatever is free on them."""
        return self._masks[0] if len(self._masks) == 1 else np.logical_or.reduce(self._masks)

    def find_within(self, occupancy: Occupancy, within: BoolArray) -> Fit:
        """As `find`, for an exact `need` that is known to fit on these nodes, and on no others."""
        able = 0
        for mask in self._masks:
            positions = self._able(occupancy.free, mask & within, ranked=self._single)
            able = max(able, len(positions))
            if self._single:
                for position in positions.tolist():
                    node, room = self._table.nodes[position], occupancy.rooms[position]
                    share = make_share(
                        self.demand, node, room, self.demand.ntasks, self.demand.gres_per_job, self.settings
                    )
                    if share is not None:
                        return Fit((share,), 1, able, 1, self.demand.whole_nodes)
        if not self._single and able >= self.demand.nodes_wanted:
            sketch, able = self._sketch(occupancy.free, within)
            shares = self._shares(sketch, occupancy, occupancy.free) if sketch is not None else None
            if sketch is not None and shares is not None:
                leaves = self._fabric.leaves_used([candidate.position for candidate, _ in sketch])
                return Fit(shares, self.demand.nodes_wanted, able, leaves, self.demand.whole_nodes)
        return Fit(nodes_needed=self.demand.nodes_wanted, nodes_able=able)

    def _wider(self, able: int, occupancy: Occupancy, free: Free | None) -> Fit | None:
        """A range of nodes (`-N2-4`) takes as many as hold it now."""
        for count in range(min(self.demand.nodes_most, able), self.demand.nodes_wanted, -1):
            demand = self.demand.on_nodes(count)
            more = Search(
                demand,
                self._allowed,
                self._table,
                self._fabric,
                self.settings,
                least_loaded=self._least_loaded,
                leaves_max=self._leaves_max,
            )
            fit = more.find(occupancy, free)
            if fit.found:
                return fit
        return None

    def sketch(self, free: Free, within: BoolArray | None = None) -> Spread | None:
        """Nodes and tasks only, by columns: where it would fit at a moment whose CPU and device numbers are unknown.

        `within`: the nodes that hold an exact `need`, which says it as well; `free` then only says which to prefer.
        """
        return self._sketch(free, within)[0]

    def nodes_able(self, free: Free) -> int:
        """How many nodes could take part, whether or not they are enough."""
        return self._sketch(free)[1]

    # -- one node ----------------------------------------------------------------------------------------------------

    def _next_single(self, occupancy: Occupancy) -> Fit | None:
        """The next node that holds the whole demand, in the order made at the first call.

        Where few nodes are ranked, they are ranked anew when something was placed on any of them; so is whoever looks
        for the least loaded one, which the next placement makes another.
        """
        demand = self.demand
        few = self._ranking is not None and self._walk is not None and len(self._walk) <= _RANKED_ANEW
        stale = self._ranked_at != occupancy.changes and (few or self._least_loaded)
        if self._walk is None or self._walks_in is not occupancy or stale:
            self._walks_in, self._at, self._ranked_at = occupancy, 0, occupancy.changes
            tasks = capacity(demand, self._table, occupancy.free, self.settings)
            mask = self._masks[0] & (tasks >= demand.ntasks)
            self._walk, self._tests = self._able(occupancy.free, mask, ranked=True).tolist(), {}
        while (position := self._next_with_room(self._walk)) is not None:
            node, room = self._table.nodes[position], occupancy.rooms[position]
            share = make_share(demand, node, room, demand.ntasks, demand.gres_per_job, self.settings)
            if share is not None:
                return Fit((share,), 1, 1, 1, demand.whole_nodes)
            self._at += 1
        return None

    def _next_with_room(self, walk: list[int]) -> int | None:
        """Moves on to the next node on which nobody has taken what it needs: columns tell most of it at a glance."""
        makes, tests = self._table.makes, self._tests
        while self._at < len(walk):
            position = walk[self._at]
            for column, amount in tests.get(makes[position]) or self._test(position):
                if column.item(position) < amount:
                    break
            else:
                return position
            self._at += 1
        return None

    def _test(self, position: int) -> list[tuple[IntArray, int]]:
        """Columns of the draft that is walked, and what nodes of this one's make must have left of each."""
        assert self._walks_in is not None
        amounts = self.need.on(self._table.nodes[position], self.settings)
        columns = ((columns_of(self._walks_in.free, key), amount) for key, amount in amounts)
        found = self._tests[self._table.makes[position]] = [
            (each[0], least) for each, least in columns if len(each) == 1
        ]
        return found

    # -- several nodes -----------------------------------------------------------------------------------------------

    def _sketch(self, free: Free, within: BoolArray | None = None) -> tuple[Spread | None, int]:
        """(the spread, or None; how many nodes could take part)."""
        there = free if within is None else None  # what is free now says nothing about those that will hold it
        if within is None:
            tasks = capacity(self.demand, self._table, free, self.settings)
        else:
            tasks = np.where(within, self.need.tasks, 0)
        most_able = 0
        for mask, counts in zip(self._masks, self._counts):
            able = self._able(free, mask & (tasks > 0))
            most_able = max(most_able, len(able))
            if self._any_node and len(able):
                chosen = spread(self.demand, (self._candidate(int(able[0]), tasks),), there)
                if chosen is not None:
                    return chosen, most_able
            for group in self._groups(able, tasks):
                chosen = self._try_group(group, tasks, there, counts)
                if chosen is not None:
                    return chosen, most_able
        return None, most_able

    def _groups(self, able: IntArray, tasks: IntArray) -> Iterator[IntArray]:
        demand = self.demand
        by_nodes = demand.tasks_per_node is not None or demand.nodes_max == demand.nodes_min
        whole = by_nodes or bool(demand.gres_per_job)
        worth = np.ones(len(able), dtype=np.int64) if whole else tasks[able]
        needed = demand.nodes_wanted if whole else max(demand.ntasks, demand.nodes_wanted)
        if self._segment:
            yield from self._segments(able, tasks)
        elif demand.contiguous:
            yield from windows(able, worth, needed, demand.nodes_wanted, self._fabric.levels[0].group_of)
        elif demand.nodelist or demand.spread:  # the user has chosen: the rest is taken by preference
            yield able
        else:
            beside = None if self._kept is None else self._fabric.beside(able, self._kept, demand.nodes_wanted)
            if beside is not None:
                yield beside
            yield from self._fabric.tightest_first(able, worth, needed, by_nodes)

    def _segments(self, able: IntArray, tasks: IntArray) -> Iterator[IntArray]:
        """The nodes it would like best, and if those do not do, the largest. Named nodes must be all of them."""
        assert self._segment is not None
        if self.demand.nodelist:
            able = able[self._required[able]]
        for order in (able, able[np.argsort(-tasks[able], kind="stable")]):
            group = self._fabric.in_segments(order, self.demand.nodes_wanted, self._segment)
            if group is not None:
                yield group

    def _counted_first(self, group: IntArray, counts: Counts) -> IntArray | None:
        """The group with the nodes in front that fulfil the counts; None: it has not enough of them."""
        named = group[self._required[group]]
        order = np.concatenate([named, group[~self._required[group]]]) if len(named) else group
        picked = chosen_for_counts(counts, [self._table.features[p] for p in order.tolist()])
        if picked is None:
            return None
        first = np.isin(np.arange(len(order)), picked)
        return np.concatenate([order[first], order[~first]])

    def _try_group(self, group: IntArray, tasks: IntArray, free: Free | None, counts: Counts = ()) -> Spread | None:
        if counts:
            counted = self._counted_first(group, counts)
            if counted is None:
                return None
            group = counted
        # The nodes a gang needs stand at the front of its group; the rest is looked at only if those do not do.
        for size in dict.fromkeys((min(len(group), self.demand.nodes_wanted), len(group))):
            candidates = [self._candidate(int(p), tasks) for p in group[:size]]
            chosen = spread(self.demand, candidates, free)
            if chosen is None or not self._has_required(chosen):
                continue
            positions = [candidate.position for candidate, _ in chosen]
            if counts and chosen_for_counts(counts, [self._table.features[p] for p in positions]) is None:
                continue
            if self.demand.contiguous and not is_contiguous(positions):
                continue
            if self._leaves_max is None or self._fabric.leaves_used(positions) <= self._leaves_max:
                return chosen
        return None

    def _candidate(self, position: int, tasks: IntArray) -> Candidate:
        required = bool(self._required[position])
        return Candidate(position, int(tasks[position]), required, int(self._share[position]))

    def _has_required(self, chosen: Spread) -> bool:
        return sum(candidate.required for candidate, _ in chosen) == int(self._required.sum())

    def _shares(self, chosen: Spread, occupancy: Occupancy, free: Free) -> tuple[NodeShare, ...] | None:
        """In configuration order whatever was tried first: the first node of a job runs its script."""
        chosen = sorted(chosen, key=lambda pair: pair[0].position)
        shares: list[NodeShare] = []
        alike: dict[tuple[int, int], NodeShare] = {}
        """By make and tasks: empty nodes of one make give the same."""
        for (candidate, count), from_job in zip(chosen, split_job_gres(self.demand, chosen, free)):
            node, room = self._table.nodes[candidate.position], occupancy.rooms[candidate.position]
            if self._table.parts[candidate.position] and free is not occupancy.free:
                room = room.with_gpus_of(room_of_gpus(self._table, free, candidate.position))
            empty = not from_job and self._is_empty(candidate.position, room)
            like = alike.get((self._table.makes[candidate.position], count)) if empty else None
            if like is not None:
                share = NodeShare(node.name, like.cpus, like.memory_mib, like.cpu_ids, like.gres, like.tasks)
            else:
                made = make_share(self.demand, node, room, count, from_job, self.settings)
                if made is None:
                    return None
                share = made
                if empty:
                    alike[self._table.makes[candidate.position], count] = share
            shares.append(share)
        return _with_tasks_everywhere(self.demand, shares)

    def _is_empty(self, position: int, room: NodeRoom) -> bool:
        """Nobody holds anything of the node, running or not."""
        node, devices = self._table.nodes[position], self._table.devices[position]
        if room.jobs or room.cpus != up_to(node.cpus) or room.memory_mib != node.memory_mib or room.counts:
            return False
        return all(free == devices.get(key, 0) for key, free in room.devices.items())

    def _able(self, free: Free, mask: BoolArray, *, ranked: bool = False) -> IntArray:
        """Positions in order of preference: required, kept, by weight, as the job likes them, by the score and apart
        from its like, with the least left over. Sorted by what tells nodes apart only: most jobs name none."""
        able = np.flatnonzero(mask)
        if len(able) < 2:
            return able
        gpus = free.gres_of("gpu", None)[able]
        cpus = free.cpus[able]
        by: list[NDArray[Any]] = [-cpus, -gpus] if self._least_loaded else [cpus, gpus]
        if ranked and self._ranking is not None:
            by += self._by_score(self._ranking, free, able)
        elif self._crowds is not None:
            by.append(self._crowds[able])
        if self._liked is not None:
            by.append(-self._liked[able])
        if self._table.weighted:
            by.append(self._table.weight[able])
        if self._kept is not None:
            by.append(~np.isin(able, self._kept))
        if self.demand.nodelist:
            by.append(~self._required[able])
        telling = [key for key in by if (key != key[0]).any()]
        return able[np.lexsort(telling)] if telling else able  # of equal ones the first in the configuration

    def _by_score(self, ranking: Ranking, free: Free, able: IntArray) -> list[NDArray[Any]]:
        """The last decides first. Who would rather be apart goes where that costs nothing: among nodes of as many whole
        points, and not to one whose GPUs nobody has touched while there is another."""
        points = ranking.points(self.need, free, able)
        if self._crowds is None:
            return [-points]
        return [-points, self._crowds[able], ranking.would_open(self.need, free, able), -np.ceil(points)]


def _with_tasks_everywhere(demand: Demand, shares: list[NodeShare]) -> tuple[NodeShare, ...]:
    """A node that was taken for its GPUs alone gets tasks as a step would lay them out over the CPUs."""
    if all(share.tasks for share in shares) or demand.ntasks < len(shares):
        return tuple(shares)
    laid_out = layout(demand.ntasks, [share.cpus for share in shares], demand.cpus_per_task)
    return tuple(replace(share, tasks=len(tasks)) for share, tasks in zip(shares, laid_out))


def _feature_wishes(demand: Demand) -> list[Constraint]:
    """One for each way to satisfy the constraint (`[a|b]` has several: all nodes by the same one).

    What is preferred comes first and, as in Slurm, stands in for the constraint: it is not added to it.
    """
    wishes = [option for wish in (demand.preferred, demand.features) if wish.text for option in wish.alternatives()]
    return wishes if demand.features.text else [*wishes, demand.features]


def _matching(constraint: Constraint, table: NodeTable) -> BoolArray:
    if not constraint.text:
        return np.ones(len(table), dtype=np.bool_)
    kinds, kind_of = table.feature_kinds
    return np.array([constraint.matches(features) for features in kinds], dtype=np.bool_)[kind_of]
