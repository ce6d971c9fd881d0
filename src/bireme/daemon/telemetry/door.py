"""Where gatherers of this machine come in: a socket file in the daemon's home that only its own user can open.

One conversation for each connection (`gather/messages`): hello, welcome, then rounds in and "kept" out. A gatherer that
connects anew takes the place of its connection before. Who is not the daemon's user, or speaks out of turn, is cut off.
Invariant: while nothing can be written, no round is read: they stay with their gatherers.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from functools import partial

from bireme.agent.door import peer_uid
from bireme.agent.messages.protocol import listen_at
from bireme.daemon.telemetry.arriving import Came, bodies
from bireme.daemon.telemetry.keeper import TelemetryKeeper
from bireme.daemon.telemetry.vetting import bounded, check_name
from bireme.gather import messages as m

log = logging.getLogger("bireme.daemon")

_BACKLOG = 16
_HELLO_S = 10.0
_IDS_AT_MOST = 64
"""Gatherers that this machine may have while the daemon runs: each is remembered."""


class Door:
    """Open from `begin` to `close`."""

    def __init__(self, path: str, keeper: TelemetryKeeper) -> None:
        self._path, self._keeper = path, keeper
        self._server: asyncio.Server | None = None
        self._speaking: dict[str, asyncio.StreamWriter] = {}
        self._ids: set[str] = set()

    async def begin(self) -> None:
        self._server = await asyncio.start_unix_server(
            self._converse, sock=listen_at(self._path, _BACKLOG, for_everyone=False)
        )
        self._leave = self._keeper.on_kept(self._tell_kept)

    async def close(self) -> None:
        if self._server is None:
            return
        self._leave()
        self._server.close()
        for writer in tuple(self._speaking.values()):
            writer.close()
        with suppress(OSError):
            os.unlink(self._path)

    def set_pace(self, interval_s: float, metrics: str) -> None:
        """Has every gatherer look so often from now on, and serve its page for Prometheus there."""
        for writer in self._speaking.values():
            writer.write(m.encode(m.Pace(interval_s=interval_s, metrics=metrics)))

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gatherer = ""
        try:
            if peer_uid(writer.get_extra_info("socket")) not in (0, os.geteuid()):
                return
            messages = bodies(reader, m.FrameSplitter(), self._keeper.now)
            async with asyncio.timeout(_HELLO_S):
                body, came = await anext(messages)
            hello = m.read_told(body)
            if not isinstance(hello, m.Hello):
                raise m.ProtocolError("the first message is not a hello")
            self._recognise(hello)
            gatherer = hello.id
            await self._keeper.writable.wait()
            await self._greet(hello, came, writer)
            async for body, came in messages:
                async with self._keeper.patience_with(gatherer, body):
                    await self._keeper.hear(gatherer, partial(_read, body), came)
                await self._keeper.writable.wait()
        except (m.ProtocolError, TimeoutError, StopAsyncIteration, OSError) as error:
            if str(error):
                log.warning("a gatherer (%s) is cut off: %s", gatherer or "who did not say hello", error)
        except Exception as error:  # it costs this connection, and the gatherer comes again
            log.error("a gatherer (%s) is cut off: %s: %s", gatherer, type(error).__name__, error)
        finally:
            if self._speaking.get(gatherer) is writer:
                del self._speaking[gatherer]
            writer.close()

    def _recognise(self, hello: m.Hello) -> None:
        """Raises ProtocolError for who could not be told from others, or would be one of too many."""
        check_name(hello.id, hello.machine)
        if not hello.id or "/" in hello.id:
            raise m.ProtocolError("an id that no gatherer of this machine has")
        if hello.id not in self._ids and len(self._ids) >= _IDS_AT_MOST:
            raise m.ProtocolError("this machine had too many gatherers; their folder must outlive a restart")
        self._ids.add(hello.id)

    async def _greet(self, hello: m.Hello, came: Came, writer: asyncio.StreamWriter) -> None:
        before = self._speaking.pop(hello.id, None)
        if before is not None:
            before.close()
        writer.write(m.encode(await self._keeper.greet(hello, came)))
        self._speaking[hello.id] = writer  # only now: the welcome is the first that it hears

    def _tell_kept(self, kept: dict[str, int]) -> None:
        for gatherer, writer in self._speaking.items():
            if gatherer in kept:
                writer.write(m.encode(m.Kept(no=kept[gatherer])))


def _read(body: bytes) -> m.AnyTold:
    return bounded(m.read_told(body))
