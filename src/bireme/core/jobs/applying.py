"""What events do to jobs, in the order of a job's life: submitted, split, held, started, ending, ended, forgotten.

Called by `apply` only. The table (`table.py`) says what is allowed; a handler only does it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from bireme.core.jobs import mirroring, suspending
from bireme.core.jobs.keys import remember
from bireme.core.jobs.table import JOB
from bireme.core.kinds.kind import Handler
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model.healing.restarts import Verdict
from bireme.core.model.jobs import (
    ArraySpec,
    ArrayTask,
    ArrayWaiting,
    Ending,
    Finished,
    Job,
    JobSpec,
    Outcome,
    Pending,
    Running,
    Starting,
    Suspended,
)
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.model.resources import NO_USAGE, SUCCESS, merge_usage
from bireme.core.state.state import ArrayTally, State
from bireme.core.steps import applying as stepping

NOTHING: tuple[c.Command, ...] = ()
_MOST_TRIES = 20
GAVE_WAY = "PREEMPTED"
"""The outcome of a job that was ended for another: requeued so, it stands where it stood, or it would at once evict its
evictor."""


def _job_submitted(state: State, event: e.JobSubmitted, at: float) -> Sequence[c.Command]:
    spec = event.spec
    job = Job(
        id=event.job_id,
        spec=spec,
        submitted_at=at,
        phase=Pending(
            since=at,
            eligible_at=event.eligible_at,
            held_by="user" if spec.hold else None,
            reasons=event.reasons,
        ),
        priority=event.priority,
        het_job_id=event.het_job_id,
    )
    if spec.array is not None:
        job.array = ArrayWaiting(deque(spec.array.task_ids), spec.array.throttle)
        state.arrays[job.id] = ArrayTally(total=len(spec.array.task_ids))
    state.jobs[job.id] = job
    state.pending[job.id] = job
    state.index_members(job)
    state.next_job_id = max(state.next_job_id, job.id + 1)
    state.submissions += 1
    if event.idempotency_key:
        remember(state, event.idempotency_key, job.id)
    return NOTHING


def _array_task_split(state: State, event: e.ArrayTaskSplit, at: float) -> Sequence[c.Command]:
    parent = state.jobs.get(event.array_job_id)
    if parent is None or not isinstance(parent.array, ArrayWaiting) or parent.spec.array is None:
        raise JOB.forbids(state, event.array_job_id, "not a waiting array", event)
    task = _array_task(event, parent.spec.array)
    _remove_waiting(parent.array.waiting, event.task_id)
    state.array_tasks.setdefault(parent.id, {})[event.task_id] = event.job_id
    if event.job_id == parent.id:
        parent.array = task
        return NOTHING
    assert isinstance(parent.phase, Pending)
    job = Job(
        id=event.job_id,
        spec=parent.spec,
        submitted_at=parent.submitted_at,
        phase=parent.phase,
        priority=parent.priority,
        array=task,
    )
    state.jobs[job.id] = job
    state.pending[job.id] = job
    state.array_members.setdefault(event.array_job_id, set()).add(job.id)
    state.next_job_id = max(state.next_job_id, job.id + 1)
    return NOTHING


def _array_part_split(state: State, event: e.ArrayPartSplit, at: float) -> Sequence[c.Command]:
    parent = state.jobs.get(event.array_job_id)
    if parent is None or not isinstance(parent.array, ArrayWaiting) or parent.array.array_job_id is not None:
        raise JOB.forbids(state, event.array_job_id, "not a waiting array", event)
    leaving = {task for first, last, step in event.ranges for task in range(first, last + 1, step)}
    staying = deque(task for task in parent.array.waiting if task not in leaving)
    if not staying or len(parent.array.waiting) - len(staying) != len(leaving):
        raise JOB.forbids(state, parent.id, f"an array with {len(parent.array.waiting)} waiting tasks", event)
    parent.array.waiting = staying
    assert isinstance(parent.phase, Pending)
    part = Job(
        id=event.job_id,
        spec=parent.spec,
        submitted_at=parent.submitted_at,
        phase=parent.phase,
        priority=parent.priority,
        array=ArrayWaiting(deque(sorted(leaving)), parent.array.throttle, parent.id),
    )
    state.jobs[part.id] = part
    state.pending[part.id] = part
    state.index_members(part)
    state.next_job_id = max(state.next_job_id, part.id + 1)
    return NOTHING


def _array_task(event: e.ArrayTaskSplit, array: ArraySpec) -> ArrayTask:
    ids = array.task_ids
    return ArrayTask(
        array_job_id=event.array_job_id,
        task_id=event.task_id,
        task_count=len(ids),
        task_min=ids[0],
        task_max=ids[-1],
        task_step=_step_of(array.text),
    )


def _step_of(text: str) -> int:
    """The step as it was written, 2 in 0-30:2; a list of ids has none, however even."""
    written = text.partition(":")[2]
    digits = "".join(takewhile(str.isdigit, written))
    return int(digits) if digits else 1


def _remove_waiting(waiting: deque[int], task_id: int) -> None:
    if waiting[0] == task_id:  # the planner takes the first: no search
        waiting.popleft()
    else:
        waiting.remove(task_id)


def _job_became_eligible(state: State, event: e.JobBecameEligible, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    assert isinstance(job.phase, Pending)
    job.phase = replace(job.phase, eligible_at=at, accrues=True, accrues_since=None)
    return NOTHING


def _job_accrual_changed(state: State, event: e.JobAccrualChanged, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    assert isinstance(job.phase, Pending)
    job.phase = replace(job.phase, accrues=event.accrues, accrues_since=at if event.accrues else None)
    return NOTHING


def _job_held(state: State, event: e.JobHeld, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    if not isinstance(job.phase, Pending):
        job.held_on_return = event.by
        return NOTHING
    job.phase = replace(job.phase, held_by=event.by, eligible_at=None, reasons=(event.reason,) if event.reason else ())
    state.verdicts.pop(job.id, None)
    return NOTHING


def _job_released(state: State, event: e.JobReleased, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    if not isinstance(job.phase, Pending):
        job.held_on_return = None
        return NOTHING
    job.phase = replace(job.phase, held_by=None, not_before=None, reasons=())
    job.launch_failures = 0
    state.verdicts.pop(job.id, None)
    return NOTHING


def _job_updated(state: State, event: e.JobUpdated, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    before, job.spec, job.priority = job.spec, event.spec, event.priority
    if isinstance(job.phase, Pending) and _when_of(before) != _when_of(event.spec):
        job.phase = replace(job.phase, eligible_at=None)  # `due` says when it is again
    state.verdicts.pop(job.id, None)
    if isinstance(job.array, ArrayWaiting) and event.spec.array is not None:
        job.array.throttle = event.spec.array.throttle
    return NOTHING


def _when_of(spec: JobSpec) -> tuple[object, ...]:
    return spec.begin_at, spec.dependencies


def _job_allocated(state: State, event: e.JobAllocated, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    allocation = event.allocation
    if job.is_waiting_array or allocation.generation != job.generation + 1:
        raise JOB.forbids(state, job.id, f"at generation {job.generation}", event)
    assert isinstance(job.phase, Pending)
    state.occupancy.hold(allocation)
    job.eligible_at = job.phase.eligible_at
    job.generation = allocation.generation
    job.phase = Starting(allocation, since=at)
    del state.pending[job.id]
    state.verdicts.pop(job.id, None)
    state.holding[job.id] = job
    if isinstance(job.array, ArrayTask):
        state.arrays[job.array.array_job_id].begun.setdefault(job.array.task_id, at)
    return (c.LaunchJob(job, allocation),)


def _job_started(state: State, event: e.JobStarted, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    assert isinstance(job.phase, Starting)
    job.phase = Running(job.phase.allocation, started_at=job.phase.since)
    job.launch_failures = 0
    return NOTHING


def _job_launch_failed(state: State, event: e.JobLaunchFailed, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    assert isinstance(job.phase, Starting)
    _release(state, job)
    job.launch_failures += 1
    job.last_restart_at, job.sent_back_for = at, event.reason
    held_by = _held_on_return(job, event.hold)
    job.phase = Pending(
        since=at,
        eligible_at=at,
        held_by=held_by,
        reasons=(event.reason,),
        not_before=event.not_before,
    )
    state.pending[job.id] = job
    return NOTHING


def _batch_exited(state: State, event: e.BatchExited, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    job.batch_status, job.batch_usage, job.batch_ended_at = event.status, event.usage, event.at
    job.usage = merge_usage((job.usage, event.usage)) if job.usage is not NO_USAGE else event.usage
    if isinstance(job.phase, Ending):
        job.phase = replace(job.phase, ended_at=event.at)
    return NOTHING


def _job_ending(state: State, event: e.JobEnding, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    phase = job.phase
    grace_s = state.config.settings.kill_wait_s if event.grace_s is None else event.grace_s
    grace_s = 0 if event.kill_now else grace_s
    if isinstance(phase, Ending):
        given_up = tuple(sorted({*phase.given_up, *event.given_up}))
        job.phase = ending = replace(phase, given_up=given_up)
        if event.verdict is not None:
            job.phase = ending = _judged(job, ending, event, event.verdict)
        elif phase.requeue and not event.requeue:  # it was to come back, and now is not
            job.phase = ending = replace(ending, requeue=False, hold=False, outcome=event.outcome, awaits_verdict=False)
    else:
        assert isinstance(phase, Starting | Running | Suspended)
        job.phase = ending = Ending(
            allocation=phase.allocation,
            started_at=phase.since if isinstance(phase, Starting) else phase.started_at,
            since=at,
            outcome=event.outcome,
            requeue=event.requeue,
            hold=event.hold,
            suspended_s=suspending.suspended_until(phase, at),
            was_suspended=isinstance(phase, Suspended),
            given_up=event.given_up,
            awaits_verdict=event.inquest,
        )
    why = event.outcome.reason
    idle = why is not None and why.kind is ReasonKind.IDLE_GPUS
    cause = "IDLE GPUS" if idle else stepping.CAUSES.get(event.outcome.state, "")
    return (c.TerminateJob(job.id, job.generation, phase.allocation.node_names, grace_s, cause, ending.given_up),)


def _judged(job: Job, ending: Ending, event: e.JobEnding, verdict: Verdict) -> Ending:
    """There is a verdict on why it ended: it comes back, or not, and without which nodes."""
    job.tries = (*job.tries, verdict.tried)[-_MOST_TRIES:]
    if verdict.restart:
        asked = job.spec.resources
        exclude = tuple(sorted({*asked.exclude, *verdict.without})) if verdict.without else asked.exclude
        job.spec = job.spec.revised(resources=replace(asked, exclude=exclude, kept=ending.allocation.node_names))
    return replace(
        ending,
        requeue=event.requeue,
        hold=event.hold,
        outcome=event.outcome,
        awaits_verdict=False,
        not_before=verdict.not_before,
    )


def _job_ended(state: State, event: e.JobEnded, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    phase = job.phase
    assert isinstance(phase, Ending)
    _release(state, job)
    if phase.requeue:
        job.sent_back_for = phase.outcome.reason
        reasons = event.reasons or (_why_held(phase.outcome),) if phase.hold else event.reasons
        expedited = job.spec.expedite_requeue and phase.outcome.state != GAVE_WAY
        _back_to_queue(state, job, event.at, phase.hold, event.not_before, reasons, expedited=expedited)
        return NOTHING
    job.phase = finished_phase(phase, event)
    _finish(state, job)
    return NOTHING


def _why_held(outcome: Outcome) -> Reason:
    return reason(ReasonKind.SPECIAL_EXIT if outcome.state == "SPECIAL_EXIT" else ReasonKind.REQUEUED_HELD)


def finished_phase(phase: Ending, event: e.JobEnded) -> Finished:
    return Finished(phase.outcome, event.at, phase.started_at, phase.allocation, phase.suspended_s)


def _job_cancelled(state: State, event: e.JobCancelled, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    tally = state.arrays.get(job.array_job_id or 0)
    if isinstance(job.array, ArrayWaiting) and tally is not None:
        tally.failed.update(job.array.waiting)
    assert isinstance(job.phase, Pending)
    job.eligible_at, job.held_on_return = job.phase.eligible_at, job.phase.held_by
    del state.pending[job.id]
    state.verdicts.pop(job.id, None)
    job.phase = Finished(event.outcome, at)
    _finish(state, job)
    return NOTHING


def _job_requeued(state: State, event: e.JobRequeued, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    del state.finished[job.id]
    tally = state.arrays.get(job.array_job_id or 0)
    if tally is not None and job.task_id is not None:
        tally.succeeded.discard(job.task_id)
        tally.failed.discard(job.task_id)
    reasons = (reason(ReasonKind.REQUEUED_HELD),) if event.hold else ()
    was_eligible = job.eligible_at is not None
    _back_to_queue(state, job, at, event.hold, None, reasons, expedited=job.spec.expedite_requeue)
    if not was_eligible:  # it was cancelled while it waited for its time or for other jobs, and waits for them again
        assert isinstance(job.phase, Pending)
        job.phase = replace(job.phase, eligible_at=None)
    return NOTHING


def _back_to_queue(
    state: State,
    job: Job,
    at: float,
    hold: bool,
    not_before: float | None,
    reasons: tuple[Reason, ...],
    *,
    expedited: bool,
) -> None:
    job.restarts += 1
    job.last_restart_at, job.checkpointed_at = at, None
    job.steps, job.next_step, job.usage = {}, 0, NO_USAGE
    job.batch_status, job.batch_usage, job.batch_ended_at = None, NO_USAGE, None
    job.worst_step_status, job.eligible_at = SUCCESS, None
    held_by = _held_on_return(job, hold)
    job.phase = Pending(
        since=at,
        eligible_at=None if held_by else at,
        held_by=held_by,
        reasons=reasons,
        not_before=not_before,
        expedited=expedited,
    )
    state.pending[job.id] = job


def _held_on_return(job: Job, hold: bool) -> str | None:
    """Who holds it now that it waits again. `hold`: it comes back so that somebody looks at it."""
    held_by, job.held_on_return = job.held_on_return or ("user" if hold else None), None
    return held_by


def _release(state: State, job: Job) -> None:
    state.occupancy.release(job.held)
    del state.holding[job.id]
    job.guarded_by = ""  # whatever kept that start


def _finish(state: State, job: Job) -> None:
    state.finished[job.id] = job
    assert isinstance(job.phase, Finished)
    if isinstance(job.array, ArrayTask):
        tally = state.arrays.get(job.array.array_job_id)
        if tally is not None:
            good = job.phase.outcome.state == "COMPLETED"
            (tally.succeeded if good else tally.failed).add(job.array.task_id)


def _job_checkpointed(state: State, event: e.JobCheckpointed, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    if event.gone:
        job.checkpoint = job.checkpointed_at = None
        return NOTHING
    if event.checkpoint is None:
        job.checkpointed_at = at
        return NOTHING
    job.checkpoint = event.checkpoint
    started_at = getattr(job.phase, "started_at", None)
    if started_at is not None and event.checkpoint.saved_at >= started_at:  # what an earlier start saved is older
        job.checkpointed_at = max(job.checkpointed_at or 0.0, min(at, event.checkpoint.saved_at))
    return NOTHING


def _job_tracked(state: State, event: e.JobTracked, at: float) -> Sequence[c.Command]:
    state.jobs[event.job_id].tracked = event.run
    return NOTHING


def _job_signalled(state: State, event: e.JobSignalled, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    phase = job.phase
    assert isinstance(phase, Running | Suspended)
    if event.warning:
        job.phase = replace(phase, warned=True)
    nodes = phase.allocation.node_names
    if event.step_id is not None:
        return (c.SignalStep(job.id, job.generation, event.step_id, nodes, event.signal),)
    return (c.SignalJob(job.id, job.generation, nodes, event.signal, event.scope),)


def _job_forgotten(state: State, event: e.JobForgotten, at: float) -> Sequence[c.Command]:
    job = state.jobs[event.job_id]
    del state.jobs[job.id]
    del state.finished[job.id]
    if job.array_job_id is not None:
        state.forget_member(job, job.array_job_id)
    if job.het_job_id is not None:
        state.het_members[job.het_job_id].remove(job.id)
        if not state.het_members[job.het_job_id]:
            del state.het_members[job.het_job_id]
    return NOTHING


APPLIES: dict[type[e.Event], Handler] = {
    e.JobSubmitted: _job_submitted,
    e.ArrayTaskSplit: _array_task_split,
    e.ArrayPartSplit: _array_part_split,
    e.JobBecameEligible: _job_became_eligible,
    e.JobAccrualChanged: _job_accrual_changed,
    e.JobHeld: _job_held,
    e.JobReleased: _job_released,
    e.JobUpdated: _job_updated,
    e.JobAllocated: _job_allocated,
    e.JobStarted: _job_started,
    e.JobLaunchFailed: _job_launch_failed,
    e.BatchExited: _batch_exited,
    e.JobEnding: _job_ending,
    e.JobEnded: _job_ended,
    e.JobCancelled: _job_cancelled,
    e.JobRequeued: _job_requeued,
    e.JobSuspended: suspending.job_suspended,
    e.JobResumed: suspending.job_resumed,
    e.JobToBeResumed: suspending.job_to_be_resumed,
    e.JobGuarded: suspending.job_guarded,
    e.JobCheckpointed: _job_checkpointed,
    e.JobSignalled: _job_signalled,
    e.JobTracked: _job_tracked,
    e.JobForgotten: _job_forgotten,
    e.JobMirrored: mirroring.job_mirrored,
}
