"""How far a fetch is: bytes that came and bytes that were unpacked, told a few times a second.

Written by several threads of a fetch, shown to who asked and to who waits in another process (`pulling`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from bireme.images.messages import Progress

EVERY_S = 0.2

Tell = Callable[[Progress], None]


class Meter:
    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._of = self._came = self._unpacked = 0
        self._last = 0.0

    def expect(self, size: int) -> None:
        """Compressed bytes, all in all."""
        self._of = size

    def came(self, size: int) -> None:
        with self._lock:
            self._came += size
            self._say()

    def unpacked(self, size: int) -> None:
        with self._lock:
            self._unpacked += size
            self._say()

    def _say(self) -> None:
        now = time.monotonic()
        if now - self._last < EVERY_S:
            return
        self._last = now
        if self._came < self._of:
            self._tell(Progress("pulling", self._came, self._of))
        else:
            self._tell(Progress("unpacking", min(self._unpacked, self._of), self._of))
