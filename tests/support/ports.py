"""Ports of this machine that no other test has, in whatever process: for servers that need to know theirs beforehand.

Port 0 is better wherever the server itself can say which one it has got. Not for tests: what looks at port 0 and closes
it again, because until the server listens the kernel may give the port to anybody's outgoing connection.
Invariant: all are below those that the kernel gives away, and a slice of them is one process's at a time: whose it is
says a name in the kernel, which is free again when the process ends.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

_ALL, _EACH = range(20_000, 30_000), 100


def claimed_ports() -> tuple[socket.socket, range]:
    """A slice of them, and what keeps others from it while it is open."""
    for number in range(0, len(_ALL), _EACH):
        ports = _ALL[number : number + _EACH]
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0bireme-tests/ports/{ports[0]}")
        except OSError:
            claim.close()
        else:
            return claim, ports
    raise AssertionError("so many clusters at once: no ports are left for their services")


def free_port() -> int:
    """One of this process, each time another."""
    return next(_own)


def _of_this_process() -> Iterator[int]:
    claims = []
    while True:
        claim, ports = claimed_ports()
        claims.append(claim)  # until the process ends
        yield from filter(_is_free, ports)


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


_own = _of_this_process()
