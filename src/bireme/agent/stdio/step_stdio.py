"""The three standard streams of one task of a step: pipes to the clients, files, or a terminal.

Called by `steps` around the start of each task. Which of them a task gets is in its message: no path means that
the stream is forwarded; the engine has expanded patterns already. Files are opened by the child that becomes the task;
one that several tasks of this node share is emptied before the first of them starts, and appended to by all.

Invariant: after `hand_over` the agent holds only its own ends of pipes and terminals, and never a user's file: closing
one may take as long as opening it.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import pty
import struct
import termios
from collections import Counter
from dataclasses import dataclass

from bireme.agent.messages.orders import StartStep, StepTask, Window
from bireme.agent.messages.protocol import STDERR, STDOUT
from bireme.agent.starting.spawn import Stream, TaskFile
from bireme.agent.stdio.streams import StreamHub
from bireme.agent.system.descriptors import check_for_user
from bireme.agent.system.identity import Identity
from bireme.agent.system.output import OpenMode


def shared_outputs(step: StartStep) -> list[str]:
    """Files that several tasks of this node write to and that are to be empty at the start."""
    if step.append:
        return []
    used = Counter(path for task in step.tasks for path in {task.stdout, task.stderr} - {"", os.devnull})
    return [path for path, users in used.items() if users > 1]


@dataclass(slots=True)
class TaskStdio:
    """The first three are the task's ends; the rest are the agent's, -1 where there is none."""

    stdin: Stream
    stdout: Stream
    stderr: Stream
    stdin_pipe: int = -1
    stdout_pipe: int = -1
    stderr_pipe: int = -1
    terminal: bool = False

    def hand_over(self, hub: StreamHub, task: int) -> None:
        """The task has its ends (or never will): close them here and give ours to the hub."""
        self._close_task_ends()
        if self.stdout_pipe >= 0:
            hub.add_source(self.stdout_pipe, STDOUT, task)
        if self.stderr_pipe >= 0:
            hub.add_source(self.stderr_pipe, STDERR, task)
        if self.stdin_pipe >= 0:
            hub.add_sink(self.stdin_pipe, task, terminal=self.terminal)

    def close_all(self) -> None:
        self._close_task_ends()
        for fd in {self.stdin_pipe, self.stdout_pipe, self.stderr_pipe} - {-1}:
            os.close(fd)

    def _close_task_ends(self) -> None:
        for fd in {self.stdin, self.stdout, self.stderr} - {-1}:
            if isinstance(fd, int):
                os.close(fd)


def open_stdio(step: StartStep, task: StepTask, identity: Identity | None, shared: list[str]) -> TaskStdio:
    """Raises OpenFileError or OSError, with nothing left open.

    `unopened`: of a file that others had to open, and could not. `shared`: files that were emptied already.
    """
    if task.unopened is not None:
        raise task.unopened.failure()
    if task.terminal:
        return _open_terminal(step.window, identity)
    stdio = TaskStdio(-1, -1, -1)
    try:
        if path := task.stdin:
            stdio.stdin = TaskFile("stdin", path, "read")
        else:
            stdio.stdin, stdio.stdin_pipe = os.pipe2(os.O_CLOEXEC)
        if path := task.stdout:
            stdio.stdout = TaskFile("stdout", path, _output_mode(step, path, shared))
        else:
            stdio.stdout_pipe, stdio.stdout = os.pipe2(os.O_CLOEXEC)
        if path := task.stderr:
            stdio.stderr = TaskFile("stderr", path, _output_mode(step, path, shared))
        else:
            stdio.stderr_pipe, stdio.stderr = os.pipe2(os.O_CLOEXEC)
        check_for_user(max(stdio.stdin_pipe, stdio.stdout_pipe, stdio.stderr_pipe))
    except BaseException:
        stdio.close_all()
        raise
    return stdio


def _output_mode(step: StartStep, path: str, shared: list[str]) -> OpenMode:
    return "append" if step.append or path in shared else "truncate"


def _open_terminal(window: Window | None, identity: Identity | None) -> TaskStdio:
    master, slave = pty.openpty()
    stdio = TaskStdio(slave, slave, slave, stdout_pipe=master, terminal=True)
    try:
        os.set_inheritable(master, False)
        stdio.stdin_pipe = os.dup(master)
        check_for_user(stdio.stdin_pipe)
        _give_terminal(slave, identity)
        if window is not None:
            size = struct.pack("HHHH", window.rows, window.columns, 0, 0)
            fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
    except BaseException:
        stdio.close_all()
        raise
    return stdio


def _give_terminal(slave: int, identity: Identity | None) -> None:
    """The user's own, as after a login: programs open it again by its name; others may write to it by `write` alone."""
    if identity is None:
        return
    group = -1
    with contextlib.suppress(KeyError):
        group = grp.getgrnam("tty").gr_gid
    os.fchown(slave, identity.uid, group)
    os.fchmod(slave, 0o620 if group >= 0 else 0o600)
