"""Looks for a job's newest whole checkpoint: at a path that it named, or in its folder for layouts that are known.

`__main__` calls it, as the job's user. The walk is bounded in folders, entries, depth and time, follows no links, and
tells what it passed over. Invariant: what is newer than the answer and not whole is named, so that nobody wonders why
an older one was taken.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from bireme.evidence.checkpoints.files import is_temporary
from bireme.evidence.checkpoints.layouts import Folder, Seen, of_file, of_folder

MOST_ENTRIES = 20_000
DEEPEST = 5
SECONDS = 10.0
MOST_TOLD = 5
_FRESH_S = 5.0
"""What changed within so long may be written still: it is looked at twice."""
_BETWEEN_S = 0.7
_NOT_LOOKED_INTO = frozenset(("node_modules", "__pycache__", "site-packages", "wandb", "mlruns", "proc", "sys", "dev"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Where to look. `path`: what the job named, which may be a file, a folder or a pattern (`out/step-*.pt`)."""

    folder: str
    path: str = ""
    since: float = 0.0
    """What is older is not the job's: where it named no path, a folder may hold others' checkpoints."""


@dataclass(frozen=True, slots=True)
class Answer:
    found: Seen | None
    passed_over: tuple[str, ...] = ()


@dataclass(slots=True)
class Looker:
    """One look, with what is left of its time and entries."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    seconds: float = SECONDS
    entries: int = MOST_ENTRIES
    _ends: float = field(default=0.0, init=False)
    _left: int = field(default=0, init=False)

    def newest(self, wanted: Wanted) -> Answer:
        self._ends, self._left = self.clock() + self.seconds, self.entries
        seen = [each for each in self._candidates(wanted) if each.saved_at >= wanted.since]
        seen.sort(key=lambda each: (each.saved_at, each.step or 0), reverse=True)
        passed_over: list[str] = []
        if self._is_over():
            passed_over.append("not everything was looked at: there is too much, or it takes too long")
        for each in seen:
            wrong = each.wrong or ("is still being written" if self._grows(each) else "")
            if not wrong:
                return Answer(each, tuple(passed_over[:MOST_TOLD]))
            passed_over.append(f"{each.path} {wrong}")
        return Answer(None, tuple(passed_over[:MOST_TOLD]))

    def _is_over(self) -> bool:
        return self._left <= 0 or self.clock() > self._ends

    def _grows(self, seen: Seen) -> bool:
        """Whether something is written to it right now. A layout that has a mark of its end need not be watched."""
        if seen.proven or self.now() - seen.saved_at > _FRESH_S:
            return False
        before = _sizes(seen.path)
        self.sleep(_BETWEEN_S)
        return _sizes(seen.path) != before

    def _candidates(self, wanted: Wanted) -> Iterator[Seen]:
        if not wanted.path:
            yield from self._below(wanted.folder, None, DEEPEST)
            return
        path = os.path.join(wanted.folder, wanted.path)
        named = [path]
        if glob.has_magic(path) and not os.path.lexists(path):
            named = []
            for each in glob.iglob(path):
                named.append(each)
                self._left -= 1
                if self._is_over():
                    break
        for each in named:
            if os.path.isdir(each):
                yield from self._of_named_folder(each)
            else:
                with suppress(OSError):
                    seen = of_file(each, asked=True)
                    if seen is not None:
                        yield seen

    def _of_named_folder(self, path: str) -> Iterator[Seen]:
        """The folder itself, or what lies in it."""
        parent = self._listed(os.path.dirname(path.rstrip("/")) or "/")
        yield from self._below(path.rstrip("/"), parent, DEEPEST)

    def _below(self, path: str, parent: Folder | None, deep: int) -> Iterator[Seen]:
        folder = self._listed(path)
        if folder is None:
            return
        with suppress(OSError):
            whole = of_folder(folder, parent)
            if whole is not None:
                yield whole
                return
        for name in folder.files:
            with suppress(OSError):
                seen = of_file(os.path.join(path, name), asked=False)
                if seen is not None:
                    yield seen
        for name in folder.folders:
            if deep and not self._is_over() and _is_worth_a_look(name):
                yield from self._below(os.path.join(path, name), folder, deep - 1)

    def _listed(self, path: str) -> Folder | None:
        """What lies in a folder; None: it cannot be read. Links are left out: what they name is found where it lies."""
        files, folders = list[str](), list[str]()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    self._left -= 1
                    if self._is_over():
                        break
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
                    elif entry.is_file(follow_symlinks=False):
                        files.append(entry.name)
        except OSError:
            return None
        return Folder(path, tuple(sorted(files)), tuple(sorted(folders, reverse=True)))


def _is_worth_a_look(name: str) -> bool:
    if name in _NOT_LOOKED_INTO or name.startswith("."):
        return False
    return not is_temporary(name) or ".orbax-checkpoint-tmp" in name


def _sizes(path: str) -> list[tuple[str, int, float]]:
    """Of a file, or of all files directly in a folder."""
    found = []
    with suppress(OSError):
        names = [entry.path for entry in os.scandir(path)] if os.path.isdir(path) else [path]
        for name in sorted(names):
            status = os.stat(name)
            found.append((name, status.st_size, status.st_mtime))
    return found
