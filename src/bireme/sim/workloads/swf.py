"""Standard Workload Format: eighteen numbers a line, `-1` where something is not known, remarks after `;`.

The header's UnixStartTime makes submit times epoch times; MaxNodes and MaxProcs name the cluster. A job's processors
are those it asked for, else those it got.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from bireme.sim.workloads.trace import Row, TraceJob

FIELDS = 18
_HEADER = re.compile(r";\s*(UnixStartTime|MaxNodes|MaxProcs)\s*:\s*(\d+)")
CANCELLED = 5


def header(lines: Iterable[str]) -> dict[str, int]:
    """The numbers of the header that matter, by name."""
    found: dict[str, int] = {}
    for text in lines:
        if not text.startswith(";"):
            break
        match = _HEADER.match(text)
        if match is not None:
            found[match[1]] = int(match[2])
    return found


def cluster_hint(known: dict[str, int]) -> str:
    """`240x1`: nodes with so many CPUs each."""
    processors = known.get("MaxProcs") or known.get("MaxNodes")
    nodes = known.get("MaxNodes") or processors
    return f"{nodes}x{-(-processors // nodes)}" if processors and nodes else ""


def rows(lines: Iterable[str], start: float) -> Iterator[Row]:
    for number, text in enumerate(lines, start=1):
        text = text.strip()
        if text and not text.startswith(";"):
            yield number, _job(number, text, start)


def _job(line: int, text: str, start: float) -> TraceJob | str:
    words = text.split()
    if len(words) != FIELDS:
        return f"{len(words)} of {FIELDS} fields: the line is cut short or no SWF"
    try:
        values = [float(word) for word in words]
    except ValueError:
        wrong = next(word for word in words if not _is_number(word))
        return f"{wrong!r} is not a number"
    submit, wait, run, got = values[1:5]
    asked, limit, memory_kib, status = values[7], values[8], values[9], int(values[10])
    if run < 0:
        return "it was cancelled before it ran" if status == CANCELLED else "its run time is not known"
    processors = int(asked if asked > 0 else got)
    if processors <= 0:
        return "its number of processors is not known"
    user, group, queue = (int(value) for value in (values[11], values[12], values[14]))
    return TraceJob(
        submit=start + submit,
        run_s=max(run, 1.0),
        cpus=processors,
        memory_mib=None if memory_kib <= 0 else -(-int(memory_kib) // 1024),
        limit_s=int(limit) if limit > 0 else None,
        user=f"user{user}" if user >= 0 else "user",
        account=f"group{group}" if group >= 0 else "",
        name=f"queue{queue}" if queue >= 0 else "job",
        exit_code=1 if status == 0 else 0,
        waited_s=wait if wait >= 0 else None,
        line=line,
    )


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
