"""A line that the agent adds to a file of a user's: written by a child with that user's rights.

Called by `jobs` when a job is ended, for what Slurm writes into its stderr. The file may lie where nobody answers: the
job's end waits for the line, and not for long.

Invariant: `over` is true and `done` was called when the line is written or given up; `done` is not called by `say`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable

from bireme.agent.keeping.launching import Launching
from bireme.agent.starting.spawn import Birth, SpawnError, TaskFile
from bireme.agent.system.identity import Identity
from bireme.agent.system.loop import Loop, Timer

log = logging.getLogger("bireme.agent")

_PATIENCE_S = 5.0


class LastWords:
    def __init__(self, loop: Loop, done: Callable[[], None]) -> None:
        self._loop = loop
        self._done = done
        self._pid = 0
        self._timer: Timer | None = None
        self.over = False

    def say(self, line: str, path: str, identity: Identity | None) -> None:
        """Appends the line to the file, if there is one."""
        try:
            null_fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:  # the job's end does not depend on it
            log.warning("could not write to a job's stderr: %s: %s", line.rstrip(), error)
            self.over = True
            return
        try:
            birth = Birth(
                argv=(),
                env={},
                stdin=null_fd,
                stdout=TaskFile("stderr", path, "existing"),
                stderr=null_fd,
                identity=identity,
                greeting=line.encode(errors="surrogateescape"),
            )
            self._timer = self._loop.call_later(_PATIENCE_S, self._give_up)
            Launching(
                self._loop, birth, process=self._has_process, started=self._started, exited=lambda _: self._finish()
            ).begin()
        finally:
            os.close(null_fd)

    def _has_process(self, pid: int) -> None:
        self._pid = pid

    def _started(self, problem: SpawnError | None) -> None:
        if problem is not None:
            self._finish()

    def _give_up(self) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)  # it was not waited for: the pid is its own
        self._finish()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.over:
            self.over = True
            self._done()
