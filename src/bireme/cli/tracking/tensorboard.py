"""Scalars of TensorBoard's event files: records of TFRecord, and the few fields of protobuf that hold them.

Read by the asking user's own process, as `bireme logs` reads logs. A program may still be writing, and a file may be
anybody's: lengths are checked before anything is read, sums before anything is believed, and what is not understood is
passed over. Not images, histograms or graphs.
Invariant: a file costs no more than `MOST_BYTES` of reading, `MOST_TAGS` names and `MOST_POINTS` points of each.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from bireme.protobuf import BYTES, FIXED32, FIXED64, VARINT, BrokenRecord, fields

MOST_BYTES = 256 * 1024 * 1024
MOST_RECORD = 64 * 1024
"""A longer record is passed over: no scalar is."""
MOST_TAGS = 500
MOST_POINTS = 4096
_HEAD, _SUM = 12, 4
_POLYNOMIAL = 0x82F63B78
_FLOAT, _DOUBLE = 1, 2
"""Types of a tensor."""

Point = tuple[float, int, float]
"""Time, step, value."""


@dataclass(slots=True)
class Scalars:
    """What a file holds."""

    curves: dict[str, list[Point]] = field(default_factory=dict)
    thinned: set[str] = field(default_factory=set)
    """Curves of which every second point was left out, once or several times."""
    broken: str = ""
    """Why the rest was not read: a file that is being written may end in half a record."""

    def take(self, tag: str, point: Point) -> None:
        curve = self.curves.get(tag)
        if curve is None:
            if len(self.curves) >= MOST_TAGS:
                return
            curve = self.curves[tag] = []
        curve.append(point)
        if len(curve) > MOST_POINTS:
            del curve[1:-1:2]  # the first and the last stay
            self.thinned.add(tag)


def read_scalars(file: BinaryIO) -> Scalars:
    """All scalars of an event file, up to where it is broken."""
    found = Scalars()
    try:
        for record in _records(file):
            at, step, values = _event(record)
            for tag, value in values:
                found.take(tag, (at, step, value))
    except BrokenRecord as error:
        found.broken = str(error)
    return found


def _records(file: BinaryIO) -> Iterator[bytes]:
    """Those that may be scalars. Raises BrokenRecord at the first that is not whole."""
    read = 0
    while head := file.read(_HEAD):
        if len(head) < _HEAD:
            raise BrokenRecord("it ends within a record's head")
        (length,) = struct.unpack("<Q", head[:8])
        if struct.unpack("<I", head[8:])[0] != masked_sum(head[:8]):
            raise BrokenRecord("a record's length is damaged")
        read += _HEAD + length + _SUM
        if read > MOST_BYTES:
            raise BrokenRecord(f"it is longer than {MOST_BYTES // 1024 // 1024} MiB")
        if length > MOST_RECORD:
            file.seek(length + _SUM, 1)
            continue
        body = file.read(length + _SUM)
        if len(body) < length + _SUM:
            raise BrokenRecord("it ends within a record")
        if struct.unpack("<I", body[length:])[0] != masked_sum(body[:length]):
            raise BrokenRecord("a record is damaged")
        yield body[:length]


# -- sums --------------------------------------------------------------------------------------------------------------


def _sum_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _sum_table()


def masked_sum(data: bytes) -> int:
    """CRC-32C, rotated and shifted as TFRecord has it."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


# -- what a record says ------------------------------------------------------------------------------------------------


def _event(data: bytes) -> tuple[float, int, list[tuple[str, float]]]:
    """Event: wall_time 1, step 2, summary 5. Of a summary the values (1) that are scalars."""
    at, step, values = 0.0, 0, list[tuple[str, float]]()
    for number, kind, content in fields(data):
        if number == 1 and kind == FIXED64:
            (at,) = struct.unpack("<d", content)  # type: ignore[arg-type]
        elif number == 2 and kind == VARINT:
            assert isinstance(content, int)
            step = content - (1 << 64) if content >> 63 else content
        elif number == 5 and isinstance(content, bytes):
            values += [value for each, _, one in fields(content) if each == 1 and (value := _value(one)) is not None]
    return at, step, values


def _value(data: int | bytes) -> tuple[str, float] | None:
    """Summary.Value: tag 1, simple_value 2, tensor 8, metadata 9 (plugin_data 1: plugin_name 1)."""
    if not isinstance(data, bytes):
        return None
    tag, simple, tensor, plugin = "", None, None, b""
    for number, kind, content in fields(data):
        if not isinstance(content, bytes):
            continue
        if number == 1 and kind == BYTES:
            tag = content.decode("utf-8", "replace")
        elif number == 2 and kind == FIXED32:
            (simple,) = struct.unpack("<f", content)
        elif number == 8:
            tensor = content
        elif number == 9:
            plugin = _first(_first(content))
    if simple is None and tensor is not None and plugin == b"scalars":
        simple = _scalar(tensor)
    return (tag, simple) if tag and simple is not None else None


def _first(data: bytes) -> bytes:
    """The content of field 1."""
    return next((each for number, _, each in fields(data) if number == 1 and isinstance(each, bytes)), b"")


def _scalar(data: bytes) -> float | None:
    """TensorProto of one number: dtype 1, tensor_content 4, float_val 5, double_val 6."""
    kind, content = 0, b""
    for number, _, each in fields(data):
        if number == 1 and isinstance(each, int):
            kind = each
        elif number in (4, 5, 6) and isinstance(each, bytes):
            content = each
    if kind == _FLOAT and len(content) == 4:
        return float(struct.unpack("<f", content)[0])
    if kind == _DOUBLE and len(content) == 8:
        return float(struct.unpack("<d", content)[0])
    return None
