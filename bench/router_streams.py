"""The two ends of `bench/router`'s streams: a server of events, and a reader that counts what is missing.

python -m bench.router_streams serve CHUNKS             prints its port; every stream has CHUNKS events, 40 a second
python -m bench.router_streams read PORT COUNT CHUNKS   prints how many did not come in order, and the seconds
"""

from __future__ import annotations

import asyncio
import sys
import time

import uvloop

EVERY_S = 0.025


class Server(asyncio.Protocol):
    """Answers every request with a stream."""

    transport: asyncio.Transport

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks
        self._number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._number = 0
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.transport.write(head)
        self._began = asyncio.get_running_loop().time()
        self._say()

    def _say(self) -> None:
        if self.transport.is_closing():
            return
        event = b'data: {"choices": [{"delta": {"content": "a word"}}], "number": %d}\n\n' % self._number
        self._number += 1
        if self._number == self._chunks:
            self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
            return
        self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        asyncio.get_running_loop().call_at(self._began + self._number * EVERY_S, self._say)


class Reader(asyncio.Protocol):
    """Asks for one stream and looks at its numbers."""

    def __init__(self, done: asyncio.Future[int], chunks: int) -> None:
        self._done = done
        self._chunks = chunks
        self._next = 0
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(b"GET /svc/stream HTTP/1.1\r\nHost: x\r\n\r\n")  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        *events, self._rest = (self._rest + data).split(b"}\n\n")
        for event in events:
            if int(event.rpartition(b'"number": ')[2]) == self._next:
                self._next += 1
        if self._next == self._chunks and self._rest.endswith(b"0\r\n\r\n") and not self._done.done():
            self._done.set_result(0)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(self._chunks - self._next)


async def serve(chunks: int) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Server(chunks), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def read(port: int, count: int, chunks: int) -> None:
    loop = asyncio.get_running_loop()
    began = time.monotonic()
    ends = [loop.create_future() for _ in range(count)]
    for end in ends:
        await loop.create_connection(lambda end=end: Reader(end, chunks), "127.0.0.1", port)  # type: ignore[misc]
    late = 0
    for end in ends:
        try:
            async with asyncio.timeout(chunks * EVERY_S + 60):
                late += await end
        except TimeoutError:
            late += 1
    print(late, time.monotonic() - began)


if __name__ == "__main__":
    what, *numbers = sys.argv[1:]
    uvloop.run({"serve": serve, "read": read}[what](*map(int, numbers)))  # type: ignore[operator]
