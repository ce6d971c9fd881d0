"""What events do to services, revisions and replicas. The handlers are called by `apply` only.

Invariant: `State.serving` names the replicas that there are, and every service to which something happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model.serving.services import Health, Replica, Revision, RevisionLife, Service, ServiceLife
from bireme.core.services.amounts import bounds, first_wanted
from bireme.core.services.replica_jobs import end_command, submit_command
from bireme.core.state.state import State

KEPT_REVISIONS = 10
KEPT_CRASHES = 10
NOTHING: tuple[c.Command, ...] = ()


# -- services --------------------------------------------------------------------------------------------------------


def service_deployed(state: State, event: e.ServiceDeployed, at: float) -> Sequence[c.Command]:
    known = state.services.get(event.name)
    service = known or Service(event.name, event.owner, event.group_names, made_at=at)
    canary = service.serving is not None and event.spec.updating.canary_percent is not None
    phase = RevisionLife.CANARY if canary else RevisionLife.ROLLING
    if not canary:
        service.wanted, service.fixed = first_wanted(known, event.spec.scaling), False
        service.wanted_why = f"revision {event.number} asks for it"
    service.revisions[event.number] = Revision(
        event.number,
        event.spec,
        event.by,
        at,
        phase,
        progressed_at=at,
        key=event.key,
        from_nothing=_serves_nobody(service),
    )
    service.elsewhere = event.elsewhere
    state.services[service.name] = service
    _forget_oldest(service)
    return NOTHING


def _serves_nobody(service: Service) -> bool:
    """No replica of the revision that serves is there to stay: it has none to lose."""
    own = (each for each in service.replicas.values() if each.revision == service.current)
    return all(each.draining_since is not None for each in own)


def _forget_oldest(service: Service) -> None:
    """Only those that nothing is left of, and that nobody may go back to by itself."""
    used = {replica.revision for replica in service.replicas.values()}
    over = (RevisionLife.RETIRED, RevisionLife.FAILED)
    free = [number for number, each in sorted(service.revisions.items()) if each.phase in over and number not in used]
    for number in free[: max(0, len(service.revisions) - KEPT_REVISIONS)]:
        del service.revisions[number]


def service_scaled(state: State, event: e.ServiceScaled, at: float) -> Sequence[c.Command]:
    service = state.services[event.name]
    service.wanted, service.wanted_why, service.fixed = event.wanted, event.why, event.fixed
    return NOTHING


def service_stopping(state: State, event: e.ServiceStopping, at: float) -> Sequence[c.Command]:
    service = state.services[event.name]
    service.phase = ServiceLife.STOPPING
    service.wanted, service.wanted_why = 0, f"{event.by} stops it"
    return NOTHING


def service_removed(state: State, event: e.ServiceRemoved, at: float) -> Sequence[c.Command]:
    service = state.services.pop(event.name)
    assert not service.replicas, f"service {event.name} is removed with replicas"
    state.serving.due.pop(event.name, None)
    return NOTHING


def key_added(state: State, event: e.ServiceKeyAdded, at: float) -> Sequence[c.Command]:
    state.services[event.name].keys[event.key.id] = event.key
    return NOTHING


def key_revoked(state: State, event: e.ServiceKeyRevoked, at: float) -> Sequence[c.Command]:
    del state.services[event.name].keys[event.key_id]
    return NOTHING


# -- revisions -------------------------------------------------------------------------------------------------------


def revision_chosen(state: State, event: e.RevisionChosen, at: float) -> Sequence[c.Command]:
    service = state.services[event.name]
    chosen = service.revisions[event.number]
    service.revisions[event.number] = replace(
        chosen,
        phase=RevisionLife.ROLLING,
        progressed_at=at,
        backed_off=None,
        why="",
        one_by_one=False,
        from_nothing=_serves_nobody(service),
    )
    service.wanted, service.fixed = first_wanted(service, chosen.spec.scaling), False
    service.wanted_why = f"revision {event.number} asks for it"
    return NOTHING


def revision_shifted(state: State, event: e.RevisionShifted, at: float) -> Sequence[c.Command]:
    """Its replicas follow its part of the requests (`reconciling`)."""
    service = state.services[event.name]
    shifted = service.revisions[event.number]
    updating = replace(shifted.spec.updating, canary_percent=event.percent)
    service.revisions[event.number] = replace(shifted, spec=replace(shifted.spec, updating=updating))
    return NOTHING


def revision_settled(state: State, event: e.RevisionSettled, at: float) -> Sequence[c.Command]:
    service = state.services[event.name]
    settled = service.revisions[event.number]
    service.revisions[event.number] = replace(settled, phase=RevisionLife.SERVING, settled_at=at)
    service.current = event.number
    return NOTHING


def revision_retired(state: State, event: e.RevisionRetired, at: float) -> Sequence[c.Command]:
    service = state.services[event.name]
    retired = service.revisions[event.number]
    service.revisions[event.number] = replace(retired, phase=RevisionLife.RETIRED)
    _serve_on(service, retired)
    return NOTHING


def revision_failed(state: State, event: e.RevisionFailed, at: float) -> Sequence[c.Command]:
    service = state.services[event.name]
    failed = service.revisions[event.number]
    service.revisions[event.number] = replace(failed, phase=RevisionLife.FAILED, why=event.why)
    _serve_on(service, failed)
    return NOTHING


def _serve_on(service: Service, given_up: Revision) -> None:
    """As many replicas as the revision that serves allows: the number was the other's, unless somebody said it."""
    serving = service.serving
    if given_up.phase is not RevisionLife.ROLLING or serving is None or service.fixed:
        return
    least, most = bounds(serving.spec.scaling)
    service.wanted = max(least, min(service.wanted, most))
    service.wanted_why = f"revision {serving.number} serves on"


def revision_backed_off(state: State, event: e.RevisionBackedOff, at: float) -> Sequence[c.Command]:
    service = state.services[event.name]
    service.revisions[event.number] = replace(service.revisions[event.number], backed_off=event.back_off)
    return NOTHING


# -- replicas --------------------------------------------------------------------------------------------------------


def replica_added(state: State, event: e.ReplicaAdded, at: float) -> Sequence[c.Command]:
    service = state.services[event.name]
    replica = Replica(event.replica, event.revision, event.job_id, event.port, made_at=at, since=at)
    service.replicas[replica.number] = replica
    service.next_replica = max(service.next_replica, replica.number + 1)
    state.next_port = event.port + 1
    assert event.port not in state.serving.ports, f"port {event.port} is shared"
    state.serving.take_in(service, replica)
    return NOTHING if event.job_id else (submit_command(state, service, replica),)


def replica_queued(state: State, event: e.ReplicaQueued, at: float) -> Sequence[c.Command]:
    service = state.services[event.name]
    replica = replace(service.replicas[event.replica], job_id=event.job_id)
    service.replicas[event.replica] = replica
    state.serving.take_in(service, replica)
    return NOTHING


def replica_health_changed(state: State, event: e.ReplicaHealthChanged, at: float) -> Sequence[c.Command]:
    service = state.services[event.name]
    replica = service.replicas[event.replica]
    first = event.health is Health.READY and replica.ready_at is None
    service.replicas[event.replica] = replace(
        replica,
        health=event.health,
        since=at,
        why=event.why,
        address=event.address,
        ready_at=at if first else replica.ready_at,
    )
    revision = service.revisions[replica.revision]
    if first:
        service.revisions[replica.revision] = replace(revision, progressed_at=at)
    return NOTHING


def replica_draining(state: State, event: e.ReplicaDraining, at: float) -> Sequence[c.Command]:
    service = state.services[event.name]
    service.replicas[event.replica] = replace(service.replicas[event.replica], draining_since=at, drained_for=event.why)
    if event.room_for:
        service.revisions[event.room_for] = replace(service.revisions[event.room_for], one_by_one=True)
    return NOTHING


def replica_withdrawn(state: State, event: e.ReplicaWithdrawn, at: float) -> Sequence[c.Command]:
    service = state.services[event.name]
    service.replicas[event.replica] = replace(service.replicas[event.replica], withdrawn_at=at)
    return NOTHING


def replica_ending(state: State, event: e.ReplicaEnding, at: float) -> Sequence[c.Command]:
    service = state.services[event.name]
    replica = replace(service.replicas[event.replica], ending=True)
    service.replicas[event.replica] = replica
    return (end_command(service, replica),)


def replica_gone(state: State, event: e.ReplicaGone, at: float) -> Sequence[c.Command]:
    service = state.services[event.name]
    state.serving.let_go(service.replicas.pop(event.replica))
    if event.crash is not None:
        service.crashes = (*service.crashes, event.crash)[-KEPT_CRASHES:]
    return NOTHING
