"""What a program logged to W&B without a network: the `.wandb` file of an offline run, as W&B's client writes it.

A log in blocks, as LevelDB has it: records of 7 bytes of head (sum, length, kind), long ones in pieces; each is a
message of protobuf, of which the rows of the history and the summary are read. Known from files of the client 0.31.
Read by the asking user's own process; the client may still be writing.
Invariant: a file costs no more than `MOST_BYTES` of reading; a record whose sum is wrong ends it, and that is said.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from bireme.cli.tracking.tensorboard import Scalars
from bireme.protobuf import BrokenRecord, fields

MOST_BYTES = 256 * 1024 * 1024
MOST_RECORD = 1024 * 1024
"""A longer record is passed over: it has more than numbers."""
_FILE_HEAD = struct.Struct("<4sHB")
_NAME, _MAGIC = b":W&B", 0xBEE1
_HEAD = struct.Struct("<IHB")
_BLOCK = 32_768
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _SUMMARY = 2, 3
"""Fields of a record."""
_KEY, _NESTED_KEY, _JSON = 1, 2, 16
"""Fields of an item of either."""


@dataclass(slots=True)
class Run:
    """What the file holds of numbers."""

    history: Scalars = field(default_factory=Scalars)
    summary: dict[str, float] = field(default_factory=dict)


def read_run(file: BinaryIO) -> Run:
    """Up to where the file is broken, or ends."""
    run = Run()
    try:
        for record in _records(file):
            for number, _, content in fields(record):
                if number == _HISTORY and isinstance(content, bytes):
                    _take_row(run.history, dict(_numbers(content)))
                elif number == _SUMMARY and isinstance(content, bytes):
                    run.summary |= {name: value for name, value in _numbers(content) if not name.startswith("_")}
    except BrokenRecord as error:
        run.history.broken = str(error)
    return run


def _take_row(history: Scalars, row: dict[str, float]) -> None:
    at, step = row.get("_timestamp", 0.0), row.get("_step", 0.0)
    for name, value in row.items():
        if not name.startswith("_"):
            history.take(name, (at, int(step), value))


def _numbers(data: bytes) -> Iterator[tuple[str, float]]:
    """The items of a row that are numbers; a nested key is written with dots."""
    for number, _, item in fields(data):
        if number != 1 or not isinstance(item, bytes):
            continue
        keys: list[str] = []
        value: float | None = None
        for each, _, content in fields(item):
            if each in (_KEY, _NESTED_KEY) and isinstance(content, bytes) and content:
                keys.append(content.decode("utf-8", "replace"))
            elif each == _JSON and isinstance(content, bytes):
                value = _number(content)
        if keys and value is not None:
            yield ".".join(keys), value


def _number(text: bytes) -> float | None:
    """The value of an item; None: it is another thing than a number."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_number and math.isfinite(value) else None


def _records(file: BinaryIO) -> Iterator[bytes]:
    """Whole ones. Raises BrokenRecord."""
    head = file.read(_FILE_HEAD.size)
    if len(head) < _FILE_HEAD.size or _FILE_HEAD.unpack(head)[:2] != (_NAME, _MAGIC):
        raise BrokenRecord("it is no file of W&B's client")
    place, pieces, length = _FILE_HEAD.size, list[bytes](), 0
    while True:
        left = _BLOCK - place % _BLOCK
        if left < _HEAD.size:
            place += len(file.read(left))
            continue
        head = file.read(_HEAD.size)
        if not head.strip(b"\0"):  # the end, or room that was not written yet
            return
        kind, body = _piece(file, head, left)
        place += _HEAD.size + len(body)
        if place > MOST_BYTES:
            raise BrokenRecord(f"it is longer than {MOST_BYTES // 1024 // 1024} MiB")
        if kind in (_FULL, _FIRST):
            pieces, length = [], 0
        length += len(body)
        if length <= MOST_RECORD:
            pieces.append(body)
        if kind in (_FULL, _LAST) and length <= MOST_RECORD:
            yield b"".join(pieces)


def _piece(file: BinaryIO, head: bytes, left: int) -> tuple[int, bytes]:
    """Of a record: its kind and content, whose head lies before it. `left`: what the block still has."""
    if len(head) < _HEAD.size:
        raise BrokenRecord("it ends within a record's head")
    said, length, kind = _HEAD.unpack(head)
    if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or length > left - _HEAD.size:
        raise BrokenRecord("a record's head is damaged")
    body = file.read(length)
    if len(body) < length:
        raise BrokenRecord("it ends within a record")
    if zlib.crc32(bytes((kind,)) + body) != said:
        raise BrokenRecord("a record is damaged")
    return kind, body
