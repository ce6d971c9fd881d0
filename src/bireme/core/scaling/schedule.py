"""Which bounds hold at a moment: the policy's own, or those of the shift that began last.

Shifts (`--at 'Mon-Fri 08:00 min=4'`) go round with the week: each holds until the next one begins, whichever day that
is. A shift that says only one bound leaves the other as the policy has it. Hours are those of the cluster's wall clock,
told as an argument.
Invariant: 0 <= lower <= upper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from bireme.core.model.serving.scaling import Scaling, Shift

UtcOffset = Callable[[float], float]
"""By how many seconds the wall clock is ahead of UTC at a moment."""

_WEEK_DAYS = 7


def utc(_at: float) -> float:
    """The wall clock of a cluster that goes by UTC."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """How few and how many replicas there may be, and until when."""

    lower: int
    upper: int
    shift: Shift | None = None
    """Whose they are; None: the policy's."""
    until: float | None = None
    """When the next shift begins."""


def bounds_at(policy: Scaling, now: float, utc_offset: UtcOffset) -> Bounds:
    """The bounds that hold now."""
    if not policy.shifts:
        return _bounds(policy, None, None)
    begun, coming = None, None
    for at, shift in _beginnings(policy.shifts, now, utc_offset):
        if at <= now:
            begun = shift
        elif coming is None:
            coming = at
    return _bounds(policy, begun, coming)


def _bounds(policy: Scaling, shift: Shift | None, until: float | None) -> Bounds:
    lower, upper = policy.replicas_min, policy.replicas_max
    if shift is not None:
        lower = lower if shift.replicas_min is None else shift.replicas_min
        upper = upper if shift.replicas_max is None else shift.replicas_max
    return Bounds(max(min(lower, upper), 0), max(upper, 0), shift, until)


def _beginnings(shifts: tuple[Shift, ...], now: float, utc_offset: UtcOffset) -> list[tuple[float, Shift]]:
    """Every beginning of a shift from a week ago to in a week, oldest first; of two at once the one said later wins."""
    found = [(at, shift) for shift in shifts for at in _moments(shift, now, utc_offset)]
    found.sort(key=lambda each: each[0])
    return found


def _moments(shift: Shift, now: float, utc_offset: UtcOffset) -> Iterator[float]:
    today = datetime.fromtimestamp(now + utc_offset(now), UTC).date()
    for days in range(-_WEEK_DAYS - 1, _WEEK_DAYS + 2):
        day = today + timedelta(days=days)
        if day.weekday() in shift.days:
            yield _epoch(day, shift.minute, now, utc_offset)


def _epoch(day: date, minute: int, now: float, utc_offset: UtcOffset) -> float:
    """When the wall clock shows this. An hour that the change to summer time leaves out is the one after it."""
    wall = datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() + minute * 60
    guess = wall - utc_offset(now)
    return wall - utc_offset(wall - utc_offset(guess))
