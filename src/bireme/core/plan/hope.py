"""Which waiting jobs a small change could let start: those that fit on a node where something came free.

A pass that goes on from an earlier one (`planner.plan`) asks this instead of testing the whole queue again. What a job
needs at least on any node is held against the nodes that were left since the last pass, now and until the next slot
there. No more than a necessary condition: whoever passes is tested properly. Jobs that wait for something else than
room (a limit, switches, a reservation's end) do not come here: they are looked at in every pass.
Invariant: a job that waits for room and is not hopeful could not start, because nothing that it could use came free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from bireme.core.calendar.calendar import Calendar
from bireme.core.model.cluster import PartitionConfig
from bireme.core.model.jobs import ResourceRequest
from bireme.core.placement.needs import Need
from bireme.core.placement.table import BoolArray, Free
from bireme.core.state.state import State

Shape = tuple[ResourceRequest, str]
"""A request in a partition."""
UsableNodes = Callable[[PartitionConfig], BoolArray]


@dataclass(slots=True)
class Waiting:
    """The jobs that wait for room, by shape, with how long each would run."""

    shapes: dict[Shape, dict[int, float]] = field(default_factory=dict)
    needs: dict[Shape, Need] = field(default_factory=dict)
    in_several: set[int] = field(default_factory=set)
    """Those of more than one shape: they may use several partitions."""
    _of_job: dict[int, list[Shape]] = field(default_factory=dict)

    def __contains__(self, job_id: int) -> bool:
        return job_id in self._of_job

    def __len__(self) -> int:
        return len(self._of_job)

    def add(self, job_id: int, shape: Shape, need: Need, duration_s: float) -> None:
        self.shapes.setdefault(shape, {})[job_id] = duration_s
        self.needs[shape] = need
        mine = self._of_job.setdefault(job_id, [])
        if shape not in mine:
            mine.append(shape)
            if len(mine) > 1:
                self.in_several.add(job_id)

    def remove(self, job_id: int) -> None:
        self.in_several.discard(job_id)
        for shape in self._of_job.pop(job_id, ()):
            del self.shapes[shape][job_id]
            if not self.shapes[shape]:
                del self.shapes[shape], self.needs[shape]

    def remove_all(self, job_ids: Iterable[int]) -> None:
        if self._of_job:
            for job_id in job_ids:
                self.remove(job_id)

    def shapes_of(self, job_id: int) -> list[Shape]:
        return self._of_job.get(job_id, [])


class Hope:
    """For one pass: the nodes where something came free, seen in the pass's draft."""

    def __init__(self, state: State, usable: UsableNodes, free: Free, calendar: Calendar, now: float) -> None:
        """`usable`: the nodes that jobs of a partition may use."""
        self._state = state
        self._usable_nodes = usable
        self._free = free
        self._calendar = calendar
        self._now = now
        self._usable: dict[str, list[int]] = {}
        """Of the nodes where something came free, those that jobs of a partition may use."""
        self._roomy: dict[Shape, list[int]] = {}
        """Those of them that still have what the shape needs, slots aside: within a pass there is only less."""
        self._found: set[int] = set()
        self.lost: set[int] = set()
        """Candidates whose turn need not come any more: nothing that they could use is left of what came free."""

    def candidates(self, waiting: Waiting, freed: set[int]) -> set[int]:
        """Jobs that fit on one of these nodes, and those with a slot there: their own may be in their way."""
        self._usable, self._roomy, self.lost = {}, {}, set()
        found = {booking.job_id for position in freed for booking in self._calendar.booked_on(position)}
        found = {job_id for job_id in found if job_id in waiting}
        for shape, jobs in waiting.shapes.items():
            if (name := shape[1]) not in self._usable:
                self._usable[name] = self._within(name, freed)
            longest = self._room_s(waiting.needs[shape], self._usable[name]) if self._usable[name] else -inf
            if longest > 0:
                found.update(job_id for job_id, duration_s in jobs.items() if duration_s <= longest)
        self._found = found
        return found

    def still(self, waiting: Waiting, job_id: int) -> bool:
        """Whether it fits there when its turn comes, its own slots aside: others may have started in this pass."""
        if self._free.fractions:
            return True  # parts of GPUs are not counted here
        settings, fits = self._state.config.settings, self._calendar.fits_without
        for shape in waiting.shapes_of(job_id):
            for position in self._with_room(waiting, shape):
                until = fits(waiting.needs[shape], settings, self._free, position, job_id)
                if until - self._now >= waiting.shapes[shape][job_id]:
                    return True
        return False

    def _within(self, name: str, freed: set[int]) -> list[int]:
        partition = self._state.partitions.get(name)
        if partition is None:
            return []
        usable = self._usable_nodes(partition)
        return [position for position in freed if usable[position]]

    def _with_room(self, waiting: Waiting, shape: Shape) -> list[int]:
        """Most hopes end here: whoever comes first takes what came free, and the next of the shape need not look."""
        nodes = self._roomy.get(shape)
        if nodes is None:
            nodes = self._usable.get(shape[1], [])
        if nodes:
            need, settings, has_room = waiting.needs[shape], self._state.config.settings, self._calendar.has_room
            nodes = self._roomy[shape] = [each for each in nodes if has_room(need, settings, self._free, each)]
        if not nodes:
            self.lost |= (self._found & waiting.shapes[shape].keys()) - waiting.in_several
        return nodes

    def _room_s(self, need: Need, freed: Sequence[int]) -> float:
        """The longest that something that needs so much could stay on one of these nodes; below 0: it fits on none."""
        if self._free.fractions:
            return inf  # parts of GPUs are not counted here
        settings, fits = self._state.config.settings, self._calendar.fits_until
        return max([fits(need, settings, self._free, position) for position in freed]) - self._now
