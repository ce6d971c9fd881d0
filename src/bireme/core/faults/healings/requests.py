"""What people ask about healings: to approve one, to refuse one, to take one back. Events or a Refusal."""

from __future__ import annotations

from collections.abc import Callable

from bireme.core.faults.healings.shelves import HEALINGS, latest_of, proposed_so_far
from bireme.core.jobs import requests
from bireme.core.jobs.requests import Target
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Place
from bireme.core.model.healing.healings import Healing, HealingAct, HealingLife, Proposal
from bireme.core.model.jobs import Finished, Job
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.state.state import State

Ask = Callable[[State, Caller, int, str], list[e.Event]]
_OPEN = (HealingLife.OBSERVED, HealingLife.SUGGESTED)


def found(state: State, number: int) -> Healing:
    """The one with this number; a Refusal if there is none."""
    healing = HEALINGS.of(state).get(number)
    if healing is None and 0 < number <= proposed_so_far(state):
        raise Refusal(Why.INVALID_HEALING, f"healing {number} is over and no longer at hand: the journal has it")
    if healing is None:
        raise no_healing(number)
    return healing


def no_healing(number: int) -> Refusal:
    """What is said of a number that there is not, or that the asker may not know of."""
    return Refusal(Why.INVALID_HEALING, f"there is no healing {number}: `bireme healings` lists them")


def approve(state: State, caller: Caller, number: int, why: str = "") -> list[e.Event]:
    """It is done at once, by whoever carries such out."""
    healing = _for_operators(state, caller, number)
    if healing.phase not in _OPEN:
        raise _refusal(f"{_as_it_is(healing)}: only what is suggested or observed can be approved")
    return [e.HealingApproved(number, caller.user, why)]


def refuse(state: State, caller: Caller, number: int, why: str = "") -> list[e.Event]:
    """It is not suggested again for the same findings. Whose job it is about says no to it as well."""
    healing = found(state, number)
    job = state.jobs.get(healing.proposal.place.job_id)
    if not caller.admin and (job is None or not caller.may_change(job.spec.owner.uid)):
        raise Refusal(Why.ACCESS_DENIED)
    if healing.phase not in _OPEN:
        undo = f"; `bireme healings undo {number}` takes it back" if healing.phase is HealingLife.DONE else ""
        raise _refusal(f"{_as_it_is(healing)}: only what is suggested or observed can be refused{undo}")
    return [e.HealingRefused(number, caller.user, why)]


def cancel(state: State, caller: Caller, target: Target) -> list[e.Event]:
    """`scancel`: whoever ends a job says no to starting it again, also where the job is over already."""
    if not HEALINGS.of(state):
        return requests.cancel(state, caller, target)
    restarts = [_restart_of(state, job) for job in requests.find(state, target)]
    suggested = [healing for healing in restarts if healing is not None and healing.phase in _OPEN]
    try:
        events = requests.cancel(state, caller, target)
    except Refusal as refusal:
        if refusal.why is not Why.ALREADY_DONE or not suggested:
            raise
        events = []
    return events + [event for each in suggested for event in refuse(state, caller, each.id, "the job was cancelled")]


def _restart_of(state: State, job: Job) -> Healing | None:
    """The newest decision to start it again after the start that it had last."""
    place = Place(job_id=job.id, generation=job.generation)
    return latest_of(state, Proposal(act=HealingAct.RESTART_JOB, place=place, title="", reason="").key)


def undo(state: State, caller: Caller, number: int, why: str = "") -> list[e.Event]:
    """What was done is taken back by whoever did it."""
    healing = _for_operators(state, caller, number)
    if healing.phase is not HealingLife.DONE:
        raise _refusal(f"{_as_it_is(healing)}: only what was done can be undone")
    if healing.proposal.act is HealingAct.RESTART_JOB:
        _check_restart(state, healing)
    if not healing.proposal.undo:
        raise _refusal(f"healing {number} ({healing.proposal.title}) cannot be taken back")
    return [e.HealingUndone(number, why or "taken back", caller.user)]


def _check_restart(state: State, healing: Healing) -> None:
    """Only the start that it brought back can be taken back."""
    place = healing.proposal.place
    job = state.jobs.get(place.job_id)
    if job is None or isinstance(job.phase, Finished):
        raise _refusal(f"{_as_it_is(healing)}, and the job that it brought back is over: nothing can be taken back")
    later = [each.id for each in HEALINGS.of(state).values() if _brought_later(each, place)]
    if later:
        raise _refusal(f"{_as_it_is(healing)}, and that start is over: healing {max(later)} brought the job back since")


def _brought_later(other: Healing, place: Place) -> bool:
    proposal = other.proposal
    same_job = proposal.act is HealingAct.RESTART_JOB and proposal.place.job_id == place.job_id
    return same_job and proposal.place.generation > place.generation and other.phase is HealingLife.DONE


def _for_operators(state: State, caller: Caller, number: int) -> Healing:
    if not caller.admin:
        raise Refusal(Why.ACCESS_DENIED)
    return found(state, number)


def _as_it_is(healing: Healing) -> str:
    by = f" by {healing.latest.by}" if healing.latest.by else ""
    return f"healing {healing.id} ({healing.proposal.title}) is {healing.phase}{by}"


def _refusal(text: str) -> Refusal:
    return Refusal(Why.NOT_SUPPORTED, text)
