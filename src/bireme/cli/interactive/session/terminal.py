"""The caller's terminal under `srun --pty`: raw while the task has it, and its size.

Invariant: `restore` puts back exactly what was there, however srun ends.
"""

from __future__ import annotations

import atexit
import fcntl
import struct
import termios
import tty
from typing import Any


class RawTerminal:
    """Standard input without line editing, echo or signals: the far end does all of that."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before: list[Any] | None = None

    def enter(self) -> bool:
        """False where it is no terminal."""
        try:
            self._before = termios.tcgetattr(self._fd)
        except termios.error:
            return False  # --pty still gives the task one
        tty.setraw(self._fd, termios.TCSADRAIN)
        atexit.register(self.restore)
        return True

    def restore(self) -> None:
        if self._before is not None:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
            self._before = None


def window_size(fd: int) -> tuple[int, int] | None:
    """(rows, columns) of a terminal; None where it is none."""
    try:
        rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(fd, termios.TIOCGWINSZ, b"\0" * 8))
    except OSError:
        return None
    return (rows, columns) if rows and columns else None
