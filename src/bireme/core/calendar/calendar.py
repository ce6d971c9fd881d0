"""The future of the nodes: running jobs that will end, and slots booked for jobs that wait.

Resources are booked by count (so many CPUs, GPUs, MiB of a node from t to t'), not by whole nodes. Everything is
columns over all nodes: a `_Moment` is what changes between now and then (releases come back, bookings are taken). What
is free only falls when a booking begins, so the least that a node has during some time is found by looking at its
begin and at the begins of bookings inside it. Two questions are answered: `guaranteed(begin, end)`, what each node has
free during all of that time; and `earliest(...)`, the first moment at which a demand fits for its whole duration.

Called by the planner only. Invariant: whatever is booked or started within `guaranteed` delays no earlier booking.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np

from bireme.core.calendar.closures import Closures
from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.placement.fractions import GresKey, Uses
from bireme.core.placement.occupancy import NodeRoom, room_of_gpus
from bireme.core.placement.search import Search
from bireme.core.placement.shares import share_size
from bireme.core.placement.spread import split_job_gres
from bireme.core.placement.table import Free, IntArray, NodeTable

_TAIL_MAX = 256


@dataclass(frozen=True, slots=True)
class Booking:
    """A slot: these sizes of these nodes from `begin` until `end`."""

    begin: float
    end: float
    shares: tuple[NodeShare, ...]
    whole_nodes: bool = False


class Calendar:
    """Made for one planning pass; follows what the pass starts (`started`) and books (`book`)."""

    def __init__(
        self,
        table: NodeTable,
        now: float,
        running: Iterable[tuple[float, Allocation]],
        resolution_s: float = 0.0,
    ) -> None:
        self._table = table
        self._now = now
        self._resolution_s = resolution_s
        self._releases = _Entries(table)
        self._bookings: list[Booking] = []
        self._begins: list[float] = []
        """Distinct moments at which a booking begins, ascending; each has its `_Moment` in `_at_begin`."""
        self._at_begin: dict[float, _Moment] = {}
        for end, allocation in running:
            if end != inf:
                self._releases.add(self.rounded(max(end, now)), allocation)

    @property
    def has_bookings(self) -> bool:
        return bool(self._bookings)

    @property
    def begins(self) -> Sequence[float]:
        """When bookings begin, in order."""
        return self._begins

    def rounded(self, at: float) -> float:
        """Up to the resolution: what comes back within the same minute counts as one moment."""
        if not self._resolution_s or at == inf:
            return at
        return self._now + ceil((at - self._now) / self._resolution_s) * self._resolution_s

    def started(self, end: float, allocation: Allocation) -> None:
        """The pass starts a job now: the draft's columns lose its shares, and get them back at `end`."""
        if end == inf:
            return
        end = self.rounded(end)
        self._change_release(end, allocation, 1)

    def withdraw(self, end: float, allocation: Allocation) -> None:
        """A job of which the calendar knew that it ends then has ended already: now has what then would bring."""
        if end != inf:
            self._change_release(self.rounded(max(end, self._now)), allocation, -1)

    def _change_release(self, end: float, allocation: Allocation, sign: int) -> None:
        self._releases.add(end, allocation, sign)
        for begin in self._begins[bisect_left(self._begins, end) :]:
            self._at_begin[begin].release(allocation, self._table, sign)

    def book(self, booking: Booking) -> None:
        if booking.begin not in self._at_begin:
            self._begins.insert(bisect_left(self._begins, booking.begin), booking.begin)
            self._at_begin[booking.begin] = self._moment(booking.begin)
        self._bookings.append(booking)
        self._change_booking(booking, 1)

    def unbook(self, booking: Booking) -> None:
        self._bookings.remove(booking)
        self._change_booking(booking, -1)

    def _change_booking(self, booking: Booking, sign: int) -> None:
        for begin in self._begins[bisect_left(self._begins, booking.begin) : bisect_left(self._begins, booking.end)]:
            self._at_begin[begin].take(booking, self._table, sign)

    # -- what is free ------------------------------------------------------------------------------------------------

    def guaranteed(self, free_now: Free, begin: float, end: float) -> Free:
        """What each node has free during all of [begin, end), when `free_now` is what it has now."""
        lowest = self._moment(begin).over(free_now)
        for moment in self._begins[bisect_right(self._begins, begin) : bisect_left(self._begins, end)]:
            _keep_lowest(lowest, self._at_begin[moment].over(free_now))
        return lowest

    def _moment(self, when: float) -> _Moment:
        known = self._at_begin.get(when)
        if known is not None:
            return known
        moment = _Moment(self._table)
        self._releases.add_up_to(moment, when)
        for booking in self._bookings:
            if booking.begin <= when < booking.end:
                moment.take(booking, self._table)
        return moment

    # -- when --------------------------------------------------------------------------------------------------------

    def earliest(
        self,
        search: Search,
        free_now: Free,
        duration: float,
        after: float,
        horizon: float,
        closures: Closures | None = None,
    ) -> tuple[float, tuple[NodeShare, ...]] | None:
        """The first moment in [after, horizon) at which the demand fits for its whole duration, and what it takes.

        `closures`: when some nodes may not be used.
        """
        reopenings = closures.ends() if closures is not None else []
        for moment in self._moments(search, free_now, after, horizon, reopenings):
            free = self.guaranteed(free_now, moment, moment + duration)
            closed = closures.during(moment, moment + duration) if closures is not None else ()
            if closures is not None and closed:
                free.close(closures.mask(closed))
            found = search.sketch(free)
            if found is not None:
                from_job = split_job_gres(search.demand, found, free)
                return moment, tuple(
                    share_size(
                        search.demand,
                        self._table.nodes[candidate.position],
                        tasks,
                        gres,
                        search.settings,
                        self._room(free, candidate.position),
                    )
                    for (candidate, tasks), gres in zip(found, from_job)
                )
        return None

    def _room(self, free: Free, position: int) -> NodeRoom | None:
        return room_of_gpus(self._table, free, position) if self._table.parts[position] else None

    def _moments(
        self, search: Search, free_now: Free, after: float, horizon: float, reopenings: Iterable[float]
    ) -> list[float]:
        """Moments when something comes back, from the first at which it could fit if nothing were booked."""
        ends = (booking.end for booking in self._bookings)
        moments = sorted({after, *self._releases.times(), *ends, *reopenings})
        moments = moments[bisect_left(moments, after) : bisect_left(moments, horizon)]
        low, high = 0, len(moments)
        while low < high:  # leaving bookings aside, what fits once fits ever after
            middle = (low + high) // 2
            unbooked = _Moment(self._table)
            self._releases.add_up_to(unbooked, moments[middle])
            if search.sketch(unbooked.over(free_now)) is not None:
                high = middle
            else:
                low = middle + 1
        return moments[low:]


class _Moment:
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


class _Entries:
    """Releases as columns in order of time: the sum of a prefix costs one bincount a resource.

    New ones gather in a short tail, looked at one by one, and are sorted in together when it has grown.
    """

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._at = np.zeros(0, dtype=np.float64)
        self._positions: IntArray = np.zeros(0, dtype=np.int64)
        self._columns: dict[object, IntArray] = {
            key: np.zeros(0, dtype=np.int64)
            for key in ("cpus", "cores", "memory", "jobs", "whole", *table.gres, *_use_keys(table))
        }
        self._tail: list[tuple[float, Allocation, int]] = []

    def add(self, at: float, allocation: Allocation, sign: int = 1) -> None:
        self._tail.append((at, allocation, sign))

    def times(self) -> list[float]:
        self._merge()
        return [float(at) for at in np.unique(self._at)]

    def add_up_to(self, moment: _Moment, when: float) -> None:
        if len(self._tail) > _TAIL_MAX:
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

    def _merge(self) -> None:
        if not self._tail:
            return
        index = self._table.index
        rows = [
            (at, index[share.node], share, sign, int(allocation.whole_nodes))
            for at, allocation, sign in self._tail
            for share in allocation.shares
            if share.node in index  # else: the node left the configuration while the job ran
        ]
        self._tail = []
        at = np.concatenate((self._at, np.array([row[0] for row in rows], dtype=np.float64)))
        order = np.argsort(at, kind="stable")
        self._at = at[order]
        positions = np.array([row[1] for row in rows], dtype=np.int64)
        self._positions = np.concatenate((self._positions, positions))[order]
        for key, column in self._new_columns(rows, positions).items():
            self._columns[key] = np.concatenate((self._columns[key], column))[order]

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


def _keep_lowest(lowest: Free, other: Free) -> None:
    np.minimum(lowest.cpus, other.cpus, out=lowest.cpus)
    np.minimum(lowest.cores, other.cores, out=lowest.cores)
    np.minimum(lowest.memory, other.memory, out=lowest.memory)
    for key, column in lowest.gres.items():
        np.minimum(column, other.gres[key], out=column)
    for key, column in lowest.largest.items():
        np.minimum(column, other.largest[key], out=column)
    for kind, used in lowest.uses.items():
        np.maximum(used, other.uses[kind], out=used)
    np.maximum(lowest.jobs, other.jobs, out=lowest.jobs)
    lowest.whole |= other.whole
