"""Whether one file of a checkpoint is whole, by its first and last bytes: never by what it would be when loaded.

`layouts` asks. Formats: what torch.save writes (a ZIP archive, or a pickle from old releases), safetensors, and files
of which nothing is known. Invariant: nothing is unpickled, and no more than the ends of a file are read.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from typing import BinaryIO

_ZIP, _ZIP_END, _ZIP_INDEX = b"PK\x03\x04", b"PK\x05\x06", b"PK\x01\x02"
_ZIP_END_BYTES = 22
_LARGE = 0xFFFFFFFF
_PICKLE = b"\x80"
_GZIP, _HDF5 = b"\x1f\x8b", b"\x89HDF\r\n\x1a\n"
_MOST_HEADER = 32 << 20
_HEAD = 64
TORCH = (".pt", ".pth", ".ckpt")
SAFETENSORS = ".safetensors"
WEIGHTS = (*TORCH, SAFETENSORS)
"""Ends of names that say by themselves that a file is a checkpoint."""
UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".incomplete", ".lock", "~", ".swp")


class UnsoundError(Exception):
    """The file is no whole checkpoint; the text says why, as the end of a sentence that begins with its name."""


def is_temporary(name: str) -> bool:
    """Whether a name says that it is still being written, or was given up."""
    return name.startswith((".", "tmp")) or name.endswith(UNFINISHED) or ".tmp" in name or "-tmp-" in name


def check(path: str) -> os.stat_result:
    """Looks at a file that may be a checkpoint. Raises UnsoundError, or OSError where it cannot be read."""
    # Non-blocking: a pipe in its place must not make anybody wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnsoundError("is no file")
        if not status.st_size:
            raise UnsoundError("is empty")
        if path.endswith(SAFETENSORS):
            _check_safetensors(file, status.st_size)
        else:
            _check_by_beginning(file, status.st_size, torch=path.endswith(TORCH))
    return status


def _check_by_beginning(file: BinaryIO, size: int, *, torch: bool) -> None:
    head = file.read(_HEAD)
    if not head.strip(b"\0"):
        raise UnsoundError("begins with zeros: it was never written to its end")
    if head.startswith(_ZIP):
        _check_zip(file, size)
    elif torch and not head.startswith((_PICKLE, _GZIP, _HDF5)):
        raise UnsoundError("does not begin as torch.save begins a file")


def _check_zip(file: BinaryIO, size: int) -> None:
    """An archive's index stands at its end: a file that was cut off has none."""
    if size < _ZIP_END_BYTES:
        raise UnsoundError("is cut off")
    file.seek(size - _ZIP_END_BYTES)
    end = file.read(_ZIP_END_BYTES)
    if not end.startswith(_ZIP_END):
        raise UnsoundError("is cut off: its archive has no end")
    index_bytes, index_at = struct.unpack("<II", end[12:20])
    if _LARGE in (index_bytes, index_at):
        return  # more than 4 GiB: another record says where the index is, and it stands before the end too
    if index_at + index_bytes + _ZIP_END_BYTES != size:
        raise UnsoundError("is cut off: its archive's index is not where its end says")
    file.seek(index_at)
    if index_bytes and file.read(len(_ZIP_INDEX)) != _ZIP_INDEX:
        raise UnsoundError("is damaged: its archive has no index")


def _check_safetensors(file: BinaryIO, size: int) -> None:
    """The first 8 bytes say how long the header is, and the header where the last tensor ends: where the file does."""
    if size < 8:
        raise UnsoundError("is cut off")
    (length,) = struct.unpack("<Q", file.read(8))
    if not 2 <= length <= size - 8:
        raise UnsoundError("is cut off or damaged: its header is longer than the file")
    if length > _MOST_HEADER:
        return  # too long to be read here
    try:
        header = json.loads(file.read(length))
        ends = [each["data_offsets"][1] for name, each in header.items() if name != "__metadata__"]
        data = max(ends, default=0)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UnsoundError("is damaged: its header cannot be read") from error
    if data != size - 8 - length:
        raise UnsoundError("is cut off: its last tensor ends beyond it")
