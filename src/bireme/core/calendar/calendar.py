"""The future of the nodes: running jobs that will end, and slots booked for jobs that wait.

Resources are booked by count (so many CPUs, GPUs, MiB of a node from t to t'), not by whole nodes. Everything is
columns over all nodes: a `Moment` is what changes between now and then (releases come back, bookings are taken). What
is free only falls when a booking begins, so the least that a node has during some time is found by looking at its
begin and at the begins of bookings inside it. Two questions are answered: `guaranteed(begin, end)`, what each node has
free during all of that time; and `earliest(...)`, the first moment at which a demand fits for its whole duration.

Called by the planner only. Invariant: whatever is booked or started within `guaranteed` delays no earlier booking.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil, inf
from operator import sub
from typing import NamedTuple

import numpy as np

from bireme.core.calendar.amounts import Pick, Vector, left_of
from bireme.core.calendar.booking import Booking
from bireme.core.calendar.closures import Closures
from bireme.core.calendar.openings import Change, Openings, open_until, openings
from bireme.core.calendar.releases import Moment, Releases
from bireme.core.model.cluster import Settings
from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.placement.needs import CORE, CPU, JOBS, MEMORY, WHOLE, Amount, Need
from bireme.core.placement.occupancy import NodeRoom, room_of_gpus
from bireme.core.placement.search import Search
from bireme.core.placement.shares import share_size
from bireme.core.placement.spread import Spread, split_job_gres
from bireme.core.placement.table import BoolArray, Free, NodeTable


class Wanted(NamedTuple):
    """What is asked of one node: amounts, and how to pick them out of what changes there."""

    keys: tuple[Amount, ...]
    amounts: tuple[int, ...]
    pick: Pick

    def spare(self, free: Free, position: int) -> list[int]:
        """What the node has now beyond it."""
        return [left_of(free, key, position) - amount for key, amount in zip(self.keys, self.amounts)]


class Calendar:
    """Made by a full pass; follows what passes start (`started`) and book (`book`), and what ends (`withdraw`)."""

    def __init__(
        self,
        table: NodeTable,
        now: float,
        running: Iterable[tuple[float, Allocation]],
        resolution_s: float = 0.0,
    ) -> None:
        self._table = table
        self._now = now
        self._origin = now
        """From here moments are counted in steps of the resolution; a renewed calendar keeps it."""
        self._resolution_s = resolution_s
        self._releases = Releases(table)
        self._bookings: list[Booking] = []
        self._begins: list[float] = []
        """Distinct moments at which a booking begins, ascending."""
        self._beginning: Counter[float] = Counter()
        self._at_begin: dict[float, Moment] = {}
        """Those of them that were asked for."""
        self._openings: dict[Need, Openings] = {}
        self._wants: dict[tuple[Need, int], Wanted] = {}
        self._on_node: dict[int, list[tuple[Booking, Vector]]] = {}
        for end, allocation in running:
            if end != inf:
                self._releases.add(self.rounded(end), table.in_service(allocation))

    def renewed(self, now: float) -> Calendar:
        """A calendar without this one's bookings, for the next full pass. Only one of the two may be used from
        then on."""
        other = Calendar(self._table, now, (), self._resolution_s)
        other._releases, other._origin, other._wants = self._releases, self._origin, self._wants
        return other

    def move_to(self, now: float) -> None:
        """Time has passed. What should have come back by now and has not may come at any moment, but is not there."""
        self._now = now

    @property
    def entries(self) -> int:
        """How many releases it has noted, those that were taken back too."""
        return self._releases.count

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
        return self._origin + ceil((at - self._origin) / self._resolution_s) * self._resolution_s

    def booked_on(self, position: int) -> Iterator[Booking]:
        """The slots on one node."""
        return (booking for booking, _ in self._on_node.get(position, ()))

    def started(self, end: float, allocation: Allocation) -> None:
        """The pass starts a job now: the draft's columns lose its shares, and get them back at `end`."""
        if end == inf:
            return
        end = self.rounded(end)
        self._change_release(end, allocation, 1)

    def withdraw(self, end: float, allocation: Allocation) -> None:
        """A job of which the calendar knew that it ends then has ended already: now has what then would bring."""
        if end != inf:
            self._change_release(self.rounded(end), allocation, -1)

    def _change_release(self, end: float, allocation: Allocation, sign: int) -> None:
        allocation = self._table.in_service(allocation)
        self._releases.add(end, allocation, sign)
        self._changed(allocation.shares)
        for begin in self._begins[bisect_left(self._begins, end) :]:
            if begin in self._at_begin:
                self._at_begin[begin].release(allocation, self._table, sign)

    def _changed(self, shares: Iterable[NodeShare]) -> None:
        index = self._table.index
        positions = [index[share.node] for share in shares if share.node in index]
        for known in self._openings.values():
            known.dirty.update(positions)

    def doubt(self, positions: Iterable[int]) -> None:
        """What was held of these nodes in a draft is not: what was found out about them may be wrong."""
        for known in self._openings.values():
            known.dirty.update(positions)

    def book(self, booking: Booking) -> None:
        if not self._beginning[booking.begin]:
            self._begins.insert(bisect_left(self._begins, booking.begin), booking.begin)
        self._beginning[booking.begin] += 1
        self._bookings.append(booking)
        self._change_booking(booking, 1)
        for position, share in self._places(booking):
            taken = self._releases.amounts.of(share, position, booking.whole_nodes)
            self._on_node.setdefault(position, []).append((booking, taken))

    def unbook(self, booking: Booking) -> None:
        self._bookings.remove(booking)
        self._change_booking(booking, -1)
        self._beginning[booking.begin] -= 1
        if not self._beginning[booking.begin]:
            del self._beginning[booking.begin]
            self._begins.remove(booking.begin)
            self._at_begin.pop(booking.begin, None)
        for position, _ in self._places(booking):
            booked = self._on_node[position]
            del booked[[each for each, _ in booked].index(booking)]

    @contextmanager
    def without(self, bookings: Sequence[Booking]) -> Iterator[None]:
        """For questions asked as if these were not booked."""
        for booking in bookings:
            self.unbook(booking)
        yield
        for booking in bookings:
            self.book(booking)

    def _places(self, booking: Booking) -> Iterator[tuple[int, NodeShare]]:
        for share in booking.shares:
            if share.node in self._table.index:
                yield self._table.index[share.node], share

    def _change_booking(self, booking: Booking, sign: int) -> None:
        for begin in self._begins[bisect_left(self._begins, booking.begin) : bisect_left(self._begins, booking.end)]:
            if begin in self._at_begin:
                self._at_begin[begin].take(booking, self._table, sign)
        self._changed(booking.shares)

    # -- what is free ------------------------------------------------------------------------------------------------

    def guaranteed(self, free_now: Free, begin: float, end: float) -> Free:
        """What each node has free during all of [begin, end), when `free_now` is what it has now."""
        lowest = self._moment(begin).over(free_now)
        for moment in self._begins[bisect_right(self._begins, begin) : bisect_left(self._begins, end)]:
            if moment not in self._at_begin:
                self._at_begin[moment] = self._moment(moment)
            _keep_lowest(lowest, self._at_begin[moment].over(free_now))
        return lowest

    def nodes_now(self, search: Search, free_now: Free, end: float) -> BoolArray | None:
        """The nodes that hold their part of the demand from now on until then; None: only `guaranteed` can say."""
        known = self._opened(search, free_now)
        return None if known is None else known.now(end)

    def fits_until(self, need: Need, settings: Settings, free_now: Free, position: int) -> float:
        """Until when the need fits on a node from now on; -inf: it does not."""
        known = self._openings.get(need)
        if known is None or position in known.dirty:
            return self.fits_without(need, settings, free_now, position, None)
        return known.until(position)

    def fits_without(self, need: Need, settings: Settings, free_now: Free, position: int, job_id: int | None) -> float:
        """Until when the need fits on a node, if a job's slots were not there: its own may be in its way; -inf: not at
        all."""
        if not self.has_room(need, settings, free_now, position):
            return -inf
        if all(booking.job_id == job_id for booking in self.booked_on(position)):
            return inf  # what is there now only grows
        return open_until(*self._future(position, self._wanted(need, settings, position), free_now, job_id))

    def has_room(self, need: Need, settings: Settings, free_now: Free, position: int) -> bool:
        """Whether a node has enough now, slots aside."""
        return min(self._wanted(need, settings, position).spare(free_now, position)) >= 0

    def holds(self, booking: Booking, free_now: Free) -> bool:
        """Whether the slot could be booked as it is."""
        for position, share in self._places(booking):
            keys: list[Amount] = [(CPU, None), (CORE, None), (MEMORY, None), (WHOLE, None)]
            keys += [(JOBS, None)] if booking.whole_nodes else []
            keys += [(gres.name, gres.type) for gres in share.gres]
            pick = self._releases.amounts.pick(keys)
            taken = pick(self._releases.amounts.of(share, position, False))
            amounts = tuple(0 if key[0] == JOBS else amount for key, amount in zip(keys, taken))
            found = self._look(position, Wanted(tuple(keys), amounts, pick), free_now)
            if not any(max(begin, self._now) <= booking.begin and booking.end <= end for begin, end in found):
                return False
        return all(share.node in self._table.index for share in booking.shares)

    def _opened(self, search: Search, free_now: Free) -> Openings | None:
        """Parts of GPUs, and demands that nodes may share out in several ways, are left to the columns."""
        if self._table.fractions or not search.need.exact:
            return None
        return self._known(search.need, search.settings, search.usable, free_now)

    def _known(self, need: Need, settings: Settings, usable: BoolArray, free_now: Free) -> Openings:
        """Up to date for the usable nodes; the others are looked at again when somebody asks who may use them."""
        known = self._openings.get(need)
        if known is None:
            known = self._openings[need] = Openings(self._releases.first_fits(need, settings, free_now))
            known.dirty.update(position for position, booked in self._on_node.items() if booked)
        changed = [position for position in known.dirty if usable[position]]
        for position in changed:
            known.set(position, self._look(position, self._wanted(need, settings, position), free_now))
        known.dirty.difference_update(changed)
        return known

    def _wanted(self, need: Need, settings: Settings, position: int) -> Wanted:
        """What the need takes of such a node; nodes of one make share the answer."""
        key = (need, self._table.makes[position])
        found = self._wants.get(key)
        if found is None:
            amounts = need.on(self._table.nodes[position], settings)
            keys = tuple(each for each, _ in amounts)
            found = Wanted(keys, tuple(amount for _, amount in amounts), self._releases.amounts.pick(keys))
            self._wants[key] = found
        return found

    def _look(self, position: int, wanted: Wanted, free_now: Free) -> list[tuple[float, float]]:
        """The openings of one node."""
        return openings(*self._future(position, wanted, free_now))

    def _future(
        self, position: int, wanted: Wanted, free_now: Free, without: int | None = None
    ) -> tuple[list[int], list[Change]]:
        """What a node has now beyond what is wanted, and what changes that: what comes back, and slots."""
        pick, spare = wanted.pick, wanted.spare(free_now, position)
        changes = [(at, pick(amount)) for at, amount in self._releases.on_node(position).items()]
        for booking, taken in self._on_node.get(position, ()):
            if without is not None and booking.job_id == without:
                continue
            amounts = pick(taken)
            if booking.begin > self._now:
                changes.append((booking.begin, tuple([-amount for amount in amounts])))
            else:
                spare = list(map(sub, spare, amounts))
            changes.append((booking.end, amounts))
        return spare, changes

    def _moment(self, when: float) -> Moment:
        known = self._at_begin.get(when)
        if known is not None and when > self._now:
            return known
        moment = Moment(self._table)
        if when > self._now:
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
        *,
        by_columns: bool = False,
    ) -> tuple[float, tuple[NodeShare, ...]] | None:
        """The first moment in [after, horizon) at which the demand fits for its whole duration, and what it takes.

        `closures`: when some nodes may not be used. `by_columns`: `free_now` is not what the nodes really have free.
        """
        known = None if by_columns else self._opened(search, free_now)
        if known is not None:
            return self._earliest_open(search, known, free_now, duration, after, horizon, closures)
        reopenings = closures.ends() if closures is not None else []
        for moment in self._moments(search, free_now, after, horizon, reopenings):
            free = self.guaranteed(free_now, moment, moment + duration)
            closed = closures.during(moment, moment + duration) if closures is not None else ()
            if closures is not None and closed:
                free.close(closures.mask(closed))
            found = search.sketch(free)
            if found is not None:
                return moment, self._sizes(search, found, free)
        return None

    def _earliest_open(
        self,
        search: Search,
        known: Openings,
        free_now: Free,
        duration: float,
        after: float,
        horizon: float,
        closures: Closures | None,
    ) -> tuple[float, tuple[NodeShare, ...]] | None:
        """The earliest moment by openings: only moments at which enough nodes have one are looked at."""
        soon, nodes = self.rounded(self._now + 1.0), search.demand.nodes_wanted
        if nodes == 1 and not (closures is not None and closures.entries):
            first = known.first(search.usable, duration, after, soon)
            if first >= horizon:
                return None
            found = search.sketch(free_now, known.covering(first, first + duration, soon))
            if found is not None:
                return first, self._sizes(search, found, free_now)
        begins = {after, *closures.ends()} if closures is not None and closures.entries else {after}
        moments = {*known.moments(search.usable, nodes, duration, after, soon).tolist(), *begins}
        for moment in sorted(moment for moment in moments if after <= moment < horizon):
            within = known.covering(moment, moment + duration, soon)
            closed = closures.during(moment, moment + duration) if closures is not None else ()
            if closures is not None and closed:
                within &= ~closures.mask(closed)
            found = search.sketch(free_now, within) if int(within.sum()) >= nodes else None
            if found is not None:
                return moment, self._sizes(search, found, free_now)
        return None

    def _sizes(self, search: Search, found: Spread, free: Free) -> tuple[NodeShare, ...]:
        from_job = split_job_gres(search.demand, found, free)
        if search.need.exact and search.demand.gres_per_job:  # one node, which gives all of it
            from_job = [list(search.demand.gres_per_job)]
        return tuple(
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

    def _room(self, free: Free, position: int) -> NodeRoom | None:
        return room_of_gpus(self._table, free, position) if self._table.parts[position] else None

    def _moments(
        self, search: Search, free_now: Free, after: float, horizon: float, reopenings: Iterable[float]
    ) -> list[float]:
        """Moments when something comes back, from the first at which it could fit if nothing were booked."""
        ends = (booking.end for booking in self._bookings)
        soon = self.rounded(self._now + 1.0)  # what is late comes at any moment
        moments = sorted({after, soon, *self._releases.times(), *ends, *reopenings})
        moments = moments[bisect_left(moments, after) : bisect_left(moments, horizon)]
        low, high = 0, len(moments)
        while low < high:  # leaving bookings aside, what fits once fits ever after
            middle = (low + high) // 2
            unbooked = Moment(self._table)
            if moments[middle] > self._now:
                self._releases.add_up_to(unbooked, moments[middle])
            if search.sketch(unbooked.over(free_now)) is not None:
                high = middle
            else:
                low = middle + 1
        return moments[low:]


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
