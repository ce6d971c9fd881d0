"""The agent's ends of its connections, below the meaning of what is said on them.

`Greeting` reads a new connection's first line and hands the connection on; `DaemonConnection` speaks lines with
the daemon. Streams have their own (`streams.StreamClient`). `door` decides who may come in.

Invariant: writes are gathered and sent once per turn of the loop; a peer that does not read delays nobody else.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable

from bireme.agent.messages import protocol
from bireme.agent.messages.lines import decode_line, encode_typed
from bireme.agent.messages.protocol import Message
from bireme.agent.messages.told import Trouble
from bireme.agent.system.loop import READ, WRITE, Loop

log = logging.getLogger("bireme.agent")

_GREETING_S = 10.0
_MAX_GREETING = 8192
"""A hello's line; hundreds of connections may hold one that is not finished."""
_GREETING_PIECE = 4096
_ORDERS_A_TURN = 8


class Greeting:
    """A connection that has not said who it is. `done` gets it with its hello; `over` is told when it never will."""

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        done: Callable[[Greeting, socket.socket, Message, bytes], None],
        over: Callable[[Greeting], None],
    ) -> None:
        self._loop = loop
        self._socket = connection
        self._done = done
        self._over = over
        self._data = b""
        self._timer = loop.call_later(_GREETING_S, self.give_up)
        loop.watch(connection.fileno(), READ, self._readable)

    def _readable(self, _events: int) -> None:
        try:
            data = self._socket.recv(_GREETING_PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._data += data
        line, newline, rest = self._data.partition(b"\n")
        if not data or (not newline and len(self._data) > _MAX_GREETING):
            self.give_up()
        elif newline:
            self._take(line, rest)

    def _take(self, line: bytes, rest: bytes) -> None:
        self._timer.cancel()
        self._loop.unwatch(self._socket.fileno())
        try:
            hello = decode_line(line)
            self._done(self, self._socket, hello, rest)
        except (protocol.ProtocolError, TypeError, ValueError) as error:
            log.warning("a connection said no proper hello: %s", error)
            self._socket.close()
            self._over(self)

    def give_up(self) -> None:
        self._timer.cancel()
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._over(self)


class DaemonConnection:
    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        obey: Callable[[bytes], None],
        gone: Callable[[DaemonConnection], None],
    ) -> None:
        self._loop = loop
        self._socket = connection
        self._obey = obey
        self._gone = gone
        self._splitter = protocol.LineSplitter()
        self._outgoing = bytearray()
        self._backlog: deque[bytes] = deque()
        self._blocked = False
        loop.watch(connection.fileno(), READ, self._ready)

    def send(self, line: bytes) -> None:
        self._outgoing += line

    def flush(self) -> None:
        if not self._outgoing or self._blocked or self._socket.fileno() < 0:
            return
        try:
            while self._outgoing:
                del self._outgoing[: self._socket.send(self._outgoing)]
        except BlockingIOError:
            self._blocked = True
            self._loop.rewatch(self._socket.fileno(), READ | WRITE)
        except OSError:
            self.close()

    def receive(self, data: bytes) -> None:
        try:
            lines = self._splitter.feed(data)
        except protocol.ProtocolError as error:
            log.error("the daemon is cut off: %s", error)
            self.close()
            return
        was_idle = not self._backlog
        self._backlog.extend(line for line in lines if line)
        if was_idle:
            self._work()

    def _work(self) -> None:
        """Some orders, then the loop's turn: what ended meanwhile must not wait until a hundred jobs are started."""
        try:
            for _ in range(_ORDERS_A_TURN):
                if self._backlog:  # an order may find the connection closed
                    self._take(self._backlog.popleft())
        finally:  # one that fails in a way nobody foresaw holds up none of the others
            if self._backlog:
                self._loop.call_later(0.0, self._work)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._backlog.clear()  # whoever comes next says what is still to be done
            self._gone(self)

    def _take(self, line: bytes) -> None:
        try:
            self._obey(line)
        except protocol.ProtocolError as error:
            log.error("a bad line from the daemon: %s", error)
            self.send(encode_typed(Trouble(str(error))))

    def _ready(self, events: int) -> None:
        if events & WRITE and self._blocked:
            self._blocked = False
            self._loop.rewatch(self._socket.fileno(), READ)
            self.flush()
        if not events & ~WRITE or self._socket.fileno() < 0:
            return
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.receive(data)
        else:
            self.close()
