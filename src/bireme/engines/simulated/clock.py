"""A clock that stands still until told: now, and what is to happen later, in order of time and then of asking.

The simulated engine puts the ends of jobs here, workloads their submissions, fault worlds their faults; the simulator's
loop (`sim/world.py`) moves it. Invariant: time never goes back, and no action runs before its time.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

Action = Callable[[], None]


class VirtualClock:
    """A `ports.Clock`."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._agenda: list[tuple[float, int, Action]] = []
        self._asked = 0

    def now(self) -> float:
        return self._now

    @property
    def next_at(self) -> float | None:
        """When the next action is to run; None if nothing is planned."""
        return self._agenda[0][0] if self._agenda else None

    def call_at(self, at: float, action: Action) -> None:
        """Runs `action` when that time comes; at once, but not yet, if it is over."""
        self._asked += 1
        heappush(self._agenda, (max(at, self._now), self._asked, action))

    def advance(self, to: float) -> None:
        """Moves on; runs on the way what is due, also what these actions ask for."""
        assert to >= self._now, f"time cannot go back from {self._now} to {to}"
        while self._agenda and self._agenda[0][0] <= to:
            self._now, _, action = heappop(self._agenda)
            action()
        self._now = to
