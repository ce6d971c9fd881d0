"""When lines of a job's output were written: by their own timestamps, else by how long the file was when.

Output files carry no times. The gatherer looks at the offset at which a script's output stands in every round, so a
line has been written between two looks. Lines that begin with a date and a time of their own say it better, if it lies
in the job's life. Called by the commands that show a timeline, which read the file as their user. Pure.
Invariant: a line's times are never before those of the line that ends before it, unless the lines say so themselves.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Literal

_STAMP = re.compile(
    r"[\[(<]?(?:[A-Z]+\s*[:|]?\s*)?(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    r"\s?(Z|UTC|[+-]\d\d:?\d\d)?"
)
_HEAD = 64
"""So many characters of a line are looked at."""
SLACK_S = 120.0
"""A line's own time may be so far outside its job's life: clocks of machines differ."""

Source = Literal["own", "offset", "none"]


@dataclass(frozen=True, slots=True)
class Raw:
    """A line as it stands in the file: `end` is the offset behind it."""

    number: int
    """Counted from the line that was read first, where the file was not read from its beginning."""
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Dated:
    """A line, and the time in which it was written; both None: nobody knows."""

    number: int
    text: str
    start: float | None
    end: float | None
    source: Source


def dated(
    lines: Sequence[Raw],
    looks: Sequence[tuple[float, float, float]],
    life: tuple[float, float],
    utc_offset_s: float,
) -> list[Dated]:
    """`looks`: (from, until, bytes) as `lanes.output_positions` gives them; `life`: when the job began and ended.

    `utc_offset_s`: of times without a zone.
    """
    known = _of_this_file(looks, life[0])
    ends = [look[2] for look in known]
    found = []
    for line in lines:
        own = own_time(line.text, utc_offset_s)
        place = bisect_left(ends, line.end)
        if own is not None and life[0] - SLACK_S <= own <= life[1] + SLACK_S:
            found.append(Dated(line.number, line.text, own, own, "own"))
        elif place < len(known):
            start, until, _ = known[place]
            found.append(Dated(line.number, line.text, start, max(start, min(until, life[1])), "offset"))
        elif known:  # after the last look
            last = min(known[-1][1], life[1])
            found.append(Dated(line.number, line.text, last, life[1], "offset"))
        else:
            found.append(Dated(line.number, line.text, None, None, "none"))
    return found


def own_time(text: str, utc_offset_s: float) -> float | None:
    """The date and time that a line begins with."""
    match = _STAMP.match(text[:_HEAD].lstrip())
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        naive = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second))
        at = naive.replace(tzinfo=_zone(zone, utc_offset_s)).timestamp()
    except (ValueError, OverflowError):
        return None
    return at + (float(f"0.{fraction}") if fraction else 0.0)


def _zone(text: str | None, utc_offset_s: float) -> timezone:
    if text in ("Z", "UTC"):
        return UTC
    if text is None:
        return timezone(timedelta(seconds=utc_offset_s))
    sign = -1 if text[0] == "-" else 1
    digits = text[1:].replace(":", "")
    return timezone(sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:])))


def _of_this_file(looks: Sequence[tuple[float, float, float]], began: float) -> list[tuple[float, float, float]]:
    """(not before, until, bytes) of the looks that saw the file grow, since it was last begun anew: a job that started
    again may write over what was there."""
    kept: list[tuple[float, float, float]] = []
    before = began
    for start, end, size in looks:
        if kept and size < kept[-1][2]:
            kept = []
        if not kept or size > kept[-1][2]:
            kept.append((max(began, min(before, end)), end, size))
        before = start
    return kept
