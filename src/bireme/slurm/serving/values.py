"""What the flags of a service may say, one reader for each way to write a value: text in, a typed value out.

Every refusal names the flag, what was written, and what would work. Called by `reading`; what a value is for is said
by the rows of `flags`. Invariant: no reader accepts what `core` would refuse for being out of range.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite

from bireme.core.model.serving.names import LONGEST_NAME, is_host, is_model, is_path, is_service_name, is_token
from bireme.core.model.serving.probes import Probe
from bireme.core.model.serving.scaling import Measure, ScalingTarget, Shift
from bireme.core.model.serving.services import Amount
from bireme.core.scaling.checking import MOST_REPLICAS
from bireme.slurm.options.errors import OptionError

LONGEST_S = 366 * 86400.0
_MOST = 1_000_000_000
_SHOWN = 60
"""So many characters of a bad value are repeated."""

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_METRIC = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]{0,255}", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,10}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?", re.ASCII)
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)?", re.ASCII)
_SECONDS_IN = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"([0-9]{1,12})([KMGT])?i?B?", re.ASCII | re.IGNORECASE)
_BYTES_IN = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", re.ASCII)
_PROBE_KEYS = ("delay", "period", "timeout", "successes", "failures")


@dataclass(frozen=True, slots=True)
class Written:
    """A value as it was written: the flag, the text, and where that stands."""

    flag: str
    text: str
    where: str = ""
    """Of a script: `chat.sh: line 3: `."""

    def refused(self, works: str) -> OptionError:
        """`works`: what would be accepted."""
        shown = self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}..."
        return OptionError(f"{self.where}--{self.flag}={shown}: {works}")


Reader = Callable[[Written], object]


# -- numbers -----------------------------------------------------------------------------------------------------------


def whole(least: int, most: int = _MOST) -> Reader:
    """A whole number from `least` on."""

    def read(given: Written) -> int:
        number = int(given.text) if _DIGITS.fullmatch(given.text) else -1
        if not least <= number <= most:
            raise given.refused(
                f"a whole number of at least {least} is meant" if most == _MOST else f"{least} to {most} is meant"
            )
        return number

    return read


def number(least: float, *, above: bool = False) -> Reader:
    """A number of at least (`above`: more than) `least`."""

    def read(given: Written) -> float:
        value = float(given.text) if _NUMBER.fullmatch(given.text) else -1.0
        if value < least or (above and value == least):
            raise given.refused(f"a number {'above' if above else 'of at least'} {least:g} is meant, such as 1.5 or 16")
        return value

    return read


def duration(least: float = 0.0) -> Reader:
    """Seconds, from `90`, `90s`, `500ms`, `15m`, `2h` or `1d`."""

    def read(given: Written) -> float:
        seconds = _seconds(given.text)
        if seconds is None or not least <= seconds <= LONGEST_S:
            at_least = f" of at least {least:g} s" if least else ""
            raise given.refused(f"a time{at_least} is meant, such as 90, 90s, 500ms, 15m, 2h or 1d")
        return seconds

    return read


def duration_or_none(given: Written) -> float | None:
    """As a duration; `none` is no limit."""
    if given.text.lower() == "none":
        return None
    seconds = _seconds(given.text)
    if seconds is None or not 0 < seconds <= LONGEST_S:
        raise given.refused("a time above 0 is meant, such as 90s, 15m or 2h; or none, for no limit")
    return seconds


def _seconds(text: str) -> float | None:
    match = _DURATION.fullmatch(text)
    value = float(match[1]) * _SECONDS_IN[match[2] or ""] if match else None
    return value if value is not None and isfinite(value) else None


def size(given: Written) -> int | None:
    """Bytes, from `10485760`, `512K`, `10M`, `2G`; `none` is no limit."""
    if given.text.lower() == "none":
        return None
    match = _SIZE.fullmatch(given.text)
    count = int(match[1]) * _BYTES_IN[(match[2] or "").upper()] if match else 0
    if not 0 < count < 1 << 60:
        raise given.refused("a number of bytes is meant, such as 65536, 512K, 10M or 2G; or none, for no limit")
    return count


def replicas(given: Written) -> tuple[int, int]:
    """(least, most), from `2` or `0-4`."""
    least, dash, most = given.text.partition("-")
    if not _DIGITS.fullmatch(least) or (dash and not _DIGITS.fullmatch(most)):
        raise given.refused("how many replicas is meant: a number such as 2, or from-to such as 0-4")
    found = int(least), int(most or least)
    if found[0] > found[1]:
        raise given.refused(f"from {found[0]} to {found[1]} is backwards; {found[1]}-{found[0]} would work")
    if not 1 <= found[1] <= MOST_REPLICAS:
        raise given.refused(f"at most has to be 1 to {MOST_REPLICAS}; 0-1 is a service that may sleep")
    return found


def amount(given: Written) -> Amount:
    """A number of replicas, or a part of them: `1`, `25%`."""
    text = given.text.removesuffix("%")
    percent = text != given.text
    most = 100 if percent else MOST_REPLICAS
    if not _DIGITS.fullmatch(text) or int(text) > most:
        raise given.refused(f"a number of replicas (0 to {MOST_REPLICAS}) or a part of them (0% to 100%) is meant")
    return Amount(int(text), percent)


def percent(given: Written) -> int:
    """A part of the requests: `10%` or `10`."""
    text = given.text.removesuffix("%")
    if not _DIGITS.fullmatch(text) or not 1 <= int(text) <= 99:
        raise given.refused("a part of the requests is meant: 1% to 99%")
    return int(text)


# -- names -------------------------------------------------------------------------------------------------------------


def service_name(given: Written) -> str:
    if not is_service_name(given.text):
        raise given.refused(
            f"a name has 1 to {LONGEST_NAME} small letters, digits and dashes, with no dash at an end, and is not v1; "
            f"{suggested_name(given.text)} would work"
        )
    return given.text


def suggested_name(text: str) -> str:
    """A name that is near to any text: of `My Chat.sh` my-chat."""
    stem = text[:1000].rpartition("/")[2]
    stem = stem.rpartition(".")[0] or stem
    found = re.sub(r"[^a-z0-9]+", "-", stem.lower(), flags=re.ASCII).strip("-")[:LONGEST_NAME].strip("-")
    return found if is_service_name(found) else "service"


def host(given: Written) -> str:
    name = given.text.lower().removesuffix(".")
    if not is_host(name):
        raise given.refused("a host name is meant, without scheme, port and path, such as chat.example.org")
    return name


def header(given: Written) -> str:
    if not is_token(given.text):
        raise given.refused("the name of a header or cookie is meant, such as X-Session-Id")
    return given.text


def model(given: Written) -> str:
    if not is_model(given.text):
        raise given.refused("the name of a model is meant, without spaces and commas, such as org/chat-8b")
    return given.text


# -- what decides how many ---------------------------------------------------------------------------------------------


def per_replica(measure: Measure) -> Reader:
    """One replica for so many of what is measured."""
    read_number = number(0.0, above=True)

    def read(given: Written) -> ScalingTarget:
        value = read_number(given)
        assert isinstance(value, float)
        return ScalingTarget(measure, value)

    return read


def metric_target(given: Written) -> ScalingTarget:
    """`NAME=VALUE`: a metric that the replicas export, and how much of it one replica is for."""
    name, _, value = given.text.rpartition("=")
    if not _METRIC.fullmatch(name) or not _NUMBER.fullmatch(value) or not float(value):
        raise given.refused("a metric and how much of it one replica is for, such as vllm:num_requests_waiting=4")
    return ScalingTarget(Measure.METRIC, float(value), name)


def query_target(given: Written) -> ScalingTarget:
    """`QUERY=VALUE`: what Prometheus answers, and how much of it one replica is for."""
    query, _, value = given.text.rpartition("=")
    query, value = query.strip(), value.strip()
    if not query or not query.isprintable() or len(query) > 4096 or not _NUMBER.fullmatch(value) or not float(value):
        raise given.refused("a query and how much of its answer one replica is for, such as 'sum(queue_length)=10'")
    return ScalingTarget(Measure.QUERY, float(value), query)


_SHIFT_WORKS = (
    "days, a time of day and bounds are meant, such as 'Mon-Fri 08:00 min=4', 'Sat,Sun 00:00 max=1' or "
    "'daily 20:00 min=0 max=2'"
)


def shift(given: Written) -> Shift:
    """`Mon-Fri 08:00 min=4`."""
    words = given.text.split() if len(given.text) < 200 else []
    days = _days(words[0]) if words else ()
    clock = _CLOCK.fullmatch(words[1]) if len(words) > 2 else None
    bounds = dict(word.split("=", 1) for word in words[2:] if "=" in word)
    if not days or clock is None or len(bounds) != len(words) - 2 or not bounds.keys() <= {"min", "max"}:
        raise given.refused(_SHIFT_WORKS)
    if not all(_DIGITS.fullmatch(value) and int(value) <= MOST_REPLICAS for value in bounds.values()):
        raise given.refused(_SHIFT_WORKS)
    least, most = (int(bounds[key]) if key in bounds else None for key in ("min", "max"))
    if least is not None and most is not None and least > most:
        raise given.refused(f"min={least} is above max={most}")
    return Shift(days, int(clock[1]) * 60 + int(clock[2]), least, most)


def _days(text: str) -> tuple[int, ...]:
    """0 is Monday; empty when it names none."""
    if text.lower() in ("daily", "*"):
        return tuple(range(7))
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        begin, end = _day(first), _day(last if dash else first)
        if begin is None or end is None:
            return ()
        found |= {(begin + step) % 7 for step in range((end - begin) % 7 + 1)}
    return tuple(sorted(found))


def _day(text: str) -> int | None:
    return next((index for index, day in enumerate(DAYS) if text.lower() == day.lower()), None)


# -- probes ------------------------------------------------------------------------------------------------------------

_PROBE_WORKS = (
    "a path (/health), tcp, or exec:'COMMAND' is meant, then any of delay=0s period=10s timeout=1s successes=1 "
    "failures=3"
)


PROBE_SHELL = ("/bin/sh", "-c")
"""What runs the command of a probe: people write a line there, with variables and `&&`, not a list of words."""


@dataclass(frozen=True, slots=True)
class Question:
    """A probe as it was written: only what was said of it, so that each kind of probe keeps its own defaults."""

    path: str = ""
    command: tuple[str, ...] = ()
    timings: tuple[tuple[str, float | int], ...] = ()
    """By the names of Probe's fields."""
    off: bool = False

    def applied_to(self, probe: Probe) -> Probe:
        said = dict(self.timings)
        return Probe(
            path=self.path,
            command=self.command,
            initial_delay_s=float(said.get("initial_delay_s", probe.initial_delay_s)),
            period_s=float(said.get("period_s", probe.period_s)),
            timeout_s=float(said.get("timeout_s", probe.timeout_s)),
            success_threshold=int(said.get("success_threshold", probe.success_threshold)),
            failure_threshold=int(said.get("failure_threshold", probe.failure_threshold)),
        )


def path_question(given: Written) -> Question:
    """A path alone, as `--health` has it."""
    if not is_path(given.text):
        raise given.refused("a path is meant that begins with / and has no spaces, such as /health")
    return Question(path=given.text)


def question(given: Written) -> Question:
    """`/health`, `tcp` or `exec:'COMMAND'`, then timings; `none` is no probe."""
    try:
        words = shlex.split(given.text) if len(given.text) < 8192 else []
    except ValueError:
        words = []
    if not words:
        raise given.refused(_PROBE_WORKS)
    first, timings = words[0], tuple(_timings(given, words[1:]))
    if first == "none" and not timings:
        return Question(off=True)
    if first == "tcp":
        return Question(timings=timings)
    if first.startswith("exec:"):
        return Question(command=_command(given, first.removeprefix("exec:")), timings=timings)
    if not is_path(first):
        raise given.refused(_PROBE_WORKS)
    return Question(path=first, timings=timings)


def probe_needed(given: Written) -> Question:
    """The question of a probe that has to be there: `none` is refused."""
    found = question(given)
    if found.off:
        raise given.refused(f"{_PROBE_WORKS}; without it nobody knows when a replica can take requests")
    return found


def _command(given: Written, text: str) -> tuple[str, ...]:
    """A line of the shell, as the script's own are. That its quotes match is all that is looked at here."""
    try:
        is_line = bool(shlex.split(text)) and "\0" not in text
    except ValueError:
        is_line = False
    if not is_line:
        raise given.refused("exec: needs a line of shell, such as exec:'test -e ready.$BIREME_REPLICA'")
    return (*PROBE_SHELL, text)


def _timings(given: Written, words: list[str]) -> Iterator[tuple[str, float | int]]:
    fields = {"delay": "initial_delay_s", "period": "period_s", "timeout": "timeout_s"}
    counts = {"successes": "success_threshold", "failures": "failure_threshold"}
    for word in words:
        key, equals, text = word.partition("=")
        seconds = _seconds(text) if key in fields else None
        if equals and seconds is not None and seconds <= LONGEST_S and (key == "delay" or seconds >= 0.1):
            yield fields[key], seconds
        elif equals and key in counts and _DIGITS.fullmatch(text) and 1 <= int(text) <= 1_000_000:
            yield counts[key], int(text)
        else:
            raise given.refused(f"{word[:_SHOWN]!r} is not one of {'= '.join(_PROBE_KEYS)}= with a value above 0")
