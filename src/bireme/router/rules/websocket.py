"""Where the frames of a WebSocket end in what a server sends, and the frame that says goodbye (RFC 6455).

Tunnels pass on what they do not read; this is asked only so that one that has to end can be ended between two frames,
with a word. Called by `replica_side`. Invariant: what comes is never changed, nor kept.
"""

from __future__ import annotations

import struct

GOING_AWAY = 1001
_CLOSE = 8
_MASKED = 0x80


class Frames:
    """Of one tunnel, in the direction from the server."""

    __slots__ = ("_head", "_left", "has_closed")

    def __init__(self) -> None:
        self._head = b""
        """Of a frame whose length is not known yet."""
        self._left = 0
        self.has_closed = False
        """The server has said goodbye itself."""

    def take(self, data: bytes) -> None:
        at, size = 0, len(data)
        while at < size:
            if self._left:
                step = min(self._left, size - at)
                self._left -= step
            else:
                step = 1
                self._head += data[at : at + 1]
                if (length := _length(self._head)) is not None:
                    self._left = length
                    self.has_closed |= self._head[0] & 15 == _CLOSE
                    self._head = b""
            at += step

    @property
    def is_between(self) -> bool:
        """A frame may follow here."""
        return not self._left and not self._head and not self.has_closed


def _length(head: bytes) -> int | None:
    """Of what follows this head; None: it is not whole."""
    if len(head) < 2:
        return None
    short, mask = head[1] & 127, 4 if head[1] & _MASKED else 0
    if short < 126:
        return short + mask
    form = ">H" if short == 126 else ">Q"
    if len(head) < 2 + struct.calcsize(form):
        return None
    return int(struct.unpack_from(form, head, 2)[0]) + mask


def goodbye(code: int, text: str) -> bytes:
    """The frame with which a server ends."""
    body = struct.pack(">H", code) + text.encode()[:123]
    return bytes((0x80 | _CLOSE, len(body))) + body
