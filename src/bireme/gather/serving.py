"""`GET /metrics` on a TCP port of its own: for a gatherer's page, and for the daemon's.

A server this small on purpose: no route but one, no body is read, nothing is changed, nobody is told who asks. A page
is made beside the loop, once a second at most, however many ask for it; it goes out deflated to who can read that.
Invariants: a connection has `HEAD_S` to say what it wants and `ANSWER_S` to read it; of more than `MOST_CONNECTIONS`
the next takes the place of the oldest that has not said what it wants, and is hung up on where all have.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import time
import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress

from bireme.exposition import MEDIA
from bireme.gather.address import PortError, address_of

log = logging.getLogger("bireme.gather")

HEAD_S, ANSWER_S = 2.0, 30.0
MOST_CONNECTIONS = 64
MOST_HEAD_BYTES = 8 * 1024
SHARED_S = 1.0
"""So long one page is good for all who ask."""
_AGAIN_S = 10.0
_PIECE = 64 * 1024
_GZIP = 16 + zlib.MAX_WBITS


def bound(text: str, setting: str) -> socket.socket:
    """A socket that listens at an address (`address_of`). `setting`: what the message names. Raises PortError."""
    host, port = address_of(text)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(found[0], socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(found[4])
            listener.listen(MOST_CONNECTIONS)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror or error)
        advice = "another program has this port: name another" if error.errno == errno.EADDRINUSE else "name another"
        raise PortError(f"metrics cannot be served at {host}:{port} ({setting}): {why}; {advice}") from error
    return listener


class Shared:
    """A page that is made once for all who ask within a second."""

    def __init__(self, make: Callable[[], Awaitable[str]]) -> None:
        self._make = make
        self._made: asyncio.Task[tuple[bytes, bytes]] | None = None
        self._made_at = 0.0

    async def page(self) -> tuple[bytes, bytes]:
        """The page as it is, and deflated. Whoever leaves before it is made leaves it to the others."""
        made, now = self._made, time.monotonic()
        if made is None or (made.done() and (made.cancelled() or made.exception() or now - self._made_at > SHARED_S)):
            made = self._made = asyncio.ensure_future(self._both())
        return await asyncio.shield(made)

    async def _both(self) -> tuple[bytes, bytes]:
        text = await self._make()
        both = await asyncio.to_thread(_deflated, text)
        self._made_at = time.monotonic()
        return both


def _deflated(text: str) -> tuple[bytes, bytes]:
    plain = text.encode()
    packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP)
    return plain, packer.compress(plain) + packer.flush()


class MetricsPort:
    """Open from `begin` to `close`."""

    def __init__(self, listener: socket.socket, make: Callable[[], Awaitable[str]]) -> None:
        self._listener, self._shared = listener, Shared(make)
        self._server: asyncio.Server | None = None
        self._open = 0
        self._unsaid: dict[asyncio.StreamWriter, None] = {}
        """Connections that have not said what they want, oldest first."""

    async def begin(self) -> None:
        self._server = await asyncio.start_server(self._answer, sock=self._listener, limit=MOST_HEAD_BYTES)

    def close(self) -> None:
        """Nobody is let in any more."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= MOST_CONNECTIONS and not self._made_room():
            writer.transport.abort()
            return
        self._open += 1
        self._unsaid[writer] = None
        try:
            async with asyncio.timeout(HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
            self._unsaid.pop(writer, None)
            status, fields, body = await self._said(head)
            async with asyncio.timeout(ANSWER_S):
                writer.write(_head(status, fields, len(body)))
                await _in_pieces(writer, b"" if head.startswith(b"HEAD ") else body)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        except Exception:
            log.exception("the page for Prometheus could not be made")
            writer.write(_head("500 Internal Server Error", (), 0))
        finally:
            self._open -= 1
            self._unsaid.pop(writer, None)
            with suppress(OSError):
                writer.close()

    def _made_room(self) -> bool:
        """Its place is counted as taken until it has seen that it was hung up on: a moment."""
        oldest = next(iter(self._unsaid), None)
        if oldest is None:
            return False
        del self._unsaid[oldest]
        oldest.transport.abort()
        return True

    async def _said(self, head: bytes) -> tuple[str, tuple[str, ...], bytes]:
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        plain = ("Content-Type: text/plain; charset=utf-8",)
        if len(words) != 3 or words[0] not in ("GET", "HEAD"):
            return "405 Method Not Allowed", (*plain, "Allow: GET, HEAD"), b"GET /metrics\n"
        if words[1].partition("?")[0] != "/metrics":
            return "404 Not Found", plain, b"Prometheus reads /metrics.\n"
        as_it_is, deflated = await self._shared.page()
        fields = (f"Content-Type: {MEDIA}", "Vary: Accept-Encoding")
        if _takes_gzip(lines[1:]):
            return "200 OK", (*fields, "Content-Encoding: gzip"), deflated
        return "200 OK", fields, as_it_is


class KeptPort:
    """A metrics port that is where it was last said to be; one that is taken is tried again. `setting`: who says so."""

    def __init__(self, make: Callable[[], Awaitable[str]], setting: str) -> None:
        self._make, self._setting = make, setting
        self._port: MetricsPort | None = None
        self._again: asyncio.Task[None] | None = None
        self.address = ""
        """Where it is to be; empty: nowhere."""
        self.problem = ""
        """Why it is not there, in a sentence for people."""

    async def move(self, address: str) -> None:
        """Has it there from now on; empty: nowhere. Tries once before it returns."""
        if address == self.address:
            return
        self.close()
        self.address = address
        if address and not await self._opens():
            self._again = asyncio.create_task(self._try_again())

    def close(self) -> None:
        """Closes the port: the page is nowhere any more."""
        self.address = self.problem = ""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._port is not None:
            self._port.close()
            self._port = None

    async def _opens(self) -> bool:
        try:
            port = MetricsPort(await asyncio.to_thread(bound, self.address, self._setting), self._make)
        except PortError as error:
            if str(error) != self.problem:
                log.error("%s", error)
            self.problem = str(error)
            return False
        await port.begin()
        self._port, self.problem = port, ""
        log.info("Prometheus reads /metrics at %s", self.address)
        return True

    async def _try_again(self) -> None:
        while True:
            await asyncio.sleep(_AGAIN_S)
            if await self._opens():
                return


async def _in_pieces(writer: asyncio.StreamWriter, body: bytes) -> None:
    """Who reads slowly holds a piece of it in memory, not a page."""
    for begin in range(0, len(body), _PIECE):
        writer.write(body[begin : begin + _PIECE])
        await writer.drain()


def _takes_gzip(lines: list[str]) -> bool:
    said = (line.partition(":") for line in lines)
    codings = [value for name, _, value in said if name.strip().lower() == "accept-encoding"]
    words = [each.replace(" ", "").lower() for value in codings for each in value.split(",")]
    return any(word.partition(";")[0] == "gzip" and not word.endswith(";q=0") for word in words)


def _head(status: str, fields: tuple[str, ...], length: int) -> bytes:
    lines = (f"HTTP/1.1 {status}", *fields, f"Content-Length: {length}", "Connection: close", "", "")
    return "\r\n".join(lines).encode("latin-1")
