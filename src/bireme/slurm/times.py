"""Durations and points in time: time limits, elapsed times, `--begin`, `--deadline`, `-S` and `-E`.

Reads no clock and knows no time zone: `now` and the local offset are arguments. Called by the options, the
configuration reader and the reports. Invariant: what `format_time_limit` prints for a limit of up to a year,
`parse_time_limit` reads back as the same number of seconds.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum

from bireme.slurm.errors import SlurmSyntaxError


class Infinite(Enum):
    """A type of its own, so that no arithmetic treats 'no limit' as a number."""

    INFINITE = "INFINITE"


INFINITE = Infinite.INFINITE
TimeLimit = int | Infinite

UtcOffset = Callable[[float], float]
"""Seconds that local time is ahead of UTC at this epoch time."""

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
_LONGEST_PRINTED_S = 365 * DAY_S
_LONGEST_LIMIT_S = 2**32 * 60
_UNLIMITED_WORDS = frozenset({"-1", "INFINITE", "UNLIMITED"})
_LIMIT = re.compile(r"(?:(?P<days>[0-9]{1,12})-)?(?P<clock>(?:[0-9]{1,12})(?::[0-9]{1,12}){0,2})?")


def parse_time_limit(text: str) -> TimeLimit:
    """Seconds, from `M`, `M:S`, `H:M:S`, `D-H`, `D-H:M`, `D-H:M:S`; or INFINITE, from UNLIMITED, INFINITE or -1."""
    if text.upper() in _UNLIMITED_WORDS:
        return INFINITE
    match = _LIMIT.fullmatch(text)
    if match is None or not text:
        raise SlurmSyntaxError(
            f"Invalid time specification: '{text}' (minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S or UNLIMITED)"
        )
    fields = [int(field) for field in (match["clock"] or "0").split(":")]
    if match["days"] is not None:  # days, then hours first
        hours, minutes, seconds = (*fields, 0, 0)[:3]
    elif len(fields) == 3:
        hours, minutes, seconds = fields
    else:  # minutes first
        hours, (minutes, seconds) = 0, (*fields, 0)[:2]
    total = int(match["days"] or 0) * DAY_S + hours * HOUR_S + minutes * MINUTE_S + seconds
    if total > _LONGEST_LIMIT_S:
        raise SlurmSyntaxError(f"Invalid time specification: '{text}' is too long (UNLIMITED means no limit)")
    return total


def parse_job_time_limit(text: str) -> int | None:
    """`--time` as a job gets it: seconds in whole minutes, rounded up; None is UNLIMITED, which 0 also asks for."""
    limit = parse_time_limit(text)
    if isinstance(limit, Infinite) or limit == 0:
        return None
    return -(-limit // MINUTE_S) * MINUTE_S


def format_time_limit(limit: TimeLimit | None) -> str:
    """squeue's %l, %L, %M: `5:00`, `1:30:00`, `1-00:00:00`, `UNLIMITED`; INVALID beyond a year; NOT_SET for None."""
    if limit is None:
        return "NOT_SET"
    if isinstance(limit, Infinite):
        return "UNLIMITED"
    if limit < 0 or limit > _LONGEST_PRINTED_S:
        return "INVALID"
    days, hours, minutes, seconds = _split(limit)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}"
    if hours:
        return f"{hours}:{minutes:02d}:{seconds:02d}"
    return f"{minutes}:{seconds:02d}"


def format_elapsed(seconds: TimeLimit) -> str:
    """sacct's Elapsed and scontrol's times: `00:00:05`, `1-02:03:04`, `UNLIMITED`; INVALID when negative."""
    if isinstance(seconds, Infinite):
        return "UNLIMITED"
    if seconds < 0:
        return "INVALID"
    days, hours, minutes, rest = _split(seconds)
    clock = f"{hours:02d}:{minutes:02d}:{rest:02d}"
    return f"{days}-{clock}" if days else clock


def _split(seconds: int) -> tuple[int, int, int, int]:
    days, rest = divmod(seconds, DAY_S)
    hours, rest = divmod(rest, HOUR_S)
    return days, hours, *divmod(rest, MINUTE_S)


def parse_timestamp(text: str, now: float, utc_offset: UtcOffset, *, past: bool = False) -> float:
    """The epoch time that a date, a time of day, both in either order, or `now±COUNT[UNIT]` names.

    A time of day alone that is over means tomorrow, a date without year that is over means next year; with `past`
    (reports) they mean today, and the latest such date that is not to come.
    """
    when = _When()
    try:
        rest = _SEPARATOR.sub("", text, count=1)
        while rest:
            rest = _SEPARATOR.sub("", _read_next(rest, when, now), count=1)
        return _resolve(when, now, utc_offset, past)
    except (ValueError, OverflowError) as error:
        raise SlurmSyntaxError(
            f"Invalid time specification: '{text}' (now[+COUNT[seconds|minutes|hours|days|weeks]], midnight, noon, "
            "fika, teatime, today, tomorrow, HH:MM[:SS] [AM|PM], MMDD[YY], MM/DD[/YY] or YYYY-MM-DD[THH:MM[:SS]])"
        ) from error


def _read_next(text: str, when: "_When", now: float) -> str:
    """Notes in `when` what the text begins with and returns what follows it."""
    for pattern, read in _READERS:
        match = pattern.match(text)
        if match is not None:
            read(match, when, now)
            return text[match.end() :]
    raise ValueError("not a date or time")


@dataclass(slots=True)
class _When:
    """What has been read of a timestamp so far; at most one of the ways to name a day is set."""

    instant: float | None = None
    days_ahead: int | None = None
    full_date: date | None = None
    month_and_day: tuple[int, int] | None = None
    clock: int | None = None  # seconds since midnight

    def name_day(
        self,
        *,
        days_ahead: int | None = None,
        full_date: date | None = None,
        month_and_day: tuple[int, int] | None = None,
    ) -> None:
        """Notes the day; the last one named counts."""
        self.days_ahead, self.full_date, self.month_and_day = days_ahead, full_date, month_and_day


def _resolve(when: _When, now: float, utc_offset: UtcOffset, past: bool) -> float:
    def at(day: date) -> float:
        return _epoch(day, when.clock or 0, now, utc_offset)

    if when.instant is not None:
        return when.instant
    today = _local_date(now, utc_offset)
    if when.full_date is not None:
        return at(when.full_date)
    if when.days_ahead is not None:
        return at(today + timedelta(days=when.days_ahead))
    if when.month_and_day is not None:
        this_year = at(_date(today.year, *when.month_and_day))
        if past:
            return this_year if this_year <= now else at(_date(today.year - 1, *when.month_and_day))
        return this_year if this_year >= now else at(_date(today.year + 1, *when.month_and_day))
    if when.clock is None:
        raise ValueError("neither a date nor a time")
    return at(today) if past or at(today) >= now else at(today + timedelta(days=1))


def _local_date(at: float, utc_offset: UtcOffset) -> date:
    return datetime.fromtimestamp(at + utc_offset(at), UTC).date()


def _date(year: int, month: int, day: int) -> date:
    """As mktime does, February 30th is March 2nd (or 1st)."""
    if not 1 <= day <= 31:
        raise ValueError("no month has such a day")
    return date(year, month, 1) + timedelta(days=day - 1)


def _epoch(day: date, clock: int, now: float, utc_offset: UtcOffset) -> float:
    """Local wall time to epoch time. Twice, since the offset is that of the answer, not of the question."""
    wall = (day - date(1970, 1, 1)).days * DAY_S + clock
    guess = wall - utc_offset(now)
    return wall - utc_offset(wall - utc_offset(guess))


_Reader = Callable[[re.Match[str], _When, float], None]
_SEPARATOR = re.compile(r"\A[\s-]*(?:T(?=[0-9]|\Z))?", re.IGNORECASE)
_UNIT_S = {"second": 1, "minute": MINUTE_S, "hour": HOUR_S, "day": DAY_S, "week": 7 * DAY_S}
_CLOCK_WORDS = {"midnight": 0, "noon": 12 * HOUR_S, "fika": 15 * HOUR_S, "teatime": 16 * HOUR_S}
_DAY_WORDS = {"today": 0, "tomorrow": 1}


def _read_now(match: re.Match[str], when: _When, now: float) -> None:
    amount = int(match["count"] or 0) * _UNIT_S[(match["unit"] or "second").lower()]
    when.instant = float(int(now) + (-amount if match["sign"] == "-" else amount))


def _read_epoch(match: re.Match[str], when: _When, _: float) -> None:
    when.instant = float(match[1])


def _read_clock_word(match: re.Match[str], when: _When, _: float) -> None:
    when.clock = _CLOCK_WORDS[match[0].lower()]


def _read_day_word(match: re.Match[str], when: _When, _: float) -> None:
    when.name_day(days_ahead=_DAY_WORDS[match[0].lower()])


def _read_clock(match: re.Match[str], when: _When, _: float) -> None:
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
    half = (match["half"] or "").upper()
    if hour > (12 if half else 23) or minute > 59 or second > 59:
        raise ValueError("no such time of day")
    if half:
        hour = hour % 12 + (12 if half == "PM" else 0)
    when.clock = hour * HOUR_S + minute * MINUTE_S + second


def _read_date(match: re.Match[str], when: _When, _: float) -> None:
    month, day, year = int(match["month"]), int(match["day"]), match["year"]
    if year is None:
        _date(2000, month, day)  # a leap year: only checks the month and day
        when.name_day(month_and_day=(month, day))
    else:
        when.name_day(full_date=_date(int(year) if len(year) == 4 else 2000 + int(year), month, day))


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE | re.ASCII)


_READERS: tuple[tuple[re.Pattern[str], _Reader], ...] = (
    (
        _pattern(r"now(?:\s*(?P<sign>[+-])\s*(?P<count>\d{1,9})\s*(?:(?P<unit>second|minute|hour|day|week)s?)?)?\Z"),
        _read_now,
    ),
    (_pattern(r"uts(\d{1,11})\Z"), _read_epoch),
    (_pattern("|".join(_CLOCK_WORDS)), _read_clock_word),
    (_pattern("|".join(_DAY_WORDS)), _read_day_word),
    (
        _pattern(r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d))?(?![\d:.])(?:\s*(?P<half>[AP]M))?"),
        _read_clock,
    ),
    (_pattern(r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)(?!\d)"), _read_date),
    (_pattern(r"(?P<month>\d{1,2})([/.])(?P<day>\d{1,2})(?:\2(?P<year>\d\d))?(?![\d/.])"), _read_date),
    (_pattern(r"(?P<month>\d\d)(?P<day>\d{1,2})(?P<year>(?<=\d{4})\d\d)?(?![\d:/.])"), _read_date),
)
