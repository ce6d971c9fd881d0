"""One question to a replica by a command: run below the keeper of its script, as its user, until a time limit.

Begun by `watch`. What it prints is read for the sake of the last line of a failure, and the rest thrown away. One that
is late is killed with all that it started.

Invariant: `done` is called exactly once, never within `begin`, and only when the command's process has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from bireme.agent.keeping.keepers import Keeper
from bireme.agent.keeping.launching import Launching
from bireme.agent.starting.spawn import SHORTAGES, Birth, SpawnError
from bireme.agent.system.loop import READ, Loop, Timer
from bireme.agent.system.processes import ProcessIdentity, kill_tree, process_identity
from bireme.agent.system.reaper import ReapedChild

Done = Callable[[str | None], None]
"""What is wrong ("": nothing; None: it could not be asked, for want of something here)."""

_KEPT_BYTES = 4096
_SHOWN_LETTERS = 200
_KILL_AGAIN_S = 0.5


def command_beside(script: Birth, command: Sequence[str]) -> Birth:
    """A command with all that the script was started with, but for its streams and what only a script is told."""
    return replace(script, argv=command, pid_variable="", notice="", folder_patience_s=0.0, sure=False)


class CommandQuestion:
    """`birth`: the command. Its streams are made here."""

    def __init__(self, loop: Loop, keeper: Keeper, birth: Birth, timeout_s: float, done: Done) -> None:
        self._loop = loop
        self._keeper = keeper
        self._birth = birth
        self._timeout_s = timeout_s
        self._done = done
        self._output = b""
        self._read_fd = -1
        self._process: ProcessIdentity | None = None
        self._timer: Timer | None = None
        self._problem = ""
        """Why it was killed."""

    def begin(self) -> None:
        """Raises OSError when there are no descriptors for it."""
        self._read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.set_blocking(write_fd, True)
            null_fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            os.close(self._read_fd)
            os.close(write_fd)
            raise
        birth = replace(self._birth, stdin=null_fd, stdout=write_fd, stderr=write_fd)
        self._loop.watch(self._read_fd, READ, self._readable)
        self._timer = self._loop.call_later(self._timeout_s, self._too_late)
        try:
            Launching(
                self._loop,
                birth,
                process=self._has_process,
                started=self._started,
                exited=self._exited,
                keeper=self._keeper,
            ).begin()
        finally:
            os.close(write_fd)
            os.close(null_fd)

    def cancel(self) -> None:
        """Kills it; it is told of all the same."""
        self._problem = self._problem or "it was ended"
        self._kill()

    def _has_process(self, pid: int) -> None:
        self._process = process_identity(pid)
        if self._problem:
            self._kill()

    def _too_late(self) -> None:
        self._problem = self._problem or f"did not end within {self._timeout_s:g} s"
        self._kill()

    def _kill(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_KILL_AGAIN_S, self._kill)
        if self._process is not None:
            kill_tree([self._process])

    def _readable(self, _events: int) -> None:
        try:
            data = os.read(self._read_fd, 65536)
        except BlockingIOError:
            return
        self._output = (self._output + data)[-_KEPT_BYTES:]
        if not data:
            self._loop.unwatch(self._read_fd)

    def _started(self, problem: SpawnError | None) -> None:
        if problem is not None:
            self._finish(None if problem.errno in SHORTAGES else str(problem))

    def _exited(self, reaped: ReapedChild) -> None:
        self._readable(0)
        if self._problem:
            self._finish(self._problem)
        elif reaped.status.ok:
            self._finish("")
        else:
            how = f"signal {reaped.status.signal}" if reaped.status.signal else f"exit code {reaped.status.code}"
            said = _last_line(self._output)
            self._finish(f"{how}: {said}" if said else how)

    def _finish(self, problem: str | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop.unwatch(self._read_fd)
        os.close(self._read_fd)
        self._done(problem)


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return "".join(letter if letter.isprintable() else "?" for letter in last)[:_SHOWN_LETTERS]
