"""The three standard streams of one task of a step: pipes to the clients, files, or a terminal.

Called by `steps` around the start of each task. Which of them a task gets is in its message: no path means that
the stream is forwarded; the engine has expanded patterns already.

Invariant: after `hand_over` the agent holds only its own ends; a file shared by several tasks of this node stays
open until the last of them was started, so that they share one position in it.
"""

from __future__ import annotations

import os
import pty
from dataclasses import dataclass, field

from bireme.agent.identity import Identity
from bireme.agent.output import OpenFileError, OpenMode, open_input, open_output
from bireme.agent.protocol import STDERR, STDOUT, Message
from bireme.agent.streams import StreamHub


@dataclass(slots=True)
class SharedFiles:
    """Output files of a step on this node, by path: opened (and emptied) once."""

    _open: dict[str, int] = field(default_factory=dict)

    def output(self, path: str, append: bool, identity: Identity | None, stream: str, umask: int | None) -> int:
        if path not in self._open:
            mode: OpenMode = "append" if append else "truncate"
            self._open[path] = open_output(path, mode, identity, stream=stream, umask=umask)
        return os.dup(self._open[path])

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()


@dataclass(slots=True)
class TaskStdio:
    """`*_fd` are the task's ends; the rest are the agent's, -1 where there is none."""

    stdin_fd: int
    stdout_fd: int
    stderr_fd: int
    stdin_pipe: int = -1
    stdout_pipe: int = -1
    stderr_pipe: int = -1
    terminal: bool = False

    def hand_over(self, hub: StreamHub, task: int) -> None:
        """The task has its ends (or never will): close them here and give ours to the hub."""
        for fd in {self.stdin_fd, self.stdout_fd, self.stderr_fd}:
            os.close(fd)
        if self.stdout_pipe >= 0:
            hub.add_source(self.stdout_pipe, STDOUT, task)
        if self.stderr_pipe >= 0:
            hub.add_source(self.stderr_pipe, STDERR, task)
        if self.stdin_pipe >= 0:
            hub.add_sink(self.stdin_pipe, task, terminal=self.terminal)

    def close_all(self) -> None:
        ours = {self.stdin_pipe, self.stdout_pipe, self.stderr_pipe}
        for fd in ({self.stdin_fd, self.stdout_fd, self.stderr_fd} | ours) - {-1}:
            os.close(fd)


def open_stdio(step: Message, task: Message, identity: Identity | None, files: SharedFiles) -> TaskStdio:
    """Raises OpenFileError, with nothing left open. `unopened`: of a file that others had to open, and could not."""
    if "unopened" in task:
        raise OpenFileError(*task["unopened"])
    if task.get("terminal"):
        return _open_terminal(step.get("window") or {})
    stdio = TaskStdio(-1, -1, -1)
    append, umask = bool(step.get("append")), step.get("umask")
    stdout, stderr = task.get("stdout", ""), task.get("stderr", "")
    try:
        if task.get("stdin", ""):
            stdio.stdin_fd = open_input(task["stdin"], identity)
        else:
            stdio.stdin_fd, stdio.stdin_pipe = os.pipe2(os.O_CLOEXEC)
        if stdout:
            stdio.stdout_fd = files.output(stdout, append, identity, "stdout", umask)
        else:
            stdio.stdout_pipe, stdio.stdout_fd = os.pipe2(os.O_CLOEXEC)
        if stderr:
            stdio.stderr_fd = files.output(stderr, append, identity, "stderr", umask)
        else:
            stdio.stderr_pipe, stdio.stderr_fd = os.pipe2(os.O_CLOEXEC)
    except BaseException:
        stdio.close_all()
        raise
    return stdio


def _open_terminal(window: Message) -> TaskStdio:
    master, slave = pty.openpty()
    os.set_inheritable(master, False)
    if window:
        import fcntl  # terminals are rare; the two modules are not needed for anything else here
        import struct
        import termios

        size = struct.pack("HHHH", window.get("rows", 24), window.get("columns", 80), 0, 0)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
    return TaskStdio(slave, slave, slave, stdin_pipe=os.dup(master), stdout_pipe=master, terminal=True)
