"""The connection to one agent: made, kept, made again; orders out, events in.

Orders that must not get lost are kept until the agent confirmed them (`Order`), and
said again after a reconnect: agents recognise what they already did.

Invariant: `send` never blocks and never fails; an agent that cannot be reached shows as `silent`, not as an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Hashable

from bireme.agent import protocol
from bireme.agent.lines import decode_line, encode_line
from bireme.agent.protocol import Message

log = logging.getLogger("bireme.engines")

_SILENT_AFTER_S = 5.0
_RETRY_S = 0.2
_MAX_RETRY_S = 5.0
_PING_S = 15.0
_DEAF_AFTER_S = 60.0


class AgentLink:
    def __init__(
        self,
        node: str,
        address: str,
        *,
        start_agent: Callable[[str], Awaitable[None]],
        on_welcome: Callable[[str, Message], None],
        on_events: Callable[[str, list[Message]], None],
        on_silent: Callable[[str, str], None],
    ) -> None:
        self.node = node
        self.address = address
        self.connected = asyncio.Event()
        self._start_agent = start_agent
        self._on_welcome = on_welcome
        self._on_events = on_events
        self._on_silent = on_silent
        self._transport: asyncio.Transport | None = None
        self._orders: dict[Hashable, bytes] = {}
        self._loose: list[bytes] = []
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._numbers = itertools.count(1)
        self._heard_at = 0.0
        self._keeper: asyncio.Task[None] | None = None
        self._gone: asyncio.Future[None] | None = None

    # --- life ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        self._keeper = asyncio.create_task(self._keep(), name=f"agent of {self.node}")

    async def close(self, *, end_if_idle: bool = False) -> None:
        """Lets go of the agent; it runs on, unless it has nothing to do and is told to end then."""
        if end_if_idle:
            self.send({"op": "exit", "if_idle": True})
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        if self._transport is not None:
            self._transport.close()

    def begin_again(self) -> None:
        """Has the agent welcome us once more, and say what it holds."""
        if self._transport is not None:
            self._transport.abort()

    async def dismiss(self, grace_s: float, timeout_s: float) -> None:
        """Ends the agent and its jobs, and does not start it again."""
        gone = self._gone
        if self._keeper is not None:
            self._keeper.cancel()
        self.send({"op": "exit", "grace_s": grace_s})
        if gone is not None:
            await asyncio.wait([gone], timeout=timeout_s)
            if not gone.done():
                log.error("the agent of node %s did not exit within %g s", self.node, timeout_s)

    async def _keep(self) -> None:
        """Connected, or trying: for ever."""
        lost_at, silent, retry_s = time.monotonic(), False, _RETRY_S
        while True:
            gone = await self._connect() or await self._revive()
            if gone is not None:
                await self._listen(gone)
                lost_at, silent, retry_s = time.monotonic(), False, _RETRY_S
                continue
            if not silent and time.monotonic() - lost_at > _SILENT_AFTER_S:
                silent = True
                self._on_silent(self.node, "its agent does not answer and could not be started again")
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 2, _MAX_RETRY_S)

    async def _revive(self) -> asyncio.Future[None] | None:
        """Nobody answered: start the agent and try once more."""
        try:
            await self._start_agent(self.node)
        except OSError as error:
            log.error("the agent of node %s cannot be started: %s", self.node, error)
        return await self._connect()

    async def _connect(self) -> asyncio.Future[None] | None:
        """The future of the connection's end; None when nobody answers."""
        loop = asyncio.get_running_loop()
        try:
            connection = protocol.connect_endpoint(self.address, 5.0)
            connection.setblocking(False)
            gone: asyncio.Future[None] = loop.create_future()
            await loop.create_unix_connection(lambda: _Lines(self, gone), sock=connection)
        except OSError:
            return None
        self._gone = gone
        return gone

    async def _listen(self, gone: asyncio.Future[None]) -> None:
        """Until the connection ends; an agent that stops answering is cut off."""
        while not gone.done():
            await asyncio.wait([gone], timeout=_PING_S)
            if gone.done():
                break
            if time.monotonic() - self._heard_at > _DEAF_AFTER_S:
                log.error("the agent of node %s has not answered for %g s", self.node, _DEAF_AFTER_S)
                self._on_silent(self.node, "its agent does not answer")
                if self._transport is not None:
                    self._transport.abort()
                await gone
                break
            self._write(encode_line({"op": "ping", "id": 0}))

    # --- speaking ------------------------------------------------------------------------------------------

    def order(self, key: Hashable, message: Message) -> None:
        """Sends, and says again after every reconnect until `confirm(key)`."""
        line = encode_line(message)
        self._orders[key] = line
        if self.connected.is_set():
            self._write(line)

    def confirm(self, key: Hashable) -> None:
        self._orders.pop(key, None)

    def send(self, message: Message) -> None:
        """Sends once; while there is no connection it waits for one."""
        line = encode_line(message)
        if self.connected.is_set():
            self._write(line)
        else:
            self._loose.append(line)

    async def ask(self, message: Message, timeout_s: float = 5.0) -> Message:
        """The answer; an empty one when none comes."""
        if not self.connected.is_set():
            return {}
        number = next(self._numbers)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        self._write(encode_line({**message, "id": number}))
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            return {}
        finally:
            self._answers.pop(number, None)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    # --- what the connection tells -------------------------------------------------------------------------

    def made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._heard_at = time.monotonic()
        self._write(encode_line({"hello": "daemon", "version": protocol.VERSION}))

    def received(self, lines: list[bytes]) -> None:
        self._heard_at = time.monotonic()
        events: list[Message] = []
        for line in lines:
            message = decode_line(line)
            if "seq" in message and "job" in message:
                events.append(message)
            elif "re" in message:
                future = self._answers.get(message["re"])
                if future is not None and not future.done():
                    future.set_result(message)
            elif message.get("ev") == "welcome":
                self._welcomed(message)
            elif message.get("ev") == "error":
                log.error("agent of node %s: %s", self.node, message.get("text"))
        if events:
            self._on_events(self.node, events)

    def _welcomed(self, message: Message) -> None:
        self.connected.set()
        self._on_welcome(self.node, message)
        for line in self._orders.values():
            self._write(line)
        loose, self._loose = self._loose, []
        for line in loose:
            self._write(line)

    def lost(self) -> None:
        self.connected.clear()
        self._transport = None


class _Lines(asyncio.Protocol):
    """One connection's life, as asyncio tells it."""

    def __init__(self, link: AgentLink, gone: asyncio.Future[None]) -> None:
        self._link = link
        self._gone = gone
        self._splitter = protocol.LineSplitter()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._link.made(transport)

    def data_received(self, data: bytes) -> None:
        try:
            lines = [line for line in self._splitter.feed(data) if line]
            if lines:
                self._link.received(lines)
        except protocol.ProtocolError as error:
            log.error("agent of node %s: %s", self._link.node, error)
            assert self._transport is not None
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._link.lost()
        if not self._gone.done():
            self._gone.set_result(None)
