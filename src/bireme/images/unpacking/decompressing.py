"""Compressed bytes in, tar out: gzip, zstd or plain, told by the first bytes and not by what a manifest claims.

A thread decompresses ahead of who reads (zlib and zstd work beside Python), a few MiB at most.
Invariant: no piece is larger than `PIECE` however dense the input is, and the thread is gone when its reader is closed.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

import zstandard

from bireme.images.refusing import RefusedError

PIECE = 1 << 20
_AHEAD = 8
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_WINDOW = 1 << 27
"""What zstd may ask for at its highest levels without being asked twice."""


def decompressed(file: BinaryIO, count: Callable[[int], None]) -> Iterator[bytes]:
    """`count` is told how much was read of the file. Raises RefusedError for what is damaged."""
    head = file.read(PIECE)
    count(len(head))
    try:
        if head.startswith(_GZIP):
            yield from _gunzipped(head, file, count)
        elif head.startswith(_ZSTD):
            yield from _unzstd(head, file, count)
        else:
            while head:
                yield head
                head = file.read(PIECE)
                count(len(head))
    except (zlib.error, zstandard.ZstdError) as error:
        raise RefusedError(f"a layer is damaged ({error}): pull the image again, or push it anew") from error


def _gunzipped(piece: bytes, file: BinaryIO, count: Callable[[int], None]) -> Iterator[bytes]:
    inflating = zlib.decompressobj(wbits=31)
    while piece:
        out = inflating.decompress(piece, PIECE)
        if out:
            yield out
        if inflating.eof:  # several members make one file
            piece = inflating.unused_data
            if piece.strip(b"\0"):
                inflating = zlib.decompressobj(wbits=31)
                continue
            piece = b""
        else:
            piece = inflating.unconsumed_tail
        if not piece:
            piece = file.read(PIECE)
            count(len(piece))
            if piece and inflating.eof:
                inflating = zlib.decompressobj(wbits=31)
    if not inflating.eof:
        raise RefusedError("a layer ends too early: pull the image again, or push it anew")


def _unzstd(head: bytes, file: BinaryIO, count: Callable[[int], None]) -> Iterator[bytes]:
    source = cast(BinaryIO, _Replayed(head, file, count))  # all that is asked of it is `read`
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(source, read_across_frames=True)
    while out := reader.read(PIECE):
        yield out


class _Replayed:
    """A file whose beginning was read already."""

    def __init__(self, head: bytes, file: BinaryIO, count: Callable[[int], None]) -> None:
        self._head, self._file, self._count = head, file, count

    def read(self, size: int = -1) -> bytes:
        if self._head:
            piece, self._head = self._head[:size], self._head[size:]
            return piece
        piece = self._file.read(size)
        self._count(len(piece))
        return piece


class Ahead:
    """Pieces of tar from a thread that works ahead; their digest is known when all were read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._queue: queue.Queue[bytes | BaseException] = queue.Queue(_AHEAD)
        self._closed = False
        self._sum = hashlib.sha256()
        self._thread = threading.Thread(target=self._run, daemon=True, name="decompressing")
        self._thread.start()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            piece = self._queue.get()
            if isinstance(piece, BaseException):
                raise piece
            if not piece:
                return
            yield piece

    @property
    def digest(self) -> str:
        """Of all that came out, once the end was read."""
        return f"sha256:{self._sum.hexdigest()}"

    def close(self) -> None:
        self._closed = True
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue

    def _run(self) -> None:
        try:
            for piece in self._pieces:
                self._sum.update(piece)
                self._queue.put(piece)
                if self._closed:
                    return
            self._queue.put(b"")
        except BaseException as error:  # whoever reads raises it
            self._queue.put(error)
