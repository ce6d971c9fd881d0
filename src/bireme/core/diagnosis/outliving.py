"""Which errors a program outlived: it went on after them, so they are not why it died. Pure; asked by `judging`.

A program went on if enough signs of progress, or a sign that it came to its end, stand after the error in the same
file; or if a long quiet stretch follows in which no rule knows a line, and other errors after that. One or two signs
are not enough: the other ranks of a gang write a little more while one is already dead. Progress of another rank, where
ranks are known, is none of this one.
Invariant: only lines of output are ever outlived; what the kernel, a device or the scheduler says stands.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from bireme.core.diagnosis.model import SIGNS, Clue, Line

ENOUGH_PROGRESS = 4
QUIET_LINES = 1_000
NEAR_THE_END = 15
_MILD = re.compile(
    r"[NR]CCL INFO|(?<!NCCL )(?<!RCCL )\bWARN(?:ING)?\b|Warning:|^\[?W\d{0,4}[ \]]|\]:\[W\d{0,4} |\[W socket"
    r"|\bretrying\b|\bwill retry\b|\bretry in \d|\b[Ss]kipping\b|\b[Ii]gnoring\b|\b[Ff]alling back\b|\(ignored\)"
    r"|\b[Rr]ecovered\b|\battempt \d+ of \d+\b"
)
_NOT_MILD = re.compile(r"slurmstepd: error|srun: error|\bkubelet\b|Xid|Traceback|failed to (?:bind|listen)")


@dataclass(frozen=True, slots=True)
class Outlived:
    """Places, in a list of clues, of those that the program outlived."""

    surely: frozenset[int]
    """It came to its end after them, or other errors followed after a long quiet."""
    likely: frozenset[int]
    """It wrote of its progress after them; or wrote of it before, and it came out late: what a program writes to its
    standard output waits in a buffer while its errors do not."""


def outlived(clues: Sequence[Clue]) -> Outlived:
    signs = _Signs()
    for clue in clues:
        if is_output(clue.line):
            signs.add(clue)
    signs.sort()
    mine = [
        (place, clue.line) for place, clue in enumerate(clues) if is_output(clue.line) and clue.rule.role not in SIGNS
    ]
    surely = frozenset(place for place, line in mine if signs.is_surely_outlived(line))
    likely = frozenset(place for place, line in mine if signs.progress_after(line) >= ENOUGH_PROGRESS)
    return Outlived(surely, likely - surely)


class _Signs:
    """Where progress, ends and errors stand, by file."""

    def __init__(self) -> None:
        self._progress: dict[tuple[str, int | None], list[int]] = defaultdict(list)
        """By rank too, where it is known: that others went on says nothing of this one."""
        self._progress_of_all: dict[str, list[int]] = defaultdict(list)
        self._finish: dict[str, int] = {}
        self._errors: dict[str, list[int]] = defaultdict(list)

    def add(self, clue: Clue) -> None:
        line, role = clue.line, clue.rule.role
        if role == "progress":
            self._progress[line.file, line.rank].append(line.order)
            self._progress_of_all[line.file].append(line.order)
        elif role == "finish":
            self._finish[line.file] = max(self._finish.get(line.file, line.order), line.order)
        elif role in ("cause", "general", "exception"):
            self._errors[line.file].append(line.order)

    def sort(self) -> None:
        for orders in (*self._progress.values(), *self._progress_of_all.values(), *self._errors.values()):
            orders.sort()

    def is_surely_outlived(self, line: Line) -> bool:
        return self._finish.get(line.file, -1) > line.order or _is_before_quiet(line.order, self._errors[line.file])

    def progress_after(self, line: Line) -> int:
        if line.rank is None:
            return _after(self._progress_of_all[line.file], line.order)
        return sum(_after(self._progress.get((line.file, rank), ()), line.order) for rank in (line.rank, None))


def _after(orders: Sequence[int], order: int) -> int:
    return len(orders) - bisect_right(orders, order)


def _is_before_quiet(order: int, errors: Sequence[int]) -> bool:
    after = bisect_right(errors, order)
    return after < len(errors) and errors[after] - order > QUIET_LINES


def is_output(line: Line) -> bool:
    return line.source in ("output", "file")


def is_mild(clue: Clue) -> bool:
    """The line itself says that it is a warning, or that the program tries again."""
    if not is_output(clue.line) or _NOT_MILD.search(clue.line.text) is not None:
        return False
    return _MILD.search(clue.line.text) is not None


def is_near_the_end(line: Line) -> bool:
    """Whether a line stands near the job's end; true also where its time is not known."""
    return line.last - line.order <= NEAR_THE_END
