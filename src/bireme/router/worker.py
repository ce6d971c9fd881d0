"""A worker: one process with one loop, that answers on its own socket of the shared port.

The supervisor starts it with the descriptors it needs and talks to it over a pair of sockets (`inner`). Here is what
its connections have together: the table as it goes by it, who may connect, times, what is told. `client_side` and
`replica_side` are the connections.

Invariant: it goes on when the supervisor dies, with the table that it has, until the next one finds it (`succession`)
or the folder stays away; what it counted is told once a second, before that at its end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import ssl
import time
from collections import Counter
from math import floor
from typing import cast

import uvloop

from bireme.agent.messages.protocol import place_of
from bireme.agent.system.listeners import NOBODY, SocketOwners
from bireme.router import inner, succession
from bireme.router.backends import Backend, Served
from bireme.router.board import Board, mapped
from bireme.router.client_side import ClientSide
from bireme.router.inner import Start
from bireme.router.listening import tls
from bireme.router.messages import ANYBODY, Table
from bireme.router.replica_side import ReplicaSide
from bireme.router.rules import rewriting
from bireme.router.rules.addresses import Directory
from bireme.router.rules.tally import Tally
from bireme.router.turns import Turns

log = logging.getLogger("bireme.router")

_LOOK_S = 0.5
_SECOND_S = 1.0
_AVOID_S = 1.0
"""So long a replica that could not be connected to is not chosen if there is another."""
_ATTEMPTS = 3
"""One attempt to connect takes at most this part of the time for all."""
_KEPT = 10
"""One of so many connections is kept for services whose owners have less than their share of all."""
_SHARE = 4
"""What the services of one owner may have in a crowd: one connection of so many."""
_RESERVED = 64
_BLOCKS_REMEMBERED = 1024
_BACKLOG = 4096
_USER_TIMEOUT_MS = 15_000
_GOODBYE_S = 0.5
_HANDSHAKE_S = 60.0
"""For the handshake of TLS."""
_LETS_GO_S = 0.05
"""So long its servers and its supervisor may take to close their copies of a listening socket."""
_PLACE_S, _PLACE_ALONE_S = 2.0, 0.2
"""Between looks whether the next supervisor would find it; while it has none, more often."""
_HOMELESS_LOOKS = 50
"""So many of the latter in a row without a folder, and nobody is expected any more."""


class Worker:
    """One worker process of the router, with all that the connections in it share."""

    def __init__(self, start: Start, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = start.settings
        self.loop = loop
        self.turns = Turns(loop)
        rows = len(start.kicks)
        self.board = Board(mapped(start.memory, rows), rows, start.row)
        self.directory: Directory[Served] = Directory(())
        self.is_draining = False
        """Answers are the last ones of their connections; nobody new is taken."""
        self._is_hurried = False
        """Unused connections end at once."""
        self.is_busy = False
        """Something is to be told that is not in a tally."""
        self.held_bytes = 0
        """Of bodies that wait for a replica, or for the word that says which."""
        self.unread = 0
        """Requests whose heads were refused: nobody knows for which service they were."""
        self.clients: dict[ClientSide, None] = {}
        """The oldest first."""
        self._owners = SocketOwners()
        self._blocks: dict[tuple[str, bytes, bytes, bytes], bytes] = {}
        self._by_holder: Counter[str] = Counter()
        self._services: dict[str, Served] = {}
        self._leaving: list[Served] = []
        """Not in the table any more, with requests in flight."""
        self._start = start
        self._table, self._cells = Table(serial=0), dict[str, int]()
        self._is_looking = self._is_listening = False
        self._told_at = time.monotonic()
        self._has_told = False
        """In the latest message about loads was something: when there is no more, that is told too."""
        self._is_at_rest = True
        """All is told, and nothing has come since."""
        self._listeners = start.listeners
        limit = (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _RESERVED) // 2
        self._most = max(1, min(-(-self.settings.most_connections // start.workers), limit))
        self._crowd = self._most - self._most // _KEPT
        self._most_of_one = max(1, min(-(-self.settings.most_of_one // start.workers), self._most))
        self._channel: asyncio.Transport | None = None
        self._servers: list[asyncio.Server] = []
        self._tls: ssl.SSLContext | None = None
        self._arriving: dict[ClientSide, float] = {}
        """Taken from the socket, and not yet among the clients: since when. Until their handshake is over, with TLS."""
        self._meeting_path = succession.meeting_path(self.settings.home, start.row)
        self._meeting: socket.socket | None = None
        """From `run` on."""
        self._place = place_of(self._meeting_path)
        self._homeless = 0
        self._looking: asyncio.TimerHandle | None = None
        self.done: asyncio.Future[None] = loop.create_future()

    async def run(self) -> None:
        await self._speak_over(socket.socket(fileno=self._start.channel))
        kick = self._start.kicks[self._start.row]
        self.loop.add_reader(kick, self._kicked, kick)
        self._meet_at(socket.socket(fileno=self._start.meeting))
        self._look_for_place()
        await self.done

    async def listen(self) -> None:
        """From the first table on: before it nobody could be answered."""
        self._tls = context = tls(self._start.certificate)
        for fd in self._listeners:
            listener = socket.socket(fileno=os.dup(fd))  # the first one is kept, to be handed over
            server = await self.loop.create_server(
                self._arrived, sock=listener, backlog=_BACKLOG, ssl=context, start_serving=True,
                ssl_handshake_timeout=_HANDSHAKE_S if context is not None else None,
            )  # fmt: skip
            self._servers.append(server)
            if self.is_draining:
                self._close_servers()
                break

    # --- the supervisor ---

    def attach(self, channel: asyncio.Transport) -> None:
        before, self._channel = self._channel, channel
        if before is not None:
            before.abort()

    def detach(self, channel: asyncio.Transport) -> None:
        """That supervisor is gone. Requests go on, and the next one will come."""
        if self._channel is channel:
            self._channel = None
            log.warning("worker %d: the supervisor is gone; serving on until the next one comes", self._start.row)
            self._look_for_place()

    def _look_for_place(self) -> None:
        """Sees to it that the next supervisor finds this worker; without one, ends where none will come: the folder is
        away for long, or another worker is in its place."""
        if self.done.done():
            return
        found, is_alone = place_of(self._meeting_path), self._channel is None
        if found is None:
            self._make_place()
        self._homeless = self._homeless + 1 if is_alone and place_of(self._meeting_path) is None else 0
        if is_alone and (self._homeless > _HOMELESS_LOOKS or found not in (None, self._place)):
            log.error("worker %d: %s is gone, nobody will come: ending", self._start.row, self._meeting_path)
            self.drain(self.settings.drain_s)
            return
        if self._looking is not None:
            self._looking.cancel()
        self._looking = self.loop.call_later(_PLACE_ALONE_S if is_alone else _PLACE_S, self._look_for_place)

    def _make_place(self) -> None:
        """Its socket again, where the folder is there: that is its supervisor's to make."""
        try:
            made = succession.meeting_socket(self.settings.home, self._start.row)
        except OSError:
            return
        self._meet_at(made)
        log.warning("worker %d: %s was gone, and is there again", self._start.row, self._meeting_path)

    def _meet_at(self, made: socket.socket) -> None:
        if self._meeting is not None:
            self.loop.remove_reader(self._meeting.fileno())
            self._meeting.close()
        self._meeting, self._place = made, place_of(self._meeting_path)
        self.loop.add_reader(made.fileno(), self._met, made)

    def _met(self, meeting: socket.socket) -> None:
        """Somebody holds the folder's lock who is not the supervisor that this one had."""
        try:
            connection, _ = meeting.accept()
        except OSError:
            return
        if succession.peer_uid(connection) not in (0, os.geteuid()):
            connection.close()
            return
        try:
            succession.hand_over(connection, self._start, meeting.fileno(), () if self.is_draining else self._listeners)
        except OSError:
            connection.close()
            return
        connection.setblocking(False)
        handed = inner.line(inner.Handed(self._start, os.getpid(), self._table, self._cells, self.is_draining))
        self.loop.create_task(self._speak_over(connection, handed))

    async def _speak_over(self, connection: socket.socket, first: bytes = b"") -> None:
        await self.loop.create_connection(lambda: _Channel(self, first), sock=connection)

    def obey(self, line: bytes) -> None:
        order = inner.to_worker.decode(line)
        if isinstance(order, inner.Drain):
            self.drain(order.limit_s)
        elif isinstance(order, inner.Ask):
            self.tell(inner.Lives())
        else:
            self.board.look_at(order.rows)
            self._apply(order.table, order.cells)
            self.tell(inner.Applied(order.table.serial))

    def tell(self, message: inner.FromWorker) -> None:
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write(inner.line(message))

    def _apply(self, table: Table, cells: dict[str, int]) -> None:
        before, self._services = self._services, {}
        for service in table.services:
            served = before.pop(service.name, None)
            if served is None:
                served = Served(service, cells, self.board)
            else:
                served.change(service, cells)
            self._services[service.name] = served
        self._remove(before)
        self._table, self._cells = table, cells
        self.directory = Directory(self._services.values())
        for client in [each for each in self.clients if each.backend is not None and each.backend.state == "gone"]:
            client.left_behind()
        for served in list(self._services.values()):
            self._pump(served)
            for backend in list(served.backends.values()):
                self._tell_quiet(backend)
        if table.serial and not self._is_listening and not self.is_draining:
            self._is_listening = True
            self.loop.create_task(self.listen())

    def _remove(self, services: dict[str, Served]) -> None:
        """Services that are not in the table any more: what is in flight goes on, what waits is told."""
        for served in services.values():
            served.remove()
            self._leaving.append(served)
            for request in list(served.waiting):
                cast(ClientSide, request).unwanted()

    def drain(self, limit_s: float) -> None:
        """Takes no more connections, and ends after the last. With a limit the unused ones end now, all others then."""
        if not self.is_draining:
            self.is_draining = True
            self._close_servers()
            self.loop.call_later(_HANDSHAKE_S, self._end_if_empty)
        if limit_s and not self._is_hurried:
            self._is_hurried = True
            for client in list(self.clients):
                client.drain()
            self.loop.call_later(limit_s, self._end_tunnels)
        self._end_if_empty()

    def _close_servers(self) -> None:
        """Others may have their sockets, and take what comes there. If nobody has, what waits in one would be reset
        with it: so it is taken, a moment later, when the servers have let go and this worker's is the last."""
        for server in self._servers:
            server.close()
        self.loop.call_later(_LETS_GO_S, self._close_listeners)

    def _close_listeners(self) -> None:
        fds, self._listeners = self._listeners, ()
        for fd in fds:
            with socket.socket(fileno=fd) as listener:
                if self._is_listening:
                    self._take_all(listener)
        self._end_if_empty()

    def _take_all(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # none waits; or it has left meanwhile, or there are no descriptors any more
                return
            connection.setblocking(False)
            self.loop.create_task(self._take(self._arrived(), connection))

    async def _take(self, client: ClientSide, connection: socket.socket) -> None:
        limit = _HANDSHAKE_S if self._tls is not None else None
        try:
            await self.loop.connect_accepted_socket(
                lambda: client, connection, ssl=self._tls, ssl_handshake_timeout=limit
            )
        except OSError:  # those of TLS are such
            self._arriving.pop(client, None)
            connection.close()
            self._end_if_empty()

    def _end_tunnels(self) -> None:
        """The time is over; who has a WebSocket is told so, and has a moment to take it."""
        for client in list(self.clients):
            client.end_tunnel("The router ends.")
        self.loop.call_later(_GOODBYE_S, self._end)

    def _end_if_empty(self) -> None:
        self._forget_strays()
        if self.is_draining and not (self.clients or self._arriving or self._listeners):
            self._end()

    def _end(self) -> None:
        self._tell_load()
        if not self.done.done():
            self.done.set_result(None)

    # --- who may connect ---

    def _arrived(self) -> ClientSide:
        self._forget_strays()
        client = ClientSide(self)
        self._arriving[client] = client.since
        return client

    def _forget_strays(self) -> None:
        """Nobody tells of those whose handshake has failed."""
        while self._arriving and self.now - next(iter(self._arriving.values())) >= _HANDSHAKE_S:
            del self._arriving[next(iter(self._arriving))]

    def enter(self, client: ClientSide) -> None:
        self._arriving.pop(client, None)
        self._look_on()
        if self._by_holder[client.holder] >= self._most_of_one:
            self._make_room(client, client.holder)
        elif len(self.clients) >= self._most:
            self._make_room(client, "")
        self.clients[client] = None
        self._by_holder[client.holder] += 1
        if self._is_hurried:
            client.drain()

    def holder_of(self, client: ClientSide, transport: asyncio.BaseTransport) -> str:
        """Whose this connection is: its user's where he is on this machine, which has addresses for everybody; else
        its address's, of IPv6 its network's."""
        if client.is_local:
            mine, other = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
            uid = self._owners.of_other_end(mine[:2], other[:2]) if mine and other else None
            return "this machine" if uid in (None, NOBODY) else f"user {uid}"
        if ":" in client.peer and "." not in client.peer:
            return socket.inet_pton(socket.AF_INET6, client.peer.partition("%")[0])[:8].hex(":", 2)
        return client.peer

    @property
    def is_crowded(self) -> bool:
        """The connections that are left are kept for those who have few."""
        return len(self.clients) > self._crowd

    def has_its_share(self, served: Served) -> bool:
        """Whether the services of this one's owner have as many connections as they may have in a crowd."""
        owner = served.spec.uid
        own = [each for each in self._services.values() if each.spec.uid == owner] if owner != ANYBODY else [served]
        return sum(each.held for each in own) >= self._most // _SHARE

    def _make_room(self, client: ClientSide, holder: str) -> None:
        """The oldest without a request makes way, of this holder or of all; where there is none, the new one goes."""
        for each in self.clients:
            if each.is_unused and holder in ("", each.holder):
                each.abort()
                return
        client.turn_away()

    def leave(self, client: ClientSide) -> None:
        del self.clients[client]
        self._by_holder[client.holder] -= 1
        if not self._by_holder[client.holder]:
            del self._by_holder[client.holder]
        if self.is_draining:
            self._end_if_empty()

    def block(self, peer: str, proto: bytes, host: bytes, prefix: bytes) -> bytes:
        """Of `rewriting.forwarded`; the same object for the same words, so that heads can be told to be the same."""
        words = (peer, proto, host, prefix)
        found = self._blocks.get(words)
        if found is None:
            if len(self._blocks) >= _BLOCKS_REMEMBERED:
                self._blocks.clear()
            found = self._blocks[words] = rewriting.forwarded(peer.encode(), proto, host, prefix)
        return found

    def lets_in(self, client: ClientSide) -> bool:
        """Whether this client may know which services there are."""
        return client.is_local or any(served.keys for served in self.directory.services)

    # --- replicas ---

    def connect(self, backend: Backend, client: ClientSide) -> asyncio.Task[None]:
        return self.loop.create_task(self._connect(backend, client))

    async def _connect(self, backend: Backend, client: ClientSide) -> None:
        limit = client.served.spec.timeouts.connect_s / _ATTEMPTS
        try:
            async with asyncio.timeout(limit or None):
                transport, made = await self.loop.create_connection(
                    lambda: ReplicaSide(self, backend), backend.host, backend.port
                )
        except OSError as error:
            backend.avoid_until = time.monotonic() + _AVOID_S
            client.unconnected(backend, _why(error))
            return
        if self._is_anothers(backend, transport):
            transport.abort()
            backend.avoid_until = time.monotonic() + _AVOID_S
            client.unconnected(backend, "another user's program listens on its port")
            return
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        backend.avoid_until = 0.0
        client.connected(made)

    def _is_anothers(self, backend: Backend, transport: asyncio.BaseTransport) -> bool:
        """Whether somebody has taken the replica's port, who is to see no request. Root is trusted: a container's
        port may be its."""
        if backend.uid == ANYBODY:
            return False
        mine, other = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        if not mine or not other:  # it has ended already
            return False
        return self._owners.is_anothers(mine[:2], other[:2], {0, os.geteuid(), backend.uid})

    def ended_on(self, backend: Backend, now: float) -> None:
        """A request on it has ended: there is room for another."""
        backend.end(now)
        served = backend.served
        if backend.state != "ready":
            self._tell_quiet(backend)
        if served.waiting or (served.limit and self.board.is_shared):
            self._pump(served)

    def _pump(self, served: Served, *, alone: bool = False) -> None:
        other = served.pump(alone=alone)
        if other is not None:
            os.eventfd_write(self._start.kicks[other], 1)

    def _kicked(self, fd: int) -> None:
        os.eventfd_read(fd)
        for served in list(self._services.values()):
            if served.waiting:
                self._pump(served)

    # --- what is told ---

    def tell_wait(self, served: Served) -> None:
        if not served.has_told_wait:
            served.has_told_wait = True
            self.tell(inner.Waits(served.name))

    def tell_trouble(self, backend: Backend, why: str, *, is_down: bool = True) -> None:
        now = time.monotonic()
        if is_down:
            backend.avoid_until = now + _AVOID_S
        if backend.state == "ready" and now - backend.told_trouble > 1.0:
            backend.told_trouble = now
            self.tell(inner.Broke(backend.served.name, backend.id, why))

    def _tell_quiet(self, backend: Backend) -> None:
        if backend.state != "ready" and not backend.in_flight and not backend.quiet_told:
            backend.quiet_told = True
            self.tell(inner.Quiet(backend.served.name, backend.id))

    def _tell_load(self) -> None:
        """Once a second; all workers at about the same moment."""
        now = time.monotonic()
        seconds, self._told_at = now - self._told_at, now
        parts = []
        for served in (*self._services.values(), *self._leaving):
            parts += _parts_of(served, now)
        self._leaving = [each for each in self._leaving if not each.is_over]
        if parts or self.is_busy or self.unread or self._has_told:
            self._has_told = bool(parts)
            self.is_busy = False
            self.tell(inner.Did(parts, seconds, len(self.clients), self.unread))
            self.unread = 0

    def _tell_rest(self) -> None:
        """Nobody is connected any more: what there is to tell, until there is nothing."""
        if not self._is_looking:
            self._tell_load()
            self._is_at_rest = not self._has_told
            if self._has_told:
                self.loop.call_later(_SECOND_S, self._tell_rest)

    # --- times ---

    @property
    def now(self) -> float:
        """When what happens now began, for limits. Exact: looks come late, and so may a limit, which is never early."""
        return time.monotonic()

    def _look_on(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            now = time.monotonic()
            if self._is_at_rest:  # nothing was there in the seconds without a look
                self._told_at, self._is_at_rest = max(self._told_at, floor(now)), False
            self.loop.call_later(_LOOK_S - now % _LOOK_S, self._look)

    def _look(self) -> None:
        """At every connection, while there are any."""
        now = time.monotonic()
        for client in list(self.clients):
            client.look(now)
        for served in list(self._services.values()):
            if served.waiting:
                self._pump(served, alone=True)
            for backend in served.backends.values():
                self._close_idle(backend)
        if now // _SECOND_S != self._told_at // _SECOND_S and now - self._told_at >= _LOOK_S:
            self._tell_load()
        self._is_looking = False
        if self.clients or any(
            backend.idle for served in self._services.values() for backend in served.backends.values()
        ):
            self._look_on()
        else:
            self.loop.call_later(_SECOND_S, self._tell_rest)

    def _close_idle(self, backend: Backend) -> None:
        """Unused connections: their replica may be about to close them."""
        while backend.idle and self.now - backend.idle[0].idle_since > self.settings.replica_idle_s:
            backend.idle[0].close()


def _parts_of(served: Served, now: float) -> list[inner.Part]:
    parts = []
    waited = served.waited.take(now)
    if waited or served.waiting or served.tally or served.arrived or served.refused:
        parts.append(inner.Part(served.name, "", served.tally, waited, served.arrived, served.refused))
        served.tally, served.arrived, served.refused = Tally(), 0, 0
    for backend in list(served.backends.values()):
        area = backend.take_area(now)
        if area or backend.in_flight or backend.tally:
            parts.append(inner.Part(served.name, backend.id, backend.tally, area))
            backend.tally = Tally()
        served.forget_if_gone(backend)
    return parts


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return error.strerror or str(error)


class _Channel(asyncio.Protocol):
    """The worker's end of what it shares with the supervisor. `first`: what is said before all else."""

    def __init__(self, worker: Worker, first: bytes) -> None:
        self._worker = worker
        self._first = first
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._first:
            self._transport.write(self._first)
        self._worker.attach(self._transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._worker.obey(line)

    def connection_lost(self, exc: Exception | None) -> None:
        self._worker.detach(self._transport)


def run(start: Start) -> None:
    """Until it is told to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the supervisor
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def main() -> None:
        await Worker(start, asyncio.get_running_loop()).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
