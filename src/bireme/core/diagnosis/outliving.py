"""Which errors a program outlived: it went on after them, so they are not why it died. Pure; asked by `judging`.

A program went on if enough signs of progress, or a sign that it came to its end, stand after the error in the same
file; or if a long quiet stretch follows in which no rule knows a line, and other errors after that. One or two signs
are not enough: the other ranks of a gang write a little more while one is already dead.
Invariant: only lines of output are ever outlived; what the kernel, a device or the scheduler says stands.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

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


def outlived(clues: Sequence[Clue]) -> frozenset[int]:
    """The places, in `clues`, of those that the program outlived."""
    progress: dict[str, list[int]] = defaultdict(list)
    finish: dict[str, int] = defaultdict(lambda: -1)
    errors: dict[str, list[int]] = defaultdict(list)
    for clue in clues:
        line = clue.line
        if not is_output(line):
            continue
        if clue.rule.role == "progress":
            progress[line.file].append(line.order)
        elif clue.rule.role == "finish":
            finish[line.file] = max(finish[line.file], line.order)
        elif clue.rule.role in ("cause", "general", "exception"):
            errors[line.file].append(line.order)
    for orders in (*progress.values(), *errors.values()):
        orders.sort()
    return frozenset(
        place
        for place, clue in enumerate(clues)
        if is_output(clue.line)
        and clue.rule.role not in SIGNS
        and (
            len(progress[clue.line.file]) - bisect_right(progress[clue.line.file], clue.line.order) >= ENOUGH_PROGRESS
            or finish[clue.line.file] > clue.line.order
            or _is_before_quiet(clue.line.order, errors[clue.line.file])
        )
    )


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
    """Also where it is not known."""
    return line.last - line.order <= NEAR_THE_END
