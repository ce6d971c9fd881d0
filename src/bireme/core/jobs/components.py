"""Heterogeneous jobs: several jobs, one life. They start together, are requeued together, and end with their leader.

Called wherever events are made that end one component (`due`, `intake`, `requests`, `operators`, preemption).
Invariant: no component waits for one that is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bireme.core.model import events as e
from bireme.core.model.jobs import Finished, Job, Outcome, Pending, Running, Starting, Suspended
from bireme.core.state.state import State


def others(state: State, job: Job) -> list[Job]:
    """Components of a heterogeneous job beside this one; none for an ordinary job."""
    members = state.het_members.get(job.het_job_id, ()) if job.het_job_id is not None else ()
    return [state.jobs[member] for member in members if member != job.id]


def with_companions(state: State, events: Sequence[e.Event]) -> list[e.Event]:
    """The events, and what they mean for the other components of the jobs they end."""
    result = list(events)
    if not state.het_members:
        return result
    covered = {event.job_id for event in events if isinstance(event, e.JobEnding | e.JobCancelled)}
    for event in events:
        for more in _consequences(state, event):
            if more.job_id not in covered:
                covered.add(more.job_id)
                result.append(more)
    return result


def _consequences(state: State, event: e.Event) -> Iterator[e.JobEnding | e.JobCancelled]:
    match event:
        case e.JobEnding(job_id=job_id):
            job = state.jobs[job_id]
            if _ends_all(job, event):
                yield from _end(others(state, job), event.outcome, event.requeue, event.hold, event.kill_now)
        case e.JobLaunchFailed(job_id=job_id):
            yield from _end(others(state, state.jobs[job_id]), Outcome("REQUEUED"), True, False, True)
        case e.JobCancelled(job_id=job_id) if job_id in state.jobs:
            waiting = (other for other in others(state, state.jobs[job_id]) if isinstance(other.phase, Pending))
            yield from (e.JobCancelled(other.id, event.outcome) for other in waiting)


def _ends_all(job: Job, ending: e.JobEnding) -> bool:
    """One that ends by itself leaves the others alone; the leader's end, a loss, a requeue, a failed start do not."""
    leads = job.het_job_id == job.id
    by_force = ending.outcome.state in ("NODE_FAIL", "PREEMPTED")
    return leads or ending.requeue or by_force or isinstance(job.phase, Starting)


def _end(jobs: Sequence[Job], outcome: Outcome, requeue: bool, hold: bool, kill_now: bool) -> Iterator[e.JobEnding]:
    for job in jobs:
        if isinstance(job.phase, Starting | Running | Suspended):
            yield e.JobEnding(job.id, job.generation, outcome, requeue, hold, kill_now)


def reunited(state: State, job: Job) -> list[e.Event]:
    """A component that was over when the others were requeued comes back too, or they would wait for it forever."""
    return [e.JobRequeued(other.id) for other in others(state, job) if isinstance(other.phase, Finished)]
