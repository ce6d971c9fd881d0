"""Whose program listens at an address: asked of the kernel (sock_diag), a few microseconds each time.

Called by `probing`, so that nobody is taken for a service's replica who only was faster to take its port.
Invariant: what the kernel does not say is None, never a guess.
"""

from __future__ import annotations

import socket
import struct

_SOCK_DIAG = 4
_BY_FAMILY, _ERROR, _REQUEST = 20, 2, 1
_LISTENS = 10
_HEADER = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBxI")
_ENDS = struct.Struct("!HH16s16s")
_REST = struct.Struct("=III")
_ANY = 0xFFFFFFFF
_ANSWER = struct.Struct("=BBBB48sIIIII")
"""Family, state, two times; both ends; three counts, the owner, the inode."""


def owner_of_listener(address: str, port: int) -> int | None:
    """The uid of whoever listens there; None: nobody does, or the kernel does not tell."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    here = socket.inet_pton(family, address).ljust(16, b"\0")
    ends = _ENDS.pack(port, 0, here, b"\0" * 16) + _REST.pack(0, _ANY, _ANY)
    asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 1 << _LISTENS) + ends
    header = _HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            kernel.setblocking(False)
            kernel.send(header + asked)
            answer = kernel.recv(4096)
    except OSError:  # a kernel without it, or that does not let us ask
        return None
    _, kind, *_ = _HEADER.unpack_from(answer)
    if kind == _ERROR or len(answer) < _HEADER.size + _ANSWER.size:
        return None
    _, state, _, _, _, _, _, _, uid, _ = _ANSWER.unpack_from(answer, _HEADER.size)
    return int(uid) if state == _LISTENS else None
