"""One question to a replica's port: does anybody take the connection, and does a GET answer 200 to 399.

Begun by `watch`. The server in the replica is a user's program and may do anything: it has until the time limit, of
what it says so much is read as tells its status, and nobody waits for it. Redirects are not followed, and count as
well.

A server listens where it likes: on every address, on its node's, or on 127.0.0.1 alone. All of these are tried, the
one that answered last first; who hears the verdict also hears which it was. Who listens there as another user is not
the replica, whatever it answers: on a machine of many users anybody may take a port before the replica does.

Invariant: `done` is called exactly once, never within `begin`; no descriptor is left after the time limit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Sequence, Set

from bireme.agent.starting.spawn import SHORTAGES
from bireme.agent.system.listeners import NOBODY, SocketOwners
from bireme.agent.system.loop import READ, WRITE, Loop, Timer
from bireme.core.probing.speaking_http import HUNG_UP, NO_STATUS, NOT_HTTP, request_of, verdict

Done = Callable[[str | None, str], None]
"""What is wrong ("": nothing; None: it could not be asked, for want of something here), and who answered."""

_LISTENED_BYTES = 64 * 1024
"""So much of the answer is heard out, so that an ordinary server need not see its connection broken."""
_PIECE_BYTES = 16 * 1024


ANOTHERS = "another user's program listens on its port"
_kernel = SocketOwners()


def listening_as(owners: Set[int], addresses: Sequence[str], port: int) -> tuple[str, str]:
    """(what is wrong, where one of these users listens): asked of the kernel alone, no connection is made."""
    found = {address: _kernel.of_listener(address, port) for address in addresses}
    for address, owner in found.items():
        if owner in owners:
            return "", address
    if any(owner is None for owner in found.values()):  # it does not tell
        return "", ""
    return ("nothing listens on its port" if set(found.values()) == {NOBODY} else ANOTHERS), ""


def who_listens(port: int) -> str:
    """On this port at any of the loopback addresses, in words."""
    owners = {_kernel.of_listener(address, port) for address in ("127.0.0.1", "::1")}
    known = sorted(owner for owner in owners if owner is not None and owner != NOBODY)
    return f"a program of user {known[0]}" if known else "another program"


def port_is_free(port: int) -> bool:
    """Whether nobody listens on it at any address of this machine: virtual nodes share them. Raises OSError."""
    return all(_may_listen(family, address, port) for family, address in _EVERYWHERE)


_EVERYWHERE = ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"))


def _may_listen(family: int, address: str, port: int) -> bool:
    try:
        trial = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return True
        raise
    with trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that are over do not count
        if family == socket.AF_INET6:
            trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            trial.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            if error.errno != errno.EADDRNOTAVAIL:  # a machine without IPv6
                raise
    return True


class PortQuestion:
    """A connection to the first of the addresses that takes one; with a path, a GET of it."""

    def __init__(
        self,
        loop: Loop,
        addresses: Sequence[str],
        port: int,
        path: str,
        timeout_s: float,
        done: Done,
        owners: Set[int] = frozenset(),
    ) -> None:
        """`owners`: as whom the replica may listen; none: as anybody."""
        self._loop = loop
        self._left = list(addresses)
        self._port = port
        self._path = path
        self._timeout_s = timeout_s
        self._done: Done | None = done
        self._owners = owners
        self._met_another = False
        """Somebody else listens at one of the addresses."""
        self._address = ""
        self._socket: socket.socket | None = None
        self._heard = bytearray()
        self._count = 0
        self._timer: Timer | None = None

    def begin(self) -> None:
        self._timer = self._loop.call_later(self._timeout_s, self._too_late)
        self._connect()

    def cancel(self) -> None:
        """Forgets the question; nobody is told."""
        self._done = None
        self._close()

    # --- connecting ----------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._address = self._left.pop(0)
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            code = self._socket.connect_ex((self._address, self._port))
            if code in (0, errno.EINPROGRESS):
                self._loop.watch(self._socket.fileno(), WRITE, self._connected)
                return
        except OSError as error:
            code = error.errno or errno.EIO
        self._loop.call_later(0.0, lambda: self._not_connected(code))

    def _connected(self, _events: int) -> None:
        assert self._socket is not None
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._not_connected(code)
        elif self._is_anothers():
            self._met_another = True
            self._not_connected(errno.ECONNREFUSED)
        elif not self._path:
            self._answer("")
            self._close()
        else:
            self._ask()

    def _is_anothers(self) -> bool:
        assert self._socket is not None
        if not self._owners:
            return False
        try:
            ends = (self._socket.getsockname()[:2], self._socket.getpeername()[:2])
        except OSError:  # it hung up already, which is found out below
            return False
        return _kernel.is_anothers(*ends, self._owners)

    def _not_connected(self, code: int) -> None:
        if self._done is None:
            return
        self._drop_socket()
        if code in SHORTAGES:
            self._answer(None)
        elif self._left:
            self._connect()
            return
        else:
            nobody = "connection refused" if code in _NOBODY_THERE else os.strerror(code)
            self._answer(ANOTHERS if self._met_another else nobody)
        self._close()

    # --- asking --------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        assert self._socket is not None
        request = request_of(self._address, self._port, self._path)
        try:
            sent = self._socket.send(request)
        except OSError as error:
            self._ended(HUNG_UP if error.errno in _BROKEN else error.strerror or str(error))
            return
        if sent < len(request):  # longer than any socket's buffer
            self._ended("its path is too long")
            return
        self._loop.unwatch(self._socket.fileno())
        self._loop.watch(self._socket.fileno(), READ, self._readable)

    def _readable(self, _events: int) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(_PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._ended(HUNG_UP if error.errno in _BROKEN else error.strerror or str(error))
            return
        self._count += len(data)
        if self._done is not None:
            self._heard += data
            self._judge()
        if not data:
            self._ended(HUNG_UP)
        elif self._count >= _LISTENED_BYTES:
            self._ended(NO_STATUS)

    def _judge(self) -> None:
        said = verdict(bytes(self._heard))
        if said == NOT_HTTP:
            self._ended(said)
        elif said is not None:
            self._answer(said)

    # --- ending --------------------------------------------------------------------------------------------

    def _too_late(self) -> None:
        self._ended(f"no answer within {self._timeout_s:g} s")

    def _ended(self, problem: str) -> None:
        self._answer(problem)
        self._close()

    def _answer(self, problem: str | None) -> None:
        if (done := self._done) is not None:
            self._done = None
            self._heard.clear()
            self._loop.guarded(done, problem, self._address)

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._drop_socket()

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None


_BROKEN = (errno.ECONNRESET, errno.EPIPE)
_NOBODY_THERE = (errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EAFNOSUPPORT)
