"""Signals as bytes to read: what arrives while srun waits for frames becomes one more thing to wait for.

Invariant: after `close` the process has the handlers it had before.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable


class SignalPipe:
    """`fileno()` becomes readable when one of the signals came; `take` tells which."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        # A handler must exist for Python to write the number; what to do is decided by whoever reads it.
        self._before = {number: signal.signal(number, _noted) for number in numbers}

    def fileno(self) -> int:
        return self._read

    def take(self) -> list[int]:
        with contextlib.suppress(BlockingIOError):
            return [number for number in os.read(self._read, 4096) if number in self._before]
        return []

    def close(self) -> None:
        for number, handler in self._before.items():
            if handler is not None:
                signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._read)
        os.close(self._write)


def _noted(_number: int, _frame: object) -> None:
    """Nothing: the wakeup descriptor carries it."""
