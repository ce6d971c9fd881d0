"""Work left to a child process while this one goes on: a simulation's journal is written so, on another core.

The child is a fork: it has everything at hand as it was at that moment, and nothing that it does comes back but what it
wrote to disk. Not for the daemon, which has threads: a fork has only the one that made it.
Invariant: one child at a time, in the order in which work was left; what failed is told at the next call.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

_TOLD_MOST = 4096


class Aside:
    def __init__(self) -> None:
        self._child: tuple[int, int] | None = None
        """Process and the pipe through which it tells of its failure."""

    def leave(self, work: Callable[[], None]) -> None:
        """Begins once what was left before is done. Raises what `wait` raises."""
        self.wait()
        reading, writing = os.pipe()
        process = os.fork()
        if not process:
            _end_with(work, writing)
        os.close(writing)
        self._child = process, reading

    def wait(self) -> None:
        """Until what was left is done; raises ChildProcessError if it could not be."""
        if self._child is None:
            return
        (process, reading), self._child = self._child, None
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read()
        _, status = os.waitpid(process, 0)
        if status:
            code = os.waitstatus_to_exitcode(status)
            raise ChildProcessError(told.decode(errors="replace") or f"the process that wrote it ended with {code}")


def _end_with(work: Callable[[], None], writing: int) -> None:
    """The child's whole life. It ends without unwinding: files and folders are its parent's to close and remove."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts the parent gets a journal that is whole
        work()
        code = 0
    except BaseException as error:  # nobody above could make sense of it
        os.write(writing, str(error).encode(errors="replace")[:_TOLD_MOST])
    finally:
        os._exit(code)
