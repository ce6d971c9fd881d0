"""Reservations as a kind: made, changed, moved to their next occurrence, removed.

Who may use one, and what happens when it ends, is `reserving.py`; what people may ask of one `orders.py`.
"""

from __future__ import annotations

from operator import attrgetter

from bireme.core.kinds.kind import Kind
from bireme.core.kinds.life import Absent, Life, Rows
from bireme.core.model import events as e
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
            *e.JOB_EVENTS,
            *e.STEP_EVENTS,
            *e.NODE_EVENTS,
            *e.LOSS_EVENTS,
            e.PartitionUpdated,
            *e.ACCOUNT_EVENTS,
            *SERVICE_EVENTS,
            *IDLE_EVENTS,
            *e.FAULT_EVENTS,
        )
    ),
)
