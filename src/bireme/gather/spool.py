"""Rounds that the daemon has not confirmed, on this machine's disk: nothing is lost while no daemon is there.

A file of messages, each with its sum, appended as rounds are made and cut when they are confirmed; beside it the id
under which this gatherer numbers its rounds. It is not synced: what a crash of the machine takes is the last seconds.
What does not fit (a daemon away for days) is dropped, the oldest first; what the disk does not take is lost, and what
it gives back otherwise than it was written is passed over.
Invariants: numbers only grow while the id lasts; every message in the file is whole.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bireme.gather import messages as m

log = logging.getLogger("bireme.gather")

MOST_BYTES = 256 * 1024 * 1024
_COMPACT_BYTES = 1024 * 1024
"""So much that is confirmed may lie before what is not."""
_HEAD_BYTES = 8


class Spool:
    """In `folder`, which is private to this gatherer and locked by it."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._path, self._most = folder / "rounds", most_bytes
        self._places: dict[int, tuple[int, int]] = {}
        """Of each round that is not confirmed: where its message begins and how long it is."""
        self.dropped = 0
        """Rounds that did not fit."""
        self._uncut = ""
        """Why the file could not be cut the last time: told once."""
        self._identity = folder / "id"
        self.id, self.last = _read_identity(self._identity)
        _write_identity(self._identity, self.id, self.last)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._end = 0
        self._find()

    def close(self) -> None:
        os.close(self._file)

    def add(self, told: m.Round) -> None:
        """Raises OSError where it cannot be written whole: the round is lost, and all before it are as they were."""
        body = m.encode(told)[4:]
        self.last = told.no
        if self._end + len(body) > self._most:
            self._drop_oldest()
        head = len(body).to_bytes(4, "big") + _sum(body)
        try:
            _write_whole(self._file, head + body, self._end)
        except OSError:
            os.ftruncate(self._file, self._end)
            raise
        self._places[told.no] = (self._end + _HEAD_BYTES, len(body))
        self._end += _HEAD_BYTES + len(body)

    def after(self, no: int) -> Iterator[m.Round]:
        """Rounds that are not confirmed and have a higher number, in their order. One that is not what was written is
        passed over, and named once."""
        for each in list(self._places):
            if each <= no or each not in self._places:
                continue
            told = self._read(each)
            if told is not None:
                yield told
            else:
                del self._places[each]
                log.error("round %d in %s is not what was written: it is passed over", each, self._path)

    def _read(self, no: int) -> m.Round | None:
        place, length = self._places[no]
        try:
            found = os.pread(self._file, _HEAD_BYTES + length, place - _HEAD_BYTES)
            told = m.read_told(found[_HEAD_BYTES:])
        except (OSError, m.ProtocolError):
            return None
        is_whole = len(found) == _HEAD_BYTES + length and _sum(found[_HEAD_BYTES:]) == found[4:_HEAD_BYTES]
        return told if is_whole and isinstance(told, m.Round) else None

    def confirm(self, no: int) -> None:
        """This round and all before it are on the daemon's disk. A file that cannot be cut now is cut another time."""
        self._places = {each: place for each, place in self._places.items() if each > no}
        first = min((place for place, _ in self._places.values()), default=self._end + _HEAD_BYTES) - _HEAD_BYTES
        if not self._places or first > _COMPACT_BYTES:
            try:
                self._cut(first)
            except OSError as error:
                if str(error) != self._uncut:
                    log.error("what the daemon has cannot be taken off %s: %s", self._path, error)
                self._uncut = str(error)

    def _drop_oldest(self) -> None:
        """Half of what is kept: to make room for one round at a time would write everything anew each time."""
        kept = list(self._places)[len(self._places) // 2 :]
        self.dropped += len(self._places) - len(kept)
        self.confirm(kept[0] - 1 if kept else self.last)
        first = min((place for place, _ in self._places.values()), default=self._end + _HEAD_BYTES) - _HEAD_BYTES
        self._cut(first)

    def _cut(self, first: int) -> None:
        """Takes off what lies before `first`: the number that was reached is written down before."""
        _write_identity(self._identity, self.id, self.last)
        rest = os.pread(self._file, self._end - first, first)
        _write_whole(self._file, rest, 0)
        os.ftruncate(self._file, len(rest))
        self._places = {each: (place - first, length) for each, (place, length) in self._places.items()}
        self._end = len(rest)

    def _find(self) -> None:
        """What an earlier process left. A message that is cut off or damaged ends it."""
        size = os.fstat(self._file).st_size
        while self._end + _HEAD_BYTES <= size:
            head = os.pread(self._file, _HEAD_BYTES, self._end)
            length = int.from_bytes(head[:4], "big")
            body = os.pread(self._file, length, self._end + _HEAD_BYTES) if length <= m.MAX_FRAME_BYTES else b""
            if len(body) != length or _sum(body) != head[4:]:
                break
            with suppress(m.ProtocolError):
                told = m.read_told(body)
                if isinstance(told, m.Round):
                    self._places[told.no] = (self._end + _HEAD_BYTES, length)
                    self.last = max(self.last, told.no)
            self._end += _HEAD_BYTES + length
        os.ftruncate(self._file, self._end)


def _sum(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4, "big")


def _write_whole(file: int, data: bytes, place: int) -> None:
    """Raises OSError where not all of it is taken: a disk that fills up takes a part and says no error."""
    if os.pwrite(file, data, place) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _read_identity(path: Path) -> tuple[str, int]:
    """The id, and a number that its rounds had reached. Both are new where they cannot be read."""
    try:
        name, last = path.read_text(encoding="ascii").split()
        if len(name) == 32:
            return name, int(last)
    except (OSError, ValueError):
        pass
    return secrets.token_hex(16), 0


def _write_identity(path: Path, name: str, last: int) -> None:
    """In the place of the one before, whole or not at all; into the one before where the disk has no room for another:
    else what fills the disk could never be cut."""
    beside, line = path.with_suffix(".new"), f"{name} {last}\n"
    try:
        _write_file(beside, line, os.O_CREAT | os.O_TRUNC)
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        if error.errno != errno.ENOSPC:
            raise
        _write_file(path, line)


def _write_file(path: Path, line: str, how: int = 0) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | how, 0o600)
    try:
        _write_whole(descriptor, line.encode("ascii"), 0)
    finally:
        os.close(descriptor)
