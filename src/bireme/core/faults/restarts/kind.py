"""Inquests as a kind: why did a job end that may be started again? Its things are ends that await their verdict.

A failed end of a job that is to be healed waits for its verdict (`inquests`): the daemon reads why it ended and says so
(`InquestHeld`); where it never does, time decides without knowing. What people approve later is done here, and what
they take back is taken back. A job that hangs is ended for it, where the mode is to act.
Invariant: no end waits for its verdict for longer than `MOST_S`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.faults.healings.deciding import proposed
from bireme.core.faults.healings.shelves import HEALINGS, to_do
from bireme.core.faults.restarts import elsewhere, forgiving, holdups, inquests
from bireme.core.faults.restarts.shelves import FORGIVEN, FOUND, HELD_UP, INQUESTS, KEPT_FROM, LOOKED_AT, TAKEN_BACK
from bireme.core.kinds.kind import Kind
from bireme.core.kinds.life import Absent, Key, Life, Phase, Rows
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Gravity
from bireme.core.model.healing.healings import Healing, HealingAct
from bireme.core.model.idling.events import IDLE_EVENTS
from bireme.core.model.jobs import Ending, Finished, Outcome, Pending, Running, Starting, Suspended
from bireme.core.model.serving.events import SERVICE_EVENTS
from bireme.core.state.shelf import Shelf
from bireme.core.state.state import State

MOST_S = 30.0
"""So long a verdict is waited for."""


_MENDED_BY_RESTART = ("hang",)


class Open:
    """The phase of an inquest that is being held: the end of the start awaits its verdict."""


def _phase(state: State, job_id: Key) -> Phase:
    job = state.jobs.get(job_id)
    return Open if job is not None and isinstance(job.phase, Ending) and job.phase.awaits_verdict else Absent


_INQUEST: Rows = {
    (Absent, e.JobEnding): (Absent, Open),
    (Open, e.JobEnding): (Open, Absent),
}
INQUEST = Life("inquest", _INQUEST, {e.JobEnding: (attrgetter("job_id"),)}, _phase)

# -- what is remembered ----------------------------------------------------------------------------------------------


def _ending(state: State, event: e.JobEnding, at: float) -> None:
    job = state.jobs[event.job_id]
    waits = isinstance(job.phase, Ending) and job.phase.awaits_verdict
    _drop(FOUND, state, job.id)
    _drop(LOOKED_AT, state, job.id)
    if waits and job.id not in INQUESTS.of(state):
        INQUESTS.put(state, job.id, at)
    elif not waits:
        _drop(INQUESTS, state, job.id)
    if not event.requeue:
        _drop(TAKEN_BACK, state, job.id)
    forgiving.ending(state, event)


def _over(state: State, event: Any, at: float) -> None:
    forgiving.changed(state, event.job_id)
    _drop(INQUESTS, state, event.job_id)
    _drop(LOOKED_AT, state, event.job_id)
    if not isinstance(getattr(state.jobs.get(event.job_id), "phase", None), Pending):
        _drop(TAKEN_BACK, state, event.job_id)


def _found(state: State, event: e.FindingOpened | e.FindingChanged, at: float) -> None:
    trouble = event.trouble
    if trouble.place.job_id and trouble.cause in _MENDED_BY_RESTART and trouble.gravity is Gravity.BROKEN:
        FOUND.put(state, trouble.place.job_id, trouble.key)
    holdups.found(state, trouble, at)


def _updated(state: State, event: e.JobUpdated, at: float) -> None:
    forgiving.changed(state, event.job_id)


def _proposed(state: State, event: e.HealingProposed, at: float) -> None:
    if event.proposal.act is HealingAct.RESTART_JOB:
        _drop(FOUND, state, event.proposal.place.job_id)


def _closed(state: State, event: e.FindingClosed | e.FindingDismissed, at: float) -> None:
    holdups.over(state, event.key)
    forgiving.closed(state, event.key)
    for job_id, key in FOUND.of(state).items():
        if key == event.key:
            _drop(FOUND, state, job_id)
            return


def _undone(state: State, event: e.HealingUndone, at: float) -> None:
    proposal = HEALINGS.of(state)[event.id].proposal if event.id in HEALINGS.of(state) else None
    if proposal is None or proposal.act is not HealingAct.RESTART_JOB:
        return
    job = state.jobs.get(proposal.place.job_id)
    if job is not None and not isinstance(job.phase, Finished):
        TAKEN_BACK.put(state, job.id, event.id)


def _drop(shelf: Shelf[int, Any], state: State, job_id: int) -> None:
    if job_id in shelf.of(state):
        shelf.drop(state, job_id)


def _held(state: State, seen: o.InquestHeld, now: float) -> list[e.Event]:
    job = state.jobs.get(seen.job_id)
    if job is not None and job.mirrored:
        return list(elsewhere.judged(state, seen, now))
    return inquests.held(state, seen, now)


# -- what is decided -------------------------------------------------------------------------------------------------


def _settled(state: State, now: float) -> Iterator[e.Event]:
    """What people have approved is done, and what they have taken back is ended."""
    for job_id, key in tuple(FOUND.of(state).items()):
        yield from _of_finding(state, job_id, key)
    yield from holdups.decided(state, now)
    yield from forgiving.decided(state)
    for healing in to_do(state, (HealingAct.RESTART_JOB, HealingAct.STOP_JOB, HealingAct.TELL)):
        yield from _carried_out(state, healing)
    for job_id in tuple(TAKEN_BACK.of(state)):
        job = state.jobs[job_id]
        if isinstance(job.phase, Pending):
            yield e.JobCancelled(job_id, Outcome("CANCELLED"))
        elif isinstance(job.phase, Starting | Running | Suspended):
            yield e.JobEnding(job_id, job.generation, Outcome("CANCELLED"))


def _carried_out(state: State, healing: Healing) -> Iterator[e.Event]:
    place = healing.proposal.place
    job = state.jobs.get(place.job_id)
    if healing.proposal.act is not HealingAct.RESTART_JOB:
        yield e.HealingDone(healing.id)
    elif job is not None and job.mirrored:
        return  # the daemon asks its scheduler, and says what became of it
    elif job is None:
        yield e.HealingFailed(healing.id, "the job is over for so long that nobody has it any more: submit it again")
    elif job.generation != place.generation:
        yield e.HealingFailed(healing.id, "it was started again meanwhile")
    elif isinstance(job.phase, Finished):
        yield e.JobRequeued(job.id)
        yield e.HealingDone(healing.id)
    elif isinstance(job.phase, Pending):
        yield e.HealingDone(healing.id, "it waits in the queue again already")
    elif isinstance(job.phase, Running):
        yield e.JobEnding(
            job.id, job.generation, inquests.ended_for_healing(healing.proposal.reason), requeue=True, inquest=True
        )


def _of_finding(state: State, job_id: int, key: str) -> Iterator[e.Event]:
    """A job that hangs is ended and looked into, where it is one that is started again."""
    job, finding = state.jobs.get(job_id), FINDINGS.of(state).get(key)
    if job is None or finding is None or not isinstance(job.phase, Running) or inquests.rule_for(state, job) is None:
        return
    trouble = finding.trouble
    why = f"{trouble.title}."
    yield from proposed(state, inquests.proposal_to_restart(job, why, (finding.id,), trouble.quotes))


def _too_late(state: State, now: float, decided: Sequence[e.Event]) -> Iterator[e.Event]:
    """Verdicts that nobody gave, and proposals whose occasion is gone."""
    ended = {event.job_id for event in decided if isinstance(event, e.JobEnding)}
    for job_id, since in INQUESTS.of(state).items():
        if now - since >= MOST_S and job_id not in ended:
            nobody = o.InquestHeld(job_id=job_id, generation=state.jobs[job_id].generation, at=now)
            yield from inquests.held(state, nobody, now)
            return  # each sees what the one before it has decided: the next one in the next turn


def _times(state: State, now: float) -> Iterator[float]:
    yield from (since + MOST_S for since in INQUESTS.of(state).values())


RECOVERY = Kind(
    life=INQUEST,
    applies={},
    follows={
        e.JobEnding: (_ending,),
        e.JobEnded: (_over,),
        e.JobCancelled: (_over,),
        e.JobForgotten: (_over,),
        e.HealingUndone: (_undone,),
        e.HealingProposed: (_proposed,),
        e.FindingOpened: (_found,),
        e.FindingChanged: (_found,),
        e.FindingDismissed: (_closed,),
        e.FindingClosed: (_closed,),
        e.JobCheckpointed: (holdups.saved,),
        e.JobUpdated: (_updated,),
        e.NodeRegistered: (forgiving.registered,),
        e.NodeUpdated: (forgiving.updated,),
        e.FenceLifted: (forgiving.lifted,),
    },
    keeps=(INQUESTS, TAKEN_BACK, FOUND, HELD_UP, LOOKED_AT, KEPT_FROM, FORGIVEN),
    interprets={o.InquestHeld: _held},
    widens=inquests.opened,
    settles=_settled,
    decides=_too_late,
    times=_times,
    passes_over=frozenset(
        (
            e.ClusterConfigured,
            e.JobSubmitted,
            e.ArrayTaskSplit,
            e.ArrayPartSplit,
            e.JobBecameEligible,
            e.JobAccrualChanged,
            e.JobAllocated,
            e.JobStarted,
            e.JobLaunchFailed,
            e.BatchExited,
            e.JobRequeued,
            e.JobHeld,
            e.JobReleased,
            e.JobSuspended,
            e.JobResumed,
            e.JobToBeResumed,
            e.JobGuarded,
            e.JobTracked,
            e.JobSignalled,
            e.JobMirrored,
            *e.STEP_EVENTS,
            *(each for each in e.NODE_EVENTS if each not in (e.NodeRegistered, e.NodeUpdated)),
            *e.LOSS_EVENTS,
            e.PartitionUpdated,
            *e.ACCOUNT_EVENTS,
            *e.RESERVATION_EVENTS,
            e.HealingPolicySet,
            e.HealingApproved,
            e.HealingRefused,
            e.HealingDone,
            e.HealingFailed,
            e.HealingLapsed,
            e.FenceRaised,
            *SERVICE_EVENTS,
            *IDLE_EVENTS,
        )
    ),
)
