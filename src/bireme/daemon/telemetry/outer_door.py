"""Where gatherers of other machines come in: TLS with the daemon's own certificate, and a token for their nodes.

Open only if `telemetry.listen` says where. The conversation is the one of `door`; what a node says is vetted, and its
jobs are named anew, before the keeper hears it. A round that speaks of a job which is not known yet is held for a
while: the queue of the cluster may not have been read since the job began, and the gatherer keeps the rounds after it.
Who has not said a proper hello costs little: few such connections are held, short, and each for seconds.
Invariant: a node has one conversation, and what it says concerns that node alone.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from bireme.agent.pod.gangway import keep_alive
from bireme.daemon.telemetry.arriving import Came, bodies
from bireme.daemon.telemetry.keeper import TelemetryKeeper
from bireme.daemon.telemetry.naming import Naming
from bireme.daemon.telemetry.tokens import TokenError, Tokens
from bireme.daemon.telemetry.vetting import Start, names_in, renamed, vetted
from bireme.gather import messages as m

log = logging.getLogger("bireme.daemon")

_BACKLOG = 256
_HELLO_S = 10.0
_HELLO_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
_MOST_STRANGERS, _MOST_STRANGERS_EACH = 512, 64
"""Connections that have not said who they are: all, and from one address."""
_MESSAGE_BYTES = 4 * 1024 * 1024
_BYTES_S, _BURST_BYTES = 2 * 1024 * 1024, 16 * 1024 * 1024
"""What is read of one node: so much in a second, after a first burst. A spool of days is told in minutes."""
_UNKNOWN_S, _UNKNOWN_POD_S, _LOOK_S = 30.0, 3.0, 0.5
"""How long a round waits for a job of another scheduler's queue to become known, how long for a pod (most are not of
jobs, and those that are Kubernetes tells at once), and how often either is looked for."""
_BEHIND_S = 120.0
"""How long for a job while the other scheduler's queue or history is not known as it is now."""
_MOST_GIVEN_UP = 50_000
"""More than one round can name (`vetting`)."""
_NEW_IDS_AT_MOST = 16
"""Ids of gatherers that one node may have while the daemon runs: each is remembered."""
_ID = re.compile(r"[0-9a-f]{32}")


class OuterDoor:
    """Open from `begin` to `close`."""

    def __init__(self, certificate: Path, tokens: Tokens, keeper: TelemetryKeeper, naming: Naming) -> None:
        self._certificate, self._tokens, self._keeper, self._naming = certificate, tokens, keeper, naming
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._strangers: Counter[str] = Counter()
        self._talks: set[asyncio.Task[None]] = set()
        self._speaking: dict[str, _Speaker] = {}
        self._ids: dict[str, set[str]] = {}

    async def begin(self, host: str, port: int) -> int:
        """Listens; the port, which the kernel chooses when it is 0. Raises OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self._certificate)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._leave = self._keeper.on_kept(self._tell_kept)
        self._accepting = asyncio.create_task(self._accept(self._listener, context))
        return int(self._listener.getsockname()[1])

    async def close(self) -> None:
        if self._listener is None or self._accepting is None:
            return
        self._leave()
        self._accepting.cancel()
        self._listener.close()
        for talk in tuple(self._talks):
            talk.cancel()
        await asyncio.gather(self._accepting, *self._talks, return_exceptions=True)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those that speak now."""
        return tuple(sorted(self._speaking))

    def set_pace(self, interval_s: float, metrics: str) -> None:
        for speaker in self._speaking.values():
            speaker.writer.write(m.encode(m.Pace(interval_s=interval_s, metrics=metrics)))

    def _tell_kept(self, kept: dict[str, int]) -> None:
        for speaker in self._speaking.values():
            if speaker.id in kept:
                speaker.writer.write(m.encode(m.Kept(no=kept[speaker.id])))

    # --- strangers -----------------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError as error:  # no descriptor is left, or the peer is gone already
                log.warning("a node could not be let in: %s", error)
                await asyncio.sleep(_LOOK_S)
                continue
            where = str(address[0])
            if self._strangers.total() >= _MOST_STRANGERS or self._strangers[where] >= _MOST_STRANGERS_EACH:
                sock.close()
                continue
            talk = asyncio.create_task(self._talk(sock, where, context))
            self._talks.add(talk)
            talk.add_done_callback(self._talks.discard)

    async def _talk(self, sock: socket.socket, where: str, context: ssl.SSLContext) -> None:
        self._strangers[where] += 1
        writer: asyncio.StreamWriter | None = None
        speaker: _Speaker | None = None
        try:
            try:
                async with asyncio.timeout(_HELLO_S):
                    reader, writer = await _encrypted(sock, context)
                    splitter = m.FrameSplitter(_HELLO_BYTES)
                    messages = bodies(reader, splitter, self._keeper.now)
                    body, came = await anext(messages)
                hello = m.read_told(body)
                speaker = self._recognised(hello, writer)
            finally:
                self._strangers[where] -= 1
                self._strangers += Counter()  # forgets those that are 0
            splitter.most = _MESSAGE_BYTES
            await self._hear(speaker, hello, came, messages)
        except (TokenError, m.ProtocolError) as error:
            log.warning("the node at %s is cut off: %s", where, error)
            if writer is not None:
                writer.write(m.encode(m.Refused(why=str(error))))
        except (TimeoutError, StopAsyncIteration, OSError):
            pass
        except Exception as error:  # whatever a stranger finds costs him his connection, and nobody else anything
            log.error("the node at %s is cut off: %s: %s", where, type(error).__name__, error)
        finally:
            if speaker is not None and self._speaking.get(speaker.machine) is speaker:
                del self._speaking[speaker.machine]
            if writer is not None:
                writer.close()
            else:
                sock.close()

    def _recognised(self, hello: m.AnyTold, writer: asyncio.StreamWriter) -> _Speaker:
        """Raises TokenError or ProtocolError."""
        if not isinstance(hello, m.Hello) or not _ID.fullmatch(hello.id):
            raise m.ProtocolError("the first message is not a proper hello")
        if hello.version > m.VERSION:
            raise m.ProtocolError(
                f"it speaks version {hello.version}, and this daemon {m.VERSION}: update the daemon first"
            )
        nodes = self._tokens.nodes_of(hello.token)
        if nodes is not None and hello.machine not in nodes:
            raise TokenError(f"its token is not for node {hello.machine[:64]!r}")
        if not self._naming.knows_node(hello.machine):
            raise TokenError(f"there is no node {hello.machine[:64]!r} in this cluster: start it with --name NODE")
        ids = self._ids.setdefault(hello.machine, set())
        if hello.id not in ids and len(ids) >= _NEW_IDS_AT_MOST:
            raise m.ProtocolError(f"node {hello.machine} had too many gatherers; its folder must outlive a restart")
        ids.add(hello.id)
        keep_alive(writer)
        return _Speaker(hello.machine, f"{hello.machine}/{hello.id}", writer)

    # --- nodes ---------------------------------------------------------------------------------------------

    async def _hear(
        self, speaker: _Speaker, hello: m.AnyTold, came: Came, messages: AsyncIterator[tuple[bytes, Came]]
    ) -> None:
        assert isinstance(hello, m.Hello), "it was recognised"
        before = self._speaking.pop(speaker.machine, None)
        if before is not None:
            before.writer.close()
        await self._keeper.writable.wait()
        known_as = msgspec.structs.replace(hello, id=speaker.id, token="")
        speaker.writer.write(m.encode(await self._keeper.greet(known_as, came, _MESSAGE_BYTES)))
        self._speaking[speaker.machine] = speaker  # only now: the welcome is the first that it hears
        log.info("node %s tells what it measures", speaker.machine)
        async for body, came in messages:
            await speaker.wait_its_turn(len(body))
            async with self._keeper.patience_with(speaker.id, body):
                await self._take_in(speaker, body, came)
            await self._keeper.writable.wait()

    async def _take_in(self, speaker: _Speaker, body: bytes, came: Came) -> None:
        """Raises ProtocolError."""
        told = vetted(await asyncio.to_thread(m.read_told, body), speaker.machine)
        if isinstance(told, m.Round):
            at = self._keeper.arrival(speaker.id, told, came) - (told.sent - told.at)
            told = renamed(told, await self._starts(speaker, names_in(told), at))
        elif isinstance(told, m.Devices):
            told = renamed(told, await self._starts(speaker, names_in(told), self._keeper.now()))
        await self._keeper.hear(speaker.id, partial(_as_it_is, told), came)

    async def _starts(self, speaker: _Speaker, wanted: set[str], at: float) -> dict[str, Start]:
        """What the names in a message stand for. A name that is not known yet is waited for, once: from `at`, when the
        message was made, or its node was let in. All that a node tells when it comes back waits together, not each by
        itself."""
        found: dict[str, Start] = {}
        loop = asyncio.get_running_loop()
        since = max(speaker.came_at, loop.time() - (self._keeper.now() - at))
        while True:
            waited_s, is_behind = loop.time() - since, self._naming.is_behind()
            for name in wanted - found.keys():
                if (start := self._naming.running(name, speaker.machine, at)) is not None:
                    found[name] = start
            for name in wanted - found.keys():
                start = await asyncio.to_thread(self._naming.past, name, speaker.machine, at)
                if start is not None:
                    found[name] = start
            unknown = wanted - found.keys()
            speaker.give_up({name for name in unknown if waited_s > _patience_s(name, is_behind)})
            if unknown <= speaker.given_up.keys():
                return found
            await asyncio.sleep(_LOOK_S)


@dataclass(slots=True)
class _Burst:
    left: float
    at: float


class _Speaker:
    """A node that was let in, by one connection."""

    def __init__(self, machine: str, id: str, writer: asyncio.StreamWriter) -> None:
        self.machine, self.id, self.writer = machine, id, writer
        self.given_up: OrderedDict[str, None] = OrderedDict()
        """Names that were waited for in vain: pods of others, jobs that nobody knows. They are looked up once more in
        every round, but not waited for."""
        self.came_at = asyncio.get_running_loop().time()
        self._burst = _Burst(_BURST_BYTES, self.came_at)

    async def wait_its_turn(self, length: int) -> None:
        now = asyncio.get_running_loop().time()
        left = min(_BURST_BYTES, self._burst.left + (now - self._burst.at) * _BYTES_S) - length
        self._burst = _Burst(left, now)
        if left < 0:
            await asyncio.sleep(-left / _BYTES_S)

    def give_up(self, names: set[str]) -> None:
        self.given_up.update(dict.fromkeys(names))
        while len(self.given_up) > _MOST_GIVEN_UP:
            self.given_up.popitem(last=False)


def _patience_s(name: str, is_behind: bool) -> float:
    if not name.isdigit():
        return _UNKNOWN_POD_S
    return _BEHIND_S if is_behind else _UNKNOWN_S


def _as_it_is(told: m.AnyTold) -> m.AnyTold:
    return told


async def _encrypted(sock: socket.socket, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The streams of a connection that was accepted, after its handshake. Raises OSError."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_READ_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, sock, ssl=context, ssl_handshake_timeout=_HELLO_S
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
