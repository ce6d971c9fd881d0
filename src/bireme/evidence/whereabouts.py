"""Where and when a line was written, by what stands before it and by the name of its file: rank, node, process, time.

Labels that programs write on purpose (`[rank3]:`, `[default3]:`, mpirun's `[1,3]<stderr>:`, Ray's `(Worker pid=7)`) are
believed wherever they stand. `3: text` (srun -l) and `[3]: text` could be anything: they are ranks only in a file in
which nearly all lines begin so (`Labels.of_sample`). A label is taken off the text, so that rules need not know it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bireme.core.telemetry.log_lines import own_time
from bireme.slurm.id_ranges import id_ranges

MOST_RANK = 1_000_000
_NUMBERED = re.compile(r"\s{0,8}(?P<rank>\d{1,6}): ?")
_BRACKETED = re.compile(r"\[(?P<rank>\d{1,6})\]: ?")
_RANKED = re.compile(r"\[(?:rank|default|Rank |RANK )(?P<rank>\d{1,6})\]:? ?")
_TAGGED = re.compile(r"\[\d{1,6},(?P<rank>\d{1,6})\]<(?:stdout|stderr|stddiag)>: ?")
_RAY = re.compile(r"\([\w.: -]{0,80}?pid=(?P<pid>\d{1,9})(?:, ip=(?P<node>[\w.:-]{1,64}))?\) ?")
_NCCL = re.compile(r"(?P<node>[\w.-]{1,64}):(?P<pid>\d{1,9}):\d{1,9} \[(?P<gpu>\d{1,3})\] (?:NCCL|RCCL) ")
_ALMOST_ALL = 0.9
_FEWEST = 3

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_GLOG = re.compile(r"\[?[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_SYSLOG = re.compile(
    r"\[?(?:[A-Z][a-z]{2} )?([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.\d+)?(?: (\d{4}))?"
)
_DAY_S = 86_400.0

_IN_NAME = (
    re.compile(r"(?:^|/)attempt_\d+/(\d{1,6})/[^/]+$"),
    re.compile(r"(?:^|[/._-])rank[_.-]?(\d{1,6})(?=[._/-]|$)", re.IGNORECASE),
    re.compile(r"(?:^|[/._-])(?:task|proc|worker)[_.-]?(\d{1,6})(?=[._/-]|$)", re.IGNORECASE),
)
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What stands before a line, and the line without it."""

    text: str
    rank: int | None = None
    node: str = ""
    pid: int = 0
    device: str = ""


@dataclass(frozen=True, slots=True)
class Labels:
    """Which labels are believed in a file."""

    uncertain: re.Pattern[str] | None = None

    @classmethod
    def of_sample(cls, lines: Sequence[str]) -> Labels:
        """`lines`: the first ones of the file."""
        written = [line for line in lines if line.strip()]
        for pattern in (_NUMBERED, _BRACKETED):
            count = sum(pattern.match(line) is not None for line in written)
            if count >= _FEWEST and count >= _ALMOST_ALL * len(written):
                return cls(pattern)
        return cls()

    def of(self, text: str) -> Whereabouts:
        rank: int | None = None
        pid, node = 0, ""
        for pattern in (self.uncertain, _TAGGED, _RAY, _RANKED):
            found = pattern.match(text) if pattern is not None else None
            if found is None:
                continue
            named = found.groupdict()
            rank = int(named["rank"]) if named.get("rank") is not None else rank
            pid, node = int(named.get("pid") or pid), named.get("node") or node
            text = text[found.end() :]
        found = _NCCL.match(text)  # its text stays: rules read it
        if found is not None:
            return Whereabouts(text, rank, found["node"], int(found["pid"]), f"gpu {found['gpu']}")
        return Whereabouts(text, rank, node, pid)


def rank_in_name(path: str) -> int | None:
    """As torchrun, srun's patterns with words, and people name files of ranks."""
    for pattern in _IN_NAME:
        found = pattern.search(path)
        if found is not None:
            return int(found[1])
    return None


def ranks_in_names(paths: Sequence[str]) -> dict[str, int]:
    """Of files that were named together: by each name alone, else by the one number in which all of them differ, if
    those numbers are 0, 1, 2 ... (`train-42-0.out`, `train-42-1.out`)."""
    known = {path: rank for path in paths if (rank := rank_in_name(path)) is not None}
    rest = [path for path in dict.fromkeys(paths) if path not in known]
    if len(rest) < 2 or len({_DIGITS.sub("#", path) for path in rest}) != 1:
        return known
    numbers = [_DIGITS.findall(path) for path in rest]
    differing = [place for place in range(len(numbers[0])) if len({each[place] for each in numbers}) > 1]
    if len(differing) != 1:
        return known
    ranks = [int(each[differing[0]]) for each in numbers]
    return known | dict(zip(rest, ranks)) if sorted(ranks) == list(range(len(rest))) else known


def time_of(text: str, utc_offset_s: float, written_by: float) -> float | None:
    """A line's own time. Forms without a year (glog's, syslog's) get the latest that is not after `written_by`, the
    time at which the file was last written to."""
    at = own_time(text, utc_offset_s)
    if at is not None:
        return at
    found = _GLOG.match(text)
    if found is not None:
        month, day, hour, minute, second = (int(each) for each in found.groups()[:5])
        return _latest(month, day, hour, minute, second + float(f"0.{found[6] or 0}"), utc_offset_s, written_by)
    found = _SYSLOG.match(text)
    if found is None or found[1] not in _MONTHS:
        return None
    day, hour, minute, second = (int(each) for each in found.groups()[1:5])
    year = int(found[6]) if found[6] else None
    return _latest(_MONTHS.index(found[1]) + 1, day, hour, minute, float(second), utc_offset_s, written_by, year)


def _latest(
    month: int, day: int, hour: int, minute: int, second: float, offset_s: float, by: float, year: int | None = None
) -> float | None:
    this_year = time.gmtime(by + offset_s).tm_year
    for tried in (year,) if year is not None else (this_year, this_year - 1):
        text = f"{tried:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{int(second):02d}"
        at = own_time(text, offset_s)
        if at is not None and (year is not None or at <= by + _DAY_S):
            return at + second % 1
    return None


def utc_offset_s(at: float) -> float:
    """Of this machine, at a time."""
    return -float(time.altzone if time.localtime(at).tm_isdst > 0 else time.timezone)


def ranks_text(ranks: Iterable[int]) -> str:
    """`ranks 0-2,4`; one: `rank 4`."""
    text = id_ranges(ranks)
    return f"rank{'' if text.isdecimal() else 's'} {text}"
