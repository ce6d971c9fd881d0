"""When a message of a gatherer came: it may have waited in the socket, and is read later than that. Pure but `bodies`.

The doors read only what can be taken in: while a disk is full, or a job is not known yet, messages wait. To take the
time of reading for the time of coming would call the gatherer's clock wrong by the wait, and put its rounds elsewhere.
Invariant: a message that somebody waited for came when it was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from bireme.gather import messages as m

_READ_BYTES = 256 * 1024
_AT_ONCE_S = 0.05
"""What is there within that may have been there before it was asked for."""


class Came(NamedTuple):
    """Between two times of the daemon's clock."""

    earliest: float
    latest: float

    def at(self, sent: float, offset_s: float) -> float:
        """By when it was sent, on a clock that was last seen to be so far ahead; within what is known."""
        return min(max(sent - offset_s, self.earliest), self.latest) if sent else self.latest


async def bodies(
    reader: asyncio.StreamReader, splitter: m.FrameSplitter, now: Callable[[], float]
) -> AsyncIterator[tuple[bytes, Came]]:
    """All messages that come, each with when it came, until the end of the connection. Raises ProtocolError."""
    loop, read_at = asyncio.get_running_loop(), now()
    while True:
        asked_at = loop.time()
        data = await reader.read(_READ_BYTES)
        if not data:
            return
        was_there = loop.time() - asked_at < _AT_ONCE_S
        came = Came(read_at if was_there else now(), now())
        read_at = came.latest
        for body in splitter.feed(data):
            yield body, came
