"""Replicas that answer requests, on a virtual clock: queueing in front of the real autoscaler (`core/scaling`).

A replica works on up to `max_concurrency` requests at once, each for as long as it takes, whatever else it does; a
request goes to the ready replica with the fewest, or waits in order. When it is to go it gets no new ones. Which
replicas there are, and when they are ready, a `Fleet` says: one that always has room, or one on a cluster beside
training (`pool`). Nothing else is modelled: no network, no slower answers of a fuller replica, no failures.

Who calls it: `bireme sim serve`.
Invariant: every request is answered, refused, timed out or cut off, once.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from bireme.core.model.serving.scaling import Measure, Scaling, ScalingTarget
from bireme.core.model.serving.services import ServiceSpec
from bireme.core.scaling.advice import Advice, Kept
from bireme.core.scaling.advise import advise
from bireme.core.scaling.schedule import UtcOffset, utc
from bireme.core.scaling.seen import Seen
from bireme.core.scaling.targets import with_default_target
from bireme.core.scaling.wording import sentence
from bireme.sim.serving.fleet import Fleet, Unlimited
from bireme.sim.serving.traffic import Traffic

_WAITING = ("requests_waiting",)
_RUNNING = ("requests_running",)


class Unsimulated(ValueError):  # noqa: N818  (says what it is)
    """A policy that the model has no figures for."""


@dataclass(slots=True)
class Change:
    """One decision of the autoscaler."""

    at: float
    before: int
    after: int
    why: str


@dataclass(slots=True)
class _Replica:
    """One that is ready, or was and has requests left."""

    number: int
    in_flight: int = 0
    draining: bool = False


@dataclass(slots=True)
class Outcome:
    """What became of the requests, and what it cost."""

    waits: list[float] = field(default_factory=list)
    """Of every request that was answered."""
    arrived_at: list[float] = field(default_factory=list)
    """When these came."""
    refused: int = 0
    """The queue was full."""
    timed_out: int = 0
    cut_off: int = 0
    """In flight on a replica whose drain took too long."""
    cold_starts: int = 0
    """Times that a request found no replica at all, not even a loading one."""
    changes: list[Change] = field(default_factory=list)
    replica_seconds: float = 0.0
    """From the start of each replica to its end, loading included."""
    busy_seconds: float = 0.0
    """Work on requests, of all of them."""
    by_hour: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Replica-seconds, and the most replicas, in each hour."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a simulation is told besides its traffic."""

    load_s: float = 60.0
    """From a replica's start until it is ready."""
    begins_at: float = 0.0
    """The moment of the traffic's second 0, for schedules."""
    utc_offset: UtcOffset = utc
    replicas: int | None = None
    """At the beginning, ready; None: the policy's least."""


def simulate(spec: ServiceSpec, traffic: Traffic, conditions: Conditions, fleet: Fleet | None = None) -> Outcome:
    """Plays all requests; without a fleet there is always room. Raises Unsimulated."""
    return _Play(spec, traffic, conditions, fleet or Unlimited(conditions.load_s, spec.drain_s)).run()


class _Play:
    """One simulation; a second after the other, and within it request after request. A `Front`."""

    def __init__(self, spec: ServiceSpec, traffic: Traffic, conditions: Conditions, fleet: Fleet) -> None:
        self.policy: Scaling = with_default_target(spec.scaling, spec.routing.max_concurrency)
        self.figures = {target: _figure(target) for target in self.policy.targets if target.measure in _ASKED}
        self.spec, self.traffic, self.conditions, self.fleet = spec, traffic, conditions, fleet
        self.seen, self.kept = Seen(self.policy, self._moment(0.0)), Kept()
        self.outcome = Outcome()
        self.replicas: dict[int, _Replica] = {}
        self.ready: list[_Replica] = []
        """In the order in which they got ready; those that may have another request are chosen from these."""
        self.ends: list[tuple[float, int, float]] = []
        """(when, which replica, when it began) of requests in flight."""
        self.queue: deque[tuple[float, float]] = deque()
        self.due: float | None = 0.0
        self.wanted = self.policy.replicas_min if conditions.replicas is None else conditions.replicas
        self.held = 0.0
        """Request-seconds in flight or queued, in this second."""
        self.counted_at = 0.0

    def run(self) -> Outcome:
        self.fleet.begin(self, self.wanted)
        at, work = self.traffic.at.tolist(), self.traffic.work_s.tolist()
        position, second = 0, 0
        while position < len(at) or second < self.traffic.length_s or self.ends or self.queue:
            arrived, ends = 0, second + 1.0
            while position < len(at) and at[position] < ends:
                self._until(at[position])
                self._arrive(at[position], work[position])
                position, arrived = position + 1, arrived + 1
            self._until(ends)
            self._tell(ends, arrived)
            second += 1
            if second > self.traffic.length_s + self.spec.routing.queue_timeout_s + _PATIENCE_S:
                break  # nothing moves any more: a service that may have no replica at all
        self.outcome.timed_out += len(self.queue)
        self.fleet.end(float(second))
        self.outcome.replica_seconds = self.fleet.replica_seconds
        return self.outcome

    # -- requests ------------------------------------------------------------------------------------------------------

    def _arrive(self, now: float, work_s: float) -> None:
        self.seen.touch(self._moment(now))
        if not self.queue and (replica := self._free()) is not None:
            self._begin(replica, now, now, work_s)
            return
        if len(self.queue) >= self.spec.routing.queue_limit:
            self.outcome.refused += 1
            return
        self.queue.append((now, work_s))
        if not self.ready and not self.fleet.coming:
            self.outcome.cold_starts += 1
            self._scale(now)

    def _free(self) -> _Replica | None:
        most = self.spec.routing.max_concurrency
        least = min(self.ready, key=_in_flight, default=None)
        return least if least is not None and (most is None or least.in_flight < most) else None

    def _begin(self, replica: _Replica, now: float, came_at: float, work_s: float) -> None:
        replica.in_flight += 1
        self.outcome.waits.append(now - came_at)
        self.outcome.arrived_at.append(came_at)
        heapq.heappush(self.ends, (now + work_s, replica.number, now))

    def _dispatch(self, now: float) -> None:
        patience = self.spec.routing.queue_timeout_s
        while self.queue:
            came_at, work_s = self.queue[0]
            if now - came_at > patience:
                self.queue.popleft()
                self.outcome.timed_out += 1
                continue
            replica = self._free()
            if replica is None:
                return
            self.queue.popleft()
            self._begin(replica, now, came_at, work_s)

    def _until(self, now: float) -> None:
        """Everything that happens up to now: requests end, replicas get ready and go."""
        while True:
            first_end = self.ends[0][0] if self.ends else inf
            of_fleet = self.fleet.next_at()
            if min(first_end, of_fleet) > now:
                break
            if first_end <= of_fleet:
                self._count(first_end)
                self._finish()
                if self.queue:
                    self._dispatch(first_end)
            else:
                self._count(max(of_fleet, self.counted_at))
                self.fleet.step()
        self._count(now)

    def _finish(self) -> None:
        now, number, began_at = heapq.heappop(self.ends)
        self.outcome.busy_seconds += now - began_at
        replica = self.replicas[number]
        replica.in_flight -= 1
        if replica.draining and not replica.in_flight:
            del self.replicas[number]
            self.fleet.drained(number, now)

    # -- replicas: what the fleet says -----------------------------------------------------------------------------

    def is_ready(self, number: int, now: float) -> None:
        replica = self.replicas[number] = _Replica(number)
        self.ready.append(replica)
        if now >= 0.0:  # those of the beginning were there before, and nobody wanted them
            self.seen.touch(self._moment(now))  # from now on it can be asked, and may turn out idle
        self._dispatch(now)

    def drains(self, number: int, now: float) -> None:
        replica = self.replicas[number]
        self.ready.remove(replica)
        replica.draining = True
        if not replica.in_flight:
            del self.replicas[number]
            self.fleet.drained(number, now)

    def is_gone(self, number: int, now: float) -> None:
        replica = self.replicas.pop(number)
        if not replica.draining:
            self.ready.remove(replica)
        if not replica.in_flight:
            return
        self.outcome.cut_off += replica.in_flight
        self.outcome.busy_seconds += sum(now - began_at for _, which, began_at in self.ends if which == number)
        self.ends = [each for each in self.ends if each[1] != number]
        heapq.heapify(self.ends)

    def in_flight(self, number: int) -> int:
        return self.replicas[number].in_flight

    # -- the autoscaler ------------------------------------------------------------------------------------------------

    def _count(self, now: float) -> None:
        self.held += (now - self.counted_at) * (len(self.ends) + len(self.queue))
        self.counted_at = now

    def _tell(self, now: float, arrived: int) -> None:
        """At the end of every second: what the router would report, and what follows from it."""
        quiet = not arrived and not self.held
        self._hour(now)
        if quiet and (self.due is None or now < self.due):
            return
        moment = self._moment(now)
        if quiet:
            self.seen.no_requests(moment)
        else:
            self.seen.requests(moment - 0.5, 1.0, self.held, arrived)
        for target, figure in self.figures.items():
            self.seen.figure(target, moment - 0.5, figure(self))
        self.held = 0.0
        self._scale(now)

    def _scale(self, now: float) -> None:
        advice = self._ask(now)
        self.kept = advice.kept
        self.due = None if advice.next_change_at is None else advice.next_change_at - self.conditions.begins_at
        if advice.wanted == self.wanted:
            return
        change = Change(now, self.wanted, advice.wanted, sentence(advice.why))
        self.outcome.changes.append(change)
        self.wanted = advice.wanted
        self.fleet.scale_to(change.after, change.why, now)

    def _ask(self, now: float) -> Advice:
        if not self.ready and self.fleet.coming:
            self.seen.touch(self._moment(now))  # it is not idle while nobody could ask it anything
        return advise(
            self.policy,
            self.seen,
            ready=len(self.ready),
            wanted=self.wanted,
            now=self._moment(now),
            kept=self.kept,
            utc_offset=self.conditions.utc_offset,
        )

    def _hour(self, now: float) -> None:
        hour = int((now - 1.0) // 3600)
        seconds, most = self.outcome.by_hour.get(hour, (0.0, 0))
        self.outcome.by_hour[hour] = (seconds + self.fleet.count, max(most, self.fleet.count))

    def _moment(self, second: float) -> float:
        return self.conditions.begins_at + second


_PATIENCE_S = 86_400.0
_ASKED = (Measure.METRIC, Measure.QUERY)


def _in_flight(replica: _Replica) -> int:
    return replica.in_flight


def _figure(target: ScalingTarget) -> Callable[[_Play], float]:
    """What the model has for a metric: requests that wait, requests that are worked on."""
    if target.measure is Measure.METRIC and target.name.endswith(_WAITING):
        return lambda play: float(len(play.queue))
    if target.measure is Measure.METRIC and target.name.endswith(_RUNNING):
        return lambda play: float(len(play.ends))
    flag = "target" if target.measure is Measure.METRIC else "query"
    raise Unsimulated(
        f"--{flag} {target.name}: the simulator has no figures for it; of metrics it knows those whose name ends with "
        "requests_waiting or requests_running"
    )
