"""Blobs on their way to the journal: kept in memory until the next group of events is written, which takes them along.

`journal` asks here what is to be written, and which of those on disk may be dropped. Who uploads scripts and names them
by no job must not use up the room that others need: everybody has a share. Used from the daemon's loop and from the
threads that write.

Invariant: what was put within `RECENTLY_S` is not dropped, whether it was on disk before or not: the job that names it
may be on its way.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterable

from bireme.ports import BlobShareError, JournalError

PENDING_BYTES = 256 << 20
SHARE_BYTES = PENDING_BYTES // 4
"""Of one user."""
RECENTLY_S = 3600.0
_REMEMBERED = 200_000


class Shelf:
    """What waits, and what is known to be on disk."""

    def __init__(self, path: str) -> None:
        """`path` of the journal, for what is said to people."""
        self._path = path
        self._lock = threading.Lock()
        self._pending: dict[str, bytes] = {}
        self._bytes = 0
        self._bytes_of: dict[int, int] = {}
        """By user, of what waits."""
        self._stored: dict[str, float] = {}
        """When each was put last; in that order."""

    def put(self, data: bytes, uid: int | None = None) -> str:
        """Keeps `data` until it is written; its name. Raises BlobShareError where too much of this user's waits."""
        name = hashlib.sha256(data).hexdigest()
        with self._lock:
            if self._stored.pop(name, None) is not None:
                self._stored[name] = time.monotonic()
            elif name not in self._pending:
                self._keep(name, data, uid)
        return name

    def _keep(self, name: str, data: bytes, uid: int | None) -> None:
        own = self._bytes_of.get(uid, 0) if uid is not None else 0
        if own + len(data) > SHARE_BYTES:
            raise BlobShareError(
                f"{own} bytes of scripts and environments of yours wait for a job that names them, "
                f"and at most {SHARE_BYTES} may"
            )
        if self._bytes + len(data) > PENDING_BYTES:
            raise JournalError(f"too much waits to be written to {self._path}: is its disk full?")
        self._pending[name] = data
        self._bytes += len(data)
        if uid is not None:
            self._bytes_of[uid] = own + len(data)

    def get(self, name: str) -> bytes | None:
        return self._pending.get(name)

    def waiting(self) -> dict[str, bytes]:
        with self._lock:
            return self._pending.copy()

    def written(self, blobs: dict[str, bytes]) -> None:
        """These are on disk now."""
        now = time.monotonic()
        with self._lock:
            for name, data in blobs.items():
                del self._pending[name]
                self._bytes -= len(data)
                self._stored[name] = now
            if blobs:
                self._bytes_of.clear()  # what came while they were written is little, and is written next
            for name in list(self._stored)[: max(0, len(self._stored) - _REMEMBERED)]:
                del self._stored[name]

    def let_go(self, names: Iterable[str]) -> list[str]:
        """Those among them that may be dropped from the disk, whose names are forgotten here."""
        before = time.monotonic() - RECENTLY_S
        with self._lock:
            old = [name for name in names if name not in self._pending and self._stored.get(name, before) <= before]
            for name in old:
                self._stored.pop(name, None)
        return old
