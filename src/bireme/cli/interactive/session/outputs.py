"""Where the tasks' output goes: our own stdout and stderr, or a file; labelled or not, never mixed within a line.

One `Output` for each stream. With several tasks, pieces of lines wait until the line is complete, so that lines of
different tasks never run into each other; a single task's output goes through as it comes, so that prompts show.
Invariant: `finish` writes whatever still waits; no byte a task wrote is lost while the reader lives.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from dataclasses import dataclass

_LONGEST_WAITING = 1 << 16


@dataclass(frozen=True, slots=True)
class Style:
    """How output is shown."""

    label: bool = False
    by_line: bool = False
    ntasks: int = 1

    @property
    def width(self) -> int:
        """Of the label: as wide as the largest task number."""
        return len(str(max(self.ntasks - 1, 0)))


class Output:
    """One destination of the tasks' output. `only_task` lets one task through (`sattach --output-filter=3`)."""

    def __init__(self, fd: int, style: Style, *, only_task: int | None = None) -> None:
        self._fd = fd
        self._style = style
        self._only_task = only_task
        self._on_closed: Callable[[], None] | None = None
        self._waiting: dict[int, bytes] = {}
        self._closed = False

    def on_closed(self, react: Callable[[], None]) -> None:
        """Calls `react` once, when the reader is found to have gone away."""
        self._on_closed = react

    def write(self, task: int, data: bytes) -> None:
        if self._only_task is not None and task != self._only_task:
            return
        if not (self._style.label or self._style.by_line):
            self._emit(data)
            return
        *lines, rest = (self._waiting.pop(task, b"") + data).split(b"\n")
        if lines:
            self._emit(b"".join(self._labelled(task, line) for line in lines))
        if len(rest) > _LONGEST_WAITING:
            self._emit(self._labelled(task, rest) if self._style.label else rest)
        elif rest:
            self._waiting[task] = rest

    def write_through(self, data: bytes) -> None:
        """What no task said (the node's own messages): as it is."""
        self._emit(data)

    def finish(self, task: int) -> None:
        """The task ended: a last line without its end is shown now."""
        rest = self._waiting.pop(task, b"")
        if rest:
            self._emit(self._labelled(task, rest) if self._style.label else rest)

    def finish_all(self) -> None:
        for task in sorted(self._waiting):
            self.finish(task)

    def _labelled(self, task: int, line: bytes) -> bytes:
        if not self._style.label:
            return line + b"\n"
        return b"%*d: %b\n" % (self._style.width, task, line)

    def _emit(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._closed:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                _await_writable(self._fd)
            except OSError:
                self._closed = True
                if self._on_closed is not None:
                    self._on_closed()


def _await_writable(fd: int) -> None:
    select.select([], [fd], [])
