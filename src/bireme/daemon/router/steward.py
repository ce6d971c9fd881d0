"""Stands between the runtime and the router: changes of services out, what the router sees of them in.

Made by the daemon. Who keeps the load (autoscaling) is told of it through a port of its own, and may be missing.
Invariant: nothing here decides anything about a service, and nothing waits for the router.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from typing import Protocol

from bireme.core.model.observations import ReplicaDrained, ReplicaWithdrawn
from bireme.daemon.router.link import RouterLink, summary, url_of
from bireme.daemon.router.process import RouterPlan
from bireme.daemon.router.table import draining_replicas, replica_named, services_of
from bireme.daemon.router.traffic import Traffic
from bireme.daemon.service_news import ServiceNews
from bireme.router import messages
from bireme.runtime.service import Runtime

log = logging.getLogger("bireme.daemon")


class LoadKeeper(Protocol):
    """Who follows what services have to do."""

    def load(self, load: messages.Load) -> None:
        """Once a second while there is any of it."""

    def wake(self, service: str) -> None:
        """A request waits for a service without a ready replica."""


class RouterSteward:
    """`plan`: what a router is to be, by the settings in force."""

    def __init__(self, runtime: Runtime, news: ServiceNews, plan: Callable[[], RouterPlan], version: str) -> None:
        self._runtime, self._news = runtime, news
        self.keeper: LoadKeeper | None = None
        self.traffic = Traffic(runtime.clock.now)
        self._link = RouterLink(plan, self._services, self, f"bireme {version}")
        self._leaves: list[Callable[[], None]] = []

    def _services(self) -> tuple[messages.Service, ...]:
        return services_of(self._runtime.state, in_pods=self._runtime.engine.capabilities.pods is not None)

    def begin(self) -> None:
        self._leaves.append(self._news.follow(lambda _: self._link.changed()))
        self._leaves.append(self._runtime.watch_journal(self._link.changed))
        self._link.begin()

    async def close(self) -> None:
        """The router goes on without this daemon."""
        self._leave()
        await self._link.close()

    async def end(self) -> None:
        """The router ends too."""
        self._leave()
        await self._link.end()

    def _leave(self) -> None:
        while self._leaves:
            self._leaves.pop()()

    def reconsider(self) -> None:
        """The settings may be others now."""
        self._link.reconsider()

    def routes(self, name: str) -> bool:
        """Whether the router is known to go by a table that has this service."""
        return self._link.routes(name)

    @property
    def summary(self) -> dict[str, str | int]:
        """Of the router: `url`, `pid`, `problem`, `warning`; nothing of what is not."""
        return summary(self._link)

    @property
    def url(self) -> str:
        """Where it listens; empty: there is none, or it does not answer."""
        return url_of(self._link.welcome) if self._link.welcome is not None else ""

    # --- what the router tells -----------------------------------------------------------------------------

    def routed(self, replicas: Container[str]) -> None:
        """Those that are to go, and that nobody sends requests any more, may be ended."""
        now = self._runtime.clock.now()
        leaving = draining_replicas(self._runtime.state)
        gone = [key for named, key in leaving.items() if named not in replicas]
        if gone:
            self._runtime.report([ReplicaWithdrawn(*key, now) for key in gone])

    def load(self, load: messages.Load) -> None:
        self.traffic.load(load)
        if self.keeper is not None:
            self.keeper.load(load)

    def wake(self, service: str) -> None:
        if self.keeper is not None:
            self.keeper.wake(service)

    def drained(self, replica: str) -> None:
        found = replica_named(self._runtime.state, replica)
        if found is not None:
            self._runtime.report([ReplicaDrained(*found, self._runtime.clock.now())])

    def trouble(self, told: messages.Trouble) -> None:
        """Its probes will tell what it is; the router has sent the request elsewhere, where that was safe."""
        log.warning("service %s: replica %s: %s", told.service, told.replica, told.why)
