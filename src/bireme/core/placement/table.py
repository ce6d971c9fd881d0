"""Nodes as columns: what they are (`NodeTable`, fixed) and what they have left at some moment (`Free`).

Columns answer "how many nodes could take this" for ten thousand nodes at once; which CPUs and devices exactly is
decided afterwards, on the few nodes that were chosen (`occupancy.NodeRoom`). The calendar makes a `Free` of the future
the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bireme.core.model.cluster import NodeConfig
from bireme.core.model.node_rules import NODE_NAME, NodeRules
from bireme.core.model.resources import Allocation, GresShare, NodeShare
from bireme.core.placement.fractions import WHOLE, Fractions, GresKey, Uses, parts_of
from bireme.core.placement.numbers import Bits, bits_of

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_RULES_KEPT = 4096
"""Rules are people's words: of more than so many, none is kept."""


class NodeTable:
    """The configured nodes; position is the configuration's order."""

    __slots__ = (
        "_rule_masks",
        "_whole_masks",
        "cores_per_socket",
        "cpus",
        "devices",
        "feature_kinds",
        "features",
        "fractions",
        "gres",
        "index",
        "kinds",
        "makes",
        "memory",
        "multithreaded",
        "nodes",
        "parts",
        "shut",
        "sockets",
        "threads",
        "tmp_disk",
        "weight",
        "weighted",
    )

    def __init__(self, nodes: Sequence[NodeConfig]) -> None:
        self.nodes: tuple[NodeConfig, ...] = tuple(nodes)
        self.index: dict[str, int] = {node.name: position for position, node in enumerate(self.nodes)}
        self.cpus = _column([node.cpus for node in nodes])
        self.memory = _column([node.memory_mib for node in nodes])
        self.sockets = _column([node.sockets for node in nodes])
        self.cores_per_socket = _column([node.cores_per_socket for node in nodes])
        self.threads = _column([node.threads_per_core for node in nodes])
        self.multithreaded = bool((self.threads > 1).any())
        self.tmp_disk = _column([node.tmp_disk_mib for node in nodes])
        self.weight = _column([node.weight for node in nodes])
        self.weighted = len({node.weight for node in nodes}) > 1
        """Some nodes are given out before others."""
        self.features: tuple[frozenset[str], ...] = tuple(frozenset(node.features) for node in nodes)
        self.feature_kinds = _feature_kinds(self.features)
        """All sets of features that there are, and for each node which of them it has."""
        self.devices: tuple[dict[GresKey, Bits], ...] = tuple(_device_numbers(node) for node in nodes)
        self.parts: tuple[dict[GresKey, dict[int, int]], ...] = tuple(parts_of(node) for node in nodes)
        self.fractions = Fractions(self.nodes)
        self.makes = _makes(self.nodes)
        """Of each node a number that nodes share which differ only in name, features and weight."""
        self.kinds = _kinds(self.nodes)
        """One node of each kind, and the positions of all of its kind: needs are the same on them."""
        self.gres: dict[GresKey, IntArray] = {}
        for position, node in enumerate(self.nodes):
            for pool in node.gres:
                column = self.gres.setdefault((pool.name, pool.type), np.zeros(len(self.nodes), dtype=np.int64))
                column[position] += pool.count
        self.shut: dict[int, Bits] = {}
        """Position -> numbers of its GPUs that are out of service. Changed by the state's Occupancy alone (`shut`)."""
        self._rule_masks: dict[NodeRules, BoolArray] = {}
        self._whole_masks: dict[int, tuple[tuple[str, ...], BoolArray]] = {}

    def __len__(self) -> int:
        return len(self.nodes)

    def in_service(self, allocation: Allocation) -> Allocation:
        """What of an allocation is taken while it lasts and comes back when it ends: a GPU that is out of service is
        held by whoever shut it, also while a job from before is still on it."""
        if not self.shut or not any(self.index.get(share.node) in self.shut for share in allocation.shares):
            return allocation
        return replace(allocation, shares=tuple(self.share_in_service(share) for share in allocation.shares))

    def share_in_service(self, share: NodeShare) -> NodeShare:
        shut = self.shut.get(self.index.get(share.node, -1), 0)
        if not shut:
            return share
        kept = (_without(gres, shut) for gres in share.gres)
        return replace(share, gres=tuple(gres for gres in kept if gres.count))

    def admitted(self, rules: NodeRules) -> BoolArray:
        """Nodes that the rules let a job use; worked out once for each set of rules, but for which nodes they name."""
        rules = replace(rules, preferred=()) if rules.preferred else rules
        named = [rule for rule in rules.all_of if rule.key == NODE_NAME and rule.operator == "In"]
        if named:
            others = replace(rules, all_of=tuple(rule for rule in rules.all_of if rule not in named))
            mask = self.admitted(others).copy()
            for rule in named:
                mask &= self.mask(rule.values)
            return mask
        known = self._rule_masks.get(rules)
        if known is None:
            if len(self._rule_masks) >= _RULES_KEPT:
                self._rule_masks.clear()
            answers = [rules.admit(node.name, dict(node.labels), node.taints) for node in self.nodes]
            known = self._rule_masks[rules] = np.array(answers, dtype=np.bool_)
        return known

    def liked(self, rules: NodeRules) -> IntArray | None:
        """How much each node is preferred to others; None: nothing is."""
        if not rules.preferred:
            return None
        return np.array([rules.liking(node.name, dict(node.labels)) for node in self.nodes], dtype=np.int64)

    def mask(self, names: Sequence[str]) -> BoolArray:
        chosen = np.zeros(len(self.nodes), dtype=np.bool_)
        chosen[[self.index[name] for name in names if name in self.index]] = True
        return chosen

    def mask_of_all(self, names: tuple[str, ...]) -> BoolArray:
        """As `mask`, of a list that is asked for again and again, such as a partition's own. To read only."""
        known = self._whole_masks.get(id(names))
        if known is None or known[0] is not names:
            if len(self._whole_masks) >= _RULES_KEPT:
                self._whole_masks.clear()
            known = self._whole_masks[id(names)] = (names, self.mask(names))
        return known[1]


@dataclass(slots=True, eq=False)
class Free:
    """What each node has left."""

    cpus: IntArray
    cores: IntArray
    """Cores of which no thread is taken."""
    memory: IntArray
    gres: dict[GresKey, IntArray]
    jobs: IntArray
    """How many jobs are there."""
    whole: BoolArray
    """Held by one job as a whole (--exclusive)."""
    fractions: Fractions
    uses: Uses
    """Of each GPU of nodes that give out parts of GPUs. What is left of them follows from it (`settle`)."""
    largest: dict[GresKey, IntArray]
    """Of a GRES that is parts of GPUs: the most that one GPU has left."""

    @classmethod
    def of(cls, table: NodeTable) -> Free:
        """Nothing is held."""
        count = len(table)
        free = cls(
            table.cpus.copy(),
            table.cpus // table.threads,
            table.memory.copy(),
            {key: column.copy() for key, column in table.gres.items()},
            np.zeros(count, dtype=np.int64),
            np.zeros(count, dtype=np.bool_),
            table.fractions,
            table.fractions.no_uses(),
            {key: table.fractions.largest_parts(key) for key in table.fractions.keys},
        )
        if table.fractions.single:  # less than the sum over its GPUs
            free.settle(0, count)
        return free

    def copy(self) -> Free:
        return Free(
            self.cpus.copy(),
            self.cores.copy(),
            self.memory.copy(),
            {key: column.copy() for key, column in self.gres.items()},
            self.jobs.copy(),
            self.whole.copy(),
            self.fractions,
            {kind: used.copy() for kind, used in self.uses.items()},
            {key: column.copy() for key, column in self.largest.items()},
        )

    def empty(self, position: int, table: NodeTable) -> None:
        """Nothing is held of this node any more."""
        self.cpus[position] = table.cpus[position]
        self.cores[position] = table.cpus[position] // table.threads[position]
        self.memory[position] = table.memory[position]
        for key, column in self.gres.items():
            column[position] = table.gres[key][position]
        self.jobs[position], self.whole[position] = 0, False
        for used in self.uses.values():
            used[position] = 0
        if self.uses and self.fractions.nodes[position]:
            self.settle(position, position + 1)

    def close(self, nodes: BoolArray) -> None:
        """Takes all that these nodes have left."""
        for column in (self.cpus, self.cores, self.memory, *self.gres.values(), *self.largest.values()):
            column[nodes] = 0
        self.whole |= nodes

    def gres_of(self, name: str, type_: str | None) -> IntArray:
        """Free of a name, of one type or of all types together."""
        columns = [column for key, column in self.gres.items() if key[0] == name and type_ in (None, key[1])]
        if not columns:
            return np.zeros(len(self.cpus), dtype=np.int64)
        return columns[0] if len(columns) == 1 else np.sum(columns, axis=0)

    def room_for(self, name: str, type_: str | None, count: int) -> BoolArray:
        """Nodes that have `count` left: of parts on one GPU, unless no single GPU of the node has so many at all."""
        enough = self.gres_of(name, type_) >= count
        columns = [key for key in self.largest if key[0] == name and type_ in (None, key[1])]
        if columns:
            one_gpu = np.max([self.largest[key] for key in columns], axis=0)
            at_best = np.max([self.fractions.largest_parts(key) for key in columns], axis=0)
            enough &= (one_gpu >= count) | (at_best < count)
        return enough

    def most_at_once(self, name: str, type_: str | None) -> IntArray:
        """How many can be had together: of parts, those of one GPU."""
        columns = [column for key, column in self.largest.items() if key[0] == name and type_ in (None, key[1])]
        return np.max(columns, axis=0) if columns else self.gres_of(name, type_)

    def add(self, position: int, share: NodeShare, threads: int, sign: int, whole: bool) -> None:
        """A job's share comes back (+1) or is taken (-1)."""
        self.cpus[position] += sign * share.cpus
        self.cores[position] += sign * -(-share.cpus // threads)
        self.memory[position] += sign * share.memory_mib
        self.jobs[position] -= sign * share.runs
        for gres in share.gres:
            column = self.gres.get((gres.name, gres.type))
            if column is not None:  # else: it left the configuration while the job ran
                column[position] += sign * gres.count
        if whole:
            self.whole[position] = sign < 0
        if self.uses and self.fractions.nodes[position]:
            for gres in share.gres:
                for kind, gpu, count in self.fractions.claims(position, gres):
                    self.uses[kind][position, gpu] -= sign * count
            self.settle(position, position + 1)

    def settle(self, first: int, last: int) -> None:
        """What is left of GPUs and of their parts on nodes first..last-1, from what is in use."""
        total, largest = self.fractions.left(self.uses, first, last)
        shared = self.fractions.nodes[first:last]
        for columns, values in ((self.gres, total), (self.largest, largest)):
            for key, left in values.items():
                columns[key][first:last] = np.where(shared, left, columns[key][first:last])


def _without(gres: GresShare, gpus: Bits) -> GresShare:
    """A share without these GPUs, and without parts of them."""
    if gres.parts:
        parts = tuple((gpu, count) for gpu, count in gres.parts if not gpus >> gpu & 1)
        return replace(gres, count=sum(count for _, count in parts), parts=parts)
    if gres.name != WHOLE or not gres.indices:
        return gres
    indices = tuple(index for index in gres.indices if not gpus >> index & 1)
    return replace(gres, count=len(indices), indices=indices)


def _makes(nodes: Sequence[NodeConfig]) -> list[int]:
    numbers: dict[tuple[object, ...], int] = {}
    keys = (
        (node.cpus, node.sockets, node.cores_per_socket, node.threads_per_core, node.memory_mib, node.gres)
        for node in nodes
    )
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _feature_kinds(sets: Sequence[frozenset[str]]) -> tuple[tuple[frozenset[str], ...], IntArray]:
    numbers: dict[frozenset[str], int] = {}
    kind_of = [numbers.setdefault(features, len(numbers)) for features in sets]
    return tuple(numbers), _column(kind_of)


def _kinds(nodes: Sequence[NodeConfig]) -> tuple[tuple[NodeConfig, IntArray], ...]:
    found: dict[tuple[int, int, int], list[int]] = {}
    for position, node in enumerate(nodes):
        found.setdefault((node.sockets, node.threads_per_core, node.memory_mib), []).append(position)
    return tuple((nodes[positions[0]], _column(positions)) for positions in found.values())


def _device_numbers(node: NodeConfig) -> dict[GresKey, Bits]:
    numbers: dict[GresKey, Bits] = {}
    for pool in node.gres:
        key = (pool.name, pool.type)
        numbers[key] = numbers.get(key, 0) | bits_of(tuple(device.index for device in pool.devices))
    return numbers


def _column(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int64)
