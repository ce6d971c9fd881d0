"""The high-water mark: how far a journal had come, in a small file beside it that is no part of the database.

Whatever the database forgets (its write-ahead file was damaged, cut or removed; an old copy was put in its place) the
mark still knows: the number and the sum of the newest event, and the highest job id that was given out. It is written
after the commit that it speaks of, so that after a crash it may be behind the database, which is harmless, and never
ahead of it: a mark that is ahead says that events were lost.

Two places take turns, each in a sector of its own with its own sum: a torn write leaves the other one. It is not waited
for: after a crash of the process it is there, after one of the machine it is at worst some seconds old.
Invariant: the numbers of one file only grow; whoever takes a loss for granted makes a new file (`replace`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from bireme.store.checks import row_sum

SUFFIX = ".mark"
_WORD = "bireme-mark-1"
_PLACE_BYTES = 4096
_PLACES = 2
_MOST_BYTES = 512


@dataclass(frozen=True, slots=True)
class Mark:
    journal_id: str
    seq: int
    sum: int
    last_job_id: int


class DamagedMarkError(Exception):
    """The file is there, and neither of its places can be read."""


class MarkFile:
    """The open mark of a journal that is being written."""

    def __init__(self, path: str) -> None:
        newest = read(path)
        assert newest is not None, "a mark is made with its journal"
        self.mark = newest
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        self._place = 0

    def advance(self, seq: int, total: int, last_job_id: int) -> None:
        """Moves the mark: to be called when the event `seq` is on disk. Raises OSError."""
        self.mark = Mark(self.mark.journal_id, seq, total, max(last_job_id, self.mark.last_job_id))
        self._place = (self._place + 1) % _PLACES
        os.pwrite(self._fd, _encoded(self.mark), self._place * _PLACE_BYTES)

    def close(self) -> None:
        os.fdatasync(self._fd)
        os.close(self._fd)


def read(path: str) -> Mark | None:
    """The newest that the file says; None if there is no file. Raises DamagedMarkError."""
    try:
        with open(path, "rb") as file:
            content = file.read(_PLACES * _PLACE_BYTES)
    except FileNotFoundError:
        return None
    places = [content[at : at + _MOST_BYTES] for at in range(0, _PLACES * _PLACE_BYTES, _PLACE_BYTES)]
    marks = [mark for mark in map(_decoded, places) if mark is not None]
    if not marks:
        raise DamagedMarkError(f"{path} is damaged")
    return max(marks, key=lambda mark: mark.seq)


def is_whole(path: str) -> bool:
    """Whether both of its places can be read."""
    with open(path, "rb") as file:
        content = file.read()
    places = [content[at : at + _PLACE_BYTES] for at in range(0, _PLACES * _PLACE_BYTES, _PLACE_BYTES)]
    return len(content) == _PLACES * _PLACE_BYTES and all(
        _decoded(place[:_MOST_BYTES]) is not None and not place[_MOST_BYTES:].strip(b"\0") for place in places
    )


def replace(path: str, mark: Mark) -> None:
    """A new file with this mark, on disk when it returns, or the old one as it was."""
    fresh = path + ".new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, b"".join(_encoded(mark).ljust(_PLACE_BYTES, b"\0") for _ in range(_PLACES)))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(fresh, path)
    sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """The names in it are on disk when it returns."""
    folder = os.open(path or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _encoded(mark: Mark) -> bytes:
    values = (mark.journal_id, mark.seq, mark.sum, mark.last_job_id)
    text = f"{_WORD} {mark.journal_id} {mark.seq} {mark.sum} {mark.last_job_id} {row_sum(values)}\n"
    return text.encode().ljust(_MOST_BYTES, b"\0")


def _decoded(place: bytes) -> Mark | None:
    try:
        word, journal_id, *numbers = place.rstrip(b"\0").decode("ascii").removesuffix("\n").split(" ")
        seq, total, last_job_id, _ = map(int, numbers)
    except ValueError:
        return None
    mark = Mark(journal_id, seq, total, last_job_id)
    return mark if word == _WORD and _encoded(mark) == place.ljust(_MOST_BYTES, b"\0") else None
