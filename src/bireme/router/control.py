"""The supervisor's ears: FOLDER/router.sock, where the daemon speaks in lines, and where numbers are read over HTTP.

Hands lines to the supervisor, which decides. Invariant: whoever is not this router's user (or root) is not heard; of
daemons, the one that said Hello last is.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Protocol, cast

from bireme.router import messages
from bireme.router.messages import AnyOrder, AnyTold, ProtocolError
from bireme.router.succession import peer_uid

log = logging.getLogger("bireme.router")

_MAX_HTTP = 8192


class Listener(Protocol):
    """Who is told what daemons say."""

    def hear(self, order: AnyOrder, speaker: Speaker) -> None: ...
    def gone(self, speaker: Speaker) -> None: ...
    def numbers(self) -> str: ...


class Speaker(asyncio.Protocol):
    """One connection to the router's socket."""

    transport: asyncio.Transport

    def __init__(self, listener: Listener, *, is_local_socket: bool = True) -> None:
        self._listener = listener
        self._is_local_socket = is_local_socket
        self._rest = bytearray()
        self._is_http: bool | None = None if is_local_socket else True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._is_local_socket and peer_uid(transport.get_extra_info("socket")) not in (0, os.geteuid()):
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._rest += data
        if self._is_http is None and len(self._rest) >= 4:
            self._is_http = self._rest.startswith((b"GET ", b"HEAD"))
        if self._is_http:
            self._answer_http()
        elif self._is_http is not None:
            self._take_lines()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.gone(self)

    def say(self, message: AnyTold) -> None:
        if not self.transport.is_closing():
            self.transport.write(messages.encode(message))

    def close(self) -> None:
        self.transport.close()

    def _take_lines(self) -> None:
        *lines, rest = bytes(self._rest).split(b"\n") if b"\n" in self._rest else (bytes(self._rest),)
        if lines:
            self._rest = bytearray(rest)
        if len(self._rest) > messages.MAX_LINE_BYTES:
            self.transport.abort()
        for line in lines:
            try:
                order = messages.read_order(line)
            except ProtocolError as error:
                self.say(messages.Refused(why=str(error)))
                continue
            if order is not None:
                self._listener.hear(order, self)

    def _answer_http(self) -> None:
        head = bytes(self._rest)
        if b"\r\n\r\n" not in head:
            if len(head) > _MAX_HTTP:
                self.transport.abort()
            return
        is_there = head.split(b" ", 2)[1:2] == [b"/metrics"]
        body = self._listener.numbers().encode() if is_there else b"Prometheus reads /metrics.\n"
        status = b"200 OK" if is_there else b"404 Not Found"
        self.transport.write(
            b"HTTP/1.1 %b\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            % (status, len(body))
            + (b"" if head.startswith(b"HEAD") else body)
        )
        self.transport.close()


def speaking_to(listener: Listener, *, is_local_socket: bool = True) -> Callable[[], Speaker]:
    return lambda: Speaker(listener, is_local_socket=is_local_socket)
