"""News of services: one look at every commit, for all in the daemon who follow services.

The daemon makes one; the router's steward, the load keeper, the publisher and the probes from outside follow it. Not
here: what any of them does about it. Invariant: after a commit each follower is told once, and only if some service,
one of its replicas or a replica's job may be another by it; also of a service that it has removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from bireme.core.model import events as e
from bireme.core.model.serving.events import is_of_service
from bireme.core.services.kind import JOB_EVENTS
from bireme.core.state.state import State


@dataclass(frozen=True, slots=True)
class News:
    """What a commit says of services."""

    names: frozenset[str]
    """Services that may be others now, or gone."""
    events: tuple[e.Recorded, ...]
    """Those of services themselves, in order; not those of their replicas' jobs."""

    def of_services(self) -> frozenset[str]:
        """Names of those about which something was said, not of their jobs alone."""
        return frozenset(_names(self.events))


Follower = Callable[[News], None]


class Cluster(Protocol):
    """What is asked of the runtime."""

    @property
    def state(self) -> State: ...

    def subscribe(self, subscriber: Callable[[Sequence[e.Recorded]], None]) -> Callable[[], None]: ...


class ServiceNews:
    """Follows the commits of `cluster` from `begin` to `close`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._followers: list[Follower] = []
        self._leave: Callable[[], None] = lambda: None

    def begin(self) -> None:
        self._leave = self._cluster.subscribe(self._committed)

    def close(self) -> None:
        self._leave()

    def follow(self, follower: Follower) -> Callable[[], None]:
        """Tells `follower` of every commit that was about services; returns the way out."""
        self._followers.append(follower)
        return lambda: self._followers.remove(follower)

    def _committed(self, events: Sequence[e.Recorded]) -> None:
        news = news_in(self._cluster.state, events)
        for follower in tuple(self._followers) if news.names else ():
            follower(news)


def news_in(state: State, events: Sequence[e.Recorded]) -> News:
    """`state`: as it is after them."""
    own = tuple(recorded for recorded in events if is_of_service(recorded.event))
    names = set(_names(own))
    if state.serving.jobs:
        changed = (recorded.event for recorded in events if type(recorded.event) in JOB_EVENTS)
        found = (state.serving.jobs.get(event.job_id) for event in changed)  # type: ignore[union-attr,arg-type]
        names.update(each[0] for each in found if each is not None)
    return News(frozenset(names), own)


def _names(events: Sequence[e.Recorded]) -> Iterator[str]:
    """Of the services that these events of services are about."""
    return (recorded.event.name for recorded in events if is_of_service(recorded.event))
