"""The gatherer's conversation with the daemon: rounds out, "kept" in; without a daemon, rounds wait in the spool.

Run beside the rounds, on the same event loop. It connects, and connects again, ever less often up to a few seconds.
Invariant: rounds are sent in the order of their numbers, each again after every welcome until it is confirmed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from bireme import __version__
from bireme.gather import messages as m
from bireme.gather.dialling import Dial
from bireme.gather.spool import Spool

log = logging.getLogger("bireme.gather")

_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.5, 5.0
_READ_BYTES = 64 * 1024


class LeaveError(Exception):
    """The daemon has told this gatherer to end."""


class Link:
    """`dial` reaches the daemon; `paced` is told how often to look, and `moved` where to serve metrics, whenever the
    daemon says it."""

    def __init__(
        self,
        dial: Dial,
        spool: Spool,
        machine: str,
        paced: Callable[[float], None],
        moved: Callable[[str], Awaitable[None]],
    ) -> None:
        self._dial, self._spool, self._machine, self._paced, self._moved = dial, spool, machine, paced, moved
        self._new = asyncio.Event()
        self._sent = 0
        self.devices: list[m.Device] = []
        self.nodes: list[str] = []
        self.slurm_files: list[str] = []
        self.held: list[m.HeldDevice] = []
        self._told_devices: m.Devices | None = None
        self._problem = ""
        """Why the daemon had no round of this one the last time; empty since it has kept one."""
        self._most_bytes = m.MAX_FRAME_BYTES
        self._kept = -1
        """What the daemon said that it has, in its latest welcome."""
        self.is_heard = False
        """A daemon listens."""

    def made(self) -> None:
        """There is a round more in the spool, or other devices are known."""
        self._new.set()

    async def run(self) -> None:
        """Until the daemon says that it is to end. Raises LeaveError then."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._converse()
            except (OSError, EOFError, ValueError) as error:
                pause_s = min(2 * pause_s, _MOST_PAUSE_S) if self._problem else _FIRST_PAUSE_S
                self._tell_once(str(error) or type(error).__name__)
            await asyncio.sleep(pause_s)

    def _tell_once(self, problem: str) -> None:
        """Why the daemon does not have the rounds: when it is not what it was since it last kept one."""
        if problem != self._problem:
            log.warning("no daemon takes what is measured, it is kept here: %s", problem)
        self._problem = problem

    async def _converse(self) -> None:
        reader, writer, token = await self._dial()
        try:
            writer.write(m.encode(self._hello(token)))
            splitter = m.FrameSplitter()
            welcome, more = await self._first(reader, splitter)
            self._spool.confirm(welcome.kept)
            self._sent, self._told_devices, self._most_bytes = welcome.kept, None, welcome.most_bytes
            self._paced(welcome.interval_s)
            await self._moved(welcome.metrics)
            self.is_heard = True
            if welcome.kept != self._kept:
                log.info("the daemon has rounds up to %d", welcome.kept)
            self._kept = welcome.kept
            await _until_one_ends(self._send(writer), self._listen(reader, splitter, more))
        finally:
            self.is_heard = False
            writer.close()

    def _hello(self, token: str) -> m.Hello:
        return m.Hello(
            id=self._spool.id,
            machine=self._machine,
            speaker=__version__,
            nodes=self.nodes,
            now=time.time(),
            token=token,
        )

    async def _first(self, reader: asyncio.StreamReader, splitter: m.FrameSplitter) -> tuple[m.Welcome, list[bytes]]:
        """The welcome, and what came together with it."""
        while not (bodies := splitter.feed(await _some(reader))):
            pass
        said = m.read_said(bodies[0])
        if isinstance(said, m.Refused):
            raise m.ProtocolError(said.why)
        if not isinstance(said, m.Welcome):
            raise m.ProtocolError("the daemon did not answer the hello")
        return said, bodies[1:]

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        while True:
            self._new.clear()
            devices = m.Devices(devices=list(self.devices), slurm_files=self.slurm_files, held=self.held)
            if devices != self._told_devices:
                self._told_devices = devices
                writer.write(m.encode(devices))
            for told in self._spool.after(self._sent):
                message = m.encode(msgspec.structs.replace(told, sent=time.time()))
                if len(message) <= self._most_bytes:
                    writer.write(message)
                    await writer.drain()
                else:  # it would be cut off for it, each time that it comes again
                    log.error("round %d is left out: its %d bytes are more than is taken", told.no, len(message))
                self._sent = told.no
            await self._new.wait()

    async def _listen(self, reader: asyncio.StreamReader, splitter: m.FrameSplitter, bodies: list[bytes]) -> None:
        """`bodies`: what was said already."""
        while True:
            for body in bodies:
                await self._obey(m.read_said(body))
            bodies = splitter.feed(await _some(reader))

    async def _obey(self, said: m.AnySaid) -> None:
        if isinstance(said, m.Kept):
            self._spool.confirm(said.no)
            self._problem = ""
        elif isinstance(said, m.Pace):
            self._paced(said.interval_s)
            if said.metrics is not None:
                await self._moved(said.metrics)
        elif isinstance(said, m.Leave):
            raise LeaveError


async def _until_one_ends(*sides: Coroutine[Any, Any, None]) -> None:
    """Ends the others with it, and raises what ended it; that somebody is to leave before anything else.

    Not a TaskGroup: that of Python 3.11 takes a cancel that comes as one of its tasks fails for its own.
    """
    tasks = [asyncio.create_task(side) for side in sides]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    errors = [error for task in done if (error := task.exception()) is not None]
    for error in sorted(errors, key=lambda error: not isinstance(error, LeaveError)):
        raise error


async def _some(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(_READ_BYTES)
    if not data:
        raise EOFError("the daemon is gone")
    return data
