"""An asyncio transport over a connected socket that begins at once and leaves nothing behind.

asyncio's own takes three turns of the loop before the first byte of a connection is read, and each of them may be
behind another user's slice of work; and each of its connections is a reference cycle, which the garbage collector has
to find while everybody waits. This one reads what is already there in the turn in which the connection is let in, and
is freed when it ends. Used by `server.py` alone; the protocol on it is `protocol.py`'s.

Invariants: `connection_made` comes first, `connection_lost` last and once; nothing is read after `close`, and what was
written before it is still sent.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

READ_BYTES = 64 * 1024
"""What is read in one go, and so between two looks at anything else."""
_HIGH_WATER = 64 * 1024
"""Who writes is told to pause when more than so much is unsent, and to go on at a quarter of it."""


PutsOff = Callable[[Callable[[], None]], bool]
"""Whether something is done later; it is called then (`turns.py`)."""


class SocketTransport(asyncio.Transport):
    """Carries one connection from `begin` until `connection_lost`."""

    def __init__(self, sock: socket.socket, protocol: asyncio.Protocol, puts_off: PutsOff) -> None:
        super().__init__({"socket": sock})
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._protocol: asyncio.BaseProtocol = protocol
        self._puts_off = puts_off
        self._unsent = bytearray()
        self._gathered: list[bytes] | None = None
        """What is written while it is to go out in one piece."""
        self._reading = True
        self._closing = False
        self._ended = False
        """Nothing is read nor sent any more; `connection_lost` is on its way."""
        self._low, self._high = _HIGH_WATER // 4, _HIGH_WATER
        self._writer_paused = False

    def begin(self, first: bytes) -> None:
        """Hands the connection to its protocol, and then what was already read from it."""
        self._protocol.connection_made(self)
        if self._reading and not self._closing:
            self._loop.add_reader(self._sock, self._readable)
        if first and not self._closing:
            self._hand_over(first)

    # -- reading -----------------------------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        if self.is_reading():
            self._reading = False
            self._loop.remove_reader(self._sock)

    def resume_reading(self) -> None:
        if not self._reading and not self._closing:
            self._reading = True
            self._loop.add_reader(self._sock, self._readable)

    def _readable(self) -> None:
        if self._puts_off(self._read_later):
            self._loop.remove_reader(self._sock)
        else:
            self._read()

    def _read_later(self) -> None:
        """When it was put off."""
        if self.is_reading():
            self._loop.add_reader(self._sock, self._readable)
            self._read()

    def _read(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        if data:
            self._hand_over(data)
        else:
            self.close()  # no protocol here goes on when the other side has said its last word

    def _hand_over(self, data: bytes) -> None:
        protocol = self._protocol
        assert isinstance(protocol, asyncio.Protocol)
        try:
            protocol.data_received(data)
        except Exception as error:
            self._fail(error, "what was received could not be taken")

    # -- writing -----------------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """What is written from now on goes out in one piece, when it is `let_go` or the connection is closed: a head
        and a short body that are sent one by one wake their reader twice."""
        if self._gathered is None:
            self._gathered = []

    def let_go(self) -> None:
        gathered, self._gathered = self._gathered, None
        if gathered:
            self.write(b"".join(gathered))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._ended or not data:
            return
        if self._gathered is not None:
            self._gathered.append(bytes(data))
            return
        sent = 0
        if not self._unsent:
            try:
                sent = self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._end(error)
                return
            if sent == len(data):
                return
            self._loop.add_writer(self._sock, self._writable)
        self._unsent += memoryview(data)[sent:]
        if len(self._unsent) > self._high and not self._writer_paused:
            self._writer_paused = True
            self._protocol.pause_writing()

    def _writable(self) -> None:
        if self._puts_off(self._write_later):
            self._loop.remove_writer(self._sock)
        else:
            self._write()

    def _write_later(self) -> None:
        """When it was put off."""
        if not self._ended:
            self._loop.add_writer(self._sock, self._writable)
            self._write()

    def _write(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._sock)
        if self._writer_paused and len(self._unsent) <= self._low:
            self._writer_paused = False
            self._protocol.resume_writing()
        if self._closing and not self._unsent:
            self._end(None)

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return False

    # -- the end -----------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Ends it once everything is sent; the protocol, which is told to pause, says how long that may take."""
        if self._closing:
            return
        self.let_go()
        if self._ended:
            return
        if self._reading:
            self._loop.remove_reader(self._sock)
        self._closing = True
        if not self._unsent:
            self._end(None)
        elif not self._writer_paused:
            self._writer_paused = True
            self._protocol.pause_writing()

    def abort(self) -> None:
        self._end(None)

    def _fail(self, error: Exception, message: str) -> None:
        self._loop.call_exception_handler({"message": message, "exception": error, "transport": self})
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._closing = self._ended = True
        self._unsent.clear()
        self._gathered = None
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._loop.call_soon(self._say_lost, error)  # never from within the protocol's own call

    def _say_lost(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, asyncio.BaseProtocol()  # no cycle is left behind
        try:
            protocol.connection_lost(error)
        finally:
            self._sock.close()

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
