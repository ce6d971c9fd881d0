"""How a service stands, and why: what `bireme service show` and `bireme why NAME` tell. Data; words are in `wording`.

The reasons come from the same facts and functions that decide (`standing`, `reconciling`): what is said is what is
done. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bireme.core.jobs.states import job_reasons
from bireme.core.model.reasons import Reason
from bireme.core.model.serving.reasons import ServiceReason, ServiceReasonKind, service_reason
from bireme.core.model.serving.services import Crash, Health, Revision, RevisionLife, Service, ServiceLife
from bireme.core.services.amounts import is_paused
from bireme.core.services.reconciling import is_late, no_room
from bireme.core.services.standing import Seen, Stand, standing
from bireme.core.state.state import State

_WORDS = {
    Stand.ORDERED: ServiceReasonKind.ORDERED,
    Stand.WAITING: ServiceReasonKind.WAITING,
    Stand.STARTING: ServiceReasonKind.STARTING,
    Stand.STOPPED: ServiceReasonKind.STOPPED,
    Stand.ENDING: ServiceReasonKind.ENDING,
    Stand.OVER: ServiceReasonKind.ENDING,
}


@dataclass(frozen=True, slots=True)
class ReplicaSituation:
    number: int
    revision: int
    job_id: int
    port: int
    node: str
    state: str
    """`ready`, or why it is not: a word of ServiceReasonKind."""
    health: Health
    since: float
    """From when on its health is this."""
    why: str
    """What its probe said, or why it is drained."""
    waits_for: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class Situation:
    name: str
    phase: ServiceLife
    wanted: int
    wanted_why: str
    fixed: bool
    ready: int
    current: int
    """The revision that serves; 0: none yet."""
    target: int
    """The revision that it is to have."""
    revisions: tuple[Revision, ...]
    """The newest first."""
    replicas: tuple[ReplicaSituation, ...]
    reasons: tuple[ServiceReason, ...]
    crashes: tuple[Crash, ...]
    """The latest first."""


def situation(state: State, service: Service, now: float) -> Situation:
    seen = standing(state, service)
    return Situation(
        name=service.name,
        phase=service.phase,
        wanted=service.wanted,
        wanted_why=service.wanted_why,
        fixed=service.fixed,
        ready=sum(each.ready for each in seen),
        current=service.current,
        target=service.target.number,
        revisions=tuple(each for _, each in sorted(service.revisions.items(), reverse=True)),
        replicas=tuple(_replica(state, each) for each in seen),
        reasons=tuple(_reasons(state, service, seen, now)),
        crashes=service.crashes[::-1],
    )


def _replica(state: State, each: Seen) -> ReplicaSituation:
    replica, kind = each.replica, _kind(each)
    return ReplicaSituation(
        number=replica.number,
        revision=replica.revision,
        job_id=replica.job_id,
        port=replica.port,
        node=each.node,
        state="ready" if kind is None else "dead" if replica.health is Health.DEAD else kind.value,
        health=replica.health,
        since=replica.since,
        why=replica.drained_for or replica.why,
        waits_for=_waits_for(state, each),
    )


def _kind(each: Seen) -> ServiceReasonKind | None:
    """Why it does not serve; None: it does."""
    if each.ready:
        return None
    if each.unwritten:
        return ServiceReasonKind.UNWRITTEN
    if each.replica.draining_since is not None and each.stand is Stand.RUNNING:
        return ServiceReasonKind.DRAINING
    if each.stand is Stand.RUNNING:
        loading = each.replica.health is Health.LOADING
        return ServiceReasonKind.LOADING if loading else ServiceReasonKind.UNREADY
    return _WORDS[each.stand]


def _waits_for(state: State, each: Seen) -> tuple[Reason, ...]:
    waits = each.stand is Stand.WAITING and each.job is not None
    return tuple(job_reasons(state, each.job)) if waits and each.job is not None else ()


def _reasons(state: State, service: Service, seen: Sequence[Seen], now: float) -> Iterator[ServiceReason]:
    if service.phase is ServiceLife.STOPPING:
        yield service_reason(ServiceReasonKind.STOPPING, replicas=len(seen))
        return
    if not service.wanted:
        none = ServiceReasonKind.PAUSED if is_paused(service) else ServiceReasonKind.ZERO
        yield service_reason(none, name=service.name, why=service.wanted_why)
    yield from _of_revisions(service, seen, now, state.awake_since)
    for each in seen:
        kind = _kind(each)
        if kind is not None:
            yield _of_replica(state, service, each, kind)


def _of_replica(state: State, service: Service, each: Seen, kind: ServiceReasonKind) -> ServiceReason:
    facts: dict[str, str | int | float] = {"replica": each.number, "revision": each.replica.revision}
    facts |= {"job": each.replica.job_id} if each.replica.job_id else {}
    why = each.unwritten or each.replica.drained_for or each.replica.why
    facts |= {"why": why} if why else {}
    if kind is ServiceReasonKind.LOADING:
        startup = service.revisions[each.replica.revision].spec.probes.startup
        facts |= {"since": each.replica.since, "limit_s": startup.period_s * startup.failure_threshold}
    if kind is ServiceReasonKind.DRAINING and each.replica.withdrawn_at is None:
        kind = ServiceReasonKind.WITHDRAWING
    return service_reason(kind, _waits_for(state, each), **facts)


def _of_revisions(service: Service, seen: Sequence[Seen], now: float, awake_since: float) -> Iterator[ServiceReason]:
    rolling, canary = service.in_phase(RevisionLife.ROLLING), service.in_phase(RevisionLife.CANARY)
    newest = service.revisions[max(service.revisions)]
    if newest.phase is RevisionLife.FAILED:
        yield service_reason(ServiceReasonKind.GIVEN_UP, revision=newest.number, why=newest.why)
    if rolling is not None and service.serving is not None:
        yield service_reason(ServiceReasonKind.ROLLING, revision=rolling.number, of=service.current)
    late = rolling is not None and is_late(service, rolling, seen, now, awake_since)
    if rolling is not None and service.serving is None and late:
        limit = rolling.spec.updating.ready_within_s
        yield service_reason(ServiceReasonKind.LATE, revision=rolling.number, limit_s=limit)
    if rolling is not None and no_room(service, rolling, seen, now):
        yield service_reason(ServiceReasonKind.NO_ROOM, revision=rolling.number)
    if canary is not None:
        percent = canary.spec.updating.canary_percent or 0
        yield service_reason(ServiceReasonKind.CANARY, revision=canary.number, percent=percent)
    for revision in (each for each in (rolling, canary, service.serving) if each is not None):
        back_off = revision.backed_off
        if back_off is not None and now < back_off.until:
            yield service_reason(
                ServiceReasonKind.BACKED_OFF,
                revision=revision.number,
                until=back_off.until,
                why=back_off.why,
                held=back_off.held,
            )
