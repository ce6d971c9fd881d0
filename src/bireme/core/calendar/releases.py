"""What comes back and when: the ends of running jobs, as columns in order of time, and what differs at a moment.

The calendar's own: it tells `Releases` who starts and who has ended, and asks for a `Moment` (all nodes, one time), for
the changes on one node, or from when on a need fits on nodes that have no slots.
Invariant: what was added and taken back again counts as if it had never been.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from operator import add

import numpy as np

from bireme.core.calendar.amounts import Amounts, Vector
from bireme.core.calendar.booking import Booking
from bireme.core.calendar.openings import Floats
from bireme.core.model.cluster import Settings
from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.placement.fractions import GresKey, Uses
from bireme.core.placement.needs import CORE, CPU, JOBS, MEMORY, WHOLE, Amount, Need, column_of, wanted_on
from bireme.core.placement.table import BoolArray, Free, IntArray, NodeTable

_TAIL_LEAST, _TAIL_PART = 32, 64
"""New releases are sorted in when there are so many, or this part of all, and somebody asks."""
_TAIL_MOST = 1_000
"""When nobody does, because nobody waits, so many (or as many as there are) are sorted in all the same: most are ends
that were taken back again, and would be kept for ever."""
_NOTHING: Mapping[float, Vector] = {}


class Moment:
    """What is different at a moment, against now: columns of changes."""

    __slots__ = ("cores", "cpus", "freed", "gres", "jobs", "memory", "taken", "uses")

    def __init__(self, table: NodeTable) -> None:
        size = len(table)
        self.cpus: IntArray = np.zeros(size, dtype=np.int64)
        self.cores: IntArray = np.zeros(size, dtype=np.int64)
        self.memory: IntArray = np.zeros(size, dtype=np.int64)
        self.jobs: IntArray = np.zeros(size, dtype=np.int64)
        self.gres: dict[GresKey, IntArray] = {key: np.zeros(size, dtype=np.int64) for key in table.gres}
        self.freed: IntArray = np.zeros(size, dtype=np.int64)
        """Whole nodes that came back."""
        self.taken: IntArray = np.zeros(size, dtype=np.int64)
        """Whole nodes that are booked."""
        self.uses: Uses = table.fractions.no_uses()

    def over(self, free: Free) -> Free:
        then = Free(
            free.cpus + self.cpus,
            free.cores + self.cores,
            free.memory + self.memory,
            {key: column + self.gres[key] for key, column in free.gres.items()},
            free.jobs + self.jobs,
            (free.whole & (self.freed <= 0)) | (self.taken > 0),
            free.fractions,
            {kind: used + self.uses[kind] for kind, used in free.uses.items()},
            {key: column.copy() for key, column in free.largest.items()},
        )
        if then.uses:
            then.settle(0, len(then.cpus))
        return then

    def release(self, allocation: Allocation, table: NodeTable, sign: int = 1) -> None:
        self._change(allocation.shares, table, sign)
        if allocation.whole_nodes:
            self.freed[_positions(allocation.shares, table)] += sign

    def take(self, booking: Booking, table: NodeTable, sign: int = 1) -> None:
        self._change(booking.shares, table, -sign)
        if booking.whole_nodes:
            self.taken[_positions(booking.shares, table)] += sign

    def _change(self, shares: Sequence[NodeShare], table: NodeTable, sign: int) -> None:
        for share in shares:
            position = table.index.get(share.node)
            if position is None:
                continue
            self.cpus[position] += sign * share.cpus
            self.cores[position] += sign * -(-share.cpus // int(table.threads[position]))
            self.memory[position] += sign * share.memory_mib
            self.jobs[position] -= sign * share.runs
            for gres in share.gres:
                column = self.gres.get((gres.name, gres.type))
                if column is not None:
                    column[position] += sign * gres.count
                if self.uses:
                    for kind, gpu, count in table.fractions.claims(position, gres):
                        self.uses[kind][position, gpu] -= sign * count


def _positions(shares: Sequence[NodeShare], table: NodeTable) -> list[int]:
    return [table.index[share.node] for share in shares if share.node in table.index]


class Releases:
    """Releases as columns in order of time: the sum of a prefix costs one bincount a resource.

    New ones gather in a short tail, looked at one by one, and are sorted in together when it has grown.
    """

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self.amounts = Amounts(table)
        self._at = np.zeros(0, dtype=np.float64)
        self._positions: IntArray = np.zeros(0, dtype=np.int64)
        self._columns: dict[object, IntArray] = {
            key: np.zeros(0, dtype=np.int64)
            for key in ("cpus", "cores", "memory", "jobs", "whole", *table.gres, *_use_keys(table))
        }
        self._tail: list[tuple[float, Allocation, int]] = []
        self._on_node: dict[int, dict[float, Vector]] = {}
        """The same by node and time, for questions about one node."""
        self._unnoted: list[tuple[float, Allocation, int]] = []
        """What is not among these yet: while nobody waits, nobody asks."""
        self._by_node: tuple[IntArray, IntArray] | None = None
        """Rows in order of node and time, and where each node's begin among them."""

    def add(self, at: float, allocation: Allocation, sign: int = 1) -> None:
        new, most = (at, allocation, sign), max(_TAIL_MOST, len(self._at))
        self._tail.append(new)
        self._unnoted.append(new)
        if len(self._tail) > most:
            self._merge()
        if len(self._unnoted) > most:
            self._note_new()

    def _note_new(self) -> None:
        for at, allocation, sign in self._unnoted:
            for share in allocation.shares:
                position = self._table.index.get(share.node)
                if position is not None:
                    self._note(position, at, self.amounts.of(share, position, allocation.whole_nodes, sign))
        self._unnoted.clear()

    def _note(self, position: int, at: float, amount: Vector) -> None:
        mine = self._on_node.setdefault(position, {})
        before = mine.get(at)
        if before is None:
            mine[at] = amount
            return
        together = tuple(map(add, before, amount))
        if any(together):
            mine[at] = together
        else:
            del mine[at]

    @property
    def count(self) -> int:
        return len(self._at) + len(self._tail)

    def times(self) -> list[float]:
        self._merge()
        return [float(at) for at in np.unique(self._at)]

    def add_up_to(self, moment: Moment, when: float) -> None:
        if len(self._tail) > max(_TAIL_LEAST, len(self._at) // _TAIL_PART):
            self._merge()
        for at, allocation, sign in self._tail:
            if at <= when:
                moment.release(allocation, self._table, sign)
        count = int(np.searchsorted(self._at, when, side="right"))
        if not count:
            return
        positions, size = self._positions[:count], len(moment.cpus)

        def total(key: object) -> IntArray:
            sums = np.bincount(positions, weights=self._columns[key][:count], minlength=size)
            return sums.astype(np.int64)

        moment.cpus += total("cpus")
        moment.cores += total("cores")
        moment.memory += total("memory")
        moment.jobs -= total("jobs")
        moment.freed += total("whole")
        for key, column in moment.gres.items():
            column += total(key)
        for kind, gpu in _use_keys(self._table):
            moment.uses[kind][:, gpu] -= total((kind, gpu))

    def on_node(self, position: int) -> Mapping[float, Vector]:
        """What comes back on one node, by time; in no order."""
        if self._unnoted:
            self._note_new()
        return self._on_node.get(position, _NOTHING)

    def first_fits(self, need: Need, settings: Settings, free: Free) -> Floats:
        """Of every node, from when on the need fits for good if nothing is booked; -inf: now; inf: never."""
        self._merge()
        rows, begins = self._rows_by_node()
        positions = self._positions[rows]
        good_now = np.ones(len(self._table), dtype=np.bool_)
        bad_then = np.zeros(len(rows), dtype=np.bool_)
        for key, wanted in wanted_on(need, settings, self._table).items():
            start = column_of(free, key)
            good_now &= start >= wanted
            sums = np.concatenate(([0], np.cumsum(self._amount(key)[rows])))
            bad_then |= start[positions] + sums[1:] - sums[begins[positions]] < wanted[positions]
        return _first_good(good_now, bad_then, self._at[rows], begins)

    def _rows_by_node(self) -> tuple[IntArray, IntArray]:
        if self._by_node is None:
            rows = np.lexsort((self._at, self._positions))
            begins = np.searchsorted(self._positions[rows], np.arange(len(self._table) + 1))
            self._by_node = rows, begins
        return self._by_node

    def _amount(self, key: Amount) -> IntArray:
        """A column of what comes back."""
        name, type_ = key
        if key in _PLAIN:
            return self._columns[_PLAIN[key]]
        columns = [
            column for mine, column in self._columns.items()
            if isinstance(mine, tuple) and mine in self._table.gres and mine[0] == name and type_ in (None, mine[1])
        ]  # fmt: skip
        if not columns:
            return np.zeros(len(self._at), dtype=np.int64)
        return columns[0] if len(columns) == 1 else np.sum(columns, axis=0)

    def _merge(self) -> None:
        """One row for each node and time; what was taken back again leaves none."""
        if not self._tail:
            return
        index = self._table.index
        rows = [
            (at, index[share.node], share, sign, int(allocation.whole_nodes))
            for at, allocation, sign in self._tail
            for share in allocation.shares
            if share.node in index  # else: the node left the configuration while the job ran
        ]
        self._tail, self._by_node = [], None
        positions = np.array([row[1] for row in rows], dtype=np.int64)
        at = np.concatenate((self._at, np.array([row[0] for row in rows], dtype=np.float64)))
        where = np.concatenate((self._positions, positions))
        order = np.lexsort((where, at))
        at, where = at[order], where[order]
        firsts = np.flatnonzero(np.append(True, (at[1:] != at[:-1]) | (where[1:] != where[:-1]))[: len(at)])
        sums: dict[object, IntArray] = {}
        left = np.zeros(len(firsts), dtype=np.bool_)
        for key, column in self._new_columns(rows, positions).items():
            sums[key] = np.add.reduceat(np.concatenate((self._columns[key], column))[order], firsts)
            left |= sums[key] != 0
        self._at, self._positions = at[firsts][left], where[firsts][left]
        self._columns = {key: column[left] for key, column in sums.items()}

    def _new_columns(
        self, rows: Sequence[tuple[float, int, NodeShare, int, int]], positions: IntArray
    ) -> dict[object, IntArray]:
        signs = np.array([row[3] for row in rows], dtype=np.int64)
        cpus = np.array([row[2].cpus for row in rows], dtype=np.int64)
        columns: dict[object, IntArray] = {
            "cpus": cpus,
            "cores": -(-cpus // self._table.threads[positions]),
            "memory": np.array([row[2].memory_mib for row in rows], dtype=np.int64),
            "jobs": np.array([row[2].runs for row in rows], dtype=np.int64),
            "whole": np.array([row[4] for row in rows], dtype=np.int64),
        }
        columns |= {key: np.zeros(len(rows), dtype=np.int64) for key in (*self._table.gres, *_use_keys(self._table))}
        fractions = self._table.fractions
        for row, (_, position, share, _, _) in enumerate(rows):
            for gres in share.gres:
                if (gres.name, gres.type) in columns:
                    columns[gres.name, gres.type][row] += gres.count
                for kind, gpu, count in fractions.claims(position, gres) if fractions else ():
                    columns[kind, gpu][row] += count
        return {key: column * signs for key, column in columns.items()}


def _use_keys(table: NodeTable) -> list[tuple[str, int]]:
    """Columns for what is in use of each GPU that is given out in parts too; none on a cluster without."""
    return (
        [(kind, gpu) for kind in table.fractions.kinds for gpu in range(table.fractions.shape[1])]
        if (table.fractions)
        else []
    )


_PLAIN: dict[Amount, str] = {
    (CPU, None): "cpus",
    (CORE, None): "cores",
    (MEMORY, None): "memory",
    (WHOLE, None): "whole",
    (JOBS, None): "jobs",
}


def _first_good(good_now: BoolArray, bad_then: BoolArray, at: Floats, begins: IntArray) -> Floats:
    """From the rows of each node: the time of the first after which none is bad."""
    found = np.where(good_now, -inf, inf)
    has_rows = np.flatnonzero(begins[1:] > begins[:-1])
    if not len(has_rows):
        return found
    firsts, ends = begins[has_rows], begins[has_rows + 1]
    last_bad = np.maximum.reduceat(np.where(bad_then, np.arange(len(at)), -1), firsts)
    after = np.where(last_bad < 0, firsts, last_bad + 1)
    then = np.where(after < ends, at[np.minimum(after, len(at) - 1)], inf)
    still_good = good_now[has_rows] & (last_bad < 0)
    found[has_rows] = np.where(still_good, -inf, then)
    return found
