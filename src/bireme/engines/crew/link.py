"""The connection to one agent: made, kept, made again; orders out, events in.

Every order has a number, and the agent says of each that it did it, or that it failed. What it did not do is said
again: at once after a reconnect, some time after a failure, and when no word of it came. What it did is said again
after a reconnect too until the engine has heard what became of it (`order`, `confirm`): agents recognise it.

Invariant: `send` never blocks and never fails, and nothing that was sent is lost; an agent that cannot be reached shows
as `silent`, not as an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

from msgspec.structs import replace

from bireme.agent.messages import protocol
from bireme.agent.messages.lines import encode_line, encode_typed
from bireme.agent.messages.orders import Exit, Order, Ping, TellUsage
from bireme.agent.messages.told import Answer, Did, Event, JobEvent, NotUnderstoodError, Trouble, Welcome, read_told

log = logging.getLogger("bireme.engines")

_SILENT_AFTER_S = 5.0
_RETRY_S = 0.2
_MAX_RETRY_S = 5.0
_PING_S = 15.0
_DEAF_AFTER_S = 60.0
_CONNECT_S = 5.0
_FIRST_REPEAT_S = 0.2
_MAX_REPEAT_S = 10.0


@dataclass(slots=True)
class _Given:
    """An order that the agent has not said it did."""

    number: int
    line: bytes
    sent_at: float
    failures: int = 0


class GatheringTransport:
    """A connection's transport that sends in one piece what is said in one turn of the loop.

    A pass that starts fifty jobs is one call of the kernel here, and one turn of the agent's loop there.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._send)
        self._pieces.append(data)

    def close(self) -> None:
        """After everything was sent that was said before."""
        self._send()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def _send(self) -> None:
        pieces, self._pieces = self._pieces, []
        if pieces and not self._transport.is_closing():
            self._transport.write(b"".join(pieces))


class AgentLink:
    def __init__(
        self,
        node: str,
        address: str,
        *,
        start_agent: Callable[[str], Awaitable[None]],
        on_welcome: Callable[[str, Welcome], None],
        on_events: Callable[[str, list[JobEvent]], None],
        on_silent: Callable[[str, str], None],
        recalls: Callable[[], bool] = lambda: False,
    ) -> None:
        self.node = node
        self.address = address
        self.connected = asyncio.Event()
        self._start_agent = start_agent
        self._on_welcome = on_welcome
        self._on_events = on_events
        self._on_silent = on_silent
        self._recalls = recalls
        self._transport: GatheringTransport | None = None
        self._orders: dict[Hashable, _Given] = {}
        """Until they are confirmed."""
        self._undone: dict[int, _Given] = {}
        """By number."""
        self._is_answered = True
        self.asks_replicas = True
        """Whether its agent asks the replicas of services whether they are well: those of earlier releases do not."""
        """Whether this agent says what it did; one of an earlier version, in a pod, does not."""
        self._speaker = os.urandom(8).hex()
        """Whose numbers they are: an agent may hear several daemons in its life."""
        self._answers: dict[int, asyncio.Future[Answer]] = {}
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
            self._write(encode_typed(Exit(if_idle=True)))
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
        self._write(encode_typed(Exit(grace_s=grace_s)))
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
            try:
                connection = protocol.connect_endpoint(self.address, 0.0)
            except BlockingIOError:  # many wait at its door: we wait among them, but not on this thread
                connection = await asyncio.to_thread(protocol.connect_endpoint, self.address, _CONNECT_S)
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
            began = time.monotonic()
            await asyncio.wait([gone], timeout=_PING_S)
            if gone.done():
                break
            self._forgive(time.monotonic() - began - _PING_S)
            if time.monotonic() - self._heard_at > _DEAF_AFTER_S:
                log.error("the agent of node %s has not answered for %g s", self.node, _DEAF_AFTER_S)
                self._on_silent(self.node, "its agent does not answer")
                if self._transport is not None:
                    self._transport.abort()
                await gone
                break
            self._write(encode_typed(Ping(id=0)))
            self._repeat_unanswered()

    def _forgive(self, stood_still_s: float) -> None:
        """This daemon had no turn for so long (it was stopped, its machine slept) and could hear no agent."""
        self._heard_at = min(time.monotonic(), self._heard_at + max(0.0, stood_still_s))

    # --- speaking ------------------------------------------------------------------------------------------

    def order(self, key: Hashable, order: Order) -> None:
        """Sends, and says again after every reconnect until `confirm(key)`."""
        self.confirm(key)
        self._orders[key] = self._put(order)

    def confirm(self, key: Hashable) -> None:
        order = self._orders.pop(key, None)
        if order is not None:
            self._undone.pop(order.number, None)

    def send(self, order: Order) -> None:
        """Sends, until the agent has done it; while there is no connection it waits for one."""
        self._put(order)

    def _put(self, order: Order) -> _Given:
        number = next(self._numbers)
        given = _Given(number, encode_typed(replace(order, no=number)), time.monotonic())
        connected = self.connected.is_set()
        if self._is_answered or not connected:
            self._undone[number] = given
        if connected:
            self._write(given.line)
        return given

    async def ask(self, question: TellUsage | Ping, timeout_s: float = 5.0) -> Answer | None:
        """The answer; None when none comes."""
        if not self.connected.is_set():
            return None
        number = next(self._numbers)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        self._write(encode_typed(replace(question, id=number)))
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            return None
        finally:
            self._answers.pop(number, None)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    # --- what the connection tells -------------------------------------------------------------------------

    def made(self, transport: GatheringTransport) -> None:
        self._transport = transport
        self._heard_at = time.monotonic()
        recall = {"recall": True} if self._recalls() else {}
        hello = {"hello": "daemon", "version": protocol.VERSION, "speaker": self._speaker}
        self._write(encode_line(hello | recall))

    def received(self, lines: list[bytes]) -> None:
        self._heard_at = time.monotonic()
        events: list[JobEvent] = []
        for line in lines:
            try:
                told = read_told(line)
            except NotUnderstoodError as error:
                log.error("agent of node %s said what is not understood: %s", self.node, error)
                continue
            if isinstance(told, Event):
                events.append(told)
            else:
                self._spoken_to(told)
        if events:
            self._on_events(self.node, events)

    def _spoken_to(self, told: Welcome | Did | Trouble | Answer) -> None:
        match told:
            case Welcome():
                self._welcomed(told)
            case Did():
                for number in told.did:
                    self._undone.pop(number, None)
            case Trouble():
                log.error("agent of node %s: %s", self.node, told.text)
                self._repeat_later(told.no)
            case Answer():
                future = self._answers.get(told.re)
                if future is not None and not future.done():
                    future.set_result(told)

    def _welcomed(self, message: Welcome) -> None:
        self.connected.set()
        self._on_welcome(self.node, message)
        unconfirmed = {order.number: order for order in self._orders.values()}
        for _, order in sorted((unconfirmed | self._undone).items()):
            self._say_again(order)
        self.asks_replicas = message.protocol >= protocol.ASKS_REPLICAS
        self._is_answered = message.protocol >= protocol.SAYS_WHAT_IT_DID
        if not self._is_answered:
            self._undone.clear()

    def _say_again(self, order: _Given) -> None:
        order.sent_at = time.monotonic()
        self._write(order.line)

    def _repeat_later(self, number: int | None) -> None:
        """The agent failed at it, for want of a descriptor or of memory perhaps: it is tried again, ever less often."""
        order = self._undone.get(number) if number is not None else None
        if order is None:
            return
        delay_s = min(_MAX_REPEAT_S, _FIRST_REPEAT_S * 2**order.failures)
        order.failures += 1
        asyncio.get_running_loop().call_later(delay_s, self._repeat, order)

    def _repeat(self, order: _Given) -> None:
        if order.number in self._undone and self.connected.is_set():
            self._say_again(order)

    def _repeat_unanswered(self) -> None:
        overdue = time.monotonic() - _PING_S
        for order in [each for each in self._undone.values() if each.sent_at <= overdue]:
            self._repeat(order)

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
        self._link.made(GatheringTransport(transport))

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
