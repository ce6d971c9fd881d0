"""What reservations mean for jobs and time: who may use one, what waits for it, and what happens when it ends.

The handlers are `apply`'s; the rest only reads. Which nodes are closed to whom is `core/plan/reserved.py`; making and
changing reservations is `core/reservations/orders.py`. Invariant: a reservation that is over is removed, or moved
to its next occurrence, once no job of it holds nodes any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import inf

from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model.jobs import Ending, Finished, Job, JobSpec, Outcome
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.model.refusals import Refusal, Why
from bireme.core.model.reservations import Reservation, ReservationFlag
from bireme.core.reservations.replenishing import replenished
from bireme.core.state.state import State

# -- apply -----------------------------------------------------------------------------------------------------------


def reservation_set(state: State, event: e.ReservationSet, at: float) -> Sequence[c.Command]:
    state.reservations[event.reservation.name] = event.reservation
    return ()


def reservation_removed(state: State, event: e.ReservationRemoved, at: float) -> Sequence[c.Command]:
    del state.reservations[event.name]
    return ()


# -- who -------------------------------------------------------------------------------------------------------------


def names_of(spec: JobSpec) -> tuple[str, ...]:
    """`--reservation=a,b`: any of these."""
    return tuple(name for name in spec.reservation.split(",") if name)


def may_use(state: State, reservation: Reservation, spec: JobSpec) -> bool:
    """Users (or groups) and accounts: what the reservation names, the job must match."""
    if not _listed(reservation.accounts, _accounts(state, spec)):
        return False
    if reservation.gids and not reservation.users:
        return not {spec.owner.gid, *spec.owner.groups}.isdisjoint(reservation.gids)
    return _listed(reservation.users, {spec.owner.user})


def check_reservation(state: State, spec: JobSpec) -> None:
    """Every reservation that a job names must be there and be open to it."""
    for name in names_of(spec):
        reservation = state.reservations.get(name)
        if reservation is None:
            known = ", ".join(state.reservations) or "none"
            raise Refusal(Why.RESERVATION_INVALID, f"no reservation {name!r} here; there are: {known}")
        if not may_use(state, reservation, spec):
            raise Refusal(Why.RESERVATION_ACCESS, f"{name} is for {_whom(reservation)}")


def _whom(reservation: Reservation) -> str:
    lists = (("users", reservation.users), ("groups", reservation.groups), ("accounts", reservation.accounts))
    return " and ".join(f"{word} {','.join(names)}" for word, names in lists if names)


def _listed(allowed: Sequence[str], own: set[str]) -> bool:
    denied = {name[1:] for name in allowed if name.startswith("-")}
    if denied or not allowed:
        return own.isdisjoint(denied)
    return not own.isdisjoint(allowed)


def _accounts(state: State, spec: JobSpec) -> set[str]:
    """The job's account and those above it."""
    partition = next(iter(spec.partitions), "")
    association = state.accounts.for_job(spec.account, spec.owner.user, partition)
    above = state.accounts.chain(association.id) if association is not None else ()
    return {spec.account, *(each.account for each in above)}


def entered(state: State, job: Job, now: float) -> Reservation | None:
    """The reservation that a waiting job would start in now."""
    for name in names_of(job.spec):
        reservation = state.reservations.get(name)
        if reservation is not None and _open(reservation, now) and may_use(state, reservation, job.spec):
            return reservation
    return None


def _open(reservation: Reservation, now: float) -> bool:
    return reservation.active(now) or (reservation.has(ReservationFlag.FLEX) and now < reservation.end)


def reservation_gate(state: State, job: Job, now: float) -> Reason | None:
    """A job in a reservation waits until that begins."""
    if not job.spec.reservation or entered(state, job, now) is not None:
        return None
    known = [state.reservations[name] for name in names_of(job.spec) if name in state.reservations]
    to_come = [each for each in known if each.begin > now]
    if not to_come:
        return reason(ReasonKind.RESERVATION, name=job.spec.reservation)
    first = min(to_come, key=lambda each: each.begin)
    return reason(ReasonKind.RESERVATION, name=first.name, at=first.begin)


def unfinished_jobs(state: State, name: str) -> Iterator[Job]:
    """Jobs that wait for, or run in, the reservation."""
    for job in chain(state.pending.values(), state.holding.values()):
        if _is_in(job, name):
            yield job


def _is_in(job: Job, name: str) -> bool:
    """A job of another scheduler may be in a reservation of this name there: that is not ours."""
    return bool(job.spec.reservation) and not job.mirrored and name in names_of(job.spec)


# -- time ------------------------------------------------------------------------------------------------------------


def reservations_due(state: State, now: float, decided: Sequence[e.Event]) -> Iterator[e.Event]:
    """Jobs that overran their reservation, reservations that are over, and those that nobody has used for long."""
    already_ending = {event.job_id for event in decided if isinstance(event, e.JobEnding | e.JobCancelled)}
    for reservation in state.reservations.values():
        if now >= reservation.end:
            yield from _over(state, reservation, now, already_ending)
        elif reservation.has(ReservationFlag.PURGE_COMP):
            yield from _unused(state, reservation, now)
        elif (fuller := replenished(state, reservation, now)) is not None:
            yield e.ReservationSet(fuller)


def _over(state: State, reservation: Reservation, now: float, already_ending: set[int]) -> Iterator[e.Event]:
    inside = [job for job in state.holding.values() if _runs_in(job, reservation)]
    last = killed_at(state, reservation)
    if inside and last is not None:
        if now >= last:
            for job in inside:
                if not isinstance(job.phase, Ending) and job.id not in already_ending:
                    outcome = Outcome("TIMEOUT", reason=reason(ReasonKind.TIME_LIMIT))
                    yield e.JobEnding(job.id, job.generation, outcome)
        return  # it stays until they are gone
    if any(isinstance(job.phase, Ending) and _is_in(job, reservation.name) for job in state.holding.values()):
        return  # who may come back to the queue is told there
    if reservation.recurs:
        while reservation.end <= now:
            reservation = reservation.following()
        yield e.ReservationSet(reservation)
        return
    yield from _left_behind(state, reservation, already_ending)
    yield e.ReservationRemoved(reservation.name)


def _runs_in(job: Job, reservation: Reservation) -> bool:
    if not _is_in(job, reservation.name) or job.allocation is None:
        return False
    if reservation.has(ReservationFlag.REPLACE):
        return True  # its node may have been exchanged for an idle one when it started
    return not set(job.allocation.node_names).isdisjoint(reservation.nodes)


def killed_at(state: State, reservation: Reservation) -> float | None:
    """When jobs that are still in it are ended: ResvOverRun after its end, or never."""
    over = state.config.settings.resv_over_run_s
    return None if over is None or reservation.has(ReservationFlag.FLEX) else reservation.end + over


def ended_with_reservation(state: State, job: Job) -> float:
    """When its reservation takes a job with it, whatever its limit."""
    ends = [killed_at(state, state.reservations[name]) for name in names_of(job.spec) if name in state.reservations]
    return max((inf if end is None else end for end in ends), default=inf)


def _left_behind(state: State, reservation: Reservation, already_ending: set[int]) -> Iterator[e.Event]:
    """All jobs lose a reservation that is gone. Those that wait are held unless its flags, or another one, let them go
    on; those that run and are queued again need none, as in Slurm."""
    for job in (*state.pending.values(), *state.holding.values()):
        if not _is_in(job, reservation.name) or job.id in already_ending:
            continue
        left = ",".join(name for name in names_of(job.spec) if name != reservation.name)
        yield e.JobUpdated(job.id, replace(job.spec, reservation=left), job.priority)
        if job.id in state.pending and not left and not reservation.has(ReservationFlag.NO_HOLD_JOBS_AFTER):
            yield e.JobHeld(job.id, "user", reason(ReasonKind.RESERVATION_DELETED, name=reservation.name))


def _unused(state: State, reservation: Reservation, now: float) -> Iterator[e.Event]:
    ended_at = max(_ends(state, reservation), default=None)
    if ended_at is not None and ended_at > (reservation.used_at or 0.0):
        yield e.ReservationSet(replace(reservation, used_at=ended_at))
    elif (purged_at := _purged_at(state, reservation)) is not None and now >= purged_at:
        yield e.ReservationRemoved(reservation.name)


def _ends(state: State, reservation: Reservation) -> Iterator[float]:
    for job in state.finished.values():
        if _is_in(job, reservation.name) and isinstance(job.phase, Finished):
            yield job.phase.ended_at


def _purged_at(state: State, reservation: Reservation) -> float | None:
    """None while somebody uses it or waits for it."""
    if next(unfinished_jobs(state, reservation.name), None) is not None:
        return None
    return max(reservation.begin, reservation.used_at or 0.0) + reservation.purge_after_s


def reservation_times(state: State, now: float) -> Iterator[float | None]:
    """Moments at which a reservation changes something: for `next_due`, which leaves out those that are over."""
    for reservation in state.reservations.values():
        yield reservation.begin
        yield reservation.end
        yield killed_at(state, reservation)
        if reservation.has(ReservationFlag.PURGE_COMP):
            yield _purged_at(state, reservation)


# -- nodes -----------------------------------------------------------------------------------------------------------


def reserved_nodes(state: State, now: float) -> dict[str, tuple[str, ...]]:
    """node -> the flags that active reservations give it."""
    flags: dict[str, set[str]] = {}
    for reservation in state.reservations.values():
        if reservation.active(now):
            words = {"RESERVED"} | ({"MAINTENANCE"} if reservation.has(ReservationFlag.MAINT) else set())
            for name in reservation.nodes:
                flags.setdefault(name, set()).update(words)
    return {name: tuple(sorted(words)) for name, words in flags.items()}
