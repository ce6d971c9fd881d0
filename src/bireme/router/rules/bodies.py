"""Where a chunked body ends: it is looked through while its bytes are passed on as they came.

A body with a length is a count of bytes, kept by who passes it on (`client_side`, `replica_side`). Not here: what is in
a body. Who sends a byte in a chunk makes much work with few bytes: chunks that are there whole are passed over quickly,
and whoever asks may have so many looked through at a time.

Invariant: a body that another reader could end elsewhere is a BodyError: sizes are hexadecimal digits, every line ends
with CR LF, no line of a trailer could be framing.
"""

from __future__ import annotations

import re

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t -~\x80-\xff]*)?")
_TRAILER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[\t -~\x80-\xff]*")
_NO_TRAILERS = frozenset(
    (b"content-length", b"transfer-encoding", b"host", b"connection", b"trailer", b"te", b"upgrade", b"authorization")
)
_MAX_LINE = 4096
_MAX_TRAILERS = 16_384
_MAX_EXCESS = 16_384
_FRAMING = 16
"""Bytes of framing that any chunk may have; it may have twice its data more, and all chunks _MAX_EXCESS above that."""
_SIZES = {form % size: size for size in range(1, 4096) for form in (b"%x", b"%X")}
"""What servers and clients write for the sizes of chunks."""
_LONGEST_SIZE = 3
_UNBOUNDED = 1 << 62
_AT_SIZE, _IN_DATA, _AFTER_DATA, _IN_TRAILERS = range(4)


class BodyError(ValueError):
    """A body that is not what it says."""


class ChunkedBody:
    """Looks through the bytes of one chunked body, in whatever pieces they come."""

    __slots__ = ("_excess", "_left", "_line", "_state", "_trailers", "done", "payload")

    def __init__(self) -> None:
        self._state = _AT_SIZE
        self._left = 0
        """Of the chunk's data; after it, of the CR LF."""
        self._line = b""
        """The beginning of a line whose end has not come."""
        self._trailers = 0
        self._excess = 0
        """Bytes of framing above what the chunks so far may have."""
        self.payload = 0
        """Bytes of data so far, without the framing."""
        self.done = False

    def take(self, data: bytes, out: bytearray | None = None, at: int = 0, most: int = _UNBOUNDED) -> int:
        """Where it has come to in these bytes, from `at` on: to the end, unless the body's end is among them, or so
        many chunks (`most`, about) were looked through. `out` gets the data alone."""
        end = len(data)
        while at < end and not self.done and most > 0:
            if self._state == _AT_SIZE and not self._line:
                at, most = self._pass_over(data, at, out, most)
                if at == end or most <= 0:
                    break
            most -= 1
            if self._state == _IN_DATA:
                piece = min(self._left, end - at)
                if out is not None:
                    out += data[at : at + piece]
                at += piece
                self.payload += piece
                self._left -= piece
                if not self._left:
                    self._state = _AFTER_DATA
            elif self._state == _AFTER_DATA:
                at = self._end_of_data(data, at)
            else:
                at = self._take_line(data, at)
        return at

    def _pass_over(self, data: bytes, at: int, out: bytearray | None, most: int) -> tuple[int, int]:
        """Chunks that are there whole and say no more than their size. Returns where the next thing is, and how many
        more may be looked at."""
        before, payload = most, 0
        while most > 0:
            stop = data.find(b"\r\n", at, at + _LONGEST_SIZE + 2)
            size = _SIZES.get(data[at:stop]) if stop > 0 else None
            if size is None:
                break
            begin = stop + 2
            stop = begin + size
            if data[stop : stop + 2] != b"\r\n":
                break
            if out is not None:
                out += data[begin:stop]
            payload += size
            at = stop + 2
            most -= 1
        self.payload += payload
        if self._excess:
            self._excess = max(0, self._excess - (before - most) * (_FRAMING - _LONGEST_SIZE - 4) - 2 * payload)
        return at, most

    def _end_of_data(self, data: bytes, at: int) -> int:
        ending = self._line + data[at : at + 2 - len(self._line)]
        if not b"\r\n".startswith(ending):
            raise BodyError("a chunk is longer than it says")
        at += len(ending) - len(self._line)
        if len(ending) == 2:
            self._line, self._state = b"", _AT_SIZE
        else:
            self._line = ending
        return at

    def _take_line(self, data: bytes, at: int) -> int:
        """A chunk's size or a line of the trailers, if its end is there."""
        stop = data.find(b"\n", at)
        piece = data[at:] if stop < 0 else data[at : stop + 1]
        line = self._line + piece
        if len(line) > _MAX_LINE:
            raise BodyError("a line between chunks is too long")
        if stop < 0:
            self._line = line
            return len(data)
        if line[-2:] != b"\r\n":
            raise BodyError("a line between chunks does not end with CR LF")
        self._line = b""
        if self._state == _AT_SIZE:
            self._begin_chunk(line[:-2])
        else:
            self._note_trailer(line[:-2])
        return stop + 1

    def _begin_chunk(self, line: bytes) -> None:
        match = _SIZE.fullmatch(line)
        if match is None:
            raise BodyError("a chunk's size is no hexadecimal number")
        self._left = int(match[1], 16)
        self._excess = max(0, self._excess + len(line) + 4 - _FRAMING - 2 * self._left)
        if self._excess > _MAX_EXCESS:
            raise BodyError("there is too much between the chunks")
        self._state = _IN_DATA if self._left else _IN_TRAILERS

    def _note_trailer(self, line: bytes) -> None:
        if not line:
            self.done = True
            return
        match = _TRAILER.fullmatch(line)
        if match is None or match[1].lower() in _NO_TRAILERS:
            raise BodyError("a trailer is no field that may be one")
        self._trailers += len(line)
        if self._trailers > _MAX_TRAILERS:
            raise BodyError("the trailers are too long")
