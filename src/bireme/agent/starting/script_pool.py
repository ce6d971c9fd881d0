"""Batch scripts in the agent's keeping, one file for all starts of the same script by the same user.

An array of thousands of tasks is one script: writing and removing a file and a folder for each task would cost more
than starting it (file systems are slow at giving out again what was just deleted). Files that no job uses are kept for
a while, because the next start is likely to be of the same script.

Its owner can make the file writable and change it: a job of theirs would change what their later ones run. So each
start looks at whether it is still the file that was written, untouched (`stat`: the agent opens nothing of a user's),
and else gets another one, under a name that nobody can guess. (Before Linux 6.13 the times of files are those of the
last tick of the clock, some milliseconds: what is touched in the one it was written in is not seen. Its name is known
only to a job that runs.)

Called by `jobs`. Invariants: a script is its submitter's to read and run and nobody's to write; what a start is given
was not touched since it was written; and it stays while a job that was started from it has not been cleared, unless
its owner changes one after another.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field

SCRIPT_NAME = "slurm_script"
"""What a script sees as the last part of its $0, as under Slurm."""
_IDLE_KEPT = 64
_SPOILED_KEPT = 16
"""Of one script so many files stay that were touched and may still be in use."""

Key = tuple[int, str]
"""(uid, text)."""


Look = tuple[int, int, int, int, int]
"""(inode, size, mode, owner, time of the last change of any of it)."""


@dataclass(slots=True)
class _Kept:
    path: str
    look: Look
    users: int = 0
    spoiled: list[str] = field(default_factory=list)
    """Earlier files of it that were touched, while jobs may still read them."""

    def is_untouched(self) -> bool:
        try:
            return _look(os.lstat(self.path)) == self.look
        except OSError:
            return False


def _look(found: os.stat_result) -> Look:
    return found.st_ino, found.st_size, found.st_mode, found.st_uid, found.st_ctime_ns


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
        kept = self._scripts.get((uid, text))
        if kept is None:
            kept = _Kept(*self._write(uid, text))
        elif not kept.is_untouched():
            before, (kept.path, kept.look) = kept.path, self._write(uid, text)
            kept.spoiled.append(before)
            _remove(kept.spoiled[:-_SPOILED_KEPT])
            del kept.spoiled[:-_SPOILED_KEPT]
        self._scripts.pop((uid, text), None)
        self._scripts[uid, text] = kept
        kept.users += 1
        return kept.path

    def give_back(self, uid: int, text: str) -> None:
        """After `take`: this start needs it no more."""
        kept = self._scripts[uid, text]
        kept.users -= 1
        if not kept.users and kept.spoiled:
            _remove(kept.spoiled)
            kept.spoiled.clear()
        if len(self._scripts) > _IDLE_KEPT:
            self._remove_idle()

    def _write(self, uid: int, text: str) -> tuple[str, Look]:
        self._written += 1
        folder = f"{self._directory}/{self._written}-{os.urandom(8).hex()}"
        path = f"{folder}/{SCRIPT_NAME}"
        os.mkdir(folder, 0o711)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o500)
        try:
            data = memoryview(text.encode("utf-8", "surrogateescape"))
            while data:
                data = data[os.write(fd, data) :]
            if uid != os.geteuid():
                os.fchown(fd, uid, -1)
            look = _look(os.fstat(fd))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            os.close(fd)
        return path, look

    def _remove_idle(self) -> None:
        idle = [key for key, kept in self._scripts.items() if not kept.users]
        for key in idle[: max(0, len(self._scripts) - _IDLE_KEPT)]:
            kept = self._scripts.pop(key)
            _remove([kept.path, *kept.spoiled])


def _remove(paths: Sequence[str]) -> None:
    for path in paths:
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)
