"""Requests that come: when, and how long a replica works on each. A described curve, or a file of them.

A curve is drawn from a seed: in every second a Poisson number of requests, each somewhere in it, each as long as its
distribution says. Not: what becomes of them (`model`). Invariant: requests are in the order in which they come.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DAY_S = 86_400
HOUR_S = 3600
MOST_REQUESTS = 50_000_000
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_SPANS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_RATE = re.compile(r"(\d+(?:\.\d+)?)/(s|min|h)")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(s|min|m|h)")
_BURST = re.compile(r"(\S+) at (\S+) for (\S+)")

Array = NDArray[np.float64]


class BadTrafficError(ValueError):
    """A curve or a file that is none; the text says why, and what would be one."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests of a simulation."""

    name: str
    at: Array
    """Seconds since its beginning."""
    work_s: Array
    length_s: float
    problems: tuple[str, ...] = ()
    """Rows that were left out, and why."""


@dataclass(frozen=True, slots=True)
class Work:
    """How long a replica works on one request."""

    mean_s: float = 1.0
    spread: float = 0.0
    """Standard deviation over mean, of a log-normal distribution; 0: all alike."""
    token_s: float = 0.02
    """Of a file that says tokens."""

    def draw(self, count: int, random: np.random.Generator) -> Array:
        if not self.spread:
            return np.full(count, self.mean_s)
        sigma = np.sqrt(np.log1p(self.spread**2))
        drawn: Array = random.lognormal(np.log(self.mean_s) - sigma**2 / 2, sigma, count)
        return drawn


# --- curves -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Burst:
    """A burst of traffic: so many requests a second more, for a while, every day."""

    rate: float
    begins_s: float
    lasts_s: float


@dataclass(slots=True)
class Curve:
    """Requests a second by the time of the day."""

    text: str
    rate_at: Callable[[Array], Array]
    """Of seconds since midnight."""
    days: int = 1
    weekend: float = 1.0
    """On Saturdays and Sundays, so much of it. The first day is a Monday, unless the simulation begins on another."""
    bursts: list[Burst] = field(default_factory=list)

    def rates(self, first_weekday: int) -> Array:
        """Requests a second, of every second of the curve."""
        seconds: Array = np.arange(self.days * DAY_S, dtype=np.float64)
        of_day = seconds % DAY_S
        rates = self.rate_at(of_day)
        for burst in self.bursts:
            since = (of_day - burst.begins_s) % DAY_S
            rates = rates + np.where(since < burst.lasts_s, burst.rate, 0.0)
        weekday = (seconds // DAY_S + first_weekday) % 7
        return np.where(weekday >= 5, rates * self.weekend, rates)


def traffic_of_curve(text: str, work: Work, seed: int, first_weekday: int = 0) -> Traffic:
    """Requests drawn from a described curve."""
    curve = read_curve(text)
    rates = curve.rates(first_weekday)
    if rates.sum() > MOST_REQUESTS:
        most = f"{rates.sum():.0f} requests are more than {MOST_REQUESTS}, the most that are played"
        raise BadTrafficError(f"--curve {text!r}: {most}: say fewer days=, or a lower rate")
    random = np.random.default_rng(seed)
    counts = random.poisson(rates)
    at = np.repeat(np.arange(len(rates), dtype=np.float64), counts) + random.random(int(counts.sum()))
    at.sort()
    return Traffic(text, at, work.draw(len(at), random), float(len(rates)))


_EXAMPLES = {
    "day": "day:peak=40/s at 14:00, night=1/s, days=7, weekend=0.3",
    "flat": "flat:rate=5/s, burst=100/s at 10:30 for 2min",
    "steps": "steps:00:00=1/s, 08:00=20/s, 18:00=5/s",
}


def _no_curve(text: str, words: str) -> BadTrafficError:
    """What is wrong with it, and one of its shape that is right."""
    shape = text.partition(":")[0].strip()
    example = _EXAMPLES.get(shape) or "', '".join(_EXAMPLES.values())
    return BadTrafficError(f"--curve {text!r}: {words}\nfor example: --curve '{example}'")


def read_curve(text: str) -> Curve:
    """`day:peak=40/s at 14:00, night=1/s`, `flat:rate=5/s` or `steps:00:00=1/s, 08:00=20/s`; bursts, days, weekend."""
    shape, _, rest = text.partition(":")
    pairs = dict(_pairs(text, rest))
    days, weekend = _whole(text, pairs.pop("days", "1")), _share(text, pairs.pop("weekend", "1"))
    bursts = [_burst(text, pairs.pop(name)) for name in list(pairs) if name.startswith("burst")]
    match shape.strip():
        case "day":
            rate_at = _day_shape(text, pairs)
        case "flat":
            even = _rate(text, pairs.pop("rate", ""))
            rate_at = lambda seconds: np.full(len(seconds), even)  # noqa: E731  (as the others are made)
        case "steps":
            rate_at = _steps(text, pairs)
        case other:
            raise _no_curve(text, f"there is no shape {other!r}; there are day, flat and steps")
    if pairs:
        raise _no_curve(text, f"{next(iter(pairs))!r} means nothing to a curve of shape {shape.strip()}")
    return Curve(text, rate_at, days, weekend, bursts)


def _pairs(text: str, rest: str) -> Iterator[tuple[str, str]]:
    for number, part in enumerate(filter(None, (part.strip() for part in rest.split(",")))):
        name, equals, value = part.partition("=")
        if not equals:
            raise _no_curve(text, f"{part!r} is no NAME=VALUE, such as peak=40/s or days=7")
        yield (f"burst {number}" if name.strip() == "burst" else name.strip()), value.strip()


def _day_shape(text: str, pairs: dict[str, str]) -> Callable[[Array], Array]:
    """A hill with its top at an hour: a cosine, squared, so that the night is longer than the noon."""
    top, _, hour = pairs.pop("peak", "").partition(" at ")
    peak, at = _rate(text, top, "peak"), _clock(text, hour or "14:00")
    night = _rate(text, pairs.pop("night", "0/s"))

    def rate_at(seconds: Array) -> Array:
        hill: Array = ((1.0 + np.cos((seconds - at) / DAY_S * 2.0 * np.pi)) / 2.0) ** 2
        return night + (peak - night) * hill

    if peak < night:
        raise _no_curve(text, "the peak is below the night: peak= is the most, night= the least")
    return rate_at


def _steps(text: str, pairs: dict[str, str]) -> Callable[[Array], Array]:
    steps = sorted((_clock(text, name), _rate(text, pairs.pop(name))) for name in list(pairs) if _CLOCK.fullmatch(name))
    if not steps:
        raise _no_curve(text, "steps are written 00:00=1/s, 08:00=20/s")
    begins, rates = np.array([at for at, _ in steps]), np.array([rate for _, rate in steps])

    def rate_at(seconds: Array) -> Array:
        found: Array = rates[np.searchsorted(begins, seconds, side="right") - 1]  # before the first: the last
        return found

    return rate_at


def _burst(text: str, value: str) -> Burst:
    match = _BURST.fullmatch(value)
    span = _SPAN.fullmatch(match[3]) if match else None
    if match is None or span is None:
        raise _no_curve(text, "a burst is written burst=100/s at 10:30 for 2min")
    return Burst(_rate(text, match[1]), _clock(text, match[2]), float(span[1]) * _SPANS[span[2]])


def _rate(text: str, value: str, name: str = "rate") -> float:
    if not value.strip():
        raise _no_curve(text, f"it does not say {name}=, the requests in a time, such as {name}=40/s")
    match = _RATE.fullmatch(value.strip())
    if match is None:
        raise _no_curve(text, f"{value.strip()!r} is no rate, such as 40/s, 90/min or 500/h")
    return float(match[1]) / _UNITS[match[2]]


def _clock(text: str, value: str) -> float:
    match = _CLOCK.fullmatch(value.strip())
    if match is None or int(match[1]) > 23 or int(match[2]) > 59:
        raise _no_curve(text, f"{value.strip()!r} is no time of the day, such as 14:00")
    return int(match[1]) * 3600.0 + int(match[2]) * 60.0


def _whole(text: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= 366:
        raise _no_curve(text, f"days={value}: a whole number from 1 to 366 is meant")
    return int(value)


def _share(text: str, value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= 10.0:
        raise _no_curve(text, f"weekend={value}: a part of the other days' requests, such as 0.3")
    return found


# --- files ------------------------------------------------------------------------------------------------------------

_FILE = (
    "for example: a first line `time,duration`, then lines such as `0.5,2` (seconds) or `2027-01-11T08:00:00,2`; "
    "`tokens` instead of `duration` counts them at --token-time each"
)
_TIMES = ("time", "timestamp", "arrival", "at")
_DURATIONS = ("duration", "duration_s", "seconds", "service_s")
_TOKENS = ("tokens", "generatedtokens", "output_tokens", "generated_tokens")


def traffic_of_file(path: str, work: Work, *, skip_bad: bool = False) -> Traffic:
    """Requests of a CSV: a column of times, and one of durations or tokens (else each is as `work` says)."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8", errors="replace", newline="") as lines:
        reader = csv.reader(lines)
        names = [name.strip().lower() for name in next(reader, [])]
        when = _column(path, names, _TIMES)
        length, tokens = _maybe(names, _DURATIONS), _maybe(names, _TOKENS)
        found, problems = list[tuple[float, float]](), list[str]()
        for cells in reader:
            if not any(cells):
                continue
            try:
                found.append((_moment(cells[when]), _work_of(cells, length, tokens, work)))
            except (ValueError, IndexError) as error:
                words = "the line is cut short" if isinstance(error, IndexError) else str(error)
                problems.append(f"{path}:{reader.line_num}: {words}")
    if problems and not skip_bad:
        count = f"{len(problems)} bad row{'s' if len(problems) > 1 else ''}; --skip-bad leaves them out"
        raise BadTrafficError("\n".join([*problems[:5], count]))
    if not found:
        raise BadTrafficError(f"{path}: no requests: below the names of the columns stands a line for each\n{_FILE}")
    found.sort()
    at, work_s = np.array([each[0] for each in found]), np.array([each[1] for each in found])
    at -= at[0]
    return Traffic(Path(path).name, at, work_s, float(at[-1]) + 1.0, tuple(problems))


def _column(path: str, names: list[str], wanted: tuple[str, ...]) -> int:
    position = _maybe(names, wanted)
    if position is None:
        has = f"it has {', '.join(names)}" if any(names) else "the file is empty"
        raise BadTrafficError(f"{path}: the first line names no column {', '.join(wanted)} ({has})\n{_FILE}")
    return position


def _maybe(names: list[str], wanted: tuple[str, ...]) -> int | None:
    return next((names.index(name) for name in wanted if name in names), None)


def _moment(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            raise ValueError(f"{text!r} is no time: seconds, or 2027-01-11T08:00:00") from None
        found = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not isfinite(found):
        raise ValueError(f"{text!r} is no time")
    return found


def _work_of(cells: list[str], length: int | None, tokens: int | None, work: Work) -> float:
    if length is None and tokens is None:
        return work.mean_s
    text = cells[length if length is not None else tokens or 0]
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number, such as 2.5") from None
    if not isfinite(value) or value < 0:
        raise ValueError(f"{text!r} is no duration: seconds, 0 or more")
    return value if length is not None else value * work.token_s
