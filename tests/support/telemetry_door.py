"""A daemon's side of telemetry without a daemon: a store that may be full, a cluster of a scenario, a gatherer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from bireme.core.telemetry.subjects import Subject
from bireme.core.telemetry.waiting import Waited
from bireme.gather import messages as m
from bireme.ports import Happened, Holding, Sampled, SeriesError
from bireme.testing.scenario import Scenario


class Disk:
    """A store of series that remembers what it was given, and may be full."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}
        self.kept: dict[str, int] = {}
        self.samples: list[Sampled] = []
        self.held: dict[tuple[int, int, str], Holding] = {}
        self.full = False
        self.waits: list[Waited] = []
        self.happenings: list[Happened] = []

    def append(self, gatherer: str, no: int, samples: Sequence[Sampled]) -> None:
        self.taken[gatherer] = no
        self.samples += samples

    def flush(self) -> Mapping[str, int]:
        if self.full:
            raise SeriesError("No space left on device")
        self.kept = dict(self.taken)
        return self.kept

    def hold(self, holdings: Sequence[Holding]) -> None:
        self.held |= {(each.job_id, each.generation, each.uuid): each for each in holdings}

    def open_holdings(self) -> list[Holding]:
        return [each for each in self.held.values() if each.end is None]

    def note_waits(self, waits: Sequence[Waited]) -> None:
        self.waits = [*self.waits, *waits]

    def subjects(self, about: str, prefix: str, start: float, end: float) -> list[Subject]:
        return []

    def open_waits(self) -> list[Waited]:
        return []

    def note_happenings(self, happenings: Sequence[Happened]) -> None:
        self.happenings = [*self.happenings, *happenings]

    def close(self) -> None:
        self.taken = dict(self.kept)


class Cluster:
    """A scenario, with subscribers of its commits."""

    def __init__(self) -> None:
        self.world = Scenario("1x2:h100")
        self.state, self.clock = self.world.state, self.world.clock

    def subscribe(self, subscriber: Any) -> Any:
        return lambda: None


class Peer:
    """A gatherer's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def say(self, message: m.Told) -> None:
        self._writer.write(m.encode(message))

    async def hear(self) -> m.AnySaid:
        length = int.from_bytes(await self._reader.readexactly(4), "big")
        return m.read_said(await self._reader.readexactly(length))

    async def is_over(self) -> bool:
        """True once the daemon has hung up; what it said before is passed over."""
        while await self._reader.read(1 << 16):
            pass
        return True

    async def is_cut_off(self) -> bool:
        """True also where what this side had still to say is thrown away with the connection."""
        try:
            return await self._reader.read() == b""
        except ConnectionResetError:
            return True


async def kept_up_to(peer: Peer, no: int) -> None:
    while True:
        said = await peer.hear()
        if isinstance(said, m.Kept) and said.no >= no:
            return
