"""Where the frames of a WebSocket end in what a server sends, and the frame that says goodbye (RFC 6455).

Tunnels pass on what they do not read; this is asked only so that one that has to end can be ended between two frames,
with a word. Called by `replica_side`. Invariant: what comes is never changed, nor kept.
"""

from __future__ import annotations

import struct

GOING_AWAY = 1001
_CLOSE = 8
_MASKED = 0x80
_LONGEST_HEAD = 10
_UNBOUNDED = 1 << 62


class Frames:
    """Follows the frames that the server of one tunnel sends, to know whether it has closed it."""

    __slots__ = ("_head", "_left", "has_closed")

    def __init__(self) -> None:
        self._head = b""
        """Of a frame whose length is not known yet."""
        self._left = 0
        self.has_closed = False
        """The server has said goodbye itself."""

    def take(self, data: bytes, at: int = 0, most: int = _UNBOUNDED) -> int:
        """Where it has come to in these bytes, from `at` on: to the end, unless so many frames were looked at."""
        size = len(data)
        while at < size and most > 0:
            if self._left:
                step = min(self._left, size - at)
                self._left -= step
            else:
                most -= 1
                step = self._begin(data[at : at + _LONGEST_HEAD - len(self._head)])
            at += step
        return at

    def _begin(self, data: bytes) -> int:
        """A frame, or its beginning. Returns how many of these bytes are its head's."""
        known = len(self._head)
        head = self._head + data
        size = _size_of_head(head)
        if len(head) < size:
            self._head = head
            return len(data)
        self._head = b""
        self._left = _length(head)
        self.has_closed |= head[0] & 15 == _CLOSE
        return size - known

    @property
    def is_between(self) -> bool:
        """A frame may follow here."""
        return not self._left and not self._head and not self.has_closed


def _size_of_head(head: bytes) -> int:
    """Without its mask."""
    if len(head) < 2:
        return 2
    short = head[1] & 127
    return 2 if short < 126 else 4 if short == 126 else _LONGEST_HEAD


def _length(head: bytes) -> int:
    """Of what follows this head, with the mask before it."""
    short, mask = head[1] & 127, 4 if head[1] & _MASKED else 0
    if short < 126:
        return short + mask
    return int(struct.unpack_from(">H" if short == 126 else ">Q", head, 2)[0]) + mask


def goodbye(code: int, text: str) -> bytes:
    """The frame with which a server ends."""
    body = struct.pack(">H", code) + text.encode()[:123]
    return bytes((0x80 | _CLOSE, len(body))) + body
