"""Who may come in: takes connections from the agent's socket, so many of each user and so many in all.

Every user of the machine may knock at a root agent, and every job of its owner at any other's. `server` is handed those
that said who they are. Silent ones take places of their own, of which the oldest is given up for the newest: whoever
says at once what it wants, as the daemon and `srun` do, is always heard.

Invariant: however many connections a user makes, those of others and the daemon's are taken, and no turn of the loop is
spent on accepting alone; nor do silent connections, of however many uids, take all descriptors. Whose agent lives finds
its socket, also where the file was removed.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Callable

from bireme.agent.connections import Greeting
from bireme.agent.messages import protocol
from bireme.agent.messages.protocol import Message
from bireme.agent.system import descriptors
from bireme.agent.system.loop import READ, Loop

log = logging.getLogger("bireme.agent")

_SILENT = 32
"""Connections of one user that may not have said yet who they are ..."""
_SILENT_SHARE = 8
"""... and all users' together are at most this part of those that have: one person may have thousands of uids."""
_MOST = 4096
"""Users' connections in all, where the machine gives that many descriptors."""
_SHARE = 4
"""One user may have this part of them."""
_ACCEPTS_A_TURN = 16
_BACKLOG = 1024
_BACK_OFF_S = 0.2
_LOOK_S = 2.0
"""How often the agent looks whether its socket is still where others look for it."""

Greeted = Callable[[socket.socket, int, Message, bytes], bool]
"""(connection, its uid, its hello, what came after it); whether it counts as one of that user's from now on."""


class Door:
    """Listens at `path`. A connection that was let in is counted until `left` is called for it."""

    def __init__(self, loop: Loop, path: str, greeted: Greeted) -> None:
        self._loop = loop
        self._greeted = greeted
        self._inside: dict[int, int] = {}
        """By uid: connections that said who they are and stayed, the daemon's left out."""
        self._silent: dict[int, list[Greeting]] = {}
        """By uid, the oldest first."""
        self._all_silent: dict[Greeting, None] = {}
        """The same of all, the oldest first."""
        self.most = max(8, min(_MOST, (descriptors.limit() - descriptors.RESERVED) // 2))
        self.most_of_one = max(4, self.most // _SHARE)
        self.most_silent = max(_SILENT, self.most // _SILENT_SHARE)
        self._path = path
        self._listener, self._place = _listen(path)
        self._complained = False
        self._loop.watch(self._listener.fileno(), READ, self._accept)
        self._loop.call_later(_LOOK_S, self._look)

    def full_for(self, uid: int) -> str:
        """Why this user's newest connection, which is counted already, is one too many; empty when it is not."""
        if self._inside.get(uid, 0) > self.most_of_one:
            return f"Too many connections: user {uid} has {self.most_of_one} of them to this node's agent already"
        if sum(self._inside.values()) > self.most:
            return f"Too many connections: this node's agent has {self.most} of them already"
        return ""

    @property
    def is_empty(self) -> bool:
        """Whether no user's connection is inside."""
        return not self._inside

    def left(self, uid: int) -> None:
        self._inside[uid] -= 1
        if not self._inside[uid]:
            del self._inside[uid]

    def _look(self) -> None:
        """Somebody may have removed the socket's file: who comes later would find no agent, though it holds jobs."""
        self._loop.call_later(_LOOK_S, self._look)
        if protocol.place_of(self._path) == self._place:
            return
        try:
            listener, self._place = _listen(self._path)
        except OSError as error:  # the whole folder may be gone
            if not self._complained:
                log.error("the socket %s was removed and cannot be made again: %s", self._path, error)
            self._complained = True
            return
        log.warning("the socket %s was removed: it is made again", self._path)
        self._complained = False
        before, self._listener = self._listener, listener
        self._loop.unwatch(before.fileno())
        before.close()
        self._listen_again()

    def _accept(self, _events: int) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:  # no descriptor or memory left: to try at once again would find the same
                log.error("no connection can be taken for now: %s", error)
                self._loop.unwatch(self._listener.fileno())
                self._loop.call_later(_BACK_OFF_S, self._listen_again)
                return
            connection.setblocking(False)
            self._greet(connection)

    def _listen_again(self) -> None:
        self._loop.watch(self._listener.fileno(), READ, self._accept)

    def _greet(self, connection: socket.socket) -> None:
        uid = peer_uid(connection)
        if len(self._silent.get(uid, ())) >= _SILENT:
            self._silent[uid][0].give_up()
        elif len(self._all_silent) >= self.most_silent:
            next(iter(self._all_silent)).give_up()
        greeting = Greeting(
            self._loop,
            connection,
            lambda greeting, *said: self._take(greeting, uid, *said),
            lambda greeting: self._forget(greeting, uid),
        )
        self._silent.setdefault(uid, []).append(greeting)
        self._all_silent[greeting] = None

    def _take(self, greeting: Greeting, uid: int, connection: socket.socket, hello: Message, rest: bytes) -> None:
        self._forget(greeting, uid)
        self._inside[uid] = self._inside.get(uid, 0) + 1  # before it can end, which may be at once
        stays = False
        try:
            stays = self._greeted(connection, uid, hello, rest)
        finally:
            if not stays:
                self.left(uid)

    def _forget(self, greeting: Greeting, uid: int) -> None:
        self._all_silent.pop(greeting, None)
        silent = self._silent.get(uid, [])
        if greeting in silent:
            silent.remove(greeting)
        if not silent:
            self._silent.pop(uid, None)


def _listen(path: str) -> tuple[socket.socket, tuple[int, int] | None]:
    """A listening socket at `path`, and its place. Raises OSError."""
    # As root, any user's srun may knock: what it may attach to is told by the step's key and its uid.
    listener = protocol.listen_at(path, _BACKLOG, for_everyone=os.geteuid() == 0)
    return listener, protocol.place_of(path)


def peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
