"""Notices to the owners of idle jobs, as a kind: given, given anew, withdrawn, and gone with the start they are about.

What is decided is in `judging`, when a figure comes. Only the move into another partition is left to this place: the
job is ended first, as by any requeue, and gets its partition when it is back in the queue, before a pass looks at it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from bireme.core.idle import judging
from bireme.core.idle.shelves import NOTICES, POLICY, put_policy
from bireme.core.idle.wording import notice_text
from bireme.core.jobs import requests
from bireme.core.kinds.kind import Kind
from bireme.core.kinds.life import Absent, Key, Life, Phase, Rows
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.idling.policy import IdleNotice, NoticeLife
from bireme.core.model.jobs import Job, Pending, Running
from bireme.core.model.refusals import Caller, Refusal
from bireme.core.model.serving.events import SERVICE_EVENTS
from bireme.core.state.state import State

_GIVEN, _LEAVING = NoticeLife.GIVEN, NoticeLife.LEAVING
_NOTICE: Rows = {
    (Absent, e.IdleNoticeGiven): (_GIVEN,),
    (_GIVEN, e.IdleNoticeGiven): (_GIVEN,),
    (_GIVEN, e.IdleNoticeWithdrawn): (Absent,),
    (_GIVEN, e.IdleMoveBegun): (_LEAVING,),
    (_LEAVING, e.IdleNoticeWithdrawn): (Absent,),
}


def _phase(state: State, job_id: Key) -> Phase:
    notice = NOTICES.of(state).get(job_id)
    return Absent if notice is None else notice.phase


NOTICE = Life("idle notice", _NOTICE, {event: (attrgetter("job_id"),) for _, event in _NOTICE}, _phase)

# -- its own events --------------------------------------------------------------------------------------------------


def _policy_set(state: State, event: e.IdlePolicySet, at: float) -> Sequence[c.Command]:
    put_policy(state, event.policy)
    return ()


def _given(state: State, event: e.IdleNoticeGiven, at: float) -> Sequence[c.Command]:
    notice = IdleNotice(event.job_id, event.generation, event.facts, event.action, event.move_to, at, event.act_at)
    NOTICES.put(state, event.job_id, notice)
    return tuple(_told(state, notice))


def _move_begun(state: State, event: e.IdleMoveBegun, at: float) -> Sequence[c.Command]:
    NOTICES.put(state, event.job_id, replace(NOTICES.of(state)[event.job_id], phase=_LEAVING))
    return ()


def _withdrawn(state: State, event: e.IdleNoticeWithdrawn, at: float) -> Sequence[c.Command]:
    NOTICES.drop(state, event.job_id)
    return ()


def _told(state: State, notice: IdleNotice) -> Iterator[c.Command]:
    """The line in the job's own output; of a job that runs, said as often as one likes: agents say it once."""
    job = state.holding.get(notice.job_id)
    if job is not None and isinstance(job.phase, Running) and notice.phase is _GIVEN:
        nodes = job.phase.allocation.node_names[:1]
        yield c.TellJob(job.id, job.generation, nodes, notice_text(notice), notice.given_at)


# -- what happens to the job -----------------------------------------------------------------------------------------


def _dropped(state: State, event: Any, at: float) -> None:
    if event.job_id in NOTICES.of(state):
        NOTICES.drop(state, event.job_id)


def _job_ending(state: State, event: e.JobEnding, at: float) -> None:
    """One that is to be moved is remembered until it is back in the queue; any other end ends the notice."""
    notice = NOTICES.of(state).get(event.job_id)
    if notice is not None and not (notice.phase is _LEAVING and event.requeue):
        NOTICES.drop(state, event.job_id)


def _job_ended(state: State, event: e.JobEnded, at: float) -> None:
    job = state.jobs.get(event.job_id)
    if job is None or not isinstance(job.phase, Pending):
        _dropped(state, event, at)


_MOVER = Caller(0, 0, "root", admin=True)
"""With whose right a job is moved: the policy is an operator's."""


def _settled(state: State, now: float) -> Iterator[e.Event]:
    """Jobs that came back to be moved wait in their new partition from now on."""
    for notice in [each for each in NOTICES.of(state).values() if each.phase is _LEAVING]:
        job = state.jobs[notice.job_id]
        if isinstance(job.phase, Pending):
            yield from _moved(state, job, notice, now)


def _moved(state: State, job: Job, notice: IdleNotice, now: float) -> Iterator[e.Event]:
    why = f"it waits in partition {notice.move_to} now"
    target = requests.Target(job.array_job_id or job.id, job.task_id)
    try:
        yield from requests.update(state, _MOVER, target, {"partitions": (notice.move_to,)}, now)
    except Refusal as refusal:
        why = f"it could not be moved to partition {notice.move_to}, and waits where it was: {refusal}"
    yield e.IdleNoticeWithdrawn(notice.job_id, notice.generation, why)


def _outstanding(state: State) -> Iterator[c.Command]:
    for notice in NOTICES.of(state).values():
        yield from _told(state, notice)


IDLENESS = Kind(
    life=NOTICE,
    applies={
        e.IdlePolicySet: _policy_set,
        e.IdleNoticeGiven: _given,
        e.IdleMoveBegun: _move_begun,
        e.IdleNoticeWithdrawn: _withdrawn,
    },
    follows={
        e.JobEnding: (_job_ending,),
        e.JobEnded: (_job_ended,),
        e.JobSuspended: (_dropped,),
        e.JobCancelled: (_dropped,),
        e.JobMirrored: (_dropped,),
        e.JobForgotten: (_dropped,),
    },
    keeps=(POLICY, NOTICES),
    interprets={o.IdlenessSeen: judging.seen},
    settles=_settled,
    outstanding=_outstanding,
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
            e.JobUpdated,
            e.JobResumed,
            e.JobToBeResumed,
            e.JobGuarded,
            e.JobCheckpointed,
            e.JobTracked,
            e.JobSignalled,
            *e.STEP_EVENTS,
            *e.NODE_EVENTS,
            *e.LOSS_EVENTS,
            e.PartitionUpdated,
            *e.ACCOUNT_EVENTS,
            *e.RESERVATION_EVENTS,
            *SERVICE_EVENTS,
            *e.FAULT_EVENTS,
        )
    ),
)
