"""A link's transport: what is said in one turn goes out in one piece, in order, and before the end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from bireme.engines.crew.link import GatheringTransport


class Counted(asyncio.Transport):
    """A real transport whose pieces are counted."""

    def __init__(self, real: asyncio.Transport) -> None:
        super().__init__()
        self._real = real
        self.pieces: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.pieces.append(bytes(data))
        self._real.write(data)

    def is_closing(self) -> bool:
        return self._real.is_closing()

    def close(self) -> None:
        self._real.close()

    def abort(self) -> None:
        self._real.abort()


def talk(speak: Callable[[GatheringTransport], None]) -> tuple[list[bytes], bytes]:
    """The pieces that were sent within a turn of the loop and the next, and all that arrived."""

    async def run() -> tuple[list[bytes], bytes]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        real, _ = await asyncio.get_running_loop().create_unix_connection(asyncio.Protocol, sock=ours)
        counted = Counted(real)
        speak(GatheringTransport(counted))
        await asyncio.sleep(0)
        pieces = list(counted.pieces)
        real.close()
        await asyncio.sleep(0)
        with theirs:
            arrived = b""
            while data := theirs.recv(100):
                arrived += data
        return pieces, arrived

    return asyncio.run(run())


def say_three(transport: GatheringTransport) -> None:
    for word in (b"one\n", b"two\n", b"three\n"):
        transport.write(word)


def test_what_is_said_in_one_turn_is_one_piece() -> None:
    assert talk(say_three) == ([b"one\ntwo\nthree\n"], b"one\ntwo\nthree\n")


def test_what_was_said_goes_out_before_the_end() -> None:
    def speak(transport: GatheringTransport) -> None:
        say_three(transport)
        transport.close()

    assert talk(speak) == ([b"one\ntwo\nthree\n"], b"one\ntwo\nthree\n")


def test_nothing_is_sent_through_a_connection_that_broke() -> None:
    def speak(transport: GatheringTransport) -> None:
        say_three(transport)
        transport.abort()

    assert talk(speak) == ([], b"")
