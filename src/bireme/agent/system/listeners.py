"""Whose program is at the other end on this machine: asked of the kernel (sock_diag), a few microseconds each time.

Called by `probing` and by the router, so that nobody is taken for a service's replica who only was faster to take its
port; the router also counts connections of this machine by their users.

Why two questions about one connection (`is_anothers`): a connection that nobody has accepted yet has no owner, so the
listener's is asked before. Who accepted it and let go of the port meanwhile is seen by the second question; while it is
not accepted its listener is still there, and so was there when the first one was asked.

Invariant: what the kernel does not say is None, never a guess.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Set

_SOCK_DIAG = 4
_BY_FAMILY, _ERROR, _REQUEST = 20, 2, 1
_LISTENS = 10
_ALL_STATES = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBxI")
_ENDS = struct.Struct("!HH16s16s")
_REST = struct.Struct("=III")
_ANY = 0xFFFFFFFF
_ANSWER = struct.Struct("=BBBB48sIIIII")
"""Family, state, two times; both ends; three counts, the owner, the inode."""
_CODE = struct.Struct("=i")
_NOT_FOUND = -2

Address = tuple[str, int]
NOBODY = -1
"""In the place of a uid: nobody is there."""


class SocketOwners:
    """The kernel, asked over one socket that is kept."""

    def __init__(self) -> None:
        self._kernel: socket.socket | None = None

    def close(self) -> None:
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    def of_listener(self, address: str, port: int) -> int | None:
        """The uid of whoever listens there, or NOBODY; None: the kernel does not tell."""
        found = self._ask((address, port), None)
        if found is None or found == _NOBODY_THERE:
            return None if found is None else NOBODY
        state, uid, _ = found
        return uid if state == _LISTENS else NOBODY

    def of_other_end(self, mine: Address, other: Address) -> int | None:
        """The uid of who holds the other end of a connection within this machine; NOBODY: nobody has accepted it, or
        he has let go of it; None: the kernel does not tell."""
        found = self._ask(other, mine)
        if found is None:
            return None
        state, uid, inode = found
        return uid if inode and state != _LISTENS else NOBODY

    def is_anothers(self, mine: Address, other: Address, owners: Set[int]) -> bool:
        """Whether the other end of this connection is on this machine, and none of these users has it."""
        if not is_within(mine[0], other[0]):
            return False
        listening = self.of_listener(*other)
        holding = self.of_other_end(mine, other)
        found = listening if holding in (None, NOBODY) else holding
        return found is not None and found != NOBODY and found not in owners

    def _ask(self, here: Address, there: Address | None) -> tuple[int, int, int] | None:
        """(state, uid, inode) of the socket with these two ends; without `there`, of the one that listens."""
        family = socket.AF_INET6 if ":" in here[0] else socket.AF_INET
        far, far_port = (_packed(family, there[0]), there[1]) if there else (b"\0" * 16, 0)
        ends = _ENDS.pack(here[1], far_port, _packed(family, here[0]), far) + _REST.pack(0, _ANY, _ANY)
        asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, _ALL_STATES) + ends
        try:
            answer = self._exchange(_HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _REQUEST, 1, 0) + asked)
        except OSError:  # a kernel without it, or that does not let us ask
            self.close()
            return None
        _, kind, *_ = _HEADER.unpack_from(answer)
        if kind == _ERROR:
            (code,) = _CODE.unpack_from(answer, _HEADER.size)
            return _NOBODY_THERE if code == _NOT_FOUND else None
        if len(answer) < _HEADER.size + _ANSWER.size:
            return None
        _, state, _, _, _, _, _, _, uid, inode = _ANSWER.unpack_from(answer, _HEADER.size)
        return state, uid, inode

    def _exchange(self, question: bytes) -> bytes:
        """The kernel answers within `send`."""
        if self._kernel is None:
            self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG)
            self._kernel.setblocking(False)
        self._kernel.send(question)
        return self._kernel.recv(4096)


_NOBODY_THERE = (0, 0, 0)


def is_within(mine: str, other: str) -> bool:
    """Whether a connection between these addresses stays in this machine: to its own address it comes from there."""
    return mine == other or other.startswith("127.")


def _packed(family: int, address: str) -> bytes:
    return socket.inet_pton(family, address.partition("%")[0]).ljust(16, b"\0")
