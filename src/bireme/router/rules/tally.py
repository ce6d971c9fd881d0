"""Counting what became of requests: by status, by time, by bytes. Added up over workers by the supervisor.

Invariant: what was handed over with `take` is not counted again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from bireme.router.messages import BUCKETS_S, Counts

_SLOTS = len(BUCKETS_S) + 1


class Tally(msgspec.Struct, array_like=True):
    """Counted since the last `take`, or for ever."""

    requests: list[int] = msgspec.field(default_factory=lambda: [0] * 5)
    latency: list[int] = msgspec.field(default_factory=lambda: [0] * _SLOTS)
    latency_sum_s: float = 0.0
    ttfb: list[int] = msgspec.field(default_factory=lambda: [0] * _SLOTS)
    ttfb_sum_s: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0

    def ended(self, status: int, latency_s: float) -> None:
        self.requests[status // 100 - 1] += 1
        self.latency[bisect_left(BUCKETS_S, latency_s)] += 1
        self.latency_sum_s += latency_s

    def whole(self, status: int, seconds: float) -> None:
        """Began and ended at once."""
        slot = bisect_left(BUCKETS_S, seconds)
        self.requests[status // 100 - 1] += 1
        self.latency[slot] += 1
        self.latency_sum_s += seconds
        self.ttfb[slot] += 1
        self.ttfb_sum_s += seconds

    def began(self, ttfb_s: float) -> None:
        """The first byte of an answer came."""
        self.ttfb[bisect_left(BUCKETS_S, ttfb_s)] += 1
        self.ttfb_sum_s += ttfb_s

    def __bool__(self) -> bool:
        return any(self.requests) or bool(self.bytes_in or self.bytes_out) or any(self.ttfb)

    def add(self, other: Tally) -> None:
        self.requests = _summed(self.requests, other.requests)
        self.latency = _summed(self.latency, other.latency)
        self.ttfb = _summed(self.ttfb, other.ttfb)
        self.latency_sum_s += other.latency_sum_s
        self.ttfb_sum_s += other.ttfb_sum_s
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out

    def counts(self) -> Counts:
        """As the daemon and Prometheus read them: each bucket with all that are smaller."""
        return Counts(
            requests=tuple(self.requests),
            latency=tuple(accumulate(self.latency)) if any(self.latency) else (),
            latency_sum_s=self.latency_sum_s,
            ttfb=tuple(accumulate(self.ttfb)) if any(self.ttfb) else (),
            ttfb_sum_s=self.ttfb_sum_s,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
        )


def _summed(some: Sequence[int], others: Sequence[int]) -> list[int]:
    return [one + other for one, other in zip(some, others, strict=True)]


class Area:
    """How many were there on average: the area below a curve that steps up and down, without looking at it between."""

    __slots__ = ("_height", "_offset")

    def __init__(self) -> None:
        self._height = 0
        self._offset = 0.0

    def up(self, now: float) -> None:
        self._height += 1
        self._offset -= now

    def down(self, now: float) -> None:
        self._height -= 1
        self._offset += now

    def take(self, now: float) -> float:
        """The area since the last time that it was taken."""
        area = self._offset + self._height * now
        self._offset = -self._height * now
        return area
