"""What shares take, as vectors over all amounts of a cluster in one order, so that a node's future is added up quickly.

The calendar makes a vector when a job starts or a slot is booked, and picks from it what a need asks about.
Invariant: a GRES without a type is the sum over its types, as in `placement/needs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

from bireme.core.model.resources import NodeShare
from bireme.core.placement.fractions import GresKey
from bireme.core.placement.needs import CORE, CPU, JOBS, MEMORY, WHOLE, Amount
from bireme.core.placement.table import Free, NodeTable

Vector = tuple[int, ...]
Pick = Callable[[Vector], Vector]
"""Some amounts of a vector."""

_PLAIN: tuple[Amount, ...] = ((CPU, None), (CORE, None), (MEMORY, None), (WHOLE, None), (JOBS, None))


class Amounts:
    def __init__(self, table: NodeTable) -> None:
        self._threads: list[int] = table.threads.tolist()
        names = dict.fromkeys((name, None) for name, _ in table.gres)
        self._place: dict[Amount, int] = {
            key: place for place, key in enumerate(dict.fromkeys((*_PLAIN, *table.gres, *names)))
        }
        self._no_gres = [0] * (len(self._place) + 1 - len(_PLAIN))  # the last one is of what no node has
        self._places: dict[GresKey, tuple[int, ...]] = {}
        """Of a GRES: its own place, and that of all its types together."""

    def of(self, share: NodeShare, position: int, whole: bool, sign: int = 1) -> Vector:
        """What the share takes of a node; `sign` -1: the same below zero."""
        cpus = share.cpus
        cores = -(-cpus // self._threads[position])
        found = [cpus, cores, share.memory_mib, int(whole), int(cpus > 0), *self._no_gres]
        for gres in share.gres:
            for place in self._places_of((gres.name, gres.type)):
                found[place] += gres.count
        return tuple(found) if sign > 0 else tuple([-each for each in found])

    def _places_of(self, key: GresKey) -> tuple[int, ...]:
        found = self._places.get(key)
        if found is None:
            both = dict.fromkeys((key, (key[0], None)))
            found = self._places[key] = tuple(self._place[each] for each in both if each in self._place)
        return found

    def pick(self, keys: Sequence[Amount]) -> Pick:
        """What takes these amounts, at least two of them, out of a row of all."""
        return itemgetter(*(self._place.get(key, len(self._place)) for key in keys))


def left_of(free: Free, key: Amount, position: int) -> int:
    """How much of an amount a node has left; of what must not be there, how much is: below zero."""
    name, type_ = key
    if name == CPU:
        return free.cpus.item(position)
    if name == CORE:
        return free.cores.item(position)
    if name == MEMORY:
        return free.memory.item(position)
    if name == WHOLE:
        return -free.whole.item(position)
    if name == JOBS:
        return -free.jobs.item(position)
    columns = free.gres.items()
    return sum([column.item(position) for mine, column in columns if mine[0] == name and type_ in (None, mine[1])])
