"""What may happen to a job, a step, a node: one table each. A pair that is not here does not exist (law 4).

Read the job's table top to bottom and you know its life. Keys are (phase now, event); the value is the phase after,
or several where the event's own content decides. A job of another scheduler's queue (`Job.mirrored`) is not in it: with
`JobMirrored` it goes from any phase to any other, and but for `JobForgotten` nothing else may happen to it.
"""

from __future__ import annotations

from collections.abc import Mapping

from bireme.core.model import events as e
from bireme.core.model.jobs import Ending, Finished, Job, Pending, Phase, Running, Starting, Suspended
from bireme.core.model.nodes import Health
from bireme.core.model.steps import StepState

JOB: dict[tuple[type[Phase], type[e.Event]], tuple[type[Phase], ...]] = {
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
    (Starting, e.JobGuarded): (Starting,),
    (Running, e.JobCheckpointed): (Running,),
    (Running, e.JobSignalled): (Running,),
    (Running, e.JobUpdated): (Running,),
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
    (Suspended, e.StepStarted): (Suspended,),
    (Suspended, e.StepEnding): (Suspended,),
    (Suspended, e.StepNodeEnded): (Suspended,),
    (Suspended, e.BatchExited): (Suspended,),
    (Suspended, e.JobEnding): (Ending,),
    (Ending, e.JobGuarded): (Ending,),
    (Ending, e.BatchExited): (Ending,),
    (Ending, e.StepStarted): (Ending,),
    (Ending, e.StepEnding): (Ending,),
    (Ending, e.StepNodeEnded): (Ending,),
    (Ending, e.JobEnding): (Ending,),
    (Ending, e.JobEnded): (Finished, Pending),
    (Finished, e.JobRequeued): (Pending,),
    (Finished, e.JobUpdated): (Finished,),
    (Finished, e.JobForgotten): (),
}


STEP: dict[tuple[StepState, type[e.Event]], tuple[StepState, ...]] = {
    (StepState.STARTING, e.StepStarted): (StepState.RUNNING,),
    (StepState.STARTING, e.StepEnding): (StepState.STARTING,),
    (StepState.STARTING, e.StepNodeEnded): (StepState.STARTING, StepState.ENDED),
    (StepState.RUNNING, e.StepEnding): (StepState.RUNNING,),
    (StepState.RUNNING, e.StepNodeEnded): (StepState.RUNNING, StepState.ENDED),
}

NODE: dict[tuple[Health, type[e.Event]], tuple[Health, ...]] = {
    (Health.UNKNOWN, e.NodeRegistered): (Health.UP,),
    (Health.UNKNOWN, e.NodeLost): (Health.LOST,),
    (Health.UNKNOWN, e.NodeClosed): (Health.UNKNOWN,),
    (Health.UNKNOWN, e.NodeUpdated): (Health.UNKNOWN, Health.DOWN, Health.UP),
    (Health.UP, e.NodeRegistered): (Health.UP,),
    (Health.UP, e.NodeLost): (Health.LOST,),
    (Health.UP, e.NodeClosed): (Health.UP,),
    (Health.UP, e.NodeUpdated): (Health.UP, Health.DOWN),
    (Health.LOST, e.NodeRegistered): (Health.UP,),
    (Health.LOST, e.NodeClosed): (Health.LOST,),
    (Health.LOST, e.NodeUpdated): (Health.LOST, Health.DOWN, Health.UP),
    (Health.DOWN, e.NodeRegistered): (Health.DOWN,),
    (Health.DOWN, e.NodeLost): (Health.DOWN,),
    (Health.DOWN, e.NodeClosed): (Health.DOWN,),
    (Health.DOWN, e.NodeUpdated): (Health.DOWN, Health.UP),
}


class IllegalTransition(RuntimeError):  # noqa: N818  (named for what happened)
    """An event that the table does not allow: a bug in whoever made it. The runtime adds the thing's story."""

    def __init__(self, thing: str, now: str, event: e.Event) -> None:
        super().__init__(f"{thing} is {now}: {type(event).__name__} may not happen to it ({event})")
        self.thing = thing
        self.event = event


def job_for(jobs: Mapping[int, Job], job_id: int, event: e.Event) -> Job:
    """The job that the event is about, if it may happen to it."""
    job = jobs.get(job_id)
    if job is None:
        raise IllegalTransition(f"job {job_id}", "unknown", event)
    mirrored = job.mirrored and not isinstance(event, e.JobForgotten)
    if mirrored or (type(job.phase), type(event)) not in JOB:
        raise IllegalTransition(f"job {job.label}", type(job.phase).__name__, event)
    return job
