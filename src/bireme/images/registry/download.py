"""Brings one blob into the cache: goes on where an earlier try stopped, checks the digest, tries again when it breaks.

Called by `sources.registry`, from several threads. Who wants the same blob meanwhile, in another process too, waits for
this one: the lock lies on the file that grows, and becomes the blob.
Invariant: a blob has its final name only when all its bytes came and have the digest.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from bireme.images.manifests import Blob
from bireme.images.refusing import RefusedError
from bireme.images.registry.client import RegistryClient, lies
from bireme.images.registry.wire import UnreachableError
from bireme.images.unpacking.bounds import shown

_PAUSES_S = (0.5, 2.0, 5.0, 10.0)
"""Between tries that brought nothing; one that brought something is followed at once."""
_READ = 1 << 20

Came = Callable[[int], None]
"""Told how many bytes more are here; fewer than none when they have to come again."""


class Download:
    """Of one blob to its path. `stop`: set when nobody needs it any more."""

    def __init__(
        self, client: RegistryClient, blob: Blob, path: str, name: str, came: Came, stop: threading.Event
    ) -> None:
        self._client, self._blob, self._path, self._name = client, blob, path, name
        self._came, self._stop = came, stop
        self._told = 0

    def run(self) -> BinaryIO:
        """The blob, opened: whatever evicts it then does not take it from us. Raises RefusedError, OSError."""
        part = f"{self._path}.part"
        while True:
            fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if (blob := self._opened()) is not None:
                    with suppress(FileNotFoundError):
                        os.unlink(part)
                    self._tell(self._blob.size)
                    return blob
                if _is_still(fd, part):
                    self._fill(fd)
                    os.fsync(fd)
                    os.rename(part, self._path)
                    blob = self._opened()
                    assert blob is not None, "nobody removes what is locked"
                    return blob
            finally:
                os.close(fd)

    def _opened(self) -> BinaryIO | None:
        try:
            blob = Path(self._path).open("rb")  # noqa: SIM115 - the caller closes it
        except FileNotFoundError:
            return None
        os.utime(blob.fileno())  # what was used last is evicted last
        return blob

    def _fill(self, fd: int) -> None:
        """Until all is there and right."""
        summed = hashlib.new(self._blob.digest.partition(":")[0])
        have, host, pauses, lied = self._kept(fd, summed), "", iter(_PAUSES_S), False
        while True:
            begin = have
            if have < self._blob.size:
                try:
                    have, host, summed = self._more(fd, have, summed)
                except UnreachableError as error:
                    have = os.fstat(fd).st_size
                    if have > begin:
                        pauses = iter(_PAUSES_S)
                    elif (pause := next(pauses, None)) is None:
                        raise
                    else:
                        self._wait(pause, error)
                    continue
            if f"{self._blob.digest.partition(':')[0]}:{summed.hexdigest()}" == self._blob.digest:
                return
            self._from_scratch(fd)
            have, summed = 0, hashlib.new(summed.name)
            self._client.distrust(host)
            if lied:
                raise RefusedError(lies(host or "the registry", self._name))
            lied = True

    def _kept(self, fd: int, summed: hashlib._Hash) -> int:
        """How much is there of an earlier try; all of it has to be summed up."""
        if os.fstat(fd).st_size > self._blob.size:
            os.ftruncate(fd, 0)
        have = 0
        while piece := os.pread(fd, _READ, have):
            summed.update(piece)
            have += len(piece)
        self._tell(have)
        return have

    def _more(self, fd: int, have: int, summed: hashlib._Hash) -> tuple[int, str, hashlib._Hash]:
        begins, pieces, host = self._client.pieces(self._blob, have)
        if begins != have:  # it cannot go on in the middle
            self._from_scratch(fd)
            have, summed = 0, hashlib.new(summed.name)
        for piece in pieces:
            if self._stop.is_set():
                raise RefusedError(f"the pull of {self._name} was given up")
            if have + len(piece) > self._blob.size:
                raise RefusedError(f"{host} sends more of {self._name} than the {shown(self._blob.size)} it should be")
            os.pwrite(fd, piece, have)
            summed.update(piece)
            have += len(piece)
            self._tell(have)
        if have < self._blob.size:
            raise UnreachableError(f"{host} sent only a part of {self._name}: try again")
        return have, host, summed

    def _from_scratch(self, fd: int) -> None:
        os.ftruncate(fd, 0)
        self._tell(0)

    def _wait(self, pause_s: float, error: UnreachableError) -> None:
        if self._stop.wait(pause_s):
            raise error

    def _tell(self, have: int) -> None:
        self._came(have - self._told)
        self._told = have


def _is_still(fd: int, path: str) -> bool:
    """Whether the file that is locked is the one at the path: whoever had it before may have finished it."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
