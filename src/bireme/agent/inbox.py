"""Input files of a pod that lie on the daemon's machine: fetched when a task is to read them.

Two processes of the pod share a folder. The agent asks for a file by a name, and starts the task when it is there; the
pod's first process fetches what is asked for (`fetcher`). What a name stands for only the daemon knows
(`engines/kubernetes/crossing/brought.py`). Jobs and steps ask before a task starts; anywhere but in a pod all is here.

  NAME.wanted   the agent asks        NAME         it is here, whole
  NAME.failed   why it does not come  NAME.part    what has come so far

Invariant: a file has its own name only when it is whole, and is not touched from then on.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from bireme.agent.system.loop import Loop, Timer

LOOK_S = 0.1


class Inbox:
    def __init__(self, loop: Loop, folder: str) -> None:
        """`folder`: empty where nothing is ever brought."""
        self._loop, self._folder = loop, folder

    def has(self, path: str) -> bool:
        """Whether nothing has to be waited for: it came, or it is none of those that come."""
        return not self._folder or os.path.dirname(path) != self._folder or os.path.exists(path)

    def fetch(self, path: str, done: Callable[[str], None]) -> Wait:
        """Asks for a file; `done` is called with why it does not come, or with nothing. Raises OSError."""
        Path(f"{path}.wanted").touch(mode=0o600)
        return Wait(self._loop, path, done)


class Wait:
    """Somebody waits for a file, and is told once; never when it was cancelled before."""

    def __init__(self, loop: Loop, path: str, done: Callable[[str], None]) -> None:
        self._loop, self._path, self._done = loop, path, done
        self._timer: Timer = loop.call_later(LOOK_S, self._look)

    def cancel(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        failed = Path(f"{self._path}.failed")
        if os.path.exists(self._path):
            self._done("")
        elif failed.exists():  # empty where not even the reason could be written
            self._done(failed.read_text() or os.strerror(errno.ENOSPC))
        else:
            self._timer = self._loop.call_later(LOOK_S, self._look)
