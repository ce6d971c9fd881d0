"""The kernel's log of a rehearsal: lines that `bireme chaos` wrote into the scene's pipe, each for one virtual node.

Read in place of /dev/kmsg, by the same patterns (`gpus/kernel_log.event_of`). The pipe is the home's owner's alone, as
the home is: whoever can write there could replace the gatherer, too.
Invariant: the machine's own log is not read in a rehearsal, so that none of its faults is put to a virtual node.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bireme.gather.gpus.kernel_log import event_of
from bireme.gather.gpus.source import GpuEvent

_READ_BYTES = 65_536
_LONGEST = 4_096
"""Of a line without its end: what is longer is nobody's line."""


class PlayedLog:
    """Has the interface of `KernelLog`. Raises OSError where there is no pipe."""

    problem = ""

    def __init__(self, pipe: Path, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        # Also for writing: a pipe that its last writer left would be ready for ever.
        self._file = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest = b""

    def read(self) -> list[GpuEvent]:
        """What was told since the last time."""
        try:
            told = self._rest + os.read(self._file, _READ_BYTES) if self._file >= 0 else b""
        except BlockingIOError:
            return []
        *lines, rest = told.split(b"\n")
        self._rest = rest if len(rest) < _LONGEST else b""
        found = (self._event(line.decode(errors="replace")) for line in lines)
        return [event for event in found if event is not None]

    def _event(self, line: str) -> GpuEvent | None:
        node, tab, text = line.partition("\t")
        event = event_of(text, self._wall()) if tab else None
        return replace(event, node=node) if event is not None else None

    def wait(self, seconds: float) -> None:
        """Until there are new lines, or the time is over."""
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        poll.poll(1000.0 * seconds)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
