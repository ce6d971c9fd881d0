"""The columns of a chunk as bytes and back: quantised to the metric's grain, in the narrowest integers, deflated. Pure.

The keys are runs of steps that follow on each other: a GPU that was measured all the time is one. A column is kept as
its distance from its least value, or from the value before where that needs fewer bytes, byte planes apart (the high
bytes hardly change, and deflate finds that). A constant column is its value. The least and the most stand beside the
mean, as distances from it; where they are the mean, as with one sample a cell, they are not there. Means of coarse
cells are kept ten times as fine as samples, so that thinning out twice does not add up.

Tried and left, with figures in docs/telemetry.md: differences everywhere, XOR of neighbours, packed bits, Parquet.
Invariant: what comes back is within half a grain of what was given; what would not be is kept as floats, exactly.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import numpy as np

from bireme.store.series.cells import NONE, STEP_BITS, STEP_MASK, Cells, Floats, Ints

FORMAT = 1
FINER_MEANS = 10
EXACT_MAX = float(1 << 52)
"""Integers up to here are exact as floats; a value of more grains is kept as it is."""
MAX_CELLS = 50_000_000
"""More than any chunk has: bytes that say more are not ours."""

_WIDTHS: dict[int, np.dtype[Any]] = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
_FLOATS = 16
"""In place of a width: these are floats."""

_Section = tuple[int, int, int, bool]
"""Width in bytes, least value, first value, whether they are differences."""


class _Head(msgspec.Struct, array_like=True, frozen=True):
    format: int
    scale: float
    """Integers a unit of the metric: 10 where a tenth is its grain."""
    finer: int
    count: int
    runs: int
    sections: list[_Section]


_encode = msgspec.msgpack.Encoder().encode
_decode: msgspec.msgpack.Decoder[_Head] = msgspec.msgpack.Decoder(_Head)


class ColumnsError(ValueError):
    """Bytes that are no chunk."""


def quantised(values: Floats, grain: float) -> Floats:
    """What would come back."""
    scale = 1 / grain
    with np.errstate(invalid="ignore", over="ignore"):
        rounded: Floats = np.rint(values * scale) / scale
        return np.where(np.abs(values) * scale < EXACT_MAX, rounded, values)


def encode(cells: Cells, grain: float, *, finer_means: bool, effort: int = 1) -> bytes:
    """Raises ValueError for what is infinite or no number."""
    if not np.isfinite(cells.mean).all() or not np.isfinite(cells.low).all() or not np.isfinite(cells.high).all():
        raise ValueError("an infinite value cannot be kept")
    scale, finer = 1 / grain, FINER_MEANS if finer_means else 1
    starts = np.flatnonzero(np.diff(cells.key, prepend=-2) != 1)
    lengths = np.diff(starts, append=len(cells))
    first = cells.key[starts]
    packed = [_packed(first >> STEP_BITS), _packed(first & STEP_MASK), _packed(lengths), _packed(cells.weight)]
    packed += _packed_values(cells, scale, finer)
    head = _encode(_Head(FORMAT, scale, finer, len(cells), len(starts), [section for section, _ in packed]))
    body = [len(head).to_bytes(2, "little"), head, *(data for _, data in packed)]
    return zlib.compress(b"".join(body), effort)


def decode(data: bytes) -> Cells:
    """Raises ColumnsError."""
    try:
        body = zlib.decompress(data)
        size = int.from_bytes(body[:2], "little")
        head = _decode.decode(body[2 : 2 + size])
        if head.format != FORMAT or not 0 <= head.runs <= head.count <= MAX_CELLS or len(head.sections) not in (5, 7):
            raise ColumnsError("no chunk of this release")
        return _unpacked_cells(head, body, 2 + size)
    except (zlib.error, msgspec.DecodeError, ValueError, OverflowError, MemoryError) as error:
        raise ColumnsError(str(error)) from error


def _packed_values(cells: Cells, scale: float, finer: int) -> list[tuple[_Section, bytes]]:
    """Mean alone, or mean, least and most."""
    flat = bool((cells.low == cells.high).all())
    largest = float(max(np.abs(cells.low).max(initial=0.0), np.abs(cells.high).max(initial=0.0)))
    if largest * scale * finer >= EXACT_MAX:
        columns = [cells.mean] if flat else [cells.mean, cells.low, cells.high]
        return [((_FLOATS, 0, 0, False), _planes(column.view(np.uint64), 8)) for column in columns]
    mean = np.rint(cells.mean * (scale * finer)).astype(np.int64)
    if flat:
        return [_packed(mean)]
    beside = mean // finer
    low, high = (np.rint(column * scale).astype(np.int64) for column in (cells.low, cells.high))
    return [_packed(mean), _packed(beside - low), _packed(high - beside)]


def _unpacked_cells(head: _Head, body: bytes, at: int) -> Cells:
    counts = [head.runs, head.runs, head.runs] + [head.count] * (len(head.sections) - 3)
    columns: list[Any] = []
    for section, count in zip(head.sections, counts):
        column, at = _unpacked(section, body, at, count)
        columns.append(column)
    if at != len(body):
        raise ColumnsError("bytes are left over")
    subject, step, lengths, weight, *values = columns
    if not head.count:
        return NONE
    if int(lengths.sum()) != head.count:
        raise ColumnsError("runs do not fit the values")
    mean, low, high = _unpacked_values(head, values)
    return Cells(_keys(subject, step, lengths), mean, low, high, weight)


def _keys(subject: Ints, step: Ints, lengths: Ints) -> Ints:
    keys = np.ones(int(lengths.sum()), np.int64)
    first = (subject << STEP_BITS) | step
    starts = np.cumsum(lengths) - lengths
    keys[starts] = first - np.concatenate(([0], first[:-1] + lengths[:-1] - 1))
    return np.cumsum(keys)


def _unpacked_values(head: _Head, values: list[Any]) -> tuple[Floats, Floats, Floats]:
    if values[0].dtype == np.float64:
        mean, low, high = values if len(values) == 3 else values * 3
        return mean, low, high
    mean = values[0] / (head.scale * head.finer)
    if len(values) == 1:
        return mean, mean, mean
    beside = values[0] // head.finer
    low = np.minimum((beside - values[1]) / head.scale, mean)
    high = np.maximum((beside + values[2]) / head.scale, mean)
    return mean, low, high


def _width(span: int) -> int:
    return next((width for width in (1, 2, 4) if span < 1 << 8 * width), 8) if span else 0


def _packed(values: Ints) -> tuple[_Section, bytes]:
    if not len(values):
        return (0, 0, 0, False), b""
    least, first = int(values.min()), int(values[0])
    width = _width(int(values.max()) - least)
    if width > 1:
        steps = np.diff(values)
        least_step = int(steps.min())
        narrower = _width(int(steps.max()) - least_step)
        if narrower < width:
            return (narrower, least_step, first, True), _planes(steps - least_step, narrower)
    return (width, least, first, False), _planes(values - least, width)


def _planes(values: Any, width: int) -> bytes:
    """The bytes of all values, the lowest of each first, then the next of each, and so on."""
    if not width:
        return b""
    narrow = values.astype(_WIDTHS[width], copy=False)
    return bytes(narrow.tobytes() if width == 1 else narrow.view(np.uint8).reshape(-1, width).T.tobytes())


def _unpacked(section: _Section, body: bytes, at: int, count: int) -> tuple[Any, int]:
    """A column, and where the next one begins."""
    width, least, first, differences = section
    if width == _FLOATS:
        planes = np.frombuffer(body, np.uint8, 8 * count, at).reshape(8, count)
        return np.ascontiguousarray(planes.T).view(np.float64).reshape(count), at + 8 * count
    stored = count - 1 if differences else count
    if width == 0:
        column = np.full(max(stored, 0), least, np.int64)
    else:
        dtype = _WIDTHS[width]
        planes = np.frombuffer(body, np.uint8, width * stored, at).reshape(width, stored)
        column = np.ascontiguousarray(planes.T).view(dtype).reshape(stored).astype(np.int64) + least
        at += width * stored
    if differences:
        column = np.cumsum(np.concatenate(([first], column)))
    return column, at
