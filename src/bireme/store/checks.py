"""Checksums of what is kept, and the chain that ties each event to the one before it.

CRC-32: against rot (a flipped bit, a lost or misplaced page), not against malice; it costs a microsecond an event.
An event's sum begins with the sum of the event before it, so that one that is missing, altered or in another's place
is noticed; the first begins with the journal's own name, so that a file of another home is noticed too.
Used by everything in this room; knows no database. Invariant: equal values, as SQLite gives them back, have equal sums.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

Value = int | float | str | bytes | None
"""What a column of the database may hold."""

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Tip:
    """A place in the chain: the number of an event, and its sum."""

    seq: int
    sum: int


def row_sum(values: Sequence[Value], before: int = 0) -> int:
    return zlib.crc32(_encode(values), before)


def with_sum(values: tuple[Value, ...]) -> tuple[Value, ...]:
    """A whole row of a table whose last column is `sum`; numbers as the database gives them back (times are floats)."""
    return (*values, row_sum(values))


def is_row(row: Sequence[Any]) -> bool:
    """Whether it is what `with_sum` made; damage may also change what a column holds."""
    try:
        return bool(row_sum(row[:-1]) == row[-1])
    except (TypeError, ValueError, OverflowError):
        return False


def event_sum(before: int, seq: int, at: float, cause: str, kind: str, job_id: int | None, data: bytes) -> int:
    """`before`: the sum of the event before it. A column of the database holds `at` as a float, whatever came in."""
    return zlib.crc32(data, row_sum((seq, float(at), cause, kind, job_id), before))


def is_event(row: Sequence[Any], before: int) -> bool:
    """Whether a row of the journal (its sum last) is what was written; damage may also change what a column holds."""
    try:
        return bool(event_sum(before, *row[:-1]) == row[-1])
    except (TypeError, ValueError, OverflowError):
        return False


def beginning(journal_id: str) -> Tip:
    """Before the first event of a journal."""
    return Tip(0, zlib.crc32(journal_id.encode()))


def snapshot_sum(seq: int, data: bytes) -> int:
    return zlib.crc32(data, row_sum((seq,)))


def is_snapshot(seq: int, data: Any, total: Any) -> bool:
    return isinstance(data, bytes) and snapshot_sum(seq, data) == total
