"""What people ask of services: deploy, scale, stop, restart, roll back, promote, shift a canary, and keys.

Each function checks the caller's right and returns events, or raises Refusal. What follows from a wish (which replicas
start and end) is decided by `reconciling`, in the same turn. Invariant: a service is its owner's and the operators'.
"""

from __future__ import annotations

from dataclasses import replace

from bireme.core.jobs.rights import within_rights
from bireme.core.jobs.submission import admitted, owner_for
from bireme.core.model import events as e
from bireme.core.model.jobs import Dependencies, JobKind, Owner
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.model.serving.names import LONGEST_NAME, RESERVED, is_path, is_service_name
from bireme.core.model.serving.probes import ReplicaOf
from bireme.core.model.serving.services import (
    ROLLED_BACK,
    Revision,
    RevisionLife,
    Service,
    ServiceKey,
    ServiceLife,
    ServiceSpec,
)
from bireme.core.scaling.checking import MOST_REPLICAS, problems
from bireme.core.services.addresses import count_of_names, wrong_routing
from bireme.core.services.amounts import autoscales, bounds, first_wanted, leeway
from bireme.core.services.pool import in_pool
from bireme.core.services.replica_jobs import owner_of
from bireme.core.state.state import State

MOST_OF_A_USER = 100
"""Services that one user may have, unless an operator makes them."""
MOST_NAMES_OF_A_USER = 256
"""Hosts and models of all services of one user."""
MOST_KEYS = 1_000
SHOWN_KEYS = 5


def find(state: State, name: str) -> Service:
    service = state.services.get(name)
    if service is None:
        raise Refusal(Why.INVALID_SERVICE, f"there is no service {name[:100]!r}; `bireme services` lists them")
    return service


def owned(state: State, caller: Caller, name: str, *, stopping: bool = False) -> Service:
    """The service, if it is the caller's to change. `stopping`: also while it is being stopped."""
    service = find(state, name)
    if not caller.may_change(service.owner.uid):
        raise Refusal(Why.ACCESS_DENIED, f"service {name} is {service.owner.user}'s")
    if service.phase is ServiceLife.STOPPING and not stopping:
        raise Refusal(Why.SERVICE_STOPPING, f"service {name} is being stopped: it can be made again when it is gone")
    return service


# -- deploy ----------------------------------------------------------------------------------------------------------


def deploy(
    state: State, caller: Caller, spec: ServiceSpec, now: float, *, elsewhere: bool = False, key: str = ""
) -> list[e.Event]:
    """A new service, or the next revision of the caller's own. `elsewhere`: its replicas go into the engine's queue.

    `key`: what made a revision of it before under the same key makes no other: it was sent twice.
    """
    _check_name(spec.name)
    known = owned(state, caller, spec.name) if spec.name in state.services else None
    if known is not None and key and any(each.key == key for each in known.revisions.values()):
        return []
    _check_spec(state, spec)
    owner = known.owner if known is not None else owner_for(caller, spec.job)
    if not caller.admin:
        if known is None:
            _check_count(state, owner)
        _check_names(state, owner, spec)
    job = within_rights(caller, spec.job).revised(owner=owner)
    pool: list[e.Event] = []
    if not elsewhere:
        replica = ReplicaOf(spec.name, 1, 1, 0, spec.probes)  # any: what replicas may ask for is no batch job's
        admitted(state, owner_of(known) if known is not None else caller, job.revised(replica=replica))
        job, pool = in_pool(state, job)
    groups = known.group_names if known is not None else caller.group_names
    under_way = _superseded(known) if known is not None else []
    return [*pool, *under_way, _deployed(known, replace(spec, job=job), caller, groups, elsewhere, key)]


def _check_count(state: State, owner: Owner) -> None:
    """Each service may start a replica at once, before which batch makes way."""
    if sum(each.owner.uid == owner.uid for each in state.services.values()) >= MOST_OF_A_USER:
        hint = f"{owner.user} has {MOST_OF_A_USER} services, the most a user may have: stop one (bireme service stop)"
        raise Refusal(Why.TOO_MANY_SERVICES, hint)


def _check_names(state: State, owner: Owner, spec: ServiceSpec) -> None:
    """Nobody else can have a host name or a model's that somebody has."""
    others = [each for each in state.services.values() if each.owner.uid == owner.uid and each.name != spec.name]
    if count_of_names(spec.routing, others) > MOST_NAMES_OF_A_USER:
        hint = f"{owner.user}'s services would have more than {MOST_NAMES_OF_A_USER} --host and --model together"
        raise Refusal(Why.TOO_MANY_SERVICES, f"{hint}, the most a user may have: name fewer, or stop one")


def _deployed(
    known: Service | None,
    spec: ServiceSpec,
    caller: Caller,
    group_names: tuple[str, ...],
    elsewhere: bool,
    key: str = "",
) -> e.ServiceDeployed:
    number = max(known.revisions) + 1 if known is not None else 1
    return e.ServiceDeployed(spec.name, number, spec, spec.job.owner, group_names, caller.user, elsewhere, key)


def _superseded(service: Service) -> list[e.Event]:
    """Revisions on their way that a new one takes the place of."""
    under_way = (service.in_phase(phase) for phase in (RevisionLife.ROLLING, RevisionLife.CANARY))
    return [e.RevisionRetired(service.name, each.number) for each in under_way if each is not None]


def _check_name(name: str) -> None:
    if name in RESERVED:
        raise Refusal(Why.INVALID_SERVICE_SPEC, f"{name!r} is a part of the router's addresses: choose another name")
    if not is_service_name(name):
        shown = name[:80]
        hint = f"{shown!r} cannot be a service's name: small letters, digits and - inside, at most {LONGEST_NAME}"
        raise Refusal(Why.INVALID_SERVICE_SPEC, hint)


def _check_spec(state: State, spec: ServiceSpec) -> None:
    of_itself = (_wrong_scaling(spec), _wrong_updating(spec), _wrong_job(spec), _wrong_probes(spec))
    for wrong in (*of_itself, wrong_routing(state, spec)):
        if wrong:
            raise Refusal(Why.INVALID_SERVICE_SPEC, wrong)


def _wrong_scaling(spec: ServiceSpec) -> str:
    return "; ".join(problems(spec.scaling))


def _wrong_updating(spec: ServiceSpec) -> str:
    updating = spec.updating
    if updating.surge.number < 0 or updating.unavailable.number < 0:
        return "--surge and --unavailable may not be below 0"
    if not updating.surge.number and not updating.unavailable.number:
        return "--surge and --unavailable may not both be 0: nothing could ever be replaced"
    if updating.unavailable.percent and updating.unavailable.number > 100:
        return f"--unavailable={updating.unavailable.number}%: at most 100%"
    if updating.ready_within_s <= 0 or spec.drain_s < 0:
        return "the time to get ready and the time to drain may not be below 0"
    percent = updating.canary_percent
    if percent is not None and not 1 <= percent <= 99:
        return f"--canary={percent}%: between 1% and 99%"
    most = bounds(spec.scaling)[1]
    if percent is not None and most + leeway(updating, most).surge < 2:
        return "--canary needs room for two replicas: say --surge=1, or more --replicas"
    return ""


def _wrong_job(spec: ServiceSpec) -> str:
    job = spec.job
    if job.kind is not JobKind.BATCH:
        return "a service is made of a batch script"
    if job.array is not None:
        return "a service cannot be an array: say --replicas"
    if job.dependencies != Dependencies():
        return "a service waits for no other jobs: leave --dependency out"
    if job.begin_at is not None or job.deadline_at is not None or job.hold:
        return "a service begins at once and stays: leave --begin, --deadline and --hold out"
    if job.het_component is not None:
        return "a service's replicas are ordinary jobs, not heterogeneous ones"
    return ""


def _wrong_probes(spec: ServiceSpec) -> str:
    for probe in (spec.probes.startup, spec.probes.readiness, spec.probes.liveness):
        if probe is None:
            continue
        if probe.path and probe.command:
            return "a probe asks a path or runs a command, not both"
        if probe.path and not is_path(probe.path):
            return f"a probe's path begins with / and has no spaces: {probe.path[:80]!r} is none"
        if probe.period_s <= 0 or probe.timeout_s <= 0 or probe.initial_delay_s < 0:
            return "a probe's period and timeout are above 0"
        if probe.success_threshold < 1 or probe.failure_threshold < 1:
            return "a probe's thresholds are 1 at least"
    return ""


# -- scale, stop, restart --------------------------------------------------------------------------------------------


def scale(state: State, caller: Caller, name: str, wanted: int) -> list[e.Event]:
    """Gives a service so many replicas from now on, whatever the load, until the next revision."""
    service = owned(state, caller, name)
    scaling = service.target.spec.scaling
    most = bounds(scaling)[1] if autoscales(scaling) else MOST_REPLICAS
    if not 0 <= wanted <= most:
        hint = f"service {name} can have 0 to {most} replicas, not {wanted}"
        more = f"; more with its next revision: bireme serve SCRIPT --replicas {scaling.replicas_min}-{wanted}"
        raise Refusal(Why.INVALID_REPLICA_COUNT, hint + (more if most < wanted <= MOST_REPLICAS else ""))
    return [e.ServiceScaled(name, wanted, f"scaled to {wanted} by {caller.user}", fixed=True)]


def unfix(state: State, caller: Caller, name: str) -> list[e.Event]:
    """Has a service as many replicas as the load needs, again; where nothing is measured, as many as were asked for."""
    service = owned(state, caller, name)
    if not service.fixed:
        return []
    wanted = first_wanted(service, service.target.spec.scaling)
    return [e.ServiceScaled(name, wanted, f"{caller.user} lets the load decide again")]


def advised(state: State, name: str, wanted: int, why: str) -> list[e.Event]:
    """What the autoscaler says: nothing where somebody said how many, or nothing would change."""
    service = state.services.get(name)
    if service is None or service.phase is ServiceLife.STOPPING or service.fixed:
        return []
    least, most = bounds(service.target.spec.scaling)
    wanted = max(least, min(wanted, most))
    return [] if wanted == service.wanted else [e.ServiceScaled(name, wanted, why)]


def stop(state: State, caller: Caller, name: str) -> list[e.Event]:
    """Stops a service: its replicas are drained and ended, and it is forgotten. Once more: nothing further."""
    service = owned(state, caller, name, stopping=True)
    return [] if service.phase is ServiceLife.STOPPING else [e.ServiceStopping(name, caller.user)]


def restart(state: State, caller: Caller, name: str) -> list[e.Event]:
    """Every replica is replaced, as by a new revision, which it is."""
    service = owned(state, caller, name)
    spec = service.target.spec
    spec = replace(spec, updating=replace(spec.updating, canary_percent=None))
    again = _deployed(service, spec, caller, service.group_names, service.elsewhere)
    return [*_superseded(service), again]


# -- rollback and promote --------------------------------------------------------------------------------------------


def rollback(state: State, caller: Caller, name: str, to: int | None = None) -> list[e.Event]:
    """What is on its way is given up; or, if nothing is, the revision that served before comes back (or `to`).

    Without a number it never goes forward: a second one does not undo the first.
    """
    service = owned(state, caller, name)
    under_way = service.in_phase(RevisionLife.ROLLING) or service.in_phase(RevisionLife.CANARY)
    if to is None and under_way is not None:
        return _turned_back(service, under_way, caller)
    chosen = _earlier(service) if to is None else service.revisions.get(to)
    if chosen is None:
        raise _no_such(service, to)
    given_up = [_given_up(service, under_way, caller)] if under_way is not None else []
    if chosen.number == service.current:
        if not given_up:
            raise Refusal(Why.NOTHING_TO_ROLL_BACK, f"revision {chosen.number} of service {name} serves already")
        return given_up
    if under_way is not None and chosen.number == under_way.number:
        raise Refusal(Why.NOTHING_TO_ROLL_BACK, f"revision {chosen.number} of service {name} is being rolled out")
    return [*given_up, e.RevisionChosen(name, chosen.number, caller.user)]


def _turned_back(service: Service, under_way: Revision, caller: Caller) -> list[e.Event]:
    name, current = service.name, service.current
    if service.serving is None:
        raise Refusal(Why.NOTHING_TO_ROLL_BACK, f"no revision of service {name} has served yet")
    if _goes_back(service, under_way):
        hint = f"to stay with revision {current}: bireme service rollback {name} {current}"
        why = f"service {name} is on its way back to revision {under_way.number} already; {hint}"
        raise Refusal(Why.NOTHING_TO_ROLL_BACK, why)
    return [_given_up(service, under_way, caller)]


def _goes_back(service: Service, under_way: Revision) -> bool:
    return under_way.number < service.current and under_way.settled_at is not None


def _given_up(service: Service, under_way: Revision, caller: Caller) -> e.Event:
    """What has served before did not fail: it is only not wanted now."""
    if _goes_back(service, under_way):
        return e.RevisionRetired(service.name, under_way.number)
    return e.RevisionFailed(service.name, under_way.number, f"{caller.user} {ROLLED_BACK}")


def _earlier(service: Service) -> Revision | None:
    """The last before the one that serves that has served."""
    served = (each for each in service.revisions.values() if each.settled_at is not None)
    return max((each for each in served if each.number < service.current), key=lambda each: each.number, default=None)


def _no_such(service: Service, number: int | None) -> Refusal:
    known = ", ".join(str(each) for each in sorted(service.revisions))
    if number is None:
        why = f"service {service.name} has no revision before {service.current} that served; there are: {known}"
        return Refusal(Why.NOTHING_TO_ROLL_BACK, why)
    return Refusal(Why.INVALID_REVISION, f"service {service.name} has no revision {number}; there are: {known}")


def promote(state: State, caller: Caller, name: str) -> list[e.Event]:
    """The canary takes the place of the revision that serves."""
    service = owned(state, caller, name)
    return [e.RevisionChosen(name, _canary(service).number, caller.user)]


def shift(state: State, caller: Caller, name: str, percent: int) -> list[e.Event]:
    """The canary gets another part of the requests, and of the replicas."""
    service = owned(state, caller, name)
    canary = _canary(service)
    if not 1 <= percent <= 99:
        hint = f"{percent}% is no part for a canary: between 1% and 99%, or promote it, or roll it back"
        raise Refusal(Why.INVALID_SERVICE_SPEC, hint)
    same = canary.spec.updating.canary_percent == percent
    return [] if same else [e.RevisionShifted(name, canary.number, percent, caller.user)]


def _canary(service: Service) -> Revision:
    canary = service.in_phase(RevisionLife.CANARY)
    if canary is None:
        hint = f"service {service.name} has no canary: bireme serve SCRIPT --canary 10% makes one"
        raise Refusal(Why.NOTHING_TO_PROMOTE, hint)
    return canary


# -- keys ------------------------------------------------------------------------------------------------------------


def add_key(state: State, caller: Caller, name: str, key: ServiceKey, now: float) -> list[e.Event]:
    """`key`: made by whoever asked, who alone knows what it is the hash of."""
    service = owned(state, caller, name)
    if key.id in service.keys:
        raise Refusal(Why.SERVICE_KEY_EXISTS, f"service {name} has a key {key.id} already")
    if len(service.keys) >= MOST_KEYS:
        raise Refusal(Why.TOO_MANY_SERVICE_KEYS, f"service {name} has {MOST_KEYS} keys: revoke some first")
    return [e.ServiceKeyAdded(name, replace(key, made_by=caller.user, made_at=now))]


def revoke_key(state: State, caller: Caller, name: str, key_id: str) -> list[e.Event]:
    service = owned(state, caller, name, stopping=True)
    if key_id not in service.keys:
        known = ", ".join(sorted(service.keys)[:SHOWN_KEYS]) + (" ..." if len(service.keys) > SHOWN_KEYS else "")
        has = f"there are: {known}" if known else "it has none"
        raise Refusal(Why.INVALID_SERVICE_KEY, f"service {name} has no key {key_id[:40]!r}; {has}")
    return [e.ServiceKeyRevoked(name, key_id, caller.user)]
