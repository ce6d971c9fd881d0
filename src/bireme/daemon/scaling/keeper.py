"""Keeps what services have to do, asks the autoscaler, and has the runtime journal what follows: `ServiceScaled`.

The daemon makes it; the router's steward tells it loads and calls, and `bireme service show` asks it why. The rules are
`core/scaling`; here is only when to ask: a second after the last time while there is traffic, at once when somebody
waits for a service without replicas, and when an advice said that time alone may change it. Services whose number
cannot change (`--replicas 2`) are not looked at.

The router speaks while there is traffic, and once when it ends: silence means no requests as long as the link to it
stands, and nothing is known while it does not (`hears`).
Invariants: samples are never in the journal; only a change is; nothing here waits for a replica, Prometheus or the disk
but in tasks of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Protocol

from bireme.core.model import events as e
from bireme.core.model.refusals import Refusal
from bireme.core.model.serving.probes import Health
from bireme.core.model.serving.scaling import Scaling
from bireme.core.model.serving.services import Service, ServiceLife
from bireme.core.scaling.advice import Advice, Cause, Kept
from bireme.core.scaling.advise import advise
from bireme.core.scaling.schedule import UtcOffset
from bireme.core.scaling.seen import Seen
from bireme.core.scaling.targets import polled, with_default_target
from bireme.core.scaling.wording import because, counted
from bireme.core.services.amounts import autoscales
from bireme.core.services.requests import advised
from bireme.core.services.routing_table import routed
from bireme.core.services.standing import Stand, standing
from bireme.core.state.state import State
from bireme.daemon.scaling.polls import Polls
from bireme.daemon.service_news import News, ServiceNews
from bireme.ports import Clock, JournalError
from bireme.router import messages

log = logging.getLogger("bireme.daemon")

LOOK_S = 2.0
"""At the latest after so long: whether the link stands, and what is due."""
RETRY_S = 2.0
CAUSE = "autoscaler"
_LOADING = frozenset((Stand.STARTING, Stand.RUNNING))

Decide = Callable[[State, float], list[e.Event]]


class Cluster(Protocol):
    """What is asked of the runtime."""

    @property
    def state(self) -> State: ...

    @property
    def clock(self) -> Clock: ...

    async def do_all(
        self, cause: str, decides: Sequence[Decide], *, own: bool = False
    ) -> list[Sequence[e.Recorded] | Refusal]: ...


class _Watched:
    """One service, as far as its number of replicas goes."""

    __slots__ = ("advice", "busy", "due", "kept", "policy", "polls", "seen")

    def __init__(self, policy: Scaling, now: float) -> None:
        self.policy = policy
        self.seen = Seen(policy, now)
        self.kept = Kept()
        self.advice: Advice | None = None
        self.due: float = now
        self.busy = False
        """When the router last spoke of it, requests were there: what comes after is not silence."""
        self.polls: Polls | None = None

    def end(self) -> None:
        if self.polls is not None:
            self.polls.end()
            self.polls = None


class LoadKeeper:
    """`hears`: whether the link to the router stands. `prometheus`: where queries are asked; empty: nowhere."""

    def __init__(
        self,
        cluster: Cluster,
        news: ServiceNews,
        hears: Callable[[], bool],
        utc_offset: UtcOffset,
        prometheus: Callable[[], str] = str,
    ) -> None:
        self._cluster, self._news, self._hears = cluster, news, hears
        self._utc_offset, self._prometheus = utc_offset, prometheus
        self._watched: dict[str, _Watched] = {}
        self._heard_since: float | None = None
        """The link has stood without a break from then on."""
        self._called = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._leave: Callable[[], None] = lambda: None

    def begin(self) -> None:
        self._leave = self._news.follow(self._happened)
        for name in self._cluster.state.services:
            self._watch(name)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="autoscaler")

    async def close(self) -> None:
        self._leave()
        for watched in self._watched.values():
            watched.end()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    # -- what is told --------------------------------------------------------------------------------------------------

    def load(self, load: messages.Load) -> None:
        now = self._cluster.clock.now()
        self._listen(now)
        for told in load.services:
            watched = self._watched.get(told.name)
            if watched is None:
                continue
            held = told.concurrency + told.waiting
            self._fill(watched, now - load.seconds)
            watched.busy = bool(told.in_flight or told.queued)
            if told.rate or held or watched.busy:  # else it is silent, like the others: filled in when it is asked
                watched.seen.requests(now, load.seconds, held, told.rate)
                watched.due = now
        self._called.set()

    def wake(self, service: str) -> None:
        """A request waits for a service without a ready replica."""
        watched = self._watched.get(service)
        if watched is not None:
            watched.seen.touch(self._cluster.clock.now())
            self._ask_soon(watched)

    def _happened(self, news: News) -> None:
        for name in news.of_services():
            self._watch(name)
        for recorded in news.events:
            event = recorded.event
            if (
                isinstance(event, e.ReplicaHealthChanged)
                and event.health is Health.READY
                and event.name in self._watched
            ):
                self._watched[event.name].seen.touch(recorded.at)  # from now on it can be asked, and may turn out idle

    def _ask_soon(self, watched: _Watched) -> None:
        watched.due = self._cluster.clock.now()
        self._called.set()

    def _fill(self, watched: _Watched, until: float) -> None:
        """The router was silent of it up to then, which means that there were no requests."""
        if self._heard_since is not None and not watched.busy:
            watched.seen.no_requests(until, self._heard_since)

    def _listen(self, now: float) -> None:
        if not self._hears():
            self._heard_since = None
        elif self._heard_since is None:
            self._heard_since = now

    # -- who is watched ------------------------------------------------------------------------------------------------

    def _watch(self, name: str) -> None:
        """Something changed about it: its policy, its replicas, or that it is there."""
        service, watched = self._cluster.state.services.get(name), self._watched.get(name)
        if service is None or service.phase is ServiceLife.STOPPING or not autoscales(service.target.spec.scaling):
            if watched is not None:
                watched.end()
                del self._watched[name]
            return
        policy = with_default_target(service.target.spec.scaling, service.target.spec.routing.max_concurrency)
        if watched is None:
            watched = self._watched[name] = _Watched(policy, self._cluster.clock.now())
            self._poll(name, watched)
        elif policy != watched.policy:
            watched.policy = policy
            watched.seen.follow(policy)
            self._poll(name, watched)
        self._ask_soon(watched)

    def _poll(self, name: str, watched: _Watched) -> None:
        """Figures that have to be asked for, by the policy of now."""
        watched.end()
        if not polled(watched.seen.windows):
            return
        watched.polls = Polls(
            watched.seen, lambda: self._addresses(name), self._prometheus, lambda: self._cluster.clock.now()
        )
        watched.polls.told = lambda: self._ask_soon(watched)
        watched.polls.begin()

    def _addresses(self, name: str) -> list[str]:
        service = self._cluster.state.services.get(name)
        if service is None:
            return []
        ready = (each for each in routed(self._cluster.state, service).endpoints if not each.draining)
        return [
            f"[{each.address}]:{each.port}" if ":" in each.address else f"{each.address}:{each.port}" for each in ready
        ]

    # -- asking --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._next_look_s()):
                    await self._called.wait()
            self._called.clear()
            self._listen(self._cluster.clock.now())
            try:
                await self._ask_those_due()
            except JournalError as error:
                log.warning("how many replicas services need could not be written down: %s", error)
                await asyncio.sleep(RETRY_S)
            except Exception:  # a bug must not end the autoscaler of all services
                log.exception("the autoscaler failed, and goes on")
                await asyncio.sleep(RETRY_S)

    def _next_look_s(self) -> float | None:
        if not self._watched:
            return None
        first = min((each.due for each in self._watched.values()), default=inf)
        return min(max(first - self._cluster.clock.now(), 0.0), LOOK_S)

    async def _ask_those_due(self) -> None:
        state, now = self._cluster.state, self._cluster.clock.now()
        wishes: list[Decide] = []
        for name, watched in self._watched.items():
            service = state.services.get(name)
            if service is None or watched.due > now:
                continue
            if (wish := self._asked(state, service, watched, now)) is not None:
                wishes.append(wish)
        for answer in await self._cluster.do_all(CAUSE, wishes, own=True) if wishes else ():
            if isinstance(answer, Refusal):
                log.warning("the autoscaler's wish was refused: %s", answer)

    def _asked(self, state: State, service: Service, watched: _Watched, now: float) -> Decide | None:
        """Asks, and says when to ask again; what to do, if it is to have another number than it has."""
        self._fill(watched, now - 1.0)  # of the last second the router may not have told yet
        replicas = standing(state, service)
        ready = sum(each.ready for each in replicas)
        if not ready and any(each.lives and each.stand in _LOADING for each in replicas):
            watched.seen.touch(now)  # it is not idle while nobody could ask it anything: a model may load for long
        advice = advise(
            watched.policy,
            watched.seen,
            ready=ready,
            wanted=service.wanted,
            now=now,
            kept=Kept() if service.fixed else watched.kept,
            utc_offset=self._utc_offset,
        )
        watched.advice, watched.kept = advice, advice.kept
        watched.due = inf if advice.next_change_at is None else max(advice.next_change_at, now + 0.5)
        if advice.why.cause is Cause.MISSING:  # what is measured meanwhile in silence is told by nobody
            watched.due = min(watched.due, now + LOOK_S)
        if service.fixed or advice.wanted == service.wanted:
            return None
        name, wanted, why = service.name, advice.wanted, because(advice.why)
        return lambda newest, _: advised(newest, name, wanted, why)

    # -- telling -------------------------------------------------------------------------------------------------------

    def explained(self, name: str) -> dict[str, Any]:
        """What the autoscaler says of a service right now; empty: its number does not change by itself."""
        watched = self._watched.get(name)
        if watched is None or watched.advice is None:
            return {}
        why = watched.advice.why
        return {
            "wanted": why.wanted,
            "why": because(why),
            "cause": why.cause.value,
            "figures": [
                {
                    "counted": counted(each.target),
                    "target": each.target.value,
                    "stable": each.stable,
                    "burst": each.burst,
                    "needs": max(each.need, each.burst_need),
                    "missing": each.trouble,
                }
                for each in why.readings
            ],
            "next_change_at": watched.advice.next_change_at,
        }
