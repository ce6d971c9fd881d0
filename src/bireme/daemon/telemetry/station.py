"""Telemetry as the daemon has it: the keeper of samples, the door of gatherers, and this machine's own gatherer.

The composition root makes one. A gatherer is kept up here where agents of this machine run jobs; other machines have
theirs started by their operators. It is left running when the daemon ends, and ended with the jobs.
Invariant: whatever fails here is told (`problem`), and costs no job anything.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress

from bireme.core.telemetry.attribution import Card
from bireme.core.telemetry.exported import Measured
from bireme.core.telemetry.waiting import Waited
from bireme.daemon.telemetry import process
from bireme.daemon.telemetry.digesting import Run
from bireme.daemon.telemetry.door import Door
from bireme.daemon.telemetry.freshness import Expected, newest_rounds, patience_s
from bireme.daemon.telemetry.keeper import Cluster, TelemetryKeeper
from bireme.daemon.telemetry.naming import Naming
from bireme.daemon.telemetry.outside import Outside
from bireme.daemon.telemetry.process import GathererPlan
from bireme.daemon.telemetry.stillness import Stillness
from bireme.ports import NewestRound, SeenGpu, Series

log = logging.getLogger("bireme.daemon")

_LOOK_S = 5.0
_MOST_PAUSE_S = 60.0
_HANGS_AFTER = 2
"""So many times as long as until it is told of: then a gatherer that tells nothing is replaced."""


class Station:
    """`plan`: how this machine's gatherer is started; None: there is none to be kept up here. `outside`: the folder of
    the door for other machines, and where it is to be (`telemetry.listen`); `naming`: what they call jobs; `past`:
    starts of jobs that ended at or after a time."""

    def __init__(
        self,
        cluster: Cluster,
        open_series: Callable[[], Series],
        interval_s: Callable[[], float],
        socket: str,
        plan: Callable[[], GathererPlan | None],
        outside: Callable[[], tuple[str, str]],
        naming: Naming,
        past: Callable[[float], Sequence[Run]],
        node_metrics: Callable[[], str] = str,
    ) -> None:
        self.keeper = TelemetryKeeper(cluster, open_series, interval_s, past, node_metrics)
        self._door = Door(socket, self.keeper)
        self._outside = Outside(self.keeper, naming, outside)
        self._plan, self._cluster = plan, cluster
        self._began_at = cluster.clock.now()
        self._started: subprocess.Popen[bytes] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._why_none = ""
        self._stillness = Stillness()

    async def begin(self) -> None:
        self.keeper.begin()
        try:
            await self._door.begin()
        except OSError as error:
            self._why_none = f"nobody can tell what was measured: {error}"
            log.error("%s", self._why_none)
            return
        await self._outside.begin()
        self._keeping = asyncio.create_task(self._keep_one_up())

    async def close(self, *, end: bool) -> None:
        """`end`: the gatherer ends too."""
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
        plan = self._plan()
        if end and plan is not None:
            await asyncio.to_thread(process.end, plan.folder)
            if self._started is not None:  # perhaps a moment ago: it is not known by its lock then
                await asyncio.to_thread(process.end_new, self._started)
        await self._outside.close()
        await self._door.close()
        await self.keeper.close()

    def reconsider(self) -> None:
        """The settings may be others now."""
        pace = self.keeper.interval_s(), self.keeper.node_metrics()
        self._door.set_pace(*pace)
        self._outside.set_pace(*pace)

    @property
    def series(self) -> Series | None:
        """What was measured; None while it cannot be read."""
        return self.keeper.series

    @property
    def cards(self) -> tuple[Card, ...]:
        """All GPUs and instances that gatherers know, as their drivers name them."""
        return self.keeper.cards

    async def gpus(self) -> list[SeenGpu]:
        """All that gatherers know."""
        return await self.keeper.gpus()

    async def measured(self) -> Measured:
        """The newest figures of all machines, for Prometheus."""
        return await self.keeper.measured()

    def waits_now(self, job_id: int) -> Waited | None:
        """What keeps a job waiting now."""
        return self.keeper.waits_now(job_id)

    @property
    def problem(self) -> str:
        """What is not measured, not kept or was found damaged, in a sentence for people; empty when all is well."""
        damaged = self.series.problem if self.series is not None else ""
        return self.keeper.problem or self._why_none or self._outside.problem or self._silence or damaged

    def newest_rounds(self) -> list[NewestRound]:
        """Of every machine that tells or should, the oldest first."""
        plan = self._plan()
        own, others = (plan.machine, frozenset[str]()) if plan is not None else ("", self.keeper.lately)
        expected = Expected(self._began_at, own, others)
        now, nodes = self._cluster.clock.now(), self._cluster.state.nodes
        return newest_rounds(self.keeper.gatherers, expected, nodes, self.keeper.interval_s(), now)

    @property
    def _silence(self) -> str:
        rounds = self.newest_rounds()
        late = sum(one.is_late for one in rounds)
        if not late:
            return ""
        whose = f"{late} of {len(rounds)} machines tell" if len(rounds) > 1 else "the machine that measures tells"
        return f"{whose} nothing new: a gatherer hangs, was stopped or is gone (bireme doctor says which)"

    async def _keep_one_up(self) -> None:
        pause_s = _LOOK_S
        while True:
            plan = self._plan()
            if plan is not None and (pid := process.pid_of(plan.folder)) is not None:
                pause_s, self._why_none = _LOOK_S, ""
                await self._end_if_it_hangs(plan, pid)
            elif plan is not None:
                failed = self._started is not None and self._started.poll() is not None
                pause_s = min(2 * pause_s, _MOST_PAUSE_S) if failed else _LOOK_S
                self._start(plan)
            else:
                pause_s, self._why_none = _LOOK_S, ""
            await asyncio.sleep(pause_s)

    async def _end_if_it_hangs(self, plan: GathererPlan, pid: int) -> None:
        """The next look starts another one in its place, which goes on with what it had not told yet."""
        if not self.keeper.writable.is_set():
            self._stillness.forget()  # nobody reads what it tells
            return
        told = tuple((each.id, each.taken) for each in self.keeper.gatherers if not each.is_remote)
        patience = _HANGS_AFTER * patience_s(self.keeper.interval_s())
        if not self._stillness.hangs(told, int(patience / _LOOK_S)):
            return
        log.warning("the gatherer of this machine (pid %d) tells nothing any more: another one is started", pid)
        await asyncio.to_thread(process.end, plan.folder)
        if process.pid_of(plan.folder) == pid:
            self._why_none = f"the gatherer of this machine (pid {pid}) hangs and cannot be ended"
            log.error("%s", self._why_none)

    def _start(self, plan: GathererPlan) -> None:
        if self._started is not None and self._started.poll() is None:
            return  # it has not taken its lock yet
        if self._started is not None:
            self._why_none = f"the gatherer of this machine ended; see {plan.log}"
            log.warning("%s: it is started again", self._why_none)
        try:
            self._started = process.start(plan)
        except OSError as error:
            self._why_none = f"the gatherer of this machine cannot be started: {error}"
            log.error("%s", self._why_none)
