"""What may happen to a job: its life in one table (law 4). Read it top to bottom.

Keys are (phase now, event); the value is the phase after, or several where the event's own content decides. A pair that
is not here does not exist, and neither does a phase after an event that its row does not name: `apply` checks both.
"""

from __future__ import annotations

from operator import attrgetter

from bireme.core.kinds.life import Absent, Life, Phase, Rows
from bireme.core.model import events as e
from bireme.core.model.jobs import Ending, Finished, Pending, Running, Starting, Suspended
from bireme.core.state.state import State


class Mirrored:
    """The phase of a job in another scheduler's queue: that scheduler decides, and may take it from any phase to any
    other. Nothing happens to it here but what is seen there."""


class MirroredEnd:
    """The phase of a job of another scheduler's queue that has ended there."""


_JOB: Rows = {
    (Absent, e.JobSubmitted): (Pending,),
    (Absent, e.ArrayTaskSplit): (Pending,),
    (Absent, e.ArrayPartSplit): (Pending,),
    (Pending, e.ArrayTaskSplit): (Pending,),
    (Pending, e.ArrayPartSplit): (Pending,),
    (Pending, e.JobBecameEligible): (Pending,),
    (Pending, e.JobAccrualChanged): (Pending,),
    (Pending, e.JobHeld): (Pending,),
    (Pending, e.JobReleased): (Pending,),
    (Pending, e.JobUpdated): (Pending,),
    (Pending, e.JobAllocated): (Starting,),
    (Pending, e.JobCancelled): (Finished,),
    (Starting, e.JobStarted): (Running,),
    (Starting, e.JobLaunchFailed): (Pending,),
    (Starting, e.JobEnding): (Ending,),
    (Starting, e.JobUpdated): (Starting,),
    (Starting, e.JobHeld): (Starting,),
    (Starting, e.JobReleased): (Starting,),
    (Starting, e.JobGuarded): (Starting,),
    (Pending, e.JobCheckpointed): (Pending,),
    (Running, e.JobCheckpointed): (Running,),
    (Suspended, e.JobCheckpointed): (Suspended,),
    (Ending, e.JobCheckpointed): (Ending,),
    (Running, e.JobSignalled): (Running,),
    (Running, e.JobUpdated): (Running,),
    (Running, e.JobHeld): (Running,),
    (Running, e.JobReleased): (Running,),
    (Running, e.JobGuarded): (Running,),
    (Running, e.JobSuspended): (Suspended,),
    (Running, e.StepCreated): (Running,),
    (Running, e.StepStarted): (Running,),
    (Running, e.StepEnding): (Running,),
    (Running, e.StepNodeEnded): (Running,),
    (Running, e.BatchExited): (Running,),
    (Running, e.JobEnding): (Ending,),
    (Suspended, e.JobResumed): (Running,),
    (Suspended, e.JobToBeResumed): (Suspended,),
    (Suspended, e.JobSignalled): (Suspended,),
    (Suspended, e.JobUpdated): (Suspended,),
    (Suspended, e.JobHeld): (Suspended,),
    (Suspended, e.JobReleased): (Suspended,),
    (Suspended, e.StepStarted): (Suspended,),
    (Suspended, e.StepEnding): (Suspended,),
    (Suspended, e.StepNodeEnded): (Suspended,),
    (Suspended, e.BatchExited): (Suspended,),
    (Suspended, e.JobEnding): (Ending,),
    (Ending, e.JobGuarded): (Ending,),
    (Ending, e.JobHeld): (Ending,),
    (Ending, e.JobReleased): (Ending,),
    (Ending, e.BatchExited): (Ending,),
    (Ending, e.StepStarted): (Ending,),
    (Ending, e.StepEnding): (Ending,),
    (Ending, e.StepNodeEnded): (Ending,),
    (Ending, e.JobEnding): (Ending,),
    (Ending, e.JobEnded): (Finished, Pending),
    (Finished, e.JobRequeued): (Pending,),
    (Finished, e.JobUpdated): (Finished,),
    (Pending, e.JobTracked): (Pending,),
    (Starting, e.JobTracked): (Starting,),
    (Running, e.JobTracked): (Running,),
    (Suspended, e.JobTracked): (Suspended,),
    (Ending, e.JobTracked): (Ending,),
    (Finished, e.JobTracked): (Finished,),
    (Finished, e.JobForgotten): (Absent,),
    (Absent, e.JobMirrored): (Mirrored, MirroredEnd),
    (Mirrored, e.JobMirrored): (Mirrored, MirroredEnd),
    (MirroredEnd, e.JobMirrored): (Mirrored, MirroredEnd),
    (MirroredEnd, e.JobForgotten): (Absent,),
}

_JOB_ID = attrgetter("job_id")
_SPLITS = (e.ArrayTaskSplit, e.ArrayPartSplit)


def _job_phase(state: State, job_id: int) -> Phase:
    job = state.jobs.get(job_id)
    if job is None:
        return Absent
    if job.mirrored:
        return MirroredEnd if isinstance(job.phase, Finished) else Mirrored
    return type(job.phase)


def job_label(state: State, job_id: int) -> str:
    job = state.jobs.get(job_id)
    return job.label if job is not None else str(job_id)


JOB = Life(
    "job",
    _JOB,
    {event: (_JOB_ID,) for _, event in _JOB} | dict.fromkeys(_SPLITS, (attrgetter("array_job_id"), _JOB_ID)),
    _job_phase,
    job_label,
)
