"""The fields of a message of protobuf, as they lie in its bytes: for who wants a few of a file or of an answer. Pure.

Used by `cli/tracking` (files of TensorBoard and W&B) and `gather/clusters` (a kubelet's answer). Bytes may be of
anybody: lengths are checked before anything is taken. Not here: which number means what.
Invariant: what comes out lies within what came in.
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Field = tuple[int, int, int | bytes]
"""Number, wire type, content."""


class BrokenRecord(ValueError):  # noqa: N818  (says what it is)
    """A record that is not whole, or not what was written."""


def fields(data: bytes) -> Iterator[Field]:
    """In their order. Raises BrokenRecord."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, position = _varint(data, position)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, position = _varint(data, position)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise BrokenRecord("a record is not what it should be")
        if length > len(data) - position:
            raise BrokenRecord("a record is not what it should be")
        yield number, kind, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
    raise BrokenRecord("a record is not what it should be")
