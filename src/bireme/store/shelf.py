"""Blobs on their way to the journal: kept in memory until a group of events is written that names them.

`journal` asks here what is to be written, and which of those on disk may be dropped. Who uploads scripts and names them
by no job must not use up the room that others need, nor make their jobs wait for the disk: everybody has a share, and
what nobody names is never written. Used from the daemon's loop and from the threads that write.

Invariant: what was put within `RECENTLY_S` is not dropped from the disk, and what was put or asked for within
`ON_ITS_WAY_S` not from memory: the job that names it may be on its way.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from bireme.ports import BlobShareError, JournalError

PENDING_BYTES = 256 << 20
SHARE_BYTES = PENDING_BYTES // 4
"""Of one user."""
RECENTLY_S = 3600.0
ON_ITS_WAY_S = 60.0
_REMEMBERED = 200_000


@dataclass(slots=True)
class _Waiting:
    data: bytes
    uid: int | None
    touched_at: float


class Shelf:
    """What waits, and what is known to be on disk."""

    def __init__(self, path: str) -> None:
        """`path` of the journal, for what is said to people."""
        self._path = path
        self._lock = threading.Lock()
        self._pending: dict[str, _Waiting] = {}
        """The one that was asked for longest ago first."""
        self._bytes = 0
        self._bytes_of: Counter[int | None] = Counter()
        """By user, of what waits."""
        self._stored: dict[str, float] = {}
        """When each was put last; in that order."""

    def put(self, data: bytes, uid: int | None = None) -> str:
        """Keeps `data` until it is written; its name. Raises BlobShareError where too much of this user's waits."""
        name = hashlib.sha256(data).hexdigest()
        with self._lock:
            if self._stored.pop(name, None) is not None:
                self._stored[name] = time.monotonic()
            elif not self._touch(name):
                self._keep(name, data, uid)
        return name

    def _touch(self, name: str) -> bool:
        waiting = self._pending.pop(name, None)
        if waiting is None:
            return False
        waiting.touched_at = time.monotonic()
        self._pending[name] = waiting
        return True

    def _keep(self, name: str, data: bytes, uid: int | None) -> None:
        if uid is not None and self._bytes_of[uid] + len(data) > SHARE_BYTES:
            self._drop_old(lambda waiting: waiting.uid == uid)
            own = self._bytes_of[uid]
            if own + len(data) > SHARE_BYTES:
                raise BlobShareError(
                    f"{own} bytes of scripts and environments of yours wait for a job that names them, "
                    f"and at most {SHARE_BYTES} may"
                )
        if self._bytes + len(data) > PENDING_BYTES:
            self._drop_old(lambda _: True)
            if self._bytes + len(data) > PENDING_BYTES:
                raise JournalError(f"too much waits to be written to {self._path}: is its disk full?")
        self._pending[name] = _Waiting(data, uid, time.monotonic())
        self._bytes += len(data)
        self._bytes_of[uid] += len(data)

    def _drop_old(self, which: Callable[[_Waiting], bool]) -> None:
        """What nobody came to name; whoever still wants it puts it again."""
        before = time.monotonic() - ON_ITS_WAY_S
        for name in [name for name, each in self._pending.items() if each.touched_at < before and which(each)]:
            self._forget(name)

    def _forget(self, name: str) -> None:
        gone = self._pending.pop(name)
        self._bytes -= len(gone.data)
        self._bytes_of[gone.uid] -= len(gone.data)
        if not self._bytes_of[gone.uid]:
            del self._bytes_of[gone.uid]

    def get(self, name: str) -> bytes | None:
        with self._lock:
            return self._pending[name].data if self._touch(name) else None

    def waiting(self, named: Iterable[str] | None = None) -> dict[str, bytes]:
        """Blobs of these names that are still to be written; None: all."""
        with self._lock:
            if not self._pending:  # nobody looks through what was said, then
                return {}
            names = list(self._pending) if named is None else {name for name in named if name in self._pending}
            return {name: self._pending[name].data for name in names}

    def written(self, blobs: Iterable[str]) -> None:
        """Notes that these blobs are on disk."""
        now = time.monotonic()
        with self._lock:
            for name in blobs:
                self._forget(name)
                self._stored[name] = now
            for name in list(islice(self._stored, max(0, len(self._stored) - _REMEMBERED))):
                del self._stored[name]

    def let_go(self, names: Iterable[str]) -> list[str]:
        """Forgets those of these blobs that may be dropped from the disk; their names."""
        before = time.monotonic() - RECENTLY_S
        with self._lock:
            old = [name for name in names if name not in self._pending and self._stored.get(name, before) <= before]
            for name in old:
                self._stored.pop(name, None)
        return old
