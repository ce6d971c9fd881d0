"""Acts become events: what `reconciling` decided about services, carried out in the state as it is now.

`settle` is asked in every turn and looks only at services that changed or are due (`State.serving`). Each act is
carried out after those before it have happened: a replica's job is judged like any submission, against all that was
submitted before it. A refusal becomes the revision's back-off, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from bireme.core.jobs.requests import Target, cancel
from bireme.core.jobs.submission import submit
from bireme.core.model import events as e
from bireme.core.model.jobs import Finished
from bireme.core.model.refusals import Refusal
from bireme.core.model.serving.services import BackOff, Revision, RevisionLife, Service
from bireme.core.services import reconciling as r
from bireme.core.services.replica_jobs import free_port, job_of, owner_of
from bireme.core.services.standing import standing
from bireme.core.state.state import State

BACK_OFF_S = 10.0
"""After the second crash in a row, and doubled with each; the first is replaced at once."""
BACK_OFF_MOST_S = 300.0
WELL_S = 600.0
"""Nothing crashed for so long: the next crash is a first one again."""
ROUNDS = 100
"""What has not come to rest after so many rounds goes on in the next turn."""


def settle(state: State, now: float) -> Iterator[e.Event]:
    """The events of all services that need something. Each is applied before the next is asked for."""
    for name in state.serving.to_look_at(now):
        state.serving.changed.discard(name)
        state.serving.due.pop(name, None)
        yield from _reconciled(state, name, now)


def times(state: State, now: float) -> Iterator[float]:
    yield from state.serving.due.values()


def _reconciled(state: State, name: str, now: float) -> Iterator[e.Event]:
    for _ in range(ROUNDS):
        service = state.services.get(name)
        acts = r.decide(service, standing(state, service), now, state.awake_since) if service is not None else []
        refused: set[int] = set()
        for act in acts:
            if isinstance(act, r.Add) and act.revision in refused:
                continue  # what was refused once is refused for the others too
            for event in _events(state, state.services[name], act, now):
                if isinstance(act, r.Add) and isinstance(event, e.RevisionBackedOff):
                    refused.add(act.revision)
                yield event
        if not acts:
            break
    state.serving.changed.discard(name)
    service = state.services.get(name)
    if service is None:
        return
    again = r.look_again_at(service, standing(state, service), now, state.awake_since)
    if again is not None:
        state.serving.due[name] = again


def _events(state: State, service: Service, act: r.Act, now: float) -> Iterator[e.Event]:
    name = service.name
    match act:
        case r.Add(number):
            yield from _added(state, service, service.revisions[number], now)
        case r.Drain(replica, why, crashed, holds_back, room_for):
            if crashed or holds_back:
                said = f"replica {replica} crashed: {why}" if crashed else f"replica {replica} went: {why}"
                yield from _backed_off(service, replica, said, now)
            yield e.ReplicaDraining(name, replica, why, room_for)
        case r.End(replica):
            yield from ended(state, service, replica)
        case r.Bury(replica, crash, why, backs_off):
            if backs_off and crash is not None:
                yield from _backed_off(service, replica, f"replica {replica} crashed: {crash.why}", now)
            yield e.ReplicaGone(name, replica, crash, why)
        case r.Settle(number):
            yield e.RevisionSettled(name, number)
        case r.Retire(number):
            yield e.RevisionRetired(name, number)
        case r.Fail(number, why):
            yield e.RevisionFailed(name, number, why)
        case r.Remove():
            yield e.ServiceRemoved(name)


def _added(state: State, service: Service, revision: Revision, now: float) -> Iterator[e.Event]:
    """A replica and its job, or the reason why there is none."""
    port = free_port(state)
    if port is None:
        first, last = state.config.settings.service_ports
        why = f"replicas have all ports from {first} to {last}; the setting services.ports says which they may have"
        yield _refused(service, revision, why, now)
        return
    number = service.next_replica
    if service.elsewhere:
        yield e.ReplicaAdded(service.name, number, revision.number, 0, port)
        return
    spec = job_of(state, service, revision.number, number, port)
    job_id = state.next_job_id
    try:
        submitted = submit(state, owner_of(service), [spec], now)
    except Refusal as refusal:
        yield _refused(service, revision, "; ".join(filter(None, (refusal.message, refusal.hint))), now)
        return
    yield from submitted
    yield e.ReplicaAdded(service.name, number, revision.number, job_id, port)


def ended(state: State, service: Service, number: int) -> Iterator[e.Event]:
    """The end of a replica's job, by the rules of scancel."""
    replica = service.replicas[number]
    if service.elsewhere:
        if replica.job_id and not replica.ending:
            yield e.ReplicaEnding(service.name, number)
        return
    job = state.jobs.get(replica.job_id)
    if job is not None and not isinstance(job.phase, Finished):
        yield from cancel(state, owner_of(service), Target(job.id))


# -- back-off --------------------------------------------------------------------------------------------------------


def _backed_off(service: Service, replica: int, said: str, now: float) -> Iterator[e.Event]:
    """What a crash means for the replicas after it. One that was made before the last crash says nothing new of it,
    but that it is held back too."""
    crashed = service.replicas[replica]
    revision = service.revisions[crashed.revision]
    if revision.phase in (RevisionLife.RETIRED, RevisionLife.FAILED):
        return
    before = _of_late(revision, now)
    if before is not None and crashed.made_at < before.since:
        after = BackOff(before.since, before.until, before.level, before.held + 1, said)
    else:
        after = _next(before, said, now)
    yield e.RevisionBackedOff(service.name, revision.number, after)


def refused(service: Service, revision: int, why: str, now: float) -> e.Event:
    """A replica that the queue does not take."""
    return _refused(service, service.revisions[revision], why, now)


def _refused(service: Service, revision: Revision, why: str, now: float) -> e.Event:
    """As a crash, but that the first is waited for, too, and that nothing more is tried meanwhile."""
    before = _of_late(revision, now)
    level = max(1, before.level + 1 if before is not None else 1)
    after = BackOff(now, now + _delay(level), level, max(1, service.wanted), f"no replica could be submitted: {why}")
    return e.RevisionBackedOff(service.name, revision.number, after)


def _of_late(revision: Revision, now: float) -> BackOff | None:
    last = revision.backed_off
    return last if last is not None and now < last.until + WELL_S else None


def _next(before: BackOff | None, why: str, now: float) -> BackOff:
    """The back-off after one more crash; replicas that are held back already stay so."""
    level = before.level + 1 if before is not None else 0
    held = before.held if before is not None and now < before.until else 0
    return BackOff(now, now + _delay(level), level, held + 1, why)


def _delay(level: int) -> float:
    return min(BACK_OFF_MOST_S, BACK_OFF_S * 2.0 ** (min(level, 10) - 1)) if level else 0.0
