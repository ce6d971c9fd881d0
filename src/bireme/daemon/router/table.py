"""The routing table of `core/services` in the router's words.

Called by the daemon's link whenever something changed that `changes` names.
Invariant: a replica has the same id as long as it lives, and no other ever has it.
"""

from __future__ import annotations

from bireme.core.model.serving.services import Routing, ServiceKey
from bireme.core.services.routing_table import Endpoint, Routed, routing_table
from bireme.core.state.state import State
from bireme.router import messages


def services_of(state: State, *, in_pods: bool) -> tuple[messages.Service, ...]:
    """All services, by name. `in_pods`: which users' processes are in there is not known outside."""
    return tuple(_service(each, in_pods) for each in routing_table(state))


def replica_named(state: State, replica_id: str) -> tuple[str, int] | None:
    """The service and the number of a replica that the router names; None: it is gone."""
    job_id = replica_id.partition(".")[0]
    return state.serving.jobs.get(int(job_id)) if job_id.isdecimal() else None


def draining_replicas(state: State) -> dict[str, tuple[str, int]]:
    """Replicas that are to go and of which nobody has said yet that they get no more requests: service and number, by
    the id that the router has of each."""
    return {
        _id(job.id, job.generation): (service.name, replica.number)
        for service in state.services.values()
        for replica in service.replicas.values()
        if replica.draining_since is not None
        and replica.withdrawn_at is None
        and (job := state.jobs.get(replica.job_id)) is not None
    }


def _id(job_id: int, generation: int) -> str:
    return f"{job_id}.{generation}"


def _service(each: Routed, in_pods: bool) -> messages.Service:
    routing = each.routing
    as_whom = messages.ANYBODY if in_pods else each.uid
    return messages.Service(
        name=each.name,
        replicas=tuple(_replica(endpoint, as_whom) for endpoint in each.endpoints if endpoint.address),
        revision_weights=dict(each.weights),
        max_concurrency=routing.max_concurrency or 0,
        queue=routing.queue_limit,
        timeouts=_timeouts(routing),
        affinity_header=routing.affinity_header,
        affinity_cookie=routing.affinity_cookie,
        models=routing.models,
        hosts=routing.hosts,
        keys=tuple(map(_key, each.keys)),
        body_limit=routing.body_limit or 0,
        wakes=each.wakes,
        closed=each.closed,
        uid=each.uid,
    )


def _timeouts(routing: Routing) -> messages.Timeouts:
    return messages.Timeouts(
        connect_s=routing.connect_timeout_s,
        first_byte_s=routing.first_byte_timeout_s,
        idle_s=routing.idle_timeout_s,
        total_s=routing.total_timeout_s or 0.0,
        queue_s=routing.queue_timeout_s,
        wake_s=routing.queue_timeout_s,
    )


def _replica(endpoint: Endpoint, uid: int) -> messages.Replica:
    return messages.Replica(
        id=_id(endpoint.job_id, endpoint.generation),
        host=endpoint.address,
        port=endpoint.port,
        revision=endpoint.revision,
        state="draining" if endpoint.draining else "ready",
        uid=uid,
    )


def _key(key: ServiceKey) -> messages.Key:
    return messages.Key(
        id=key.id,
        sha256=key.digest,
        requests_per_minute=key.requests_per_minute or 0,
        concurrency=key.max_concurrency or 0,
    )
