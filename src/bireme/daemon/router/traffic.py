"""What services were asked in the last hour, in steps of ten seconds: kept for people who look, from the router's word.

The steward tells it every `Load`; `GET /v1/services/NAME/traffic` asks. Not in the journal and not in `series.db`: it
is gone with the daemon. Prometheus (`bireme_service_*`) is for whoever wants months.

Invariants: counters of the router only grow, so a smaller one is a new router's and counts from nothing; a service that
was there before this daemon heard of it counts from then on; no service costs more than `KEPT` steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bireme.router.messages import BUCKETS_S, Counts, Load, ServiceLoad

STEP_S = 10.0
KEPT = 360
_LATELY = 6
_SLOTS = len(BUCKETS_S) + 1
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(slots=True)
class _Step:
    """What came and ended within one step."""

    number: int
    arrived: int = 0
    refused: int = 0
    by_status: list[int] = field(default_factory=lambda: [0] * 5)
    slots: list[int] = field(default_factory=lambda: [0] * _SLOTS)
    """Ended requests, by the bucket of their time."""
    in_flight: int = 0
    """The most that was seen; so of `queued`."""
    queued: int = 0


@dataclass(slots=True)
class _Followed:
    before: ServiceLoad
    steps: deque[_Step] = field(default_factory=lambda: deque(maxlen=KEPT))


class Traffic:
    """By service, what the router counted since this daemon hears it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._services: dict[str, _Followed] = {}
        self._since: float | None = None
        """When the first word came: of services that are in it nobody knows what was new."""

    def load(self, load: Load) -> None:
        now, first = self._clock(), self._since is None
        self._since = now if self._since is None else self._since
        for told in load.services:
            followed = self._services.get(told.name)
            if followed is None:
                followed = self._services[told.name] = _Followed(told if first else ServiceLoad(name=told.name))
            _count(followed, told, int(now // STEP_S))
            followed.before = told
        names = {told.name for told in load.services}
        for name in [each for each in self._services if each not in names]:
            del self._services[name]

    def lately(self, name: str) -> Mapping[str, Any]:
        """What it was asked in the last minute of whole steps; empty where nothing was heard of it."""
        followed = self._services.get(name)
        if followed is None:
            return {}
        last = int(self._clock() // STEP_S)
        steps = [step for step in followed.steps if last - _LATELY <= step.number < last]
        slots = [sum(column) for column in zip(*(step.slots for step in steps))]
        return {
            "requests_s": sum(step.arrived for step in steps) / (_LATELY * STEP_S),
            "errors_s": sum(step.by_status[4] + step.refused for step in steps) / (_LATELY * STEP_S),
            "latency_p99_s": quantile(slots, QUANTILES["p99"]),
        }

    def told(self, name: str) -> Mapping[str, Any]:
        """Curves of the last hour, as `/v1/telemetry/series` has them; empty where nothing was heard of it."""
        followed = self._services.get(name)
        if followed is None or self._since is None:
            return {}
        last = int(self._clock() // STEP_S)
        first = max(last - KEPT + 1, int(self._since // STEP_S))
        by_number = {step.number: step for step in followed.steps}
        steps = [by_number.get(number) for number in range(first, last + 1)]
        return {
            "start": first * STEP_S,
            "end": (last + 1) * STEP_S,
            "step_s": STEP_S,
            "curves": list(_curves(steps)),
        }


def _count(followed: _Followed, told: ServiceLoad, number: int) -> None:
    if not followed.steps or followed.steps[-1].number != number:
        followed.steps.append(_Step(number))
    step, before = followed.steps[-1], followed.before
    step.arrived += _grown(before.arrived, told.arrived)
    step.refused += _grown(before.refused, told.refused)
    step.by_status = _added(step.by_status, before.counts.requests, told.counts.requests)
    step.slots = _added(step.slots, _slots(before.counts), _slots(told.counts))
    step.in_flight, step.queued = max(step.in_flight, told.in_flight), max(step.queued, told.queued)


def _grown(before: int, now: int) -> int:
    return now - before if now >= before else now


def _added(sums: Sequence[int], before: Sequence[int], now: Sequence[int]) -> list[int]:
    return [total + _grown(one, two) for total, one, two in zip(sums, before, now, strict=True)]


def _slots(counts: Counts) -> list[int]:
    """By bucket, where the router tells up to each bound."""
    upto = counts.latency or (0,) * _SLOTS
    return [each - below for each, below in zip(upto, (0, *upto), strict=False)]


def _curves(steps: Sequence[_Step | None]) -> Iterable[dict[str, Any]]:
    empty = _Step(0)
    known = [step or empty for step in steps]
    yield _curve("requests", "requests/s", [step.arrived / STEP_S for step in known])
    yield _curve("errors", "requests/s", [(step.by_status[4] + step.refused) / STEP_S for step in known])
    for name, part in QUANTILES.items():
        yield _curve(f"latency_{name}", "s", [quantile(step.slots, part) for step in known])
    yield _curve("in_flight", "requests", [float(step.in_flight) for step in known])
    yield _curve("queued", "requests", [float(step.queued) for step in known])


def _curve(metric: str, unit: str, values: Sequence[float | None]) -> dict[str, Any]:
    return {"metric": metric, "unit": unit, "mean": values}


def quantile(slots: Sequence[int], part: float) -> float | None:
    """The time within which this part of the requests ended, taken to be spread evenly over a bucket; None: none did.

    Of the last bucket, which has no end, its beginning.
    """
    total = sum(slots)
    if not total:
        return None
    wanted, below = part * total, 0
    for place, count in enumerate(slots):
        if count and below + count >= wanted:
            low = BUCKETS_S[place - 1] if place else 0.0
            high = BUCKETS_S[place] if place < len(BUCKETS_S) else low
            return low + (high - low) * (wanted - below) / count
        below += count
    return BUCKETS_S[-1]
