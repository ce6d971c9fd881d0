"""Who is on the other end of the socket: the kernel's word, not the request's.

`PeerProtocol` puts the credentials of the connected process into each request's scope; `Callers` makes a `Caller` of
them: the groups of its process, and those that the group database gives its user, as Slurm does for jobs and for
AllowGroups. Invariant: nothing a client sends can change who it is taken for. A connection that comes from another
machine is handed over by whoever checked it, together with its `Peer`.
"""

from __future__ import annotations

import _socket
import asyncio
import ctypes
import errno
import grp
import os
import pwd
import socket
import struct
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bireme.api.serving.turns import Slots
from bireme.core.model.jobs import Owner
from bireme.core.model.refusals import Caller

SCOPE_KEY = "bireme.peer"
TRANSPORT_KEY = "bireme.transport"
WITHIN_KEY = "bireme.within"
"""Set for a request that a command puts from within the daemon (`api/routes/commands.py`)."""
_SO_PEERGROUPS = 59
_CALLER_KEY = "bireme.caller"
_CREDENTIALS = struct.Struct("3i")
_PYTHONS_LIMIT = 1024
"""Bytes that Python's getsockopt takes at most, whatever an option may hold."""
_MOST_GROUPS = 65_536  # NGROUPS_MAX
_KNOWN_S = 60.0
_ASKING = 4
"""Questions to the user database at a time; one user leaves one of them to others."""

Answer = TypeVar("Answer")

_Credentials = tuple[int, int, tuple[int, ...]]
"""uid, gid, supplementary groups: what names are asked for."""


@dataclass(frozen=True, slots=True)
class Peer:
    uid: int
    gid: int
    pid: int
    groups: tuple[int, ...] = ()
    job_id: int = 0
    """A process inside this job, on another machine: it may change nothing but its job. 0: no such limit."""


def uid_of(sock: _socket.socket) -> int:
    """Who connected, and nothing else: a third of what `peer_of` costs."""
    uid: int = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
    return uid


def peer_of(sock: socket.socket) -> Peer:
    pid, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(uid, gid, pid, _groups_of(sock))


def _groups_of(sock: socket.socket) -> tuple[int, ...]:
    """The supplementary groups of the connected process."""
    try:
        packed = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _PYTHONS_LIMIT)
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:  # before Linux 4.13
            return ()
        if error.errno != errno.ERANGE:
            raise
        packed = _long_option(sock, _SO_PEERGROUPS, 4 * _MOST_GROUPS)
    return struct.unpack(f"{len(packed) // 4}I", packed)


def _long_option(sock: socket.socket, option: int, most_bytes: int) -> bytes:
    """getsockopt for what is longer than Python allows. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer, length = ctypes.create_string_buffer(most_bytes), ctypes.c_uint32(most_bytes)
    if libc.getsockopt(sock.fileno(), socket.SOL_SOCKET, option, buffer, ctypes.byref(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw[: length.value]


class PeerProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which also asks the kernel who connected."""

    _peer: Peer | None = None
    known_peer: Peer | None = None
    """Set before the connection is made, for one that was checked elsewhere."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._peer = self.known_peer or peer_of(transport.get_extra_info("socket"))
        super().connection_made(transport)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[SCOPE_KEY] = self._peer  # type: ignore[literal-required]
        self.scope[TRANSPORT_KEY] = self.transport  # type: ignore[literal-required]


def is_gone(scope: Any) -> bool:
    """Whether the connection that a request came by is closed: nobody will read the answer."""
    transport = scope.get(TRANSPORT_KEY)
    return transport is not None and transport.is_closing()


async def hang_up(scope: Any) -> None:
    """Ends the connection that a request came by, whatever is still to be sent."""
    scope[TRANSPORT_KEY].abort()
    await asyncio.sleep(0)  # the protocol is told in the next turn of the loop


class Callers:
    """Names for credentials, remembered: the user database is asked once per uid and minute, and may be slow (LDAP).

    Invariants: it is never asked on the loop, and by threads of its own, so that whoever is known, and what needs no
    names, does not wait for it. When something new is remembered, what is older than a minute is forgotten.
    """

    def __init__(self, owner_uid: int, operators: frozenset[str], clock: Callable[[], float]) -> None:
        self._owner_uid = owner_uid
        self._operators = operators
        self._clock = clock
        self._known: dict[Hashable, tuple[float, Any]] = {}
        """Callers by their credentials and names by uid; the longest known first."""
        self._asked: dict[Hashable, asyncio.Future[Any]] = {}
        """What is being asked now."""
        self._threads = ThreadPoolExecutor(_ASKING, thread_name_prefix="names")
        self._slots = Slots(_ASKING, _ASKING - 1)

    async def learn(self, scope: Any) -> None:
        """Has to come before `caller`, for each request."""
        peer: Peer = scope[SCOPE_KEY]
        caller = await self._remembered(peer.uid, (peer.uid, peer.gid, peer.groups))
        scope[_CALLER_KEY] = replace(caller, admin=False) if peer.job_id and caller.admin else caller

    def caller(self, scope: Any) -> Caller:
        """Who sent this request: the same for as long as it lasts."""
        caller: Caller = scope[_CALLER_KEY]
        return caller

    async def owner(self, owner: Owner) -> Caller:
        """The owner of a job, as if they asked themselves."""
        return await self._remembered(owner.uid, (owner.uid, owner.gid, owner.groups))

    async def user_names(self, uids: Iterable[int], uid: int) -> dict[int, str]:
        """By uid; `uid` is who asks for it."""
        return {each: await self._kept(uid, each, partial(user_name, each)) for each in set(uids)}

    async def ask(self, uid: int, question: Callable[..., Answer], *arguments: Any) -> Answer:
        """Asks the databases of this machine for this user, beside the loop."""
        async with self._slots.held_by(uid):
            return await asyncio.get_running_loop().run_in_executor(self._threads, partial(question, *arguments))

    async def _remembered(self, uid: int, who: _Credentials) -> Caller:
        caller: Caller = await self._kept(uid, who, partial(self._make, *who))
        return caller

    async def _kept(self, uid: int, what: Hashable, question: Callable[[], Any]) -> Any:
        made, known = self._known.get(what, (float("-inf"), None))
        if not _is_old(made, self._clock()):
            return known
        if what not in self._asked:
            asked = asyncio.ensure_future(self._learned(uid, what, question))
            self._asked[what] = asked
            asked.add_done_callback(lambda _: self._asked.pop(what))
        return await asyncio.shield(self._asked[what])  # who gives up does not take the answer from the others

    async def _learned(self, uid: int, what: Hashable, question: Callable[[], Any]) -> Any:
        found, now = await self.ask(uid, question), self._clock()
        self._known.pop(what, None)
        self._known[what] = (now, found)  # as the last
        while _is_old(next(iter(self._known.values()))[0], now):
            del self._known[next(iter(self._known))]
        return found

    def _make(self, uid: int, gid: int, own_groups: tuple[int, ...]) -> Caller:
        user = user_name(uid)
        groups = tuple(sorted({gid, *own_groups, *groups_of_user(uid)}))
        return Caller(
            uid=uid,
            gid=gid,
            user=user,
            admin=uid in (0, self._owner_uid) or user in self._operators,
            group=group_name(gid),
            groups=groups,
            group_names=tuple(group_name(gid) for gid in groups),
        )


def _is_old(made: float, now: float) -> bool:
    """Whether an entry is out of date; what is of the future is too: the clock was set back."""
    return not 0 <= now - made <= _KNOWN_S


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def user_id(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):  # what has a NUL in it is no name
        return None


def group_id(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        return None


def groups_of_user(uid: int) -> tuple[int, ...]:
    """Groups that the databases of this machine give the user; none for one that they do not know."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return ()
    return tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))


def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
