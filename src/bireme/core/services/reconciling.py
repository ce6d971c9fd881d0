"""What a service needs next: from what was asked for, how its replicas stand and the time, which to add, drain or end.

`decide` is a pure function of values: no state, no clock. Whoever calls it (`acting.py`) turns each act into events
and asks again, until there is nothing to do; so every stage below may assume that those before it had nothing to say.
`look_again_at` says when time alone may change the answer.

Invariants: by its own doing a service never has fewer ready replicas than wanted less `unavailable` (but one by one
where there is no room for more), nor more that are not draining than wanted and `surge`; what an update loses of those
that are proven comes back as such, while there is a revision that is; who was ready and answers is ended only after
whoever routes has said that it gets no more requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bireme.core.model.jobs import Finished, Outcome
from bireme.core.model.reasons import ReasonKind
from bireme.core.model.resources import ExitStatus
from bireme.core.model.serving.probes import PORT_TAKEN
from bireme.core.model.serving.services import Crash, Health, Revision, RevisionLife, Service, ServiceLife
from bireme.core.services.amounts import canary_share, leeway
from bireme.core.services.standing import Seen, Stand

ROOM_PATIENCE_S = 10.0
"""A replica for which there was no room for so long makes an update go on one by one."""
CRASHES = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY", "BOOT_FAIL"})
"""Ends that are the replica's own: it was to stay. Others (a lost node, a time limit, scancel, preemption) are not."""

NOT_FOR_ROOM = frozenset(
    {
        ReasonKind.NONE,
        ReasonKind.JOB_HELD_USER,
        ReasonKind.JOB_HELD_ADMIN,
        ReasonKind.PARTITION_DOWN,
        ReasonKind.PARTITION_INACTIVE,
        ReasonKind.LAUNCH_FAILED,
        ReasonKind.LAUNCH_FAILED_HELD,
        ReasonKind.RESERVATION,
        ReasonKind.RESERVATION_DELETED,
        ReasonKind.SYSTEM_FAILURE,
    }
)
"""What a job waits for that would not come if another replica left; room and limits may."""


@dataclass(frozen=True, slots=True)
class Add:
    revision: int


@dataclass(frozen=True, slots=True)
class Drain:
    replica: int
    why: str
    crashed: bool = False
    """It is given up for what it did: those after it may have to wait."""
    holds_back: bool = False
    """It did nothing wrong, but those after it wait for a while all the same: the room that it had is for others."""
    room_for: int = 0
    """It goes so that a replica of this revision has room."""


@dataclass(frozen=True, slots=True)
class End:
    """A drained replica's job is ended."""

    replica: int


@dataclass(frozen=True, slots=True)
class Bury:
    """A replica's job is over."""

    replica: int
    crash: Crash | None
    why: str = ""
    backs_off: bool = False


@dataclass(frozen=True, slots=True)
class Settle:
    revision: int


@dataclass(frozen=True, slots=True)
class Retire:
    revision: int


@dataclass(frozen=True, slots=True)
class Fail:
    revision: int
    why: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Nothing of a stopped service is left."""


Act = Add | Drain | End | Bury | Settle | Retire | Fail | Remove


def decide(service: Service, seen: Sequence[Seen], now: float, watched_since: float = 0.0) -> list[Act]:
    """The acts of the first stage that has any. `watched_since`: from then on somebody was there to hear of it."""
    stopping = service.phase is ServiceLife.STOPPING
    last = (_wound_down(seen),) if stopping else _kept_up(service, seen, now, watched_since)
    for stage in (_over(seen, now), _given_up(seen), _ended(service, seen, now), *last):
        acts = list(stage)
        if acts:
            return acts
    return []


def _kept_up(service: Service, seen: Sequence[Seen], now: float, watched_since: float) -> tuple[Iterator[Act], ...]:
    return _failed(service, seen, now, watched_since), _sized(service, seen, now), _settled(service, seen)


def look_again_at(service: Service, seen: Sequence[Seen], now: float, watched_since: float = 0.0) -> float | None:
    """The next moment at which `decide` may say something else though nothing happened; None: there is none."""
    times = [at for at in _moments(service, seen, now, watched_since) if at > now]
    return min(times, default=None)


def _moments(service: Service, seen: Sequence[Seen], now: float, watched_since: float) -> Iterator[float]:
    for each in seen:
        if each.replica.withdrawn_at is not None and each.stand is Stand.RUNNING and not each.replica.ending:
            yield each.replica.withdrawn_at + _revision_of(service, each).spec.drain_s
        if each.lives and each.succeeded_from is not None:
            yield each.succeeded_from
    for revision in service.revisions.values():
        if revision.backed_off is not None:
            yield revision.backed_off.until
        if revision.phase in (RevisionLife.ROLLING, RevisionLife.CANARY):
            yield _late_from(revision, watched_since)
    rolling = service.in_phase(RevisionLife.ROLLING)
    if rolling is not None and service.phase is ServiceLife.UP:
        for each in seen:
            if each.lives and each.stand is Stand.WAITING:
                yield max(each.waits_since + ROOM_PATIENCE_S, now + ROOM_PATIENCE_S / 2)


# -- replicas that are over, sick, or drained ------------------------------------------------------------------------


def _over(seen: Sequence[Seen], now: float) -> Iterator[Act]:
    for each in seen:
        if each.stand is Stand.OVER:
            crash = _crash(each, now)
            backs_off = crash is not None and each.replica.draining_since is None
            yield Bury(each.number, crash, crash.why if crash is not None else _why_it_is_over(each), backs_off)


def _crash(each: Seen, now: float) -> Crash | None:
    """What a replica's end says of it; None: it was asked to end, or is not to blame."""
    phase = each.job.phase if each.job is not None else None
    if each.replica.health is Health.DEAD:
        status = phase.outcome.status if isinstance(phase, Finished) else ExitStatus()
        return Crash(each.number, each.replica.revision, now, status, each.replica.why, each.replica.job_id)
    if each.replica.draining_since is not None or not isinstance(phase, Finished):
        return None
    if phase.outcome.state not in CRASHES:
        return None
    why, job_id = _in_words(phase.outcome), each.replica.job_id
    return Crash(each.number, each.replica.revision, phase.ended_at, phase.outcome.status, why, job_id)


_ENDS = {
    "CANCELLED": "its job was cancelled",
    "NODE_FAIL": "its node was lost",
    "PREEMPTED": "it made way for a job of higher rank",
    "TIMEOUT": "its time limit was over",
}
"""Of those that are not to blame."""


def _why_it_is_over(each: Seen) -> str:
    phase = each.job.phase if each.job is not None else None
    if each.replica.drained_for or not isinstance(phase, Finished):
        return each.replica.drained_for
    return _ENDS.get(phase.outcome.state, f"its job ended as {phase.outcome.state}")


def _in_words(outcome: Outcome) -> str:
    why = str(outcome.reason.fact("why") or "") if outcome.reason is not None else ""
    if outcome.state == "OUT_OF_MEMORY":
        return "it ran out of memory"
    if outcome.status.signal:
        return f"it was ended by signal {outcome.status.signal}"
    said = f"it ended by itself with exit code {outcome.status.code}"
    return f"{said}: {why}" if why else said


def _given_up(seen: Sequence[Seen]) -> Iterator[Act]:
    for each in seen:
        if each.lives and each.replica.health is Health.DEAD:
            yield Drain(each.number, f"it is dead: {each.replica.why}", crashed=True)
        elif each.lives and each.cannot_start:
            taken = PORT_TAKEN in each.cannot_start
            why = f"it could not be started: {each.cannot_start}"
            yield Drain(each.number, why, crashed=not taken, holds_back=taken)


def _ended(service: Service, seen: Sequence[Seen], now: float) -> Iterator[Act]:
    """Its time begins when whoever routes has said that it gets no new requests: until then those that are to take its
    place may be known to nobody, however ready they are."""
    for each in seen:
        replica = each.replica
        if replica.draining_since is None or replica.ending or each.stand in (Stand.ORDERED, Stand.ENDING, Stand.OVER):
            continue
        may_have_requests = each.stand is Stand.RUNNING and replica.ready_at is not None
        withdrawn_at, drain_s = replica.withdrawn_at, _revision_of(service, each).spec.drain_s
        is_over = withdrawn_at is not None and now >= withdrawn_at + drain_s
        if replica.health is Health.DEAD or not may_have_requests or is_over:
            yield End(each.number)


def _wound_down(seen: Sequence[Seen]) -> Iterator[Act]:
    yield from (Drain(each.number, "the service is stopped") for each in seen if each.lives)
    if not seen:
        yield Remove()


# -- how many of which revision --------------------------------------------------------------------------------------


def _failed(service: Service, seen: Sequence[Seen], now: float, watched_since: float) -> Iterator[Act]:
    """A revision that does not get ready is given up, if there is one that did."""
    if service.serving is None:
        return
    for revision in service.revisions.values():
        if revision.phase not in (RevisionLife.ROLLING, RevisionLife.CANARY):
            continue
        own = [each for each in seen if each.replica.revision == revision.number]
        dead = next((each for each in own if _never_started(each)), None)
        if dead is not None:
            yield Fail(revision.number, f"replica {dead.number} did not start: {dead.replica.why}")
        elif is_late(service, revision, seen, now, watched_since):
            yield Fail(revision.number, _late(revision, own))


def is_late(service: Service, revision: Revision, seen: Sequence[Seen], now: float, watched_since: float = 0.0) -> bool:
    """Whether its time to get ready is over, by its own fault."""
    return now >= _late_from(revision, watched_since) and _is_to_blame(service, revision, seen)


def _late_from(revision: Revision, watched_since: float) -> float:
    """Its time begins anew when a daemon comes back: what got ready meanwhile, nobody could hear."""
    return max(revision.progressed_at, watched_since) + revision.spec.updating.ready_within_s


def _never_started(each: Seen) -> bool:
    return each.replica.health is Health.DEAD and each.replica.ready_at is None


def _is_to_blame(service: Service, revision: Revision, seen: Sequence[Seen]) -> bool:
    """Whether it is the revision's own fault that it is not ready: its replicas run and are not ready, or crash; or
    others were drained for
    it and are missed. To wait for room is not."""
    own = _of([each for each in seen if each.lives], revision)
    if any(each.stand is Stand.RUNNING and not each.ready for each in own):
        return True
    if revision.backed_off is not None and revision.backed_off.since >= revision.progressed_at:
        return True
    short = service.wanted - leeway(revision.spec.updating, service.wanted).unavailable
    return bool(own) and sum(each.ready for each in seen) < short


def _late(revision: Revision, own: Sequence[Seen]) -> str:
    ready = sum(each.ready for each in own)
    said = f"no more than {ready} of its replicas got ready in {revision.spec.updating.ready_within_s:g} s"
    return f"{said}; {revision.backed_off.why}" if revision.backed_off is not None else said


def _sized(service: Service, seen: Sequence[Seen], now: float) -> Iterator[Act]:
    canary = service.in_phase(RevisionLife.CANARY)
    return _rolled(service, seen, now) if canary is None else _shared(service, canary, seen, now)


def _rolled(service: Service, seen: Sequence[Seen], now: float) -> Iterator[Act]:
    """The number of replicas that is wanted, all of one revision: as many new ones as surge lets in, and old ones go
    for those that are ready. Old is also whose time limit nears. Without old ones it is simply scaled."""
    restored = list(_restored(service, seen, now))
    if restored:  # who has shown that it works comes before who has not
        yield from restored
        return
    target, wanted = service.target, service.wanted
    new = [each for each in _of(_living(seen), target) if not _nears_its_limit(each, now)]
    missing = wanted - len(new) - _held_back(target, new, wanted, now)
    yield from [Add(target.number)] * max(0, min(missing, _room(service, seen, now)))
    surplus = list(_surplus(new, wanted))
    # what they leave counts for the others: those are judged when it is done
    yield from surplus or _replaced(service, seen, now)


def _replaced(service: Service, seen: Sequence[Seen], now: float) -> Iterator[Act]:
    """Old replicas that go for new ones: those that are not ready before those that are."""
    target, wanted = service.target, service.wanted
    unavailable = leeway(target.spec.updating, wanted).unavailable
    living, old = _living(seen), _old(service, seen, now)
    ready = sum(each.ready for each in living)
    idle = _idle(service, seen, now)
    spare = [each for each in _by_worth(service, old, now) if each.ready][: max(0, ready - wanted + unavailable)]
    yield from (Drain(each.number, _why_it_goes(each, target)) for each in (*idle, *spare))
    outdated = [each for each in dispensable(old) if each.replica.revision != target.number]
    leaving = any(not each.lives for each in seen)
    if outdated and not (idle or spare or leaving) and ready >= wanted and no_room(service, target, seen, now):
        why = f"{_why_it_goes(outdated[0], target)}: there is no room for one more, so it goes one by one"
        yield Drain(outdated[0].number, why, room_for=target.number)


def _idle(service: Service, seen: Sequence[Seen], now: float) -> list[Seen]:
    """Old ones that are not ready and not missed: all that are of no use; then those that are too many, of the revision
    that serves no more than are not to be kept of it."""
    target, wanted = service.target, service.wanted
    unavailable = leeway(target.spec.updating, wanted).unavailable
    useless = _useless(service, seen)
    if useless:
        return useless
    living, old = _living(seen), _old(service, seen, now)
    not_yet = sum(not each.ready for each in living if each not in old)
    unready = [each for each in _by_worth(service, old, now) if not each.ready]
    unready = unready[: max(0, len(living) - wanted + unavailable - not_yet)]
    if _proven_before(service) is None:
        return unready
    proven = _proven(service, seen, now)
    of_use = [each for each in unready if each in proven]
    return [each for each in unready if each not in proven] + of_use[: max(0, len(proven) - wanted + unavailable)]


def _useless(service: Service, seen: Sequence[Seen]) -> list[Seen]:
    """Of a revision that was given up, and never ready: they would only hold the room of those that are wanted."""
    wanted = (service.current, service.target.number)
    given_up = [each for each in _living(seen) if each.replica.revision not in wanted] if service.serving else []
    return [each for each in given_up if not each.ready and not _has_worked(each)]


def _living(seen: Sequence[Seen]) -> list[Seen]:
    return [each for each in seen if each.lives]


def _old(service: Service, seen: Sequence[Seen], now: float) -> list[Seen]:
    """Whose place others take: of other revisions than the one that it is to have, and whose time limit nears."""
    target = service.target.number
    return [each for each in _living(seen) if each.replica.revision != target or _nears_its_limit(each, now)]


def _room(service: Service, seen: Sequence[Seen], now: float) -> int:
    """How many more there may be. While some are replaced, those that leave still count."""
    wanted = service.wanted
    there = seen if _old(service, seen, now) else _living(seen)
    return wanted + leeway(service.target.spec.updating, wanted).surge - len(there)


def _by_worth(service: Service, old: Sequence[Seen], now: float) -> list[Seen]:
    """Who is missed least comes first; whose time is nearly over, or whose revision nobody wants, before others."""

    def is_worth_more(each: Seen) -> bool:
        return each.replica.revision == service.current and not _nears_its_limit(each, now)

    return sorted(dispensable(old), key=is_worth_more)


# -- those that have shown that they work ----------------------------------------------------------------------------


def _proven_before(service: Service) -> Revision | None:
    """The revision that works, while one is rolled out that has not shown yet that it does. None: there is none, or
    none of its replicas was there when the other was asked for."""
    serving, target = service.serving, service.target
    if serving is None or target.number == serving.number or target.settled_at is not None or target.from_nothing:
        return None
    return serving


def _proven(service: Service, seen: Sequence[Seen], now: float) -> list[Seen]:
    """Replicas of the revision that serves, and those of others that were ready once and run: whether they answer at
    this moment is not asked, or each lapse would cost a start."""
    staying = [each for each in _living(seen) if not _nears_its_limit(each, now)]
    return [each for each in staying if each.replica.revision == service.current or _has_worked(each)]


def _has_worked(each: Seen) -> bool:
    return each.stand is Stand.RUNNING and each.replica.ready_at is not None


def _restored(service: Service, seen: Sequence[Seen], now: float) -> Iterator[Act]:
    """What an update has lost of those that are proven comes back as a replica of the revision that serves: the new
    one may never get ready. New ones that wait for room are withdrawn for them, and come after them.

    Where the update goes one by one, the one that made room is not missed.
    """
    serving, wanted = _proven_before(service), service.wanted
    if serving is None:
        return
    unavailable = leeway(service.target.spec.updating, wanted).unavailable
    proven, new = _proven(service, seen, now), _of(_living(seen), service.target)
    kept = wanted - max(unavailable, 1 if service.target.one_by_one else 0)
    missing = kept - len(proven) - _held_back(serving, _of(_living(seen), serving), wanted, now)
    if missing > 0:
        waiting = [each for each in new if each.stand in (Stand.ORDERED, Stand.WAITING)]
        yield from (Drain(each.number, _withdrawn(serving)) for each in waiting)
        if not waiting:
            yield from [Add(serving.number)] * max(0, min(missing, _room(service, seen, now)))
        return
    stuck = sum(_waits_for_room(each, now) for each in proven)
    hopeful = [each for each in new if each.stand in (Stand.STARTING, Stand.RUNNING) and not _has_worked(each)]
    if stuck and len(proven) - stuck < wanted - max(unavailable, 1) and all(each.lives for each in seen):
        yield from (Drain(each.number, _withdrawn(serving), holds_back=True) for each in dispensable(hopeful)[:1])


def _withdrawn(serving: Revision) -> str:
    return f"a replica of revision {serving.number} was lost, and its place comes first"


def _nears_its_limit(each: Seen, now: float) -> bool:
    return each.succeeded_from is not None and now >= each.succeeded_from


def _why_it_goes(each: Seen, target: Revision) -> str:
    if each.replica.revision == target.number:
        return "its time limit nears, and another has taken its place"
    return f"revision {target.number} takes its place"


def _shared(service: Service, canary: Revision, seen: Sequence[Seen], now: float) -> Iterator[Act]:
    """A canary and the revision that serves have their parts of the replicas, as of the requests. Until the canary has
    shown that it works, what is lost comes back as a replica of the other."""
    stable, wanted, percent = service.serving, service.wanted, canary.spec.updating.canary_percent or 0
    assert stable is not None, "a canary is beside one that serves"
    surge, unavailable = leeway(canary.spec.updating, wanted)
    living = [each for each in seen if each.lives]
    part = canary_share(percent, wanted)
    rest = min(wanted + surge - part, -(-wanted * (100 - percent) // 100))
    new, old = _of(living, canary), _of(living, stable)
    strangers = [each for each in living if each.replica.revision not in (canary.number, stable.number)]
    room, ready = wanted + surge - len(living), sum(each.ready for each in living)
    idle = [each for each in strangers if not each.ready]
    spare = [each for each in strangers if each.ready][: max(0, ready - wanted)]
    if idle or spare:
        yield from (Drain(each.number, "its revision was given up") for each in (*idle, *spare))
        return
    kept = max(rest, wanted - unavailable - sum(map(_has_worked, new)))
    asked = max(0, min(kept - len(old) - _held_back(stable, old, kept, now), room))
    yield from [Add(stable.number)] * asked
    yield from [Add(canary.number)] * max(0, min(part - len(new) - _held_back(canary, new, part, now), room - asked))
    yield from _surplus(new, part)
    if sum(each.ready for each in new) >= part:
        yield from _surplus(old, rest)
    elif len(new) < part and room <= 0 and ready - 1 >= wanted - unavailable:
        yield from _surplus(old, len(old) - 1)


def _surplus(own: Sequence[Seen], wanted: int) -> Iterator[Act]:
    yield from (Drain(each.number, "fewer are wanted") for each in dispensable(own)[: max(0, len(own) - wanted)])


def _held_back(revision: Revision, own: Sequence[Seen], wanted: int, now: float) -> int:
    """How many of its replicas are not made yet, after crashes: as many as crashed; all, while none of it is ready."""
    back_off = revision.backed_off
    if back_off is None or now >= back_off.until:
        return 0
    return back_off.held if any(each.ready for each in own) else wanted


_NEARNESS = {Stand.ORDERED: 0, Stand.WAITING: 0, Stand.STARTING: 1}
"""How near to serving a replica is that is not ready."""


def dispensable(living: Sequence[Seen]) -> list[Seen]:
    """Who is missed least comes first: who is not ready, then who shares its node with most, then the newest."""
    crowds = Counter(each.node for each in living if each.node)
    return sorted(living, key=lambda each: (each.ready, _NEARNESS.get(each.stand, 2), -crowds[each.node], -each.number))


def no_room(service: Service, revision: Revision, seen: Sequence[Seen], now: float) -> bool:
    """Whether an update lacks room for a new replica beside the old ones: one waits, the planner has looked at it, and
    that was so for a while."""
    living = [each for each in seen if each.lives]
    new = _of(living, revision)
    return len(new) < len(living) and any(_waits_for_room(each, now) for each in new)


def _waits_for_room(each: Seen, now: float) -> bool:
    if each.stand is not Stand.WAITING or now < each.waits_since + ROOM_PATIENCE_S:
        return False
    return bool(each.waits_for) and not each.room_is_made and each.waits_for[0].kind not in NOT_FOR_ROOM


def _settled(service: Service, seen: Sequence[Seen]) -> Iterator[Act]:
    target = service.in_phase(RevisionLife.ROLLING)
    if target is None:
        return
    living = [each for each in seen if each.lives]
    own = _of(living, target)
    if len(own) == len(living) and 0 < service.wanted <= sum(each.ready for each in own):
        if service.serving is not None and service.current != target.number:
            yield Retire(service.current)
        yield Settle(target.number)


def _of(living: Sequence[Seen], revision: Revision) -> list[Seen]:
    return [each for each in living if each.replica.revision == revision.number]


def _revision_of(service: Service, each: Seen) -> Revision:
    return service.revisions[each.replica.revision]
