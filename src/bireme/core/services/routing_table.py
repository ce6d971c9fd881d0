"""Where requests go: the state of all services as whoever routes has to know it. Pure; nobody is told here.

The daemon's link to the router asks after events that may change it, and tells the router when it did; an engine that
has load balancers of its own (Kubernetes) asks too. Invariant: who is in it can be reached, and answers or is drained.
"""

from __future__ import annotations

from dataclasses import dataclass

from bireme.core.model.serving.services import Health, RevisionLife, Routing, Service, ServiceKey, ServiceLife
from bireme.core.services.amounts import is_paused
from bireme.core.services.standing import Seen, Stand, standing
from bireme.core.state.state import State


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A replica that runs. One that is drained gets no new requests."""

    replica: int
    revision: int
    job_id: int
    generation: int
    node: str
    address: str
    """Where it answered its probes; empty: nobody said where."""
    port: int
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Routed:
    """One service, as its router sees it."""

    name: str
    uid: int
    """Whose it is, and as whom its replicas run."""
    endpoints: tuple[Endpoint, ...]
    weights: tuple[tuple[int, float], ...]
    """Parts of the requests by revision; empty: all replicas are alike."""
    routing: Routing
    keys: tuple[ServiceKey, ...]
    wakes: bool
    """A request to it when nobody is ready may wait: it is to have replicas, or would get some."""
    closed: str = ""
    """Of one that does not: why, as the end of a sentence that begins with its name."""


def routing_table(state: State) -> tuple[Routed, ...]:
    """All services, by their names."""
    return tuple(routed(state, service) for _, service in sorted(state.services.items()))


def routed(state: State, service: Service) -> Routed:
    seen = standing(state, service)
    spec = service.target.spec
    wakes = service.phase is ServiceLife.UP and not is_paused(service)
    return Routed(
        name=service.name,
        uid=service.owner.uid,
        endpoints=tuple(_endpoint(each) for each in seen if _answers(each)),
        weights=_weights(service),
        routing=spec.routing,
        keys=tuple(key for _, key in sorted(service.keys.items())),
        wakes=wakes,
        closed="" if wakes else _closed(service),
    )


def _closed(service: Service) -> str:
    """For whoever sends requests, from wherever: not who it was."""
    if service.phase is ServiceLife.STOPPING:
        return "is being stopped"
    return f"is scaled to 0 by hand: `bireme service scale {service.name} 1` starts it again"


def _answers(each: Seen) -> bool:
    """It is ready; or it is drained and was ready once: it may have requests to answer."""
    if each.replica.draining_since is None or each.unwritten:
        return each.ready
    return each.stand is Stand.RUNNING and each.replica.ready_at is not None and each.replica.health is not Health.DEAD


def _endpoint(each: Seen) -> Endpoint:
    replica, job = each.replica, each.job
    assert job is not None, "who runs has a job"
    draining = replica.draining_since is not None
    where = (each.node, replica.address, replica.port)
    return Endpoint(replica.number, replica.revision, job.id, job.generation, *where, draining)


def _weights(service: Service) -> tuple[tuple[int, float], ...]:
    canary = service.in_phase(RevisionLife.CANARY)
    percent = canary.spec.updating.canary_percent if canary is not None else None
    if canary is None or percent is None:
        return ()
    return ((service.current, 100.0 - percent), (canary.number, float(percent)))
