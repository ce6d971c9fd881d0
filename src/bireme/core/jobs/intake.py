"""What engines report of jobs' runs, judged against what is known: events.

A report about an old generation, a repeated one, or one that the state has overtaken gives no events: engines may say
things late, twice and out of order. This is the only place that decides what a process's end means for its job.
"""

from __future__ import annotations

from dataclasses import replace

from bireme.core.cluster.loss import found_over
from bireme.core.jobs import mirroring
from bireme.core.jobs.due import node_failure
from bireme.core.kinds.kind import Aside, Interpreter, Remark, RunOver
from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.jobs import Ending, Job, JobKind, Outcome, Pending, Running, Starting, Suspended
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.model.resources import ExitStatus
from bireme.core.nodes.draining import drained
from bireme.core.state.state import State

LAUNCH_BACKOFF_S = 5.0
"""Wait after a refused launch, doubled each time."""
LAUNCH_BACKOFF_MOST_S = 300.0
REQUEUE_DELAY_MOST_S = 120.0
"""Longest wait of a job that RequeueExit brings back: none at first, then 1 s, 3 s, 7 s ... Slurm always waits that."""
_SAVES = (Pending, Running, Suspended, Ending)
"""Phases in which a newer checkpoint may be found: before a start is confirmed nothing of it was written."""
SPECIAL_EXIT_HELD = "SPECIAL_EXIT"
OfRun = (
    o.JobLaunched
    | o.JobRefused
    | o.BatchFinished
    | o.JobCleared
    | o.JobVanished
    | o.GuardSeen
    | o.StepBegan
    | o.StepNodeFinished
    | o.ReplicaProbed
)
"""Observations that name a start of a job."""


def held_job(state: State, seen: OfRun) -> Job | None:
    """The job whose newest start the report is about, while it holds something; None: it comes too late."""
    job = state.holding.get(seen.job_id)
    return job if job is not None and job.generation == seen.generation else None


def _launched(state: State, seen: o.JobLaunched, now: float) -> list[e.Event]:
    job = held_job(state, seen)
    if job is None or not isinstance(job.phase, Starting):
        return []
    return [e.JobStarted(job.id, job.generation, seen.at)]


def _not_launched(state: State, seen: o.JobRefused, now: float) -> list[e.Event]:
    job = held_job(state, seen)
    return _refused(state, job, seen, now) if job is not None else []


def _finished(state: State, seen: o.BatchFinished, now: float) -> list[e.Event]:
    job = held_job(state, seen)
    if job is None and state.loss is not None:
        return found_over(state, seen, _verdict_on(state, seen.status, seen.note)[0])
    return _batch_finished(state, job, seen) if job is not None else []


def _cleared(state: State, seen: o.JobCleared, now: float) -> list[e.Event]:
    """Nothing of the start is left but where it says so: its end, or, if it was over already, nodes for others."""
    job = held_job(state, seen)
    undone = drained(state, seen.epilog_failed_on, "Epilog error")
    if job is not None:
        over = isinstance(job.phase, Ending) and not job.phase.awaits_verdict
        ended = [*_ended(state, job, seen.at), *_left(seen)] if over else []
        return [*ended, *undone]
    key = (seen.job_id, seen.generation)
    if state.leftovers.get(key, set()) <= set(seen.uncleared_on):
        return []
    return [e.LeftoverCleared(*key, seen.uncleared_on), *undone]


def _guarded(state: State, seen: o.GuardSeen, now: float) -> list[e.Event]:
    job = held_job(state, seen)
    news = job is not None and isinstance(job.phase, Starting | Running | Ending) and job.guarded_by != seen.by
    return [e.JobGuarded(seen.job_id, seen.generation, seen.by)] if news else []


def _checkpoint_seen(state: State, seen: o.CheckpointSeen, now: float) -> list[e.Event]:
    """News alone are told: a newer one, another one where the newest was thrown away, others that are not whole."""
    job = state.jobs.get(seen.job_id)
    if job is None or job.generation != seen.generation or not isinstance(job.phase, _SAVES) or job.mirrored:
        return []
    if seen.checkpoint is None:
        return [e.JobCheckpointed(job.id, job.generation, gone=True)] if job.checkpoint is not None else []
    found = replace(seen.checkpoint, saved_at=min(seen.checkpoint.saved_at, now))
    return [e.JobCheckpointed(job.id, job.generation, found)] if job.checkpoint != found else []


def _vanished(state: State, seen: o.JobVanished, now: float) -> list[e.Event]:
    job = held_job(state, seen)
    if job is None or isinstance(job.phase, Ending):
        return []  # its TerminateJob is answered by the new agent
    return [node_failure(job, seen.node, state.config.settings.job_requeue, seen.reason)]


def _mirrored(state: State, seen: o.JobSeen, now: float) -> list[e.Event]:
    return [] if seen.past else mirroring.mirrored(state, seen.seen, now)


def _nothing_journaled(state: State, seen: o.QueueSeen, now: float) -> list[e.Event]:
    return []  # what it means is a remark: standings, and whom to ask after


def _refused(state: State, job: Job, seen: o.JobRefused, now: float) -> list[e.Event]:
    undone = drained(state, seen.prolog_failed_on, "Prolog error")
    undone += drained(state, seen.short_on, f"Launch failed: {seen.reason}")
    if isinstance(job.phase, Ending):
        waits = seen.uncleared_on or job.phase.awaits_verdict
        return undone if waits else [*_ended(state, job, seen.at), *undone]
    if not isinstance(job.phase, Starting):
        return undone
    tries = job.launch_failures + 1
    given_up = tries > state.config.settings.max_batch_requeue and not seen.passing
    hold = seen.permanent or given_up or _held_by_prolog(state, seen)
    why = reason(ReasonKind.LAUNCH_FAILED, why=seen.reason, tries=tries)
    if seen.fatal:
        return [e.JobEnding(job.id, job.generation, Outcome("FAILED", ExitStatus(code=1), why), kill_now=True)]
    if job.phase.allocation.first_node in seen.uncleared_on:
        return [_maybe_begun(job, why), *undone]
    if job.spec.kind is JobKind.INTERACTIVE:
        outcome = Outcome("FAILED", ExitStatus(code=1), why)
        ended = [e.JobEnding(job.id, job.generation, outcome), *_ended(state, job, seen.at)]
        return [*ended, *undone, *_left(seen)]
    again_at = now + min(LAUNCH_BACKOFF_MOST_S, LAUNCH_BACKOFF_S * 2 ** min(tries - 1, 10))
    return [e.JobLaunchFailed(job.id, job.generation, why, hold, again_at), *undone, *_left(seen)]


def _maybe_begun(job: Job, why: Reason) -> e.JobEnding:
    """The end of a job whose script may have begun where nobody answers: before that is known to be over
    it must not be started again."""
    batch = job.spec.kind is JobKind.BATCH
    outcome = Outcome("REQUEUED", reason=why) if batch else Outcome("FAILED", ExitStatus(code=1), why)
    return e.JobEnding(job.id, job.generation, outcome, requeue=batch, kill_now=True)


def _left(seen: o.JobRefused | o.JobCleared) -> list[e.Event]:
    """What is left of a start, by node; also on nodes that left the configuration, since they may come back."""
    return [e.LeftoverFound(node, seen.job_id, seen.generation) for node in seen.uncleared_on]


def _held_by_prolog(state: State, seen: o.JobRefused) -> bool:
    return bool(seen.prolog_failed_on) and "nohold_on_prolog_fail" not in state.config.words("SchedulerParameters")


def _ended(state: State, job: Job, at: float, status: ExitStatus | None = None) -> list[e.Event]:
    """A script that asks again and again to be requeued (RequeueExit) comes back later each time."""
    if status is None and isinstance(job.phase, Ending):
        status = job.phase.outcome.status
    again_at = job.phase.not_before if isinstance(job.phase, Ending) else None
    if status is not None and job.restarts and status.code in state.config.settings.requeue_exit:
        again_at = at + min(REQUEUE_DELAY_MOST_S, 2.0 ** min(job.restarts, 10) - 1)
    return [e.JobEnded(job.id, job.generation, _over_at(job, at), not_before=again_at)]


def _over_at(job: Job, at: float) -> float:
    """Of a start that was looked into: when it would have been over without. Its owner does not pay for that look."""
    looked_into = isinstance(job.phase, Ending) and job.tries and job.tries[-1].generation == job.generation
    if not looked_into:
        return at
    assert isinstance(job.phase, Ending)
    return min(at, job.phase.ended_at or job.batch_ended_at or at)


def _batch_finished(state: State, job: Job, seen: o.BatchFinished) -> list[e.Event]:
    events: list[e.Event] = []
    if isinstance(job.phase, Starting):  # it was so short that its end overtook its start
        events.append(e.JobStarted(job.id, job.generation, seen.at))
    if job.batch_status is None:
        events.append(e.BatchExited(job.id, job.generation, seen.status, seen.usage, seen.at))
    if not isinstance(job.phase, Ending):
        outcome, requeue, hold = _verdict_on(state, seen.status, seen.note, comes_back=job.spec.replica is None)
        if seen.ordered:  # not by us: its agent was told to end, when no daemon was there (`bireme down --end-jobs`)
            outcome, requeue, hold = Outcome("CANCELLED", seen.status), False, False
        events.append(e.JobEnding(job.id, job.generation, outcome, requeue, hold))
    if seen.cleared and not (isinstance(job.phase, Ending) and job.phase.awaits_verdict):
        events.extend(_ended(state, job, seen.at, seen.status))
    return events


def _verdict_on(state: State, status: ExitStatus, note: str, *, comes_back: bool = True) -> tuple[Outcome, bool, bool]:
    """(outcome, requeue, hold) of a job whose script ended by itself. `comes_back` False: whatever its exit code, it is
    not queued again; a service replaces its replicas by new ones."""
    settings = state.config.settings
    if comes_back and status.code and status.code in settings.requeue_exit_hold:
        return Outcome(SPECIAL_EXIT_HELD, status, _why(status, note)), True, True
    if comes_back and status.code and status.code in settings.requeue_exit:
        return Outcome("REQUEUED", status, _why(status, note)), True, False
    word = "COMPLETED" if status.ok else "OUT_OF_MEMORY" if status.out_of_memory else "FAILED"
    return Outcome(word, status, _why(status, note)), False, False


def _why(status: ExitStatus, note: str) -> Reason | None:
    if status.ok:
        return None
    facts = {"why": note} if note else {}
    if status.out_of_memory:
        return reason(ReasonKind.OUT_OF_MEMORY)
    if status.signal:
        return reason(ReasonKind.RAISED_SIGNAL, signal=status.signal, **facts)
    return reason(ReasonKind.NON_ZERO_EXIT, code=status.code, **facts)


# -- what is not journaled -------------------------------------------------------------------------------------------


def _let_go(state: State, seen: OfRun | o.JobUnkillable, now: float) -> Aside:
    """An engine need not keep what the state no longer holds and has not to clear: an old start, a job long over."""
    key = (seen.job_id, seen.generation)
    return Aside() if state.holds(*key) or key in state.leftovers else Aside(forgettable=[key])


def _long_ago(state: State, seen: o.JobSeen, now: float) -> Aside:
    """A job of another scheduler's queue that ended so long ago that only the history needs to know."""
    if not seen.past and not mirroring.is_history(state, seen.seen, now):
        return Aside()
    return Aside(history=[RunOver(mirroring.mirrored_job(None, seen.seen), seen.seen.phase)])


def _queue_seen(state: State, seen: o.QueueSeen, now: float) -> Aside:
    """Who waits for what in another scheduler's queue, and whom it does not list any more."""
    mirroring.take_standings(state, seen.standings)
    return Aside(commands=[c.FindJob(job) for job in mirroring.missing_from(state, seen.listed)])


INTERPRETS: dict[type[o.Observation], Interpreter] = {
    o.JobLaunched: _launched,
    o.JobRefused: _not_launched,
    o.BatchFinished: _finished,
    o.JobCleared: _cleared,
    o.JobVanished: _vanished,
    o.GuardSeen: _guarded,
    o.JobSeen: _mirrored,
    o.QueueSeen: _nothing_journaled,
    o.CheckpointSeen: _checkpoint_seen,
}

_OF_A_START = (
    o.JobLaunched,
    o.JobRefused,
    o.BatchFinished,
    o.JobCleared,
    o.JobVanished,
    o.JobUnkillable,
    o.StepBegan,
    o.StepNodeFinished,
    o.ReplicaProbed,
)
REMARKS: dict[type[o.Observation], Remark] = {
    **dict.fromkeys(_OF_A_START, _let_go),
    o.JobSeen: _long_ago,
    o.QueueSeen: _queue_seen,
}
