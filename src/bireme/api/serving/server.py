"""Serving the app on a unix socket, with uvicorn's HTTP protocol and none of its process management.

The daemon has one event loop and its own signals; of uvicorn only the parser and the ASGI cycle are needed.
Invariant: whoever calls `listen` holds the daemon's lock, so a socket file that is already there is a leftover.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from bireme.agent.messages.protocol import listen_at, place_of
from bireme.api.serving.crowd import RESERVED_FILES, Crowd, Limits
from bireme.api.serving.door import Door
from bireme.api.serving.peers import Peer, peer_of
from bireme.api.serving.protocol import TOO_MANY_AT_ONCE, CrowdProtocol, refusal
from bireme.api.serving.socket_transport import READ_BYTES, SocketTransport
from bireme.api.serving.turns import FEW, Turns

log = logging.getLogger(__name__)

_BACKLOG = 32
"""Whom the kernel keeps in one row, whoever they are: few, since the door sorts them by user. Who connects and closes
in a loop keeps the row full, and everybody stands behind all of it. Those for whom there is no place in it wait one
after another: beside one such, as one of two."""
_GOODBYE_S = 5.0
_LOOK_S = 2.0
"""How often the daemon looks whether its socket is still where commands look for it."""


def listen(path: str, *, for_everyone: bool) -> socket.socket:
    """A listening socket at `path`, private to its owner unless `for_everyone` (root's daemon: credentials decide)."""
    return listen_at(path, _BACKLOG, for_everyone=for_everyone)


def _file_limit(wanted: int) -> int:
    """As many descriptors as this process may have, `wanted` if it can be: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


class Server:
    """Accepts connections from `start` until `stop`."""

    def __init__(
        self,
        app: Any,
        *,
        keep_alive_s: int = 75,
        limits: Limits | None = None,
        turns: Turns | None = None,
    ) -> None:
        """`turns`: those that requests take on the loop; who has many of them is let in more rarely."""
        asked = limits or Limits()
        self.crowd = Crowd(asked.within(_file_limit(asked.connections + asked.at_door + RESERVED_FILES)))
        self._config = uvicorn.Config(
            app,
            http=CrowdProtocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=keep_alive_s,
        )
        self._state = ServerState()
        self._turns = turns or Turns()
        self._door = Door(
            self._let_in, refusal(*TOO_MANY_AT_ONCE), self.crowd.limits.at_door, self._comes_at_once, self._turns.seen
        )

    async def start(self, sock: socket.socket) -> None:
        self._config.load()
        self._door.open(sock)

    async def stay_at(self, path: str, *, for_everyone: bool, is_ours: Callable[[], bool] = lambda: True) -> None:
        """Makes the socket again when its file was removed, until cancelled: commands would find no daemon, and a new
        one cannot be started while this one lives. Not where the folder is another's by now (`is_ours`)."""
        place, complained = place_of(path), False
        while True:
            await asyncio.sleep(_LOOK_S)
            if place is not None and place_of(path) == place:
                continue
            if not is_ours():
                continue
            try:
                listener = listen(path, for_everyone=for_everyone)
            except OSError as error:  # the whole folder may be gone
                if not complained:
                    log.error("the socket %s was removed and cannot be made again: %s", path, error)
                complained = True
                continue
            log.warning("the socket %s was removed: it is made again", path)
            place, complained = place_of(path), False
            self._door.move(listener)

    def _comes_at_once(self, uid: int) -> bool:
        return len(self.crowd.by_uid.get(uid, ())) < FEW or self._turns.is_light(uid)

    def _let_in(self, sock: socket.socket, uid: int) -> None:
        """Whatever happens to one, the others are let in."""
        try:
            self.adopt(sock, peer_of(sock))
        except Exception:
            log.exception("a connection of uid %d could not be served", uid)
            sock.close()

    def adopt(self, sock: socket.socket, peer: Peer) -> None:
        """Serves a connection that somebody else accepted and checked; it counts as `peer`'s."""
        sock.setblocking(False)
        first = _already_said(sock)
        if first is None:
            sock.close()
            return
        protocol = self._protocol()
        protocol.known_peer = peer
        SocketTransport(sock, protocol, partial(self._turns.puts_off, peer.uid)).begin(first)

    def _protocol(self) -> CrowdProtocol:
        protocol = CrowdProtocol(config=self._config, server_state=self._state, app_state={})
        protocol.crowd, protocol.limits = self.crowd, self.crowd.limits
        return protocol

    async def stop(self) -> None:
        """No new connections; requests under way get a moment to finish."""
        self._door.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            _, late = await asyncio.wait(list(self._state.tasks), timeout=_GOODBYE_S)
            for task in late:
                task.cancel()


def _already_said(sock: socket.socket) -> bytes | None:
    """What the other side has sent by now, mostly its whole request; None: it has left."""
    try:
        return sock.recv(READ_BYTES) or None
    except (BlockingIOError, InterruptedError):
        return b""
    except OSError:
        return None
