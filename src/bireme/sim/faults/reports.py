"""What happens to reports on their way: delayed, doubled, overtaken by others, or said long after their time.

Between an engine and the kernel, where `core/lifecycle/intake` promises to bear all of it. Invariant: nothing is made
up and nothing is lost here; what is lost is lost on the way to the engine (`engines/simulated/crew`).

Some order is kept, because no engine can break it. Whether a node is closed is said in order, and only while it is
true; so is what the probes of a replica say. What a node says that it holds comes after all that was said before.
A start of which the node said that it has begun, and then that it has never heard of it, is lost; the other way round
it is about to begin.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from bireme.core.model.observations import NodeAnswered, NodeClosed, NodeSilent, Observation, ReplicaProbed
from bireme.engines.simulated.clock import VirtualClock

DELAYS_S = (0.1, 3.0, 60.0)
OVERTAKEN_S = 1.0
REMEMBERED = 500


class Garbler:
    def __init__(self, clock: VirtualClock, seed: str) -> None:
        self._clock = clock
        self._random = random.Random(seed)
        self._said: list[Observation] = []
        self._late: dict[int, Callable[[], None]] = {}
        """What is still on its way for the first time."""
        self._asked = 0
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
        if isinstance(seen, NodeClosed | ReplicaProbed):
            arrive(seen)
            return
        if isinstance(seen, NodeAnswered | NodeSilent):
            self._catch_up()
            arrive(seen)
            return
        self._said.append(seen)
        del self._said[:-REMEMBERED]
        if self.delayed:
            self.delayed -= 1
            self._come_late(self._random.choice(DELAYS_S), partial(arrive, seen))
        elif self.reordered:
            self.reordered -= 1
            self._come_late(self._random.random() * OVERTAKEN_S, partial(arrive, seen))
        else:
            arrive(seen)
        if self.doubled:
            self.doubled -= 1
            self._after(self._random.choice((0.0, *DELAYS_S)), partial(arrive, seen))

    def _come_late(self, delay_s: float, come: Callable[[], None]) -> None:
        self._asked += 1
        self._late[self._asked] = come
        self._after(delay_s, partial(self._comes, self._asked))

    def _comes(self, number: int) -> None:
        come = self._late.pop(number, None)
        if come is not None:
            come()

    def _catch_up(self) -> None:
        for number in list(self._late):
            self._comes(number)

    def _after(self, delay_s: float, come: Callable[[], None]) -> None:
        self._clock.call_at(self._clock.now() + delay_s, come)
