"""One value of a configuration file to its type. Raises SlurmSyntaxError with what is accepted; the caller knows where.

Not for command line options, whose rules differ. Called by the readers of each kind of line.
Invariant: None always means "no limit" or "not set", never a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from bireme.slurm.conf.diagnostics import Findings
from bireme.slurm.conf.lines import Line
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.times import MINUTE_S, Infinite, parse_time_limit

Parsed = TypeVar("Parsed")

_TRUE = frozenset({"yes", "up", "true", "1"})
_FALSE = frozenset({"no", "down", "false", "0"})
_UNLIMITED = frozenset({"unlimited", "infinite", "-1"})
_MULTIPLIERS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_COUNT = re.compile(r"([0-9]{1,18})([KMGTP]?)", re.IGNORECASE)
_INDEX_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


def whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise SlurmSyntaxError(f"'{text}' is not a whole number")
    return int(text)


def positive(text: str) -> int:
    number = whole(text)
    if number < 1:
        raise SlurmSyntaxError(f"'{text}' is not a number above 0")
    return number


def limit(text: str) -> int | None:
    """A number, or UNLIMITED, INFINITE or -1 for none."""
    return None if text.lower() in _UNLIMITED else whole(text)


def yes_no(text: str) -> bool:
    word = text.lower()
    if word not in _TRUE | _FALSE:
        raise SlurmSyntaxError(f"'{text}' is neither YES nor NO")
    return word in _TRUE


def count(text: str) -> int:
    """A number with an optional K, M, G, T or P (powers of 1024), as in gres.conf's Count."""
    match = _COUNT.fullmatch(text)
    if match is None:
        raise SlurmSyntaxError(f"'{text}' is not a count (a whole number, then K, M, G, T or P)")
    return int(match[1]) * _MULTIPLIERS[match[2].upper()]


def mebibytes(text: str) -> int:
    """Memory in slurm.conf is in megabytes; newer versions also take a unit."""
    match = _COUNT.fullmatch(text)
    if match is None:
        raise SlurmSyntaxError(f"'{text}' is not a size in megabytes")
    unit = match[2].upper() or "M"
    return -(-int(match[1]) * _MULTIPLIERS[unit] // _MULTIPLIERS["M"])


def mebibytes_limit(text: str) -> int | None:
    """A size; 0 and UNLIMITED are no limit."""
    return None if text.lower() in _UNLIMITED else mebibytes(text) or None


def minutes_as_s(text: str) -> int | None:
    """A time limit (`72:00:00`, `7-0`, `30` minutes) in seconds, in whole minutes; None when there is none."""
    parsed = parse_time_limit(text)
    return None if isinstance(parsed, Infinite) else -(-parsed // MINUTE_S) * MINUTE_S


def names(text: str) -> tuple[str, ...]:
    return tuple(name for name in re.split(r"[,\s]+", text.strip()) if name)


def names_or_all(text: str) -> tuple[str, ...] | None:
    """A list of names; None for ALL."""
    return None if text.lower() == "all" else names(text)


def indices(text: str) -> tuple[int, ...]:
    """`0-3,8`, also in brackets as people write it: `[0-3]`. Order as written, each once."""
    found: dict[int, None] = {}
    for part in text.replace("[", "").replace("]", "").split(","):
        match = _INDEX_RANGE.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise SlurmSyntaxError(f"'{text}' is not a list of numbers and ranges, as in 0-3,8")
        found.update(dict.fromkeys(range(int(match[1]), int(match[2] or match[1]) + 1)))
    return tuple(found)


def exit_codes(text: str) -> tuple[int, ...]:
    """RequeueExit: exit codes 1 to 255, as `1-9,18`."""
    codes = indices(text)
    if any(not 0 < code < 256 for code in codes):
        raise SlurmSyntaxError(f"'{text}': exit codes go from 1 to 255")
    return codes


def read_value(
    line: Line, key: str, parse: Callable[[str], Parsed], default: Parsed, findings: Findings, *aliases: str
) -> Parsed:
    """The typed value of a key of a line; a value that is not understood is an error at that line."""
    text = line.get(key, *aliases)
    if text is None:
        return default
    try:
        return parse(text)
    except SlurmSyntaxError as error:
        findings.error(line.place, f"{key}={text}: {error}")
        return default
