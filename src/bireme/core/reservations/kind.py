"""Reservations as a kind: made, changed, moved to their next occurrence, removed.

Who may use one, and what happens when it ends, is `reserving.py`; what people may ask of one `orders.py`.
"""

from __future__ import annotations

from operator import attrgetter

from bireme.core.kinds.kind import Kind
from bireme.core.kinds.life import Absent, Life, Rows
from bireme.core.model import events as e
from bireme.core.model.finding.events import FINDING_EVENTS
from bireme.core.model.healing.events import HEALING_EVENTS
from bireme.core.model.healing.fences import FENCE_EVENTS
from bireme.core.model.idling.events import IDLE_EVENTS
from bireme.core.model.serving.events import SERVICE_EVENTS
from bireme.core.reservations import reserving


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


RESERVATIONS = Kind(
    life=RESERVATION,
    applies={e.ReservationSet: reserving.reservation_set, e.ReservationRemoved: reserving.reservation_removed},
    decides=reserving.reservations_due,
    times=reserving.reservation_times,
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
            e.JobEnding,
            e.JobEnded,
            e.JobCancelled,
            e.JobRequeued,
            e.JobHeld,
            e.JobReleased,
            e.JobUpdated,
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
            e.PartitionUpdated,
            e.AccountsChanged,
            e.UsageReset,
            *SERVICE_EVENTS,
            *IDLE_EVENTS,
            *FINDING_EVENTS,
            *HEALING_EVENTS,
            *FENCE_EVENTS,
        )
    ),
)
