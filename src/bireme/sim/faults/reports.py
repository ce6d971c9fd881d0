"""What happens to reports on their way: delayed, doubled, overtaken by others, or said long after their time.

Between an engine and the kernel, where `core/lifecycle/intake` promises to bear all of it. Invariant: nothing is made
up and nothing is lost here; what is lost is lost on the way to the engine (`engines/simulated/crew`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from bireme.core.model.observations import NodeAnswered, NodeSilent, Observation
from bireme.engines.simulated.clock import VirtualClock

DELAYS_S = (0.1, 3.0, 60.0)
OVERTAKEN_S = 1.0
REMEMBERED = 500


class Garbler:
    def __init__(self, clock: VirtualClock, seed: str) -> None:
        self._clock = clock
        self._random = random.Random(seed)
        self._said: list[Observation] = []
        self.delayed = self.doubled = self.reordered = self.old = 0
        """How many of the next reports it happens to."""

    def stop(self) -> None:
        self.delayed = self.doubled = self.reordered = self.old = 0

    def carry(self, seen: Sequence[Observation], arrive: Callable[[Observation], None]) -> None:
        for observation in seen:
            self._carry(observation, arrive)

    def _carry(self, seen: Observation, arrive: Callable[[Observation], None]) -> None:
        if self.old and self._said:
            self.old -= 1
            arrive(self._random.choice(self._said))
        if isinstance(seen, NodeAnswered | NodeSilent):  # of this, engines speak in order
            arrive(seen)
            return
        self._said.append(seen)
        del self._said[:-REMEMBERED]
        if self.delayed:
            self.delayed -= 1
            self._after(self._random.choice(DELAYS_S), seen, arrive)
        elif self.reordered:
            self.reordered -= 1
            self._after(self._random.random() * OVERTAKEN_S, seen, arrive)
        else:
            arrive(seen)
        if self.doubled:
            self.doubled -= 1
            self._after(self._random.choice((0.0, *DELAYS_S)), seen, arrive)

    def _after(self, delay_s: float, seen: Observation, arrive: Callable[[Observation], None]) -> None:
        self._clock.call_at(self._clock.now() + delay_s, lambda: arrive(seen))
