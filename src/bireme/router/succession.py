"""How workers outlive their supervisor: where the next one finds them, and what they hand it.

Each worker has a socket of its own in the router's folder, which its supervisor made, and which it makes again itself
when it is gone. Nobody connects to it while that
supervisor lives, for it holds the folder's lock. Who holds the lock next connects, is handed the worker's descriptors
and what it goes by, and the connection is from then on what the pair of sockets was (`inner`). So a killed supervisor
costs no request, and the next one need not have anything on its disk.

Asked by the supervisor when it starts, and by the daemon that ends a router which has none. Invariant: a file here at
which nobody answers is taken away; whoever is not this router's user (or root) gets nothing.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from bireme.agent.messages.protocol import connect_endpoint, listen_at
from bireme.router import inner

_PREFIX, _SUFFIX = "worker-", ".sock"
_ANSWER_S = 5.0
_MOST_FDS = 253
"""The kernel's limit for one message."""
_CHUNK = 1 << 20


def meeting_path(home: str, row: int) -> str:
    return os.path.join(home, f"{_PREFIX}{row}{_SUFFIX}")


def meeting_socket(home: str, row: int) -> socket.socket:
    """Where the worker of this row will be found. Raises OSError."""
    return listen_at(meeting_path(home, row), 4, for_everyone=False)


@dataclass(frozen=True, slots=True)
class Orphan:
    """A worker without a supervisor, and the connection to it."""

    connection: socket.socket
    handed: inner.Handed
    rest: bytes
    """What it said after that."""
    meeting: socket.socket
    listeners: list[socket.socket]
    memory: int
    kicks: tuple[int, ...]
    certificate: tuple[int, ...]


# --- the worker's side ------------------------------------------------------------------------------------------------


def hand_over(connection: socket.socket, start: inner.Start, meeting: int, listeners: tuple[int, ...]) -> None:
    """The descriptors; the words (`Handed`) are the caller's to send. Raises OSError.

    `meeting`: where it was found; `listeners`: those that it still listens at.
    """
    fds = [meeting, *listeners, start.memory, *start.kicks, *start.certificate]
    socket.send_fds(connection, [struct.pack("H", len(listeners))], fds)


def peer_uid(connection: socket.socket) -> int:
    """Whose process is at the other end."""
    form = struct.Struct("3i")
    credentials = form.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size))
    return int(credentials[1])


# --- the next supervisor's side ---------------------------------------------------------------------------------------


def orphans_in(home: str, met: Collection[int] = ()) -> list[Orphan]:
    """All that there are, but for the rows that were met before. For who holds the lock of this folder."""
    known = {meeting_path(home, row) for row in met}
    paths = (os.path.join(home, name) for name in _names(home))
    found = (_met(path) for path in paths if path not in known)
    return [orphan for orphan in found if orphan is not None]


def end_orphans(home: str, limit_s: float) -> list[int]:
    """Tells workers without a supervisor to end, and waits for it; their pids. Requests in flight have `limit_s`."""
    found = orphans_in(home)
    for orphan in found:
        with suppress(OSError):
            orphan.connection.sendall(inner.line(inner.Drain(limit_s)))
    for orphan in found:
        orphan.connection.settimeout(limit_s + _ANSWER_S)
        with suppress(OSError):
            while orphan.connection.recv(_CHUNK):
                pass
        with suppress(OSError):
            os.unlink(meeting_path(home, orphan.handed.start.row))
        orphan.connection.close()
    return [orphan.handed.pid for orphan in found]


def _names(home: str) -> list[str]:
    with suppress(OSError):
        return sorted(name for name in os.listdir(home) if name.startswith(_PREFIX) and name.endswith(_SUFFIX))
    return []


def _met(path: str) -> Orphan | None:
    try:
        connection = connect_endpoint(f"unix:{path}", _ANSWER_S)
        return _handed(connection)
    except (OSError, EOFError, msgspec.DecodeError):
        with suppress(OSError):
            os.unlink(path)
        return None


def _handed(connection: socket.socket) -> Orphan:
    """Raises OSError, EOFError or msgspec.DecodeError."""
    size = struct.calcsize("H")
    data, fds, _flags, _address = socket.recv_fds(connection, size, _MOST_FDS)
    if len(data) < size:
        raise EOFError
    (count,) = struct.unpack("H", data)
    for fd in fds:
        os.set_inheritable(fd, False)
    text, rest = _line(connection)
    handed = msgspec.json.decode(text, type=inner.Handed)
    listeners = [socket.socket(fileno=fd) for fd in fds[1 : 1 + count]]
    memory, *others = fds[1 + count :]
    kicks = tuple(others[: len(handed.start.kicks)])
    return Orphan(
        connection, handed, rest, socket.socket(fileno=fds[0]), listeners, memory, kicks,
        tuple(others[len(kicks) :]),
    )  # fmt: skip


def _line(connection: socket.socket) -> tuple[bytes, bytes]:
    """The first line, and what came behind it."""
    pieces: list[bytes] = []
    while piece := connection.recv(_CHUNK):
        head, found, rest = piece.partition(b"\n")
        pieces.append(head)
        if found:
            return b"".join(pieces), rest
    raise EOFError
