"""What each event means to the planner: whether its outlook still stands, and whether a pass is called for.

The planner is no kind: it keeps nothing that is journaled. But it has to take a stand on every event, as kinds do
(`tests/tidy/test_kinds.py`).
"""

from __future__ import annotations

from bireme.core.model import events as e

HARMLESS = frozenset(
    (
        e.JobAccrualChanged,
        e.ArrayTaskSplit,
        e.ArrayPartSplit,
        e.JobStarted,
        e.BatchExited,
        e.JobCheckpointed,
        e.JobSignalled,
        e.StepCreated,
        e.StepStarted,
        e.StepEnding,
        e.StepNodeEnded,
        e.JobForgotten,
        e.JobHeld,
    )
)
"""Events that change neither what is free, nor what is promised, nor who may start: the outlook stands."""

FOLLOWED = frozenset(
    (
        e.JobSubmitted,
        e.JobBecameEligible,
        e.JobReleased,
        e.JobRequeued,
        e.JobAllocated,
        e.JobEnded,
        e.JobLaunchFailed,
        e.JobEnding,
        e.JobCancelled,
    )
)
"""Events that the outlook follows (`Outlook.note`)."""

VOIDS = frozenset(
    (
        e.ClusterConfigured,
        e.JobUpdated,
        e.JobSuspended,
        e.JobResumed,
        e.JobToBeResumed,
        e.JobGuarded,
        e.JobMirrored,
        e.NodeRegistered,
        e.NodeLost,
        e.LeftoverFound,
        e.LeftoverCleared,
        e.EventsLost,
        e.LossSettled,
        e.OthersCounted,
        e.NodeClosed,
        e.NodeUpdated,
        e.PartitionUpdated,
        e.AccountsChanged,
        e.UsageReset,
        e.ReservationSet,
        e.ReservationRemoved,
    )
)
"""Events that the outlook cannot follow: the next pass looks at everything anew."""

CHANGES_NOTHING_FREE = (HARMLESS - {e.JobHeld}) | {e.JobAllocated, e.JobEnding, e.JobResumed}
"""Events after which no waiting job can start that could not before: no pass is needed for them."""

CALLS_FOR_A_PASS = (VOIDS - {e.JobResumed}) | {
    e.JobSubmitted,
    e.JobBecameEligible,
    e.JobReleased,
    e.JobRequeued,
    e.JobHeld,
    e.JobLaunchFailed,
    e.JobEnded,
    e.JobCancelled,
}
"""Events after which somebody may start who could not before, or stands elsewhere in the queue."""
