"""Reservations as the planner sees them: through which door a job comes, and which nodes are closed to it when.

Jobs without a reservation come through the public door: nodes of a reservation are closed to them while it lasts, so
they start there only if they end before it begins. A job in a reservation may use only its nodes (FLEX: others too),
and other reservations' claims to these do not count, maintenance aside. A MAGNETIC reservation is open to whoever may
use it, asked or not; one of spare nodes (`RestartRule.spares`) to jobs that are healed. Invariant: jobs of one door
and shape share searches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import inf

from bireme.core.calendar.closures import Closure, Closures
from bireme.core.faults.restarts.inquests import spares_for
from bireme.core.model.jobs import Job
from bireme.core.model.reservations import Reservation, ReservationFlag
from bireme.core.placement.table import BoolArray
from bireme.core.reservations.reserving import entered, may_use
from bireme.core.state.state import State

OCCURRENCES_SEEN = 4
"""Of a reservation that recurs: enough for slots; what starts now is always held against the next one."""


@dataclass(frozen=True, slots=True, eq=False)
class Door:
    """One object for all jobs that come through it, so that it is a quick key."""

    names: frozenset[str] = frozenset()
    """Reservations that are open."""
    confined: bool = False
    """Only their nodes may be used."""


PUBLIC = Door()


class Reserved:
    def __init__(self, state: State, now: float) -> None:
        self._state = state
        self._now = now
        self._table = state.occupancy.table
        self._lasting = [each for each in state.reservations.values() if each.end > now]
        self._magnetic = [each for each in self._lasting if each.has(ReservationFlag.MAGNETIC)]
        self._doors: dict[tuple[frozenset[str], bool], Door] = {}
        self._closures: dict[Door, Closures] = {}

    @property
    def any(self) -> bool:
        return bool(self._lasting)

    def door(self, job: Job) -> Door:
        if not self._lasting:
            return PUBLIC
        if job.spec.reservation:
            reservation = entered(self._state, job, self._now)
            if reservation is None:
                return PUBLIC
            return self._door(frozenset({reservation.name}), confined=reservation.confines)
        open_to_it = [each.name for each in self._magnetic if may_use(self._state, each, job.spec)]
        if (spares := spares_for(self._state, job)) in self._state.reservations:
            open_to_it.append(spares)
        return self._door(frozenset(open_to_it)) if open_to_it else PUBLIC

    def _door(self, names: frozenset[str], *, confined: bool = False) -> Door:
        key = (names, confined)
        if key not in self._doors:
            self._doors[key] = Door(names, confined)
        return self._doors[key]

    def inside(self, door: Door) -> BoolArray | None:
        """The nodes to which the door leads; None: all."""
        if not door.confined:
            return None
        return self._table.mask([node for each in self._lasting if each.name in door.names for node in each.nodes])

    def until(self, door: Door) -> float:
        """When the door shuts: jobs of a reservation cannot start after its end."""
        ends = [each.end for each in self._lasting if each.name in door.names]
        return max(ends) if door.confined and ends else inf

    def closed(self, job: Job, begin: float, end: float) -> BoolArray:
        """The nodes that the job may not use during all of that time."""
        door = self.door(job)
        closures, inside = self.closures(door), self.inside(door)
        numbers = closures.during(begin, end)
        outside = self._table.mask(()) if inside is None else ~inside
        return outside | closures.mask(numbers) if numbers else outside

    def closures(self, door: Door) -> Closures:
        found = self._closures.get(door)
        if found is None:
            found = self._closures[door] = Closures(tuple(self._closed_to(door)))
        return found

    def _closed_to(self, door: Door) -> Iterator[Closure]:
        own = [each for each in self._lasting if each.name in door.names]
        maintains = any(each.has(ReservationFlag.MAINT) for each in own)
        for reservation in self._lasting:
            if reservation.name in door.names:
                continue
            if door.confined and (maintains or not reservation.has(ReservationFlag.MAINT)):
                continue
            mask = self._table.mask(reservation.nodes)
            for occurrence in islice(_occurrences(reservation), OCCURRENCES_SEEN):
                yield Closure(occurrence.begin, occurrence.end, mask)


def _occurrences(reservation: Reservation) -> Iterator[Reservation]:
    yield reservation
    while reservation.recurs:
        reservation = reservation.following()
        yield reservation
