"""One gatherer: looks at everything every few seconds and makes a round of it.

Made by `__main__`. What it looks at comes from `machine`, `tasks` and `gpus`; where a round goes is `link`'s and
`spool`'s. It decides nothing.
Invariant: rounds are numbered on, and a round that takes long delays the next, it does not come twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from bireme.gather.dialling import Dial
from bireme.gather.exporting import Newest
from bireme.gather.link import LeaveError, Link
from bireme.gather.machine import machine_frame
from bireme.gather.messages import Device, Frame, Happening, Round
from bireme.gather.owners import OwnedTask, Owners
from bireme.gather.serving import KeptPort
from bireme.gather.spool import Spool
from bireme.gather.tasks import TaskSampler

log = logging.getLogger("bireme.gather")

SHORTEST_S, LONGEST_S = 1.0, 60.0
_SHORTEST_PAUSE_S = 0.5
"""Between the beginnings of two rounds, whatever happens: a card that fails may tell of it hundreds of times."""
_ALONE_S = 120.0
"""A gatherer without a daemon and without an agent for so long ends: the cluster is down."""


class Gpus(Protocol):
    """What is asked of the GPUs of this machine: after `look`, all of it answers at once."""

    @property
    def is_stale(self) -> bool:
        """Their driver was replaced, and only a new process can read it."""

    async def look(self) -> None:
        """At all of them, for a round."""

    def devices(self) -> list[Device]:
        """Those that are there now."""

    def frames(self, owner_of: dict[int, OwnedTask]) -> list[Frame]:
        """Their newest figures, and what the processes of each task do on them."""

    def happenings(self) -> list[Happening]:
        """What happened since it was last asked."""

    def on_event(self, call: Callable[[], None]) -> None:
        """Calls it, in any thread, when something has happened that the next round will tell."""


class Gatherer:
    """`machine`: the name under which the figures of the machine as a whole are told; `dial` reaches the daemon."""

    def __init__(self, machine: str, owners: Owners, gpus: Gpus, spool: Spool, dial: Dial) -> None:
        self._machine, self._owners, self._gpus, self._spool = machine, owners, gpus, spool
        self._tasks = TaskSampler()
        self._interval_s = 10.0
        self._hurry = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_company_at = time.monotonic()
        self._unkept = ""
        """Why the round before is lost: told once."""
        self.newest = Newest()
        self._port = KeptPort(self._page, "metrics.node_address")
        self.link = Link(dial, spool, machine, self._set_pace, self._port.move)

    def hurry(self) -> None:
        """Something happened that nobody should wait for: the next round is made at once. From any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._hurry.set)

    async def run(self) -> None:
        """Until the daemon says that it is to end."""
        self._loop = asyncio.get_running_loop()
        self._gpus.on_event(self.hurry)
        speaking = asyncio.create_task(self.link.run())
        try:
            while not (speaking.done() or self._is_alone() or self._gpus.is_stale):
                began = time.monotonic()
                self._keep(await self._look())
                await self._pause(began, speaking)
            if speaking.done():
                await speaking
        except LeaveError:
            log.info("the daemon says that nobody is needed here any more")
        finally:
            self._port.close()
            speaking.cancel()

    def _is_alone(self) -> bool:
        if self.link.is_heard or self._owners.answer:
            self._in_company_at = time.monotonic()
        return time.monotonic() - self._in_company_at > _ALONE_S

    def _set_pace(self, interval_s: float) -> None:
        interval_s = min(max(interval_s, SHORTEST_S), LONGEST_S)
        if interval_s != self._interval_s:
            self._interval_s = interval_s
            self._hurry.set()

    async def _page(self) -> str:
        return await asyncio.to_thread(self.newest.text)

    async def _pause(self, began: float, speaking: asyncio.Task[None]) -> None:
        """Until the next round is due: sooner when another pace is said, or the link is over."""
        left = began + self._interval_s - time.monotonic()
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((hurry, speaking), timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if (early := began + _SHORTEST_PAUSE_S - time.monotonic()) > 0.0 and not speaking.done():
            await asyncio.sleep(early)
        self._hurry.clear()

    async def _look(self) -> Round:
        tasks, _ = await asyncio.gather(self._owners.tasks(), self._gpus.look())
        frames, owner_of = self._tasks.frames(tasks)
        self.link.devices = self._gpus.devices()
        self.link.slurm_files = await self._owners.slurm_files()
        self.link.held = await self._owners.held(self.link.devices)
        self.link.nodes = sorted({task.node for task in tasks} | {self._machine})
        return Round(
            no=self._spool.last + 1,
            at=time.time(),
            interval_s=self._interval_s,
            frames=[machine_frame(self._machine), *frames, *self._gpus.frames(owner_of)],
            happenings=self._gpus.happenings(),
        )

    def _keep(self, told: Round) -> None:
        self.newest.take(told, self.link.devices)
        try:
            self._spool.add(told)
            self._unkept = ""
        except OSError as error:  # the disk is full: this round is lost, and the next one is tried
            if str(error) != self._unkept:
                log.error("rounds cannot be kept and are lost: %s", error)
            self._unkept = str(error)
        self.link.made()
