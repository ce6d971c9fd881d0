"""Columns: how wide, on which side, followed by what; and the three little languages that say so.

    squeue -o "%.18i %9P %j"        parse_percent    %[[.]size]type[suffix]
    squeue -O "jobid:.10,name:8;"   parse_named      type[:[.][size][suffix]]
    sacct  -o "JobID%20,State%-12"  parse_accounting type[%[-]size]

What a type means is not known here: a caller looks it up in a table of fields (`squeue_fields`, `sinfo_fields`, ...).
Invariant: parsing never fails; a type that no table knows is the caller's to report, as Slurm does.
"""

from __future__ import annotations

from typing import NamedTuple

NAMED_WIDTH = 20
"""What -O gives a field without a size."""


WIDEST = 65_535
"""A wider column is a slip of the finger that would fill the memory."""


class Spec(NamedTuple):
    """One field of a format, before its type is looked up. Width 0: as wide as the value."""

    type: str
    width: int = 0
    right: bool = False
    suffix: str = ""


class PercentFormat(NamedTuple):
    prefix: str
    specs: list[Spec]


def parse_percent(text: str) -> PercentFormat:
    """`[%.18i] %P` to a prefix and fields; every character after a field's letter belongs to its suffix."""
    prefix, *pieces = text.split("%")
    specs: list[Spec] = []
    for piece in pieces:
        if not piece:
            continue
        right, width, rest = _size(piece)
        if rest[:3] == "all" and not right and not width:
            specs.append(Spec("all", 0, False, rest[3:]))
        else:
            specs.append(Spec(rest[:1], width, right, rest[1:]))
    return PercentFormat(prefix, specs)


def parse_named(text: str) -> list[Spec]:
    """`jobid:.10,name` to fields, types in lower case."""
    specs: list[Spec] = []
    for item in text.split(","):
        name, colon, layout = item.partition(":")
        if not name:
            continue
        if not colon:
            specs.append(Spec(name.lower(), NAMED_WIDTH))
            continue
        right, width, suffix = _size(layout)
        specs.append(Spec(name.lower(), width, right, suffix))
    return specs


class AccountingSpec(NamedTuple):
    """One field of sacct's or sstat's --format; width None: the field's own."""

    type: str
    width: int | None = None
    left: bool = False


def parse_accounting(text: str) -> list[AccountingSpec]:
    """`JobID%20,State%-12`; a size that is not a number counts as none, as Slurm's atoi does."""
    specs: list[AccountingSpec] = []
    for item in text.split(","):
        name, percent, size = item.partition("%")
        if not name:
            continue
        digits = size.removeprefix("-")
        width = _width(digits) if digits.isdecimal() else None
        specs.append(AccountingSpec(name, width or None, percent != "" and size.startswith("-")))
    return specs


def _size(text: str) -> tuple[bool, int, str]:
    """Reads `[.][digits]` off the front."""
    right = text.startswith(".")
    rest = text[1:] if right else text
    count = 0
    while count < len(rest) and rest[count].isdecimal():
        count += 1
    return right, _width(rest[:count]), rest[count:]


def _width(digits: str) -> int:
    return min(int(digits[:9] or 0), WIDEST)


def cell(width: int, right: bool, *, cut: bool = True) -> str:
    """The %-template of one column: padded to its width and, unless told otherwise, cut at it."""
    if not width:
        return "%s"
    return f"%{'' if right else '-'}{width}{f'.{width}' if cut else ''}s"


def escaped(text: str) -> str:
    """Literal text, as part of a %-template."""
    return text.replace("%", "%%")
