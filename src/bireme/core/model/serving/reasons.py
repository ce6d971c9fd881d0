"""Why a service has fewer ready replicas than wanted, or others than it seems: data, made by the code that decided.

Its replicas' jobs have reasons of their own (`model/reasons`); where one waits, its reasons come along.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bireme.core.model.reasons import Reason


class ServiceReasonKind(StrEnum):
    STOPPING = "stopping"
    ZERO = "zero"
    """None are wanted now; the next request wakes it."""
    PAUSED = "paused"
    """Somebody scaled it to none: no request wakes it."""
    ORDERED = "ordered"
    """A replica is asked of the engine's own queue, which has not answered."""
    WAITING = "waiting"
    """A replica's job waits in the queue."""
    STARTING = "starting"
    LOADING = "loading"
    """A replica runs, and its startup probe has not succeeded yet."""
    UNREADY = "unready"
    STOPPED = "stopped"
    """A replica's job is suspended."""
    ENDING = "ending"
    DRAINING = "draining"
    WITHDRAWING = "withdrawing"
    """A replica is to go, and whoever routes has not said yet that it sends it no more requests."""
    UNWRITTEN = "unwritten"
    """A replica takes no requests any more, and that cannot be written to the journal."""
    BACKED_OFF = "backed off"
    """Replicas are held back after crashes, or because none could be submitted."""
    ROLLING = "rolling"
    CANARY = "canary"
    NO_ROOM = "no room"
    """There is no room for an update's additional replica: it goes one by one."""
    LATE = "late"
    """A revision did not get ready in time, and there is no earlier one to go back to."""
    GIVEN_UP = "given up"
    """The newest revision failed, and the one before it serves."""


@dataclass(frozen=True, slots=True)
class ServiceReason:
    kind: ServiceReasonKind
    facts: tuple[tuple[str, str | int | float], ...] = ()
    waits_for: tuple[Reason, ...] = ()
    """Of a replica that waits: its job's reasons."""

    def fact(self, name: str) -> str | int | float | None:
        return next((value for key, value in self.facts if key == name), None)


def service_reason(
    kind: ServiceReasonKind, waits_for: tuple[Reason, ...] = (), **facts: str | int | float
) -> ServiceReason:
    return ServiceReason(kind, tuple(facts.items()), waits_for)
