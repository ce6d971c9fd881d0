"""The text of an opened file, in blocks: as it lies there, unpacked (gzip, bzip2, xz), or out of UTF-16.

Invariant: a block is at most a few MiB in memory, and no more than was allowed is unpacked, however little the file is.
"""

from __future__ import annotations

import bz2
import codecs
import errno
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import BinaryIO, Protocol

BLOCK = 1 << 20
_XZ_MEMORY = 256 << 20
_SAMPLE = 1 << 16
_ODD = re.compile(rb"[\x01-\x06\x0e-\x1a\x1c-\x1f\x7f]")
"""Signs that no text has; NUL is not one of them: files with holes and UTF-16 have it."""
_MOST_ODD = 0.02
_MOST_FOREIGN = 0.3
"""A file is no text if so much of its beginning is such signs, or no UTF-8."""


class UnpackingError(Exception):
    """A packed file cannot be read; the text says why."""


class NoTextError(Exception):
    """What is in the file is no text."""


class _Unpacker(Protocol):
    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


class _Gzip:
    """The standard library's gzip has no bound for a piece: zlib has."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


_PACKED: tuple[tuple[bytes, Callable[[], _Unpacker]], ...] = (
    (b"\x1f\x8b", _Gzip),
    (b"BZh", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\x00", lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY)),
)
_ZSTD = b"\x28\xb5\x2f\xfd"
_UTF_16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def is_packed(head: bytes) -> bool:
    return any(head.startswith(magic) for magic, _ in _PACKED)


def blocks_of(file: BinaryIO, most: int, *, packed_most: int) -> Iterator[bytes]:
    """`most` bytes at most from where the file stands; of a packed one, `packed_most` of what it holds."""
    raw = _raw(file, most)
    first = next(raw, b"")
    if first.startswith(_ZSTD):
        raise UnpackingError("zstd is not unpacked here: unpack it with `zstd -d`")
    together = chain([first], raw)
    for magic, make in _PACKED:
        if first.startswith(magic):
            return _texts(_unpacked(together, make, packed_most))
    return _texts(together)


def _raw(file: BinaryIO, most: int) -> Iterator[bytes]:
    """A file may become longer while it is read, and shorter: it ends where it ended, or ends now."""
    while most > 0 and (block := file.read(min(BLOCK, most))):
        most -= len(block)
        yield block
        if not block.strip(b"\0"):
            most -= _past_hole(file, most)


def _past_hole(file: BinaryIO, most: int) -> int:
    """Goes on to where something was written, which in a file of terabytes may be its last line; how far that is."""
    try:
        here, behind = file.tell(), os.lseek(file.fileno(), 0, os.SEEK_CUR)
        there = os.lseek(file.fileno(), here, os.SEEK_DATA)
        os.lseek(file.fileno(), behind, os.SEEK_SET)  # where the file's own buffer believes that it is
        file.seek(there)
    except OSError as error:  # there is nothing more, or this file system does not tell
        return most if error.errno == errno.ENXIO else 0
    return there - here


def _unpacked(raw: Iterator[bytes], make: Callable[[], _Unpacker], most: int) -> Iterator[bytes]:
    """Files of several members, one after the other, too: rotated logs that were joined."""
    unpacker, is_inside = make(), False
    for data in raw:
        while True:
            is_inside = True
            try:
                block = unpacker.decompress(data, BLOCK)
            except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
                raise UnpackingError(f"it cannot be unpacked further: {error}") from error
            most -= len(block)
            if most < 0:
                raise UnpackingError("it holds more than is unpacked")
            if block:
                yield block
            if unpacker.eof:  # type: ignore[attr-defined]
                data = unpacker.unused_data.lstrip(b"\0")  # type: ignore[attr-defined]
                unpacker, is_inside = make(), False
                if not data:
                    break
            elif unpacker.needs_input:  # type: ignore[attr-defined]
                break
            else:
                data = b""
    if is_inside:
        raise UnpackingError("it ends too early")


def _texts(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Without the NULs of a file with holes; UTF-16 as UTF-8."""
    first = next(blocks, b"")
    if not looks_like_text(first):
        raise NoTextError
    together = chain([first], blocks)
    encoding = _UTF_16.get(first[:2])
    if encoding is None:
        return (block.translate(None, b"\0") if b"\0" in block else block for block in together)
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    return (decoder.decode(block).encode("utf-8", "replace") for block in together)


def looks_like_text(first: bytes) -> bool:
    if first[:2] in _UTF_16:
        return True
    sample = first[:_SAMPLE].translate(None, b"\0")
    if not sample:
        return True
    foreign = sample.decode("utf-8", "replace").count("\ufffd")
    return len(_ODD.findall(sample)) <= _MOST_ODD * len(sample) and foreign <= _MOST_FOREIGN * len(sample)
