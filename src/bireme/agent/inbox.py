"""Input files of a pod that lie on the daemon's machine: fetched when a task is to read them.

Two processes of the pod share a folder. The agent asks for a file by a name, and starts the task when it is there; the
pod's first process fetches what is asked for (`fetcher`). What a name stands for only the daemon knows
(`engines/kubernetes/brought.py`). Jobs and steps ask here before a task starts; anywhere but in a pod it says yes.

  NAME.wanted   the agent asks        NAME         it is here, whole
  NAME.failed   why it does not come  NAME.part    what has come so far

Invariant: a file has its own name only when it is whole, and is not touched from then on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from bireme.agent.loop import Loop

LOOK_S = 0.1


class Inbox:
    def __init__(self, loop: Loop, folder: str) -> None:
        """`folder`: empty where nothing is ever brought."""
        self._loop, self._folder = loop, folder

    def when_here(self, path: str, done: Callable[[str], None]) -> None:
        """Calls `done` with why the file does not come, or with nothing: at once for a file that need not come."""
        if not self._folder or os.path.dirname(path) != self._folder or os.path.exists(path):
            done("")
            return
        Path(f"{path}.wanted").touch(mode=0o600)
        self._look(path, done)

    def _look(self, path: str, done: Callable[[str], None]) -> None:
        failed = Path(f"{path}.failed")
        if os.path.exists(path):
            done("")
        elif failed.exists():
            done(failed.read_text())
        else:
            self._loop.call_later(LOOK_S, lambda: self._look(path, done))
