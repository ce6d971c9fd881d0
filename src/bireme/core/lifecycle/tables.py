"""What may happen to a job, a step, a node, a reservation, the cluster: one table each (law 4).

Read the job's table top to bottom and you know its life. Keys are (phase now, event); the value is the phase after,
or several where the event's own content decides. A pair that is not here does not exist, and neither does a phase after
an event that its row does not name: `apply` checks both (`life.py`).
"""

from __future__ import annotations

from operator import attrgetter

from bireme.core.lifecycle.life import Absent, Key, Life, Phase, Rows
from bireme.core.lifecycle.state import State
from bireme.core.model import events as e
from bireme.core.model.jobs import Ending, Finished, Pending, Running, Starting, Suspended
from bireme.core.model.nodes import Health
from bireme.core.model.steps import StepState

# -- jobs ------------------------------------------------------------------------------------------------------------


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


def _job_label(state: State, job_id: int) -> str:
    job = state.jobs.get(job_id)
    return job.label if job is not None else str(job_id)


JOB = Life(
    "job",
    _JOB,
    {event: (_JOB_ID,) for _, event in _JOB} | dict.fromkeys(_SPLITS, (attrgetter("array_job_id"), _JOB_ID)),
    _job_phase,
    _job_label,
)

# -- steps -----------------------------------------------------------------------------------------------------------

_STEP: Rows = {
    (Absent, e.StepCreated): (StepState.STARTING,),
    (StepState.STARTING, e.StepStarted): (StepState.RUNNING,),
    (StepState.STARTING, e.StepEnding): (StepState.STARTING,),
    (StepState.STARTING, e.StepNodeEnded): (StepState.STARTING, StepState.ENDED),
    (StepState.RUNNING, e.StepEnding): (StepState.RUNNING,),
    (StepState.RUNNING, e.StepNodeEnded): (StepState.RUNNING, StepState.ENDED),
}


def _step_phase(state: State, key: Key) -> Phase:
    job_id, step_id = key
    job = state.jobs.get(job_id)
    step = job.steps.get(step_id) if job is not None else None
    return Absent if step is None else step.state


STEP = Life(
    "step",
    _STEP,
    {event: (attrgetter("job_id", "step_id"),) for _, event in _STEP},
    _step_phase,
    lambda state, key: f"{_job_label(state, key[0])}.{key[1]}",
)

# -- nodes -----------------------------------------------------------------------------------------------------------

_WHEREVER = (Absent, *Health)
"""What may be said of a node whatever its health, and of one that the configuration does not have (any more)."""

_NODE: Rows = {
    (Health.UNKNOWN, e.NodeRegistered): (Health.UP,),
    (Health.UNKNOWN, e.NodeLost): (Health.LOST,),
    (Health.UNKNOWN, e.NodeUpdated): (Health.UNKNOWN, Health.DOWN, Health.UP),
    (Health.UP, e.NodeRegistered): (Health.UP,),
    (Health.UP, e.NodeLost): (Health.LOST,),
    (Health.UP, e.NodeUpdated): (Health.UP, Health.DOWN),
    (Health.LOST, e.NodeRegistered): (Health.UP,),
    (Health.LOST, e.NodeUpdated): (Health.LOST, Health.DOWN, Health.UP),
    (Health.DOWN, e.NodeRegistered): (Health.DOWN,),
    (Health.DOWN, e.NodeLost): (Health.DOWN,),
    (Health.DOWN, e.NodeUpdated): (Health.DOWN, Health.UP),
    (Absent, e.NodeRegistered): (Absent,),
    (Absent, e.NodeLost): (Absent,),
    (Absent, e.NodeUpdated): (Absent,),
    **{(health, e.NodeClosed): (health,) for health in _WHEREVER},
    **{(health, e.LeftoverFound): (health,) for health in _WHEREVER},
    **{(health, e.OthersCounted): (health,) for health in _WHEREVER},
}


def _node_phase(state: State, name: str) -> Phase:
    node = state.nodes.get(name)
    return Absent if node is None else node.health


NODE = Life("node", _NODE, {event: (attrgetter("node"),) for _, event in _NODE}, _node_phase)

# -- reservations ----------------------------------------------------------------------------------------------------


class Standing:
    """The phase of a reservation that is there. Whether it is to come, active or over, only a clock can say."""


_RESERVATION: Rows = {
    (Absent, e.ReservationSet): (Standing,),
    (Standing, e.ReservationSet): (Standing,),
    (Standing, e.ReservationRemoved): (Absent,),
}

RESERVATION = Life(
    "reservation",
    _RESERVATION,
    {e.ReservationSet: (attrgetter("reservation.name"),), e.ReservationRemoved: (attrgetter("name"),)},
    lambda state, name: Standing if name in state.reservations else Absent,
)

# -- the cluster -----------------------------------------------------------------------------------------------------


class Whole:
    """The phase of a cluster whose journal has all that ever happened."""


class Asking:
    """The phase of a cluster that lost events and has not yet heard from its nodes what they were (`loss.py`)."""


_CLUSTER: Rows = {
    (Whole, e.ClusterConfigured): (Whole,),
    (Whole, e.PartitionUpdated): (Whole,),
    (Whole, e.EventsLost): (Asking,),
    (Asking, e.ClusterConfigured): (Asking,),
    (Asking, e.PartitionUpdated): (Asking,),
    (Asking, e.EventsLost): (Asking,),
    (Asking, e.LossSettled): (Whole,),
}

CLUSTER = Life(
    "cluster",
    _CLUSTER,
    {event: (lambda event: "",) for _, event in _CLUSTER},
    lambda state, key: Whole if state.loss is None else Asking,
    lambda state, key: state.config.name,
)

LIVES = (CLUSTER, JOB, STEP, NODE, RESERVATION)
