"""What both ends of a step's streams keep, so that a connection between them may break and be made again.

Streams that somebody carries (`gangway`) break when the carrier goes, while `srun` and the agent both live. Each end
counts the bytes of the frames it took (`Heard`) and keeps those it sent until the other end has confirmed them
(`Kept`). Whoever connects again says in its hello how far it has heard; the answer says the same of the other
direction; each sends on from there.

Used by `stream_client` and `carried_streams`. Frames of kind CONFIRM speak of positions and are not counted.
Invariant: a frame is taken exactly once, in order, over however many connections.
"""

from __future__ import annotations

from bireme.agent.messages import protocol

_CONFIRM_EVERY_BYTES = 1 << 16
"""Far less than what an end keeps before it stops reading, so that nobody waits for a confirmation in vain."""


class Kept:
    """What was sent and is not confirmed."""

    __slots__ = ("_bytes", "_first")

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._first = 0

    def __len__(self) -> int:
        return len(self._bytes)

    def add(self, frames: bytes) -> None:
        self._bytes += frames

    def confirm(self, position: int) -> None:
        """Lets go of everything before this position, which the other end has taken. Raises ProtocolError."""
        if position > self._first + len(self._bytes):
            raise protocol.ProtocolError("the other end confirms what was never sent")
        if position > self._first:
            del self._bytes[: position - self._first]
            self._first = position

    def since(self, position: int) -> bytes:
        """What the other end has not taken, which has heard everything before this position. Raises ProtocolError."""
        if position < self._first:
            raise protocol.ProtocolError("the other end asks for what it has confirmed")
        self.confirm(position)
        return bytes(self._bytes)

    def clear(self) -> None:
        self._first += len(self._bytes)
        self._bytes.clear()


class Heard:
    """How far the other end was heard."""

    __slots__ = ("_confirmed", "position")

    def __init__(self) -> None:
        self.position = 0
        self._confirmed = 0

    def take(self, payload: bytes) -> bool:
        """One more frame was taken; whether it is time to confirm."""
        self.position += protocol.HEADER_BYTES + len(payload)
        return self.position - self._confirmed >= _CONFIRM_EVERY_BYTES

    def confirmation(self) -> bytes:
        """A frame that says so."""
        self._confirmed = self.position
        return protocol.encode_position(protocol.CONFIRM, self.position)
