"""Where a simulated service's replicas come from: as many as are wanted at once, or those that a cluster has room for.

`Fleet` is what the model of requests (`model`) asks of them, `Front` what it is told. Here is the fleet that always has
room: a replica begins the moment it is wanted, and loads. The one on a cluster, beside training, is `pool`.
Times are seconds since the traffic's beginning.
Invariant: a replica is told ready at most once, and gone once if it was.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import inf
from typing import Protocol


class Front(Protocol):
    """Who sends requests to replicas."""

    def is_ready(self, number: int, now: float) -> None: ...

    def drains(self, number: int, now: float) -> None:
        """Gives a replica no more requests; when it has none left the fleet is told (`Fleet.drained`)."""

    def is_gone(self, number: int, now: float) -> None:
        """Notes that a replica is gone, with all requests that it still had."""

    def in_flight(self, number: int) -> int: ...


class Fleet(Protocol):
    @property
    def replica_seconds(self) -> float:
        """What replicas held up to now, from the traffic's beginning on, loading included."""

    @property
    def count(self) -> int:
        """Replicas that hold something now."""

    @property
    def coming(self) -> bool:
        """Whether some replica is to be ready later."""

    def begin(self, front: Front, wanted: int) -> None:
        """Begins with so many replicas ready, before the traffic."""

    def scale_to(self, wanted: int, why: str, now: float) -> None: ...

    def drained(self, number: int, now: float) -> None: ...

    def next_at(self) -> float:
        """When something happens next by itself; inf: nothing will."""

    def step(self) -> None:
        """Lets that happen."""

    def end(self, now: float) -> None:
        """The traffic is over, and what replicas held until now is counted."""


@dataclass(slots=True)
class _Replica:
    number: int
    began_at: float
    ready: bool = False
    draining: bool = False


class Unlimited:
    """A `Fleet` that never lacks room."""

    def __init__(self, load_s: float, drain_s: float) -> None:
        self._load_s, self._drain_s = load_s, drain_s
        self._replicas: dict[int, _Replica] = {}
        """In the order in which they began."""
        self._agenda: list[tuple[float, int]] = []
        """(when, which): one that loads gets ready, one that drains is ended."""
        self._next_number = 1
        self._front: Front
        self.replica_seconds = 0.0

    @property
    def count(self) -> int:
        return len(self._replicas)

    @property
    def coming(self) -> bool:
        return any(not each.ready for each in self._replicas.values())

    def begin(self, front: Front, wanted: int) -> None:
        self._front = front
        for _ in range(wanted):
            self._get_ready(self._start(0.0), 0.0)

    def scale_to(self, wanted: int, why: str, now: float) -> None:
        living = [each for each in self._replicas.values() if not each.draining]
        for _ in range(wanted - len(living)):
            heapq.heappush(self._agenda, (now + self._load_s, self._start(now).number))
        for _ in range(len(living) - wanted):
            leaves = self._dispensable(living)
            living.remove(leaves)
            if leaves.ready:
                self._drain(leaves, now)
            else:
                self._end(leaves, now)

    def drained(self, number: int, now: float) -> None:
        self._end(self._replicas[number], now)

    def next_at(self) -> float:
        while self._agenda and self._agenda[0][1] not in self._replicas:
            heapq.heappop(self._agenda)  # it ended before
        return self._agenda[0][0] if self._agenda else inf

    def step(self) -> None:
        now, number = heapq.heappop(self._agenda)
        replica = self._replicas.get(number)
        if replica is None:
            return
        if replica.draining:
            self._front.is_gone(number, now)
            self._end(replica, now)
        elif not replica.ready:
            self._get_ready(replica, now)

    def end(self, now: float) -> None:
        for replica in list(self._replicas.values()):
            self._end(replica, now)

    def _start(self, now: float) -> _Replica:
        replica = self._replicas[self._next_number] = _Replica(self._next_number, now)
        self._next_number += 1
        return replica

    def _get_ready(self, replica: _Replica, now: float) -> None:
        replica.ready = True
        self._front.is_ready(replica.number, now)

    def _dispensable(self, living: list[_Replica]) -> _Replica:
        """The one that would be ready last; if all are, the newest of those with the fewest requests."""
        loading = [each for each in living if not each.ready]
        if loading:
            return loading[-1]
        return min(reversed(living), key=lambda each: self._front.in_flight(each.number))

    def _drain(self, replica: _Replica, now: float) -> None:
        replica.draining = True
        heapq.heappush(self._agenda, (now + self._drain_s, replica.number))
        self._front.drains(replica.number, now)

    def _end(self, replica: _Replica, now: float) -> None:
        del self._replicas[replica.number]
        self.replica_seconds += now - replica.began_at
