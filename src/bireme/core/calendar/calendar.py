"""The future of the nodes: running jobs that will end, and slots booked for jobs that wait.

Resources are booked by count (so many CPUs, GPUs, MiB of a node from t to t'), not by whole nodes. Nodes without a
booking only gain as time passes, so their columns at a moment are enough; nodes with bookings are looked at exactly.
Two questions are answered: `guaranteed(begin, end)`, what each node has free during all of that time; and
`earliest(...)`, the first moment at which a demand fits for its whole duration. Called by the planner only.

Invariant: whatever is booked or started within `guaranteed` delays no booking made before it.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.placement.search import Search
from bireme.core.placement.shares import share_size
from bireme.core.placement.spread import Spread, split_job_gres
from bireme.core.placement.table import Free, GresKey, IntArray, NodeTable


@dataclass(frozen=True, slots=True)
class Booking:
    """A slot: these sizes of these nodes from `begin` until `end`."""

    begin: float
    end: float
    shares: tuple[NodeShare, ...]
    whole_nodes: bool = False


@dataclass(slots=True)
class _Releases:
    """When resources come back, sorted by time; columns for fast sums over a prefix."""

    at: list[float] = field(default_factory=list)
    shares: list[tuple[int, NodeShare, bool]] = field(default_factory=list)
    """(position, share, whole node) of each release, in the order of `at`."""

    def add(self, at: float, position: int, share: NodeShare, whole: bool) -> None:
        index = bisect_right(self.at, at)
        self.at.insert(index, at)
        self.shares.insert(index, (position, share, whole))


class Calendar:
    """Made for one planning pass, from the draft's columns; follows what the pass starts and books."""

    def __init__(self, table: NodeTable, now: float, running: Iterable[tuple[float, Allocation]]) -> None:
        self._table = table
        self._now = now
        self._booked: dict[int, list[tuple[float, float, NodeShare, bool]]] = {}
        """position -> (begin, end, share, whole) of every booking there."""
        self._booking_times: list[float] = []
        releases = [
            (max(end, now), table.index[share.node], share, allocation.whole_nodes)
            for end, allocation in running
            if end != inf
            for share in allocation.shares
            if share.node in table.index
        ]
        releases.sort(key=lambda release: release[0])
        self._releases = _Releases([r[0] for r in releases], [r[1:] for r in releases])
        self._releases_on: dict[int, list[tuple[float, NodeShare]]] = {}
        for at, position, share, _ in releases:
            self._releases_on.setdefault(position, []).append((at, share))
        self._columns: _ReleaseColumns | None = None

    @property
    def has_bookings(self) -> bool:
        return bool(self._booked)

    def started(self, end: float, allocation: Allocation) -> None:
        """The pass starts a job now: the draft's columns lose its shares, and get them back at `end`."""
        if end == inf:
            return
        for share in allocation.shares:
            position = self._table.index[share.node]
            self._releases.add(end, position, share, allocation.whole_nodes)
            self._releases_on.setdefault(position, []).append((end, share))
        self._columns = None

    def book(self, booking: Booking) -> None:
        for share in booking.shares:
            position = self._table.index[share.node]
            entry = (booking.begin, booking.end, share, booking.whole_nodes)
            self._booked.setdefault(position, []).append(entry)
        insort(self._booking_times, booking.end)

    # -- what is free ------------------------------------------------------------------------------------------------

    def guaranteed(self, free_now: Free, begin: float, end: float) -> Free:
        """What each node has free during all of [begin, end), when `free_now` is what it has now."""
        free = self._at(free_now, begin)
        for position, bookings in self._booked.items():
            overlapping = [entry for entry in bookings if entry[0] < end and entry[1] > begin]
            if overlapping:
                self._lower(free, free_now, position, overlapping, begin)
        return free

    def _at(self, free_now: Free, when: float) -> Free:
        """Columns after every release up to `when`, bookings left aside."""
        free = free_now.copy()
        count = bisect_right(self._releases.at, when)
        if count:
            if self._columns is None:
                self._columns = _ReleaseColumns(self._releases.shares, self._table)
            self._columns.add_prefix(free, count)
        return free

    def _lower(
        self,
        free: Free,
        free_now: Free,
        position: int,
        overlapping: Sequence[tuple[float, float, NodeShare, bool]],
        begin: float,
    ) -> None:
        """The least that is left on one node while these bookings hold it: looked at whenever one of them begins."""
        lowest: dict[object, int] = {}
        for moment in {max(begin, entry[0]) for entry in overlapping}:
            active = [entry for entry in overlapping if entry[0] <= moment < entry[1]]
            left = self._left_at(free_now, position, moment, active)
            for key, value in left.items():
                lowest[key] = min(lowest.get(key, value), value)
        free.cpus[position] = min(free.cpus[position], lowest["cpus"])
        free.cores[position] = min(free.cores[position], lowest["cores"])
        free.memory[position] = min(free.memory[position], lowest["memory"])
        for key, column in free.gres.items():
            column[position] = min(column[position], lowest.get(key, column[position]))
        free.jobs[position] += len(overlapping)
        free.whole[position] = bool(free.whole[position]) or any(entry[3] for entry in overlapping)

    def _left_at(
        self,
        free_now: Free,
        position: int,
        moment: float,
        active: Sequence[tuple[float, float, NodeShare, bool]],
    ) -> dict[object, int]:
        threads = int(self._table.threads[position])
        left: dict[object, int] = {
            "cpus": int(free_now.cpus[position]),
            "cores": int(free_now.cores[position]),
            "memory": int(free_now.memory[position]),
        }
        left |= {key: int(column[position]) for key, column in free_now.gres.items()}
        for at, share in self._releases_on.get(position, ()):
            if at <= moment:
                _add(left, share, threads, 1)
        for _, _, share, _ in active:
            _add(left, share, threads, -1)
        return left

    # -- when ---------------------------------------------------------------------------------------------------------

    def earliest(
        self, search: Search, free_now: Free, duration: float, horizon: float
    ) -> tuple[float, tuple[NodeShare, ...]] | None:
        """The first moment before `horizon` at which the demand fits for its whole duration, and the sizes it takes."""
        for moment in self._moments(search, free_now, horizon):
            found = search.sketch(self.guaranteed(free_now, moment, moment + duration))
            if found is not None:
                return moment, self._sizes(search, found, free_now, moment, duration)
        return None

    def _moments(self, search: Search, free_now: Free, horizon: float) -> list[float]:
        """Now, and whenever something comes back: a release or the end of a booking, from the first that could do."""
        moments = sorted({self._now, *self._releases.at, *self._booking_times})
        moments = [moment for moment in moments if self._now <= moment < horizon]
        low, high = 0, len(moments)
        while low < high:  # leaving bookings aside, what fits once fits ever after
            middle = (low + high) // 2
            if search.sketch(self._at(free_now, moments[middle])) is not None:
                high = middle
            else:
                low = middle + 1
        return moments[low:]

    def _sizes(
        self, search: Search, found: Spread, free_now: Free, moment: float, duration: float
    ) -> tuple[NodeShare, ...]:
        free = self.guaranteed(free_now, moment, moment + duration)
        from_job = split_job_gres(search.demand, found, free)
        return tuple(
            share_size(search.demand, self._table.nodes[candidate.position], tasks, gres, search.settings)
            for (candidate, tasks), gres in zip(found, from_job)
        )


class _ReleaseColumns:
    """The releases as arrays, so that the sum of a prefix costs one bincount a resource."""

    __slots__ = ("_cores", "_cpus", "_gres", "_memory", "_positions", "_whole")

    def __init__(self, shares: Sequence[tuple[int, NodeShare, bool]], table: NodeTable) -> None:
        self._positions: IntArray = np.array([position for position, _, _ in shares], dtype=np.int64)
        self._cpus = np.array([share.cpus for _, share, _ in shares], dtype=np.int64)
        self._cores = -(-self._cpus // table.threads[self._positions])
        self._memory = np.array([share.memory_mib for _, share, _ in shares], dtype=np.int64)
        self._whole: NDArray[np.bool_] = np.array([whole for _, _, whole in shares], dtype=np.bool_)
        self._gres: dict[GresKey, IntArray] = {}
        for index, (_, share, _) in enumerate(shares):
            for gres in share.gres:
                key = (gres.name, gres.type)
                if key not in self._gres:
                    self._gres[key] = np.zeros(len(shares), dtype=np.int64)
                self._gres[key][index] += gres.count

    def add_prefix(self, free: Free, count: int) -> None:
        positions = self._positions[:count]
        size = len(free.cpus)
        free.cpus += _sums(positions, self._cpus[:count], size)
        free.cores += _sums(positions, self._cores[:count], size)
        free.memory += _sums(positions, self._memory[:count], size)
        free.jobs -= np.bincount(positions, minlength=size)
        for key, amounts in self._gres.items():
            if key in free.gres:
                free.gres[key] += _sums(positions, amounts[:count], size)
        free.whole[positions[self._whole[:count]]] = False


def _sums(positions: IntArray, amounts: IntArray, size: int) -> IntArray:
    return np.bincount(positions, weights=amounts, minlength=size).astype(np.int64)


def _add(left: dict[object, int], share: NodeShare, threads: int, sign: int) -> None:
    left["cpus"] += sign * share.cpus
    left["cores"] += sign * -(-share.cpus // threads)
    left["memory"] += sign * share.memory_mib
    for gres in share.gres:
        key = (gres.name, gres.type)
        if key in left:
            left[key] += sign * gres.count
