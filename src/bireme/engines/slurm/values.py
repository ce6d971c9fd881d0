"""Values of Slurm's JSON, whatever version wrote them: one reader for each kind of value, one table of names.

Slurm 22.05 writes plain values and null; from 23.02 on a number that may be unset or infinite is an object, a state
is a list of words, and an exit status is spelled out. A reader takes every form that is known, so that no version has
to be asked for; only where a thing has moved is its path looked up in `PATHS`. Pure: no IO.
Invariant: what is missing or has an unknown form reads as "not said", never as an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from bireme.core.model.resources import ExitStatus

Json = Mapping[str, Any]

NO_VALUE = frozenset({0xFFFE, 0xFFFFFFFE, 0xFFFFFFFFFFFFFFFE})
INFINITE = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})

PATHS: dict[str, tuple[tuple[str, ...], ...]] = {
    # what                      22.05                                then 23.02 ... 26.05, where it differs
    "allocated nodes": (("job_resources", "allocated_nodes"), ("job_resources", "nodes", "allocation")),
    "whole nodes": (("job_resources", "nodes", "whole"),),
    "node name": (("nodename",), ("name",)),
    "node memory": (("memory_allocated",), ("memory", "allocated")),
    "node version": (("slurmd_version",), ("version",)),
    "release": (("meta", "Slurm", "release"), ("meta", "slurm", "release")),
    "state in accounting": (("state", "current"),),
    "step name": (("step", "name"),),
    "step id": (("step", "id", "step_id"), ("step", "id")),
    "signal in accounting": (("signal", "signal_id"), ("signal", "id")),
    "step nodes": (("nodes", "range"), ("nodes", "list")),
}
"""Where a thing is, by version: the first path that leads somewhere counts."""


def look(record: Json, what: str) -> Any:
    """The thing that `PATHS` names, or None."""
    for path in PATHS[what]:
        value: Any = record
        for word in path:
            value = value.get(word) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def number(value: Any) -> int | None:
    """5, "5" or {"set": true, "infinite": false, "number": 5}; None where it is unset or infinite."""
    if isinstance(value, Mapping):
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    if isinstance(value, str) and value.lstrip("-").isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return None if value in NO_VALUE or value in INFINITE else int(value)


def count(value: Any) -> int | None:
    """A number that means something only when it is not 0: unset is written as 0 too."""
    return number(value) or None


def moment(value: Any) -> float | None:
    """A time; 0 is "never"."""
    found = count(value)
    return None if found is None else float(found)


def text(value: Any) -> str:
    """A text; "(null)", "N/A" and null are none."""
    if isinstance(value, list):
        value = ",".join(str(each) for each in value)
    return value if isinstance(value, str) and value not in ("(null)", "N/A") else ""


def words(value: Any) -> list[str]:
    """Upper-case words: "mixed", ["MIXED", "DRAIN"], "MIXED+DRAIN"."""
    if isinstance(value, str):
        value = value.replace("+", ",").split(",") if value else []
    if not isinstance(value, Sequence):
        return []
    return [str(each).strip().upper() for each in value if str(each).strip()]


def part(total: int, parts: int, place: int) -> int:
    """What one of several nodes has where only the sum is told: even parts, the first ones get what is left over."""
    return total // parts + (place < total % parts)


def exit_status(value: Any) -> ExitStatus:
    """768 (as wait(2) has it), or {"return_code": 3, "signal": {...}} with either kind of numbers."""
    if isinstance(value, Mapping):
        status = words(value.get("status"))
        signal = look(value, "signal in accounting")
        return ExitStatus(number(value.get("return_code")) or 0, number(signal) or 0, "OUT_OF_MEMORY" in status)
    raw = number(value) or 0
    # 0x80 in the low byte is wait's "core dumped": not part of the signal.
    return ExitStatus(raw >> 8 & 0xFF, os.WTERMSIG(raw & 0x7F) if raw & 0x7F else 0)
