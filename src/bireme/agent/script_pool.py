"""Batch scripts in the agent's keeping, one file for all starts of the same script by the same user.

An array of thousands of tasks is one script: writing and removing a file and a folder for each task would cost more
than starting it (file systems are slow at giving out again what was just deleted). Files that no job uses are kept for
a while, because the next start is likely to be of the same script.

Called by `jobs`. Invariant: a script is its submitter's to read and run and nobody's to write, and its file stays
while a job that was started from it has not been cleared.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

SCRIPT_NAME = "slurm_script"
"""What a script sees as the last part of its $0, as under Slurm."""
_IDLE_KEPT = 64

Key = tuple[int, str]
"""(uid, text)."""


@dataclass(slots=True)
class _Kept:
    path: str
    users: int = 0


class ScriptPool:
    """Takes over `directory`, and removes what an earlier agent left in it."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._scripts: dict[Key, _Kept] = {}
        """Least recently taken first."""
        self._written = 0
        shutil.rmtree(directory, ignore_errors=True)
        os.mkdir(directory, 0o711)

    def take(self, uid: int, text: str) -> str:
        """The path of the script, ready to be executed by its owner. Raises OSError."""
        kept = self._scripts.pop((uid, text), None) or _Kept(self._write(uid, text))
        self._scripts[uid, text] = kept
        kept.users += 1
        return kept.path

    def give_back(self, uid: int, text: str) -> None:
        """After `take`: this start needs it no more."""
        self._scripts[uid, text].users -= 1
        if len(self._scripts) > _IDLE_KEPT:
            self._remove_idle()

    def _write(self, uid: int, text: str) -> str:
        self._written += 1
        folder = f"{self._directory}/{self._written}"
        path = f"{folder}/{SCRIPT_NAME}"
        os.mkdir(folder, 0o711)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o500)
        try:
            data = memoryview(text.encode("utf-8", "surrogateescape"))
            while data:
                data = data[os.write(fd, data) :]
            if uid != os.geteuid():
                os.fchown(fd, uid, -1)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            os.close(fd)
        return path

    def _remove_idle(self) -> None:
        idle = [key for key, kept in self._scripts.items() if not kept.users]
        for key in idle[: max(0, len(self._scripts) - _IDLE_KEPT)]:
            shutil.rmtree(os.path.dirname(self._scripts.pop(key).path), ignore_errors=True)
