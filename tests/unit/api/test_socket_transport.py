"""The transport under every connection of the API, over a pair of real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from bireme.api.serving.socket_transport import SocketTransport


class Diary(asyncio.Protocol):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.lost = asyncio.get_running_loop().create_future()
        self.transport: SocketTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SocketTransport)
        self.transport = transport
        self.told.append("made")

    def data_received(self, data: bytes) -> None:
        if data == b"poison":
            raise ValueError("cannot be read")
        self.told.append(data)

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append(("lost", type(exc).__name__))
        self.lost.set_result(None)


Scene = Callable[[SocketTransport, Diary, socket.socket], Awaitable[None]]


def play(
    scene: Scene, first: bytes = b"", *, puts_off: Callable[[Callable[[], None]], bool] = lambda act: False
) -> list[Any]:
    async def played() -> list[Any]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        diary = Diary()
        transport = SocketTransport(ours, diary, puts_off)
        transport.begin(first)
        with theirs:
            await asyncio.wait_for(scene(transport, diary, theirs), 20)
            await asyncio.wait_for(diary.lost, 20)
        assert ours.fileno() == -1, "it is closed"
        return diary.told

    return asyncio.run(played())


async def read_all(theirs: socket.socket) -> bytes:
    received, loop = b"", asyncio.get_running_loop()
    with contextlib.suppress(ConnectionResetError):  # not all that was sent was read
        while piece := await loop.sock_recv(theirs, 1 << 20):
            received += piece
    return received


def test_what_is_there_already_is_handed_over_before_the_loop_turns() -> None:
    async def scene(transport: SocketTransport, diary: Diary, theirs: socket.socket) -> None:
        assert diary.told == ["made", b"hello"]
        theirs.send(b"again")
        theirs.close()

    assert play(scene, b"hello") == ["made", b"hello", b"again", ("lost", "NoneType")]


def test_what_was_written_before_the_end_is_still_sent() -> None:
    text = bytes(range(256)) * 8_192

    async def scene(transport: SocketTransport, diary: Diary, theirs: socket.socket) -> None:
        transport.write(text)
        transport.write(memoryview(text))
        assert transport.get_write_buffer_size() > 0
        transport.close()
        transport.close()
        theirs.send(b"too late")
        assert await read_all(theirs) == text * 2

    assert play(scene) == ["made", "pause", "resume", ("lost", "NoneType")]


def test_who_has_little_unsent_at_the_end_is_told_to_pause() -> None:
    """So that somebody watches whether it is read."""

    async def scene(transport: SocketTransport, diary: Diary, theirs: socket.socket) -> None:
        while not transport.get_write_buffer_size():
            transport.write(b"x" * 4096)
        assert diary.told == ["made"]
        transport.close()
        assert diary.told == ["made", "pause"]
        await read_all(theirs)

    assert play(scene) == ["made", "pause", "resume", ("lost", "NoneType")]


def test_what_is_aborted_is_not_sent() -> None:
    async def scene(transport: SocketTransport, diary: Diary, theirs: socket.socket) -> None:
        transport.write(b"x" * 4_000_000)
        transport.abort()
        transport.write(b"more")
        assert transport.get_write_buffer_size() == 0
        await diary.lost
        assert len(await read_all(theirs)) < 4_000_000

    assert play(scene) == ["made", "pause", ("lost", "NoneType")]


def test_who_cannot_take_what_came_loses_the_connection_and_it_is_told() -> None:
    problems: list[dict[str, Any]] = []

    async def scene(transport: SocketTransport, diary: Diary, theirs: socket.socket) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        theirs.send(b"poison")
        assert await read_all(theirs) == b""

    assert play(scene) == ["made", ("lost", "ValueError")]
    assert [str(problem["exception"]) for problem in problems] == ["cannot be read"]


def test_who_has_gone_is_noticed_when_it_is_written_to() -> None:
    async def scene(transport: SocketTransport, diary: Diary, theirs: socket.socket) -> None:
        transport.pause_reading()
        theirs.close()
        transport.write(b"anybody?")

    assert play(scene) == ["made", ("lost", "BrokenPipeError")]


def test_nothing_is_read_while_reading_is_paused() -> None:
    async def scene(transport: SocketTransport, diary: Diary, theirs: socket.socket) -> None:
        transport.pause_reading()
        transport.pause_reading()
        theirs.send(b"later")
        for _ in range(5):
            await asyncio.sleep(0)
        assert diary.told == ["made"]
        assert not transport.is_reading()
        transport.resume_reading()
        transport.resume_reading()
        theirs.close()

    assert play(scene) == ["made", b"later", ("lost", "NoneType")]


def test_what_is_put_off_is_read_and_written_in_its_turn() -> None:
    acts: list[Callable[[], None]] = []

    def puts_off(act: Callable[[], None]) -> bool:
        acts.append(act)
        return True

    async def scene(transport: SocketTransport, diary: Diary, theirs: socket.socket) -> None:
        theirs.send(b"first")
        for _ in range(5):
            await asyncio.sleep(0)
        assert diary.told == ["made"]
        assert len(acts) == 1, "until then nobody is told again that it is ready"
        acts.pop()()
        assert diary.told == ["made", b"first"]
        theirs.send(b"second")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        transport.write(b"x" * 4_000_000)
        transport.close()
        reading = asyncio.ensure_future(read_all(theirs))
        while not reading.done():
            await asyncio.sleep(0)
            while acts:
                acts.pop()()
        assert reading.result() == b"x" * 4_000_000

    assert play(scene, puts_off=puts_off) == ["made", b"first", "pause", "resume", ("lost", "NoneType")]


def test_it_is_freed_when_it_is_over_without_the_garbage_collector() -> None:
    async def scene() -> weakref.ref[SocketTransport]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        diary = Diary()
        SocketTransport(ours, diary, lambda act: False).begin(b"hello")
        assert diary.transport is not None
        known = weakref.ref(diary.transport)
        theirs.close()
        await diary.lost
        await asyncio.sleep(0)
        diary.transport = None
        return known

    gc.disable()
    try:
        assert asyncio.run(scene())() is None
    finally:
        gc.enable()


def test_what_is_gathered_goes_out_when_it_is_let_go_and_in_order() -> None:
    async def scene(transport: SocketTransport, diary: Diary, theirs: socket.socket) -> None:
        transport.gather()
        transport.write(b"head ")
        transport.write(memoryview(b"body"))
        with contextlib.suppress(BlockingIOError):
            raise AssertionError(theirs.recv(100))
        transport.let_go()
        assert theirs.recv(100) == b"head body"
        transport.let_go()
        transport.write(b" more")
        assert theirs.recv(100) == b" more"
        transport.abort()

    assert play(scene) == ["made", ("lost", "NoneType")]


def test_what_is_gathered_is_still_sent_when_the_connection_is_closed() -> None:
    async def scene(transport: SocketTransport, diary: Diary, theirs: socket.socket) -> None:
        transport.gather()
        transport.write(b"goodbye")
        transport.close()
        assert await read_all(theirs) == b"goodbye"

    assert play(scene) == ["made", ("lost", "NoneType")]


def test_what_is_gathered_for_one_who_has_left_ends_the_connection_once() -> None:
    async def scene(transport: SocketTransport, diary: Diary, theirs: socket.socket) -> None:
        transport.gather()
        transport.write(b"nobody reads this")
        theirs.close()
        transport.close()

    assert play(scene)[0] == "made"
