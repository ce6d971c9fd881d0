"""Replicas that answer requests, on a virtual clock: queueing in front of the real autoscaler (`core/scaling`).

A replica loads for a while, then works on up to `max_concurrency` requests at once, each for as long as it takes,
whatever else it does; a request goes to the ready replica with the fewest, or waits in order. When it is to go it gets
no new ones. Nothing else is modelled: no network, no slower answers of a fuller replica, no failures.

Who calls it: `bireme sim serve`.
Invariant: every request is answered, refused, timed out or cut off, once.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from bireme.core.model.serving.scaling import Measure, Scaling, ScalingTarget
from bireme.core.model.serving.services import ServiceSpec
from bireme.core.scaling.advice import Advice, Kept
from bireme.core.scaling.advise import advise
from bireme.core.scaling.schedule import UtcOffset, utc
from bireme.core.scaling.seen import Seen
from bireme.core.scaling.targets import with_default_target
from bireme.core.scaling.wording import sentence
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
    number: int
    began_at: float
    ready_at: float
    in_flight: int = 0
    draining_since: float | None = None


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


def simulate(spec: ServiceSpec, traffic: Traffic, conditions: Conditions) -> Outcome:
    """Plays all requests. Raises Unsimulated."""
    return _Play(spec, traffic, conditions).run()


class _Play:
    """One simulation; a second after the other, and within it request after request."""

    def __init__(self, spec: ServiceSpec, traffic: Traffic, conditions: Conditions) -> None:
        self.policy: Scaling = with_default_target(spec.scaling, spec.routing.max_concurrency)
        self.figures = {target: _figure(target) for target in self.policy.targets if target.measure in _ASKED}
        self.spec, self.traffic, self.conditions = spec, traffic, conditions
        self.seen, self.kept = Seen(self.policy, self._moment(0.0)), Kept()
        self.outcome = Outcome()
        self.replicas: dict[int, _Replica] = {}
        self.ready: list[_Replica] = []
        """In the order of their numbers; those that may have another request are chosen from these."""
        self.loading: list[tuple[float, int]] = []
        self.ends: list[tuple[float, int, float]] = []
        """(when, which replica, when it began) of requests in flight."""
        self.queue: deque[tuple[float, float]] = deque()
        self.next_number = 1
        self.due: float | None = 0.0
        self.wanted = self.policy.replicas_min if conditions.replicas is None else conditions.replicas
        self.held = 0.0
        """Request-seconds in flight or queued, in this second."""
        self.counted_at = 0.0

    def run(self) -> Outcome:
        for _ in range(self.wanted):
            self._start(0.0, load_s=0.0)
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
        for replica in list(self.replicas.values()):
            self._end(replica, float(second))
        self.outcome.timed_out += len(self.queue)
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
        if not self.ready and not self.loading:
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
        """Everything that happens up to now: requests end, replicas get ready."""
        while True:
            first_end = self.ends[0][0] if self.ends else now + 1.0
            first_ready = self.loading[0][0] if self.loading else now + 1.0
            if min(first_end, first_ready) > now:
                break
            if first_ready <= first_end:
                self._count(first_ready)
                self._get_ready()
                self._dispatch(first_ready)
            else:
                self._count(first_end)
                self._finish()
                if self.queue:
                    self._dispatch(first_end)
        self._count(now)

    def _finish(self) -> None:
        now, number, began_at = heapq.heappop(self.ends)
        self.outcome.busy_seconds += now - began_at
        replica = self.replicas.get(number)
        if replica is None:
            return  # cut off before
        replica.in_flight -= 1
        if replica.draining_since is not None and not replica.in_flight:
            self._end(replica, now)

    # -- replicas ------------------------------------------------------------------------------------------------------

    def _start(self, now: float, load_s: float) -> None:
        replica = _Replica(self.next_number, now, now + load_s)
        self.next_number += 1
        self.replicas[replica.number] = replica
        if load_s:
            heapq.heappush(self.loading, (replica.ready_at, replica.number))
        else:
            self.ready.append(replica)

    def _get_ready(self) -> None:
        _, number = heapq.heappop(self.loading)
        self.ready.append(self.replicas[number])

    def _end(self, replica: _Replica, now: float) -> None:
        del self.replicas[replica.number]
        self.outcome.replica_seconds += now - replica.began_at

    def _scale_to(self, wanted: int, now: float) -> None:
        for _ in range(wanted - len(self.ready) - len(self.loading)):
            self._start(now, self.conditions.load_s)
        for _ in range(len(self.ready) + len(self.loading) - wanted):
            if self.loading:  # the one that would be ready last
                last = max(self.loading)
                self.loading.remove(last)
                heapq.heapify(self.loading)
                self._end(self.replicas[last[1]], now)
            else:
                self._drain(min(reversed(self.ready), key=_in_flight), now)

    def _drain(self, replica: _Replica, now: float) -> None:
        self.ready.remove(replica)
        replica.draining_since = now
        if not replica.in_flight:
            self._end(replica, now)

    def _cut_off(self, now: float) -> None:
        for replica in list(self.replicas.values()):
            if replica.draining_since is not None and now - replica.draining_since >= self.spec.drain_s:
                self.outcome.cut_off += replica.in_flight
                self._end(replica, now)

    # -- the autoscaler ------------------------------------------------------------------------------------------------

    def _count(self, now: float) -> None:
        self.held += (now - self.counted_at) * (len(self.ends) + len(self.queue))
        self.counted_at = now

    def _tell(self, now: float, arrived: int) -> None:
        """At the end of every second: what the router would report, and what follows from it."""
        quiet = not arrived and not self.held
        self._cut_off(now)
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
        if advice.wanted != self.wanted:
            self.outcome.changes.append(Change(now, self.wanted, advice.wanted, sentence(advice.why)))
        self.wanted, self.kept = advice.wanted, advice.kept
        self.due = None if advice.next_change_at is None else advice.next_change_at - self.conditions.begins_at
        self._scale_to(self.wanted, now)
        if self.queue and self.ready:
            self._dispatch(now)

    def _ask(self, now: float) -> Advice:
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
        self.outcome.by_hour[hour] = (seconds + len(self.replicas), max(most, len(self.replicas)))

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
