"""What events do to priorities: which jobs are weighed again, and when all of them are.

Called by the runtime's kernel after every event. The planner and priorities are no kinds, but take a stand on every
event, as kinds do (`tests/tidy/test_kinds.py`). Invariant: what is weighed here is not journaled.
"""

from __future__ import annotations

from bireme.core.model import events as e
from bireme.core.model.finding.events import FINDING_EVENTS
from bireme.core.model.healing.events import HEALING_EVENTS
from bireme.core.model.healing.fences import FENCE_EVENTS
from bireme.core.model.idling.events import IDLE_EVENTS
from bireme.core.model.serving.events import SERVICE_EVENTS
from bireme.core.priority.order import Queue, rank

RANKS_ALL = frozenset((e.ClusterConfigured, e.PartitionUpdated, e.AccountsChanged, e.UsageReset))
"""Events that change what every job's priority is measured by."""
RANKS_ONE = frozenset((e.JobSubmitted, e.JobUpdated, e.JobReleased, e.JobRequeued))
"""Events after which the job that they are about is weighed again."""
RANKS_NONE = frozenset(
    (
        e.ArrayTaskSplit,
        e.ArrayPartSplit,
        e.JobBecameEligible,
        e.JobAccrualChanged,
        e.JobAllocated,
        e.JobStarted,
        e.JobLaunchFailed,
        e.BatchExited,
        e.JobEnding,
        e.JobEnded,
        e.JobCancelled,
        e.JobHeld,
        e.JobSuspended,
        e.JobResumed,
        e.JobToBeResumed,
        e.JobGuarded,
        e.JobCheckpointed,
        e.JobTracked,
        e.JobSignalled,
        e.JobForgotten,
        e.JobMirrored,
        e.StepCreated,
        e.StepStarted,
        e.StepEnding,
        e.StepNodeEnded,
        e.NodeRegistered,
        e.NodeLost,
        e.LeftoverFound,
        e.LeftoverCleared,
        e.EventsLost,
        e.LossSettled,
        e.OthersCounted,
        e.NodeClosed,
        e.NodeUpdated,
        e.ReservationSet,
        e.ReservationRemoved,
        *SERVICE_EVENTS,
        *IDLE_EVENTS,
        *FINDING_EVENTS,
        *HEALING_EVENTS,
        *FENCE_EVENTS,
    )
)
"""Events that change nobody's priority."""


def follow_priorities(state: Queue, event: e.Event, now: float) -> bool:
    """After the event was applied: a job that it changed is weighed again at once. True: all are to be."""
    kind = type(event)
    if kind in RANKS_NONE:  # as nearly all are
        return False
    if kind in RANKS_ALL:
        return True
    assert isinstance(event, e.JobSubmitted | e.JobUpdated | e.JobReleased | e.JobRequeued)
    if isinstance(event, e.JobSubmitted) and len(event.spec.partitions) <= 1:
        return False  # it was weighed when it was submitted
    job = state.pending.get(event.job_id)
    if job is not None:
        rank(state, job, now)
    return False
