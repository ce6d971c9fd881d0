"""Tells an engine with load balancers of its own (`ports.PublishesServices`) of services, whenever that changed.

Made by the daemon. Invariant: the engine hears every change, and nothing that is as it was.
"""

from __future__ import annotations

from collections.abc import Callable

from bireme.core.services.routing_table import routed
from bireme.core.state.state import State
from bireme.daemon.service_news import ServiceNews
from bireme.ports import PublishedService, PublishesServices
from bireme.runtime.service import Runtime


class Publisher:
    """Tells the engine of `runtime`, where it publishes services, from `begin` to `close`."""

    def __init__(self, runtime: Runtime, news: ServiceNews) -> None:
        self._runtime, self._news = runtime, news
        self._told: tuple[PublishedService, ...] | None = None
        self._leave: Callable[[], None] | None = None

    def begin(self) -> None:
        if self._engine is not None:
            self._leave = self._news.follow(lambda _: self._happened())
            self._tell(self._engine)

    def close(self) -> None:
        if self._leave is not None:
            self._leave()

    @property
    def _engine(self) -> PublishesServices | None:
        return self._runtime.engine.capabilities.publisher

    def _happened(self) -> None:
        if self._engine is not None:
            self._tell(self._engine)

    def _tell(self, engine: PublishesServices) -> None:
        services = published(self._runtime.state)
        if services != self._told:
            self._told = services
            engine.publish(services)


def published(state: State) -> tuple[PublishedService, ...]:
    """The services whose replicas this engine places; those in another's queue are not its own."""
    own = (service for _, service in sorted(state.services.items()) if not service.elsewhere)
    return tuple(PublishedService(routed(state, service), service.target.spec.job) for service in own)
