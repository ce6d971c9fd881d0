"""Times at which some nodes are closed: the reservations that a job may not use.

Made for one planning pass and one kind of job; the calendar asks it when it looks for a slot, the pass when it looks
at now. Invariant: a node is closed from `begin` until `end` to whoever would be there for any part of that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bireme.core.placement.table import BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class Closure:
    begin: float
    end: float
    nodes: BoolArray


@dataclass(slots=True, eq=False)
class Closures:
    entries: Sequence[Closure]
    _masks: dict[tuple[int, ...], BoolArray] = field(default_factory=dict)

    def during(self, begin: float, end: float) -> tuple[int, ...]:
        """Which of the entries touch that time."""
        return tuple(
            number for number, closure in enumerate(self.entries) if closure.begin < end and begin < closure.end
        )

    def mask(self, numbers: tuple[int, ...]) -> BoolArray:
        """The nodes that these entries close."""
        found = self._masks.get(numbers)
        if found is None:
            found = self._masks[numbers] = np.logical_or.reduce([self.entries[number].nodes for number in numbers])
        return found

    def ends(self) -> list[float]:
        return [closure.end for closure in self.entries]
