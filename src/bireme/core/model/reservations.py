"""A reservation: whole nodes that are set aside for some users from one moment to another.

A value; `core/reservations/orders.py` decides what may be reserved, `core/reservations/reserving.py` what it
means for jobs and time, `core/plan/reserved.py` what it means for the planner. Invariant: `begin < end` or the
reservation is over at once; `nodes` are names of the configuration at the time it was made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

HOUR_S, DAY_S = 3_600, 86_400
_EPOCH_WEEKDAY = 3  # 1970-01-01 was a Thursday; Monday is 0


class ReservationFlag(StrEnum):
    """Slurm's words, in the order in which it shows them."""

    MAINT = "MAINT"
    FLEX = "FLEX"
    OVERLAP = "OVERLAP"
    IGNORE_JOBS = "IGNORE_JOBS"
    HOURLY = "HOURLY"
    DAILY = "DAILY"
    WEEKDAY = "WEEKDAY"
    WEEKEND = "WEEKEND"
    WEEKLY = "WEEKLY"
    SPEC_NODES = "SPEC_NODES"
    ALL_NODES = "ALL_NODES"
    ANY_NODES = "ANY_NODES"
    STATIC = "STATIC"
    PART_NODES = "PART_NODES"
    FIRST_CORES = "FIRST_CORES"
    TIME_FLOAT = "TIME_FLOAT"
    REPLACE = "REPLACE"
    REPLACE_DOWN = "REPLACE_DOWN"
    PURGE_COMP = "PURGE_COMP"
    NO_HOLD_JOBS_AFTER = "NO_HOLD_JOBS_AFTER_END"
    MAGNETIC = "MAGNETIC"


RECURRING = frozenset(
    {
        ReservationFlag.HOURLY,
        ReservationFlag.DAILY,
        ReservationFlag.WEEKDAY,
        ReservationFlag.WEEKEND,
        ReservationFlag.WEEKLY,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    name: str
    begin: float
    end: float
    nodes: tuple[str, ...] = ()
    partition: str = ""
    users: tuple[str, ...] = ()
    """Who may use it; `-name`: everybody but these. Empty: any user (then `accounts` or `groups` say who)."""
    accounts: tuple[str, ...] = ()
    """As `users`. If both are given, a job must match both."""
    groups: tuple[str, ...] = ()
    gids: tuple[int, ...] = ()
    """The numbers of `groups`."""
    flags: tuple[ReservationFlag, ...] = ()
    features: str = ""
    purge_after_s: int = 300
    """PURGE_COMP: removed once nobody has used it for so long."""
    max_start_delay_s: int | None = None
    utc_offset_s: int = 0
    """Of its maker's clock: on which days WEEKDAY and WEEKEND fall."""
    used_at: float | None = None
    """When its latest job ended; kept for PURGE_COMP only."""

    def has(self, flag: ReservationFlag) -> bool:
        return flag in self.flags

    @property
    def recurs(self) -> bool:
        return not RECURRING.isdisjoint(self.flags)

    @property
    def confines(self) -> bool:
        """Whether the reservation's jobs may use its nodes only."""
        return not self.has(ReservationFlag.FLEX) and not self.has(ReservationFlag.ANY_NODES)

    def active(self, now: float) -> bool:
        return self.begin <= now < self.end

    def following(self) -> Reservation:
        """The next occurrence of one that recurs."""
        step = DAY_S
        if self.has(ReservationFlag.HOURLY):
            step = HOUR_S
        elif self.has(ReservationFlag.WEEKLY):
            step = 7 * DAY_S
        begin = self.begin + step
        while not self._on_its_days(begin):
            begin += step
        return replace(self, begin=begin, end=begin + self.end - self.begin)

    def _on_its_days(self, at: float) -> bool:
        weekday = (int(at + self.utc_offset_s) // DAY_S + _EPOCH_WEEKDAY) % 7
        if self.has(ReservationFlag.WEEKDAY):
            return weekday < 5
        return weekday >= 5 if self.has(ReservationFlag.WEEKEND) else True
