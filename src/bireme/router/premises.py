"""The router's folder, as its supervisor holds it: the lock that says that one is there, and where it is spoken to.

Files can be removed under a process that goes on. One that nobody can find could neither be told anything nor be ended,
so its supervisor looks every few seconds, and makes again what is gone. (Workers do so with their own sockets.) Not
here: the table and the workers' sockets, which are in the same folder.
Invariant: who holds the lock of the file that is there is the only router of this folder.
"""

from __future__ import annotations

import fcntl
import os
import socket

from bireme.agent.messages.protocol import listen_at, place_of
from bireme.router import messages

LOCK = "lock"
_BACKLOG = 16


class RouterError(Exception):
    """The router cannot start, or not go on. The text says why and what to do."""


class Premises:
    """Takes the folder, which is made where it is not there. Raises RouterError."""

    def __init__(self, home: str) -> None:
        self.home = home
        self._lock_path = os.path.join(home, LOCK)
        self._socket_path = os.path.join(home, messages.SOCKET)
        self._socket_place: tuple[int, int] | None = None
        try:
            os.makedirs(home, mode=0o700, exist_ok=True)
            self._lock = self._locked()
        except OSError as error:
            raise RouterError(f"{error.filename or home}: {error.strerror}") from error

    def _locked(self) -> int:
        """Raises RouterError, OSError."""
        lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise RouterError(f"another router serves {self.home}") from error
        return lock

    def listener(self) -> socket.socket:
        """A new socket at which it is spoken to, in the place of one that may be there. Raises OSError."""
        made = listen_at(self._socket_path, _BACKLOG, for_everyone=False)
        self._socket_place = place_of(self._socket_path)
        return made

    @property
    def is_findable(self) -> bool:
        """Whether who looks for a router here finds this one."""
        held = os.fstat(self._lock)
        is_locked = place_of(self._lock_path) == (held.st_dev, held.st_ino)
        return is_locked and place_of(self._socket_path) == self._socket_place

    @property
    def can_be_found(self) -> bool:
        """Whether there is a place for the folder: a home that was removed as a whole is not made again."""
        return os.path.isdir(os.path.dirname(self.home) or ".")

    def regain(self) -> None:
        """The folder and its lock again. Raises RouterError where another has them now, OSError."""
        if not os.path.isdir(self.home):
            os.mkdir(self.home, 0o700)
        held = os.fstat(self._lock)
        if place_of(self._lock_path) != (held.st_dev, held.st_ino):
            before, self._lock = self._lock, self._locked()
            os.close(before)

    def leave(self) -> None:
        """Its socket is nobody's any more; one that another made there stays."""
        if place_of(self._socket_path) == self._socket_place:
            os.unlink(self._socket_path)
