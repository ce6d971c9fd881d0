"""Turns of connections that have much to be looked through: others are served between them.

Who sends chunks of one byte, or frames of two, makes a thousand times the work of its bytes. A connection looks
through so much at once as an ordinary request costs (`AT_ONCE`); with the rest it waits here and is not read. All that
wait share a small part of each round of the loop, one after the other, so that who is not among them waits for that
part at most, however many they are. One of a worker; called by `client_side` and `replica_side`.

Invariant: whoever waits has one place, and has lost it when it is called.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Protocol

AT_ONCE = 128
"""Chunks of a body, or frames, that are looked through in one go."""
FULL_READ_BYTES = 262_144
"""As much as the loop reads in one go, for which it goes on reading the same connection, 32 times over."""
_SHARE_S = 0.001
"""Of one round of the loop."""


class Behind(Protocol):
    """A connection that has not looked through all that it was sent."""

    def go_on(self) -> None: ...


class Turns:
    """The queue of requests that wait for a replica, the next one first."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Behind] = deque()
        self._is_called = False

    def wait(self, connection: Behind) -> None:
        """It is told to go on in a later round."""
        self._waiting.append(connection)
        self._call()

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._give)

    def _give(self) -> None:
        self._is_called = False
        until = time.monotonic() + _SHARE_S
        try:
            for _ in range(len(self._waiting)):  # who comes again in this round has its turn in the next
                self._waiting.popleft().go_on()
                if time.monotonic() >= until:
                    break
        finally:
            if self._waiting:
                self._call()
