"""Running the scripts around a job: Prolog, Epilog, TaskProlog, TaskEpilog. One after another, each to its end.

Called by `jobs` (Prolog, Epilog: with the agent's rights; task scripts around a batch script: with the job's) and by
`steps` (task scripts). They run beside everything else the agent does; the caller is told when the last one ended or
one failed.

Invariant: `done` is called exactly once, never before `run` returned to the loop unless there is nothing to run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from bireme.agent.keeping.keepers import Keeper
from bireme.agent.keeping.launching import Launching
from bireme.agent.starting.spawn import Birth, SpawnError
from bireme.agent.system.identity import Identity
from bireme.agent.system.loop import READ, Loop, Timer
from bireme.agent.system.processes import ProcessIdentity, kill_tree, process_identity
from bireme.agent.system.reaper import ExitStatus, ReapedChild

log = logging.getLogger("bireme.agent")

CONTEXT_VARIABLE = "SLURM_SCRIPT_CONTEXT"
"""Tells a script which of them it is: one file may be Prolog and Epilog."""
_MAX_OUTPUT_BYTES = 1024 * 1024
_DEFAULT_TIMEOUT_S = 300.0

Done = Callable[[str, bytes], None]
"""Called with what went wrong ("" if all ended with exit code 0) and what they printed on the stream that is kept."""
Heard = Literal["stdout and log", "stdout", "stderr"]
"""What becomes of a script's streams: one is kept for `done`. Only what the administrator's own scripts say on stderr
is logged: a user's would fill the agent's log. As in Slurm, TaskProlog is heard on stdout, TaskEpilog on stderr."""


class ScriptRun:
    """A series of scripts under way. `context`: Slurm's word for what they are."""

    def __init__(
        self,
        loop: Loop,
        paths: Sequence[str],
        env: Mapping[str, str],
        done: Done,
        *,
        context: str,
        identity: Identity | None = None,
        cwd: str = "/",
        timeout_s: float | None = None,
        keeper: Keeper | None = None,
        heard: Heard = "stdout and log",
    ) -> None:
        """`keeper`: whose keeping a script of the job's own user runs in; None: the agent's own child."""
        self._keeper = keeper
        self._heard = heard
        self._cancelled = False
        self._loop = loop
        self._waiting = list(paths)
        self._env = {**env, CONTEXT_VARIABLE: context}
        self._done = done
        self._identity = identity
        self._cwd = cwd
        self._timeout_s = timeout_s or _DEFAULT_TIMEOUT_S
        self._output = bytearray()
        self._read_fd = -1
        self.status = ExitStatus(0, 0)
        """Of the script that ended last, or could not be started."""
        self._process: ProcessIdentity | None = None
        self._timer: Timer | None = None
        self._ended = False

    def run(self) -> None:
        """Starts the next script, or reports that all are done."""
        if not self._waiting:
            self._finish("")
            return
        path = self._waiting.pop(0)
        self._read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(write_fd, True)
        null_fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        birth = Birth(
            argv=[path],
            env=self._env,
            stdin=null_fd,
            stdout=null_fd if self._heard == "stderr" else write_fd,
            stderr={"stdout and log": 2, "stdout": null_fd, "stderr": write_fd}[self._heard],
            cwd=self._cwd,
            identity=self._identity,
        )
        launching = Launching(
            self._loop,
            birth,
            process=lambda pid: self._has_process(pid, path),
            started=lambda problem: self._not_started(path, problem),
            exited=lambda reaped: self._exited(path, reaped),
            keeper=self._keeper,
        )
        try:
            launching.begin()
        finally:
            os.close(write_fd)
            os.close(null_fd)

    def _has_process(self, pid: int, path: str) -> None:
        self._process = process_identity(pid)
        self._loop.watch(self._read_fd, READ, self._readable)
        self._timer = self._loop.call_later(self._timeout_s, lambda: self._timed_out(path))
        if self._cancelled:
            self.cancel()

    def _not_started(self, path: str, problem: SpawnError | None) -> None:
        if problem is not None:
            self.status = ExitStatus(problem.exit_code, 0)
            self._settle()
            self._finish(f"{path}: {problem}")

    def cancel(self) -> None:
        """Ends the script that runs and starts no other; `done` is still called."""
        self._cancelled = True
        self._waiting.clear()
        if self._process is not None:
            kill_tree([self._process])

    def _readable(self, _events: int) -> None:
        try:
            data = os.read(self._read_fd, 65536)
        except BlockingIOError:
            return
        if data and len(self._output) < _MAX_OUTPUT_BYTES:
            self._output += data
        if not data:
            self._loop.unwatch(self._read_fd)

    def _timed_out(self, path: str) -> None:
        log.error("%s ran longer than %g s and is ended", path, self._timeout_s)
        self.cancel()

    def _exited(self, path: str, reaped: ReapedChild) -> None:
        self._readable(0)
        self._settle()
        self.status = reaped.status
        if reaped.status.ok:
            self.run()
        else:
            self._finish(f"{path} ended with {_in_words(reaped)}")

    def _settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop.unwatch(self._read_fd)
        os.close(self._read_fd)
        self._process = None

    def _finish(self, problem: str) -> None:
        if not self._ended:
            self._ended = True
            self._done(problem, bytes(self._output))


def _in_words(reaped: ReapedChild) -> str:
    if reaped.status.signal:
        return f"signal {reaped.status.signal}"
    return f"exit code {reaped.status.code}"


class Prologue(NamedTuple):
    """What task prologs made of a start. `failed`: how one of them ended, and so no program is to be started."""

    env: dict[str, str]
    greeting: bytes = b""
    failed: ExitStatus | None = None


def prologue(script: ScriptRun, env: Mapping[str, str], output: bytes) -> Prologue:
    """What task prologs have left behind that are over, and that were run with `env`."""
    changed = dict(env)
    greeting = apply_task_prolog(output, changed)
    return Prologue(changed, greeting, None if script.status.ok else script.status)


def apply_task_prolog(output: bytes, env: dict[str, str]) -> bytes:
    """Carries out what a task prolog printed (`export N=V`, `unset N`); returns what it wants `print`ed."""
    printed = []
    for line in output.decode(errors="surrogateescape").splitlines():
        verb, _, rest = line.strip().partition(" ")
        if verb == "export" and "=" in rest:
            name, _, value = rest.partition("=")
            env[name.strip()] = value
        elif verb == "unset":
            env.pop(rest.strip(), None)
        elif verb == "print":
            printed.append(rest + "\n")
    return "".join(printed).encode(errors="surrogateescape")
