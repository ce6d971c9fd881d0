"""Keeps what gatherers tell: rounds in, samples to the store of series, "kept" back once they are on disk.

Made by the daemon, beside the loop that runs jobs: what gatherers told is read, reckoned and written in one thread of
its own, in which alone it is touched; who has which GPU is followed on the loop, where the state is. What cannot be
kept (a full disk) is left with the gatherers, which are not read meanwhile; nothing of it reaches the runtime.

Invariant: a gatherer hears "kept" of a round only after a `flush` that came after the round was taken in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from bireme.core.model import events as e
from bireme.core.state.state import State
from bireme.core.telemetry.attribution import Card, CardSeen, uuids_of
from bireme.core.telemetry.exported import GpuFigures, Measured, NodeFigures
from bireme.core.telemetry.subjects import Subject
from bireme.core.telemetry.waiting import Waited
from bireme.daemon.telemetry import intake
from bireme.daemon.telemetry.arriving import Came
from bireme.daemon.telemetry.digesting import Digester, Name, Run
from bireme.daemon.telemetry.intake import Gatherer
from bireme.daemon.telemetry.ownership import Ownership
from bireme.daemon.telemetry.trail import Trail
from bireme.gather import messages as m
from bireme.gather.exporting import gpu_figures
from bireme.ports import Clock, Happened, Holding, Sampled, SeenGpu, Series, SeriesError

log = logging.getLogger("bireme.daemon")

_FLUSH_S = 60.0
_AGAIN_S = 10.0
"""After a failure to write or to open."""
_THIN_OUT_S = 600.0
_LATELY_S = 86_400.0
_HAPPENINGS_AT_MOST = 1_000
_COUNTED_KINDS = ("xid", "gpu lost", "stray")
_LOOK_S = 1.0
"""Between two looks at what keeps jobs waiting, at least."""
_LOOK_RATION = 500.0
"""So many times as long as a look took until the next: two thousandths of a CPU at most."""
_NO_MORE = object()
Answer = TypeVar("Answer")


class Cluster(Protocol):
    """What is asked of the runtime."""

    clock: Clock

    @property
    def state(self) -> State: ...

    def subscribe(self, subscriber: Callable[[Sequence[e.Recorded]], None]) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True)
class Picture:
    """How everything stands now, for whoever shows it."""

    gatherers: tuple[Gatherer, ...]
    owners: dict[tuple[str, str], tuple[int, ...]]
    """Jobs by the node and the UUID of a GPU that they have."""
    happenings: tuple[m.Happening, ...]
    """The latest, oldest first."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """What a message of a gatherer means for what is followed on the loop."""

    cards: tuple[Card, ...] | None = None
    """All that are known, if they are others now."""
    seen: tuple[CardSeen, ...] = ()
    of_jobs: frozenset[int] | None = None
    """Only pods of these have other cards than before; None: the cards are others."""
    starts: frozenset[Name] | set[Name] = frozenset()
    """Of jobs, whose tasks it told of."""
    samples: Sequence[Sampled] = ()
    happenings: Sequence[m.Happening] = ()


class TelemetryKeeper:
    """`open_series` may fail, and is then tried again; `interval_s`: how often gatherers are to look; `past`: starts of
    jobs that ended at or after a time; `node_metrics`: where gatherers serve their own pages for Prometheus, empty for
    nowhere."""

    def __init__(
        self,
        cluster: Cluster,
        open_series: Callable[[], Series],
        interval_s: Callable[[], float],
        past: Callable[[float], Sequence[Run]] = lambda _: (),
        node_metrics: Callable[[], str] = str,
    ) -> None:
        self._cluster, self._open_series = cluster, open_series
        self.interval_s, self.node_metrics = interval_s, node_metrics
        self._writer = ThreadPoolExecutor(1, "telemetry")
        self._gatherers: dict[str, Gatherer] = {}
        self._ownership = Ownership(())
        self._trail = Trail()
        self._digester = Digester(cluster.clock, past)
        self._happenings: list[m.Happening] = []
        self._happened: Counter[tuple[str, str]] = Counter()
        """By node and kind, since this daemon started."""
        self._unheld: list[Holding] = []
        """Changes of whose GPUs they are that the series does not have yet."""
        self.series: Series | None = None
        self.lately: frozenset[str] = frozenset()
        """Machines that told of themselves in the day before the series was opened."""
        self.problem = ""
        """Why nothing is kept, in a sentence for people; empty while all is."""
        self.writable = asyncio.Event()
        """Rounds may be taken in."""
        self._cards_seen: tuple[CardSeen, ...] = ()
        self._listeners: list[Callable[[Sequence[Sampled], Sequence[Happened]], None]] = []
        self._flushed: list[Callable[[dict[str, int]], None]] = []
        self._leave: Callable[[], None] = lambda: None
        self._work: tuple[asyncio.Task[None], ...] = ()
        self._changed = asyncio.Event()
        """Whose GPUs they are."""

    def begin(self) -> None:
        self._leave = self._cluster.subscribe(self._committed)
        self._digester.runs.all(self._cluster.state, self._cluster.clock.now())
        self._digester.begin(lambda: self.series, self._told_until, self._uuid_of)
        self._work = tuple(
            asyncio.create_task(self._for_ever(work)) for work in (self._keep, self._follow_waits, self._note_holdings)
        )

    async def close(self) -> None:
        """Writes what was taken in."""
        self._leave()
        for work in self._work:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
        await self._digester.close()
        with suppress(SeriesError):
            await self._write(everything=True)
        await self._aside(self._close_series)
        self._writer.shutdown()

    # --- what gatherers say --------------------------------------------------------------------------------

    def on_kept(self, told: Callable[[dict[str, int]], None]) -> Callable[[], None]:
        """Calls `told` after every flush, with the latest round of each gatherer; returns the way out."""
        self._flushed.append(told)
        return lambda: self._flushed.remove(told)

    def on_heard(self, listener: Callable[[Sequence[Sampled], Sequence[Happened]], None]) -> Callable[[], None]:
        """Calls `listener` on the loop with what is new in each round, as it comes; returns the way out."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def greet(self, hello: m.Hello, came: Came, most_bytes: int = m.MAX_FRAME_BYTES) -> m.Welcome:
        now = self._cluster.clock.now()
        kept = await self._aside(lambda: self._gatherer(hello, came).kept)
        return m.Welcome(
            kept=kept, interval_s=self.interval_s(), now=now, metrics=self.node_metrics(), most_bytes=most_bytes
        )

    def now(self) -> float:
        """The daemon's clock."""
        return self._cluster.clock.now()

    def arrival(self, gatherer_id: str, told: m.Round, came: Came) -> float:
        """When a round of a gatherer that was greeted came, by the daemon's clock."""
        return came.at(told.sent, self._gatherers[gatherer_id].offset_s)

    async def hear(self, gatherer_id: str, read: Callable[[], m.AnyTold], came: Came) -> None:
        """Takes in a message of a gatherer that was greeted; `read` gives it. Raises ProtocolError."""
        now = self._cluster.clock.now()
        heard = await self._aside(lambda: self._hear(self._gatherers[gatherer_id], read(), came, now))
        self._digester.heard_of(heard.starts)
        if heard.samples or heard.happenings:
            told = [_happened(each) for each in heard.happenings]
            for listener in tuple(self._listeners):
                listener(heard.samples, told)
        if heard.cards is not None:
            self._ownership.cards = heard.cards
            self._cards_seen = heard.seen
            state = self._cluster.state
            if heard.of_jobs is None:
                self._change(self._ownership.all_changes(state, now))
            else:
                self._change(self._ownership.changes_of(state, heard.of_jobs, now))

    @asynccontextmanager
    async def patience_with(self, gatherer_id: str, body: bytes) -> AsyncIterator[None]:
        """Around the taking in of a message: what fails is raised, but for a round that has failed too often. That one
        is left out from now on."""
        try:
            yield
        except SeriesError:
            raise  # the disk's fault: the round comes again for as long as that lasts
        except Exception as error:
            no = m.number_of(body)
            if no is None or not await self._aside(lambda: intake.passes_over(self._gatherers[gatherer_id], no)):
                raise
            log.error("round %d of gatherer %s is left out: %s: %s", no, gatherer_id, type(error).__name__, error)

    @property
    def cards(self) -> tuple[Card, ...]:
        """All GPUs and instances that gatherers know."""
        return self._ownership.cards

    def cards_seen(self) -> tuple[CardSeen, ...]:
        """As `cards`, with what they are; made anew where gatherers tell of others."""
        return self._cards_seen

    @property
    def gatherers(self) -> tuple[Gatherer, ...]:
        """All that are known: to be looked at and left as they are."""
        return tuple(self._gatherers.values())

    async def picture(self) -> Picture:
        gatherers, happenings = await self._aside(
            lambda: (tuple(map(copy, self._gatherers.values())), tuple(self._happenings))
        )
        return Picture(gatherers, self._ownership.owners(), happenings)

    async def gpus(self) -> list[SeenGpu]:
        """All that gatherers know, by node and index, an instance after its GPU."""
        picture = await self.picture()
        devices = [device for gatherer in picture.gatherers for device in gatherer.devices.values()]
        devices.sort(key=lambda device: (device.node, device.index, bool(device.parent), device.uuid))
        return [
            SeenGpu(
                node=device.node,
                uuid=device.uuid,
                index=device.index,
                model=device.model,
                memory_mib=device.memory_mib,
                parent=device.parent,
                profile=device.profile,
                job_ids=picture.owners.get((device.node, device.uuid), ()),
            )
            for device in devices
        ]

    async def measured(self) -> Measured:
        """The newest figures of all machines, counters as they count; of GPUs with the jobs that have them."""
        now = self._cluster.clock.now()
        gpus, nodes, happened = await self._aside(lambda: self._figures(now))
        owners = self._ownership.owners()
        return Measured([replace(gpu, job_ids=owners.get((gpu.node, gpu.uuid), ())) for gpu in gpus], nodes, happened)

    # --- in the writer's thread ----------------------------------------------------------------------------

    async def _aside(self, work: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._writer, work)

    def _gatherer(self, hello: m.Hello, came: Came) -> Gatherer:
        found = self._gatherers.setdefault(hello.id, Gatherer(hello.id))
        found.machine, found.release = hello.machine, hello.speaker
        found.offset_s = intake.clock_offset(hello.now, came.latest)
        found.taken = max(found.taken, found.kept)
        return found

    def _hear(self, gatherer: Gatherer, told: m.AnyTold, came: Came, now: float) -> _Heard:
        if isinstance(told, m.Devices):
            return self._hear_devices(gatherer, told)
        if isinstance(told, m.Round) and self.series is not None:
            samples, happenings = intake.take(gatherer, told, now, self.arrival(gatherer.id, told, came))
            if samples:
                self._append(self.series, gatherer, told.no, samples)
            self.series.note_happenings([_happened(each) for each in happenings])
            self._happenings = [*self._happenings, *happenings][-_HAPPENINGS_AT_MOST:]
            self._happened.update((happening.node, happening.kind) for happening in happenings)
            return _Heard(starts=intake.starts_in(samples), samples=samples, happenings=happenings)
        return _Heard()

    def _hear_devices(self, gatherer: Gatherer, told: m.Devices) -> _Heard:
        before = gatherer.devices, gatherer.slurm_files
        moved = {*gatherer.held} ^ {*told.held}
        gatherer.devices = {device.uuid: device for device in told.devices}
        gatherer.slurm_files, gatherer.held = tuple(told.slurm_files), tuple(told.held)
        only_moved = before == (gatherer.devices, gatherer.slurm_files)
        of_jobs = frozenset(intake.holder_of(each).job_id for each in moved) if only_moved else None
        return _Heard(cards=self._cards(), seen=self._seen(), of_jobs=of_jobs)

    def _figures(self, now: float) -> tuple[list[GpuFigures], list[NodeFigures], dict[tuple[str, str], int]]:
        """Of what two gatherers tell (one took another's place) the newer counts: a sample stands once on a page."""
        gpus: dict[tuple[str, str], GpuFigures] = {}
        nodes: dict[str, NodeFigures] = {}
        for gatherer in sorted(self._gatherers.values(), key=lambda each: each.heard_at):
            figures = intake.newest(gatherer, now)
            gpus |= {
                (device.node, device.uuid): gpu_figures(device, found)
                for device in gatherer.devices.values()
                if (found := figures.get(Subject("gpu", device.node, device.uuid)))
            }
            nodes |= {
                each.node: NodeFigures(each.node, found) for each, found in figures.items() if each.about == "node"
            }
        by_place = sorted(gpus.values(), key=lambda gpu: (gpu.node, gpu.index, gpu.instance))
        told = {(gpu.node, kind): 0 for gpu in by_place for kind in _COUNTED_KINDS}  # so that the first one is a growth
        return by_place, sorted(nodes.values(), key=lambda node: node.node), told | dict(self._happened)

    def _append(self, series: Series, gatherer: Gatherer, no: int, samples: Sequence[Sampled]) -> None:
        try:
            series.append(gatherer.id, no, samples)
        except SeriesError:
            gatherer.taken = no - 1  # the gatherer still has it, and tells it again
            raise

    def _cards(self) -> tuple[Card, ...]:
        return tuple(card for gatherer in self._gatherers.values() for card in intake.cards_of(gatherer))

    def _seen(self) -> tuple[CardSeen, ...]:
        models = {
            (device.node, device.uuid): device
            for gatherer in self._gatherers.values()
            for device in gatherer.devices.values()
        }
        found = ((card, models[card.node, card.uuid]) for card in self._cards())
        return tuple(CardSeen(card, device.model, bool(device.parent)) for card, device in found)

    def _open(self) -> tuple[list[Holding], list[Waited]]:
        """The holdings and waits that were open when a daemon last wrote."""
        self.series = self._open_series()
        for gatherer_id, no in self.series.flush().items():
            known = self._gatherers.setdefault(gatherer_id, Gatherer(gatherer_id))
            known.kept = known.taken = no
        now = self._cluster.clock.now()
        self.lately = frozenset(subject.node for subject in self.series.subjects("node", "", now - _LATELY_S, now))
        return self.series.open_holdings(), self.series.open_waits()

    def _note(self, holdings: Sequence[Holding], waits: Sequence[Waited]) -> None:
        assert self.series is not None, "it was opened"
        self.series.hold(holdings)
        self.series.note_waits(waits)

    def _flush(self) -> dict[str, int]:
        if self.series is None:
            return {}
        kept = dict(self.series.flush())
        for gatherer_id, no in kept.items():
            self._gatherers.setdefault(gatherer_id, Gatherer(gatherer_id)).kept = no
        return kept

    def _close_series(self) -> None:
        if self.series is not None:
            self.series.close()
            self.series = None

    # --- on the loop ---------------------------------------------------------------------------------------

    def _committed(self, events: Sequence[e.Recorded]) -> None:
        now = self._cluster.clock.now()
        self._change(self._ownership.changes_after(self._cluster.state, events, now))
        self._digester.runs.after(self._cluster.state, events, now)
        self._trail.after(self._cluster.state, events)

    def _change(self, holdings: Sequence[Holding]) -> None:
        if holdings and self.series is not None:  # until it is opened nothing is noted: then all is looked at anew
            self._unheld += holdings
            self._changed.set()

    async def _for_ever(self, work: Callable[[], Awaitable[None]]) -> None:
        """Whatever goes wrong in it is told, and it is begun again."""
        while True:
            try:
                await work()
            except Exception as error:  # a fault of ours: what is measured later is kept all the same
                self._tell(f"{type(error).__name__}: {error}", error)
            await asyncio.sleep(_AGAIN_S)

    async def _note_holdings(self) -> None:
        """At once, for who looks at a job that has just begun; on disk they are with the next flush."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._hand_over()

    async def _follow_waits(self) -> None:
        """Looks at what keeps jobs waiting, so seldom that it costs nobody anything."""
        while True:
            slices, took_s, more = self._trail.look(lambda: self._cluster.state, self._cluster.clock.now()), 0.0, True
            while more:
                began = time.monotonic()
                more = next(slices, _NO_MORE) is not _NO_MORE
                took_s += time.monotonic() - began
                await asyncio.sleep(0)
            await self._hand_over()
            await asyncio.sleep(max(_LOOK_S, _LOOK_RATION * took_s))

    def waits_now(self, job_id: int) -> Waited | None:
        """What keeps a job waiting, and since when, where it waits; it may not be written yet."""
        return self._trail.open_span(job_id)

    def _uuid_of(self, node: str, index: int) -> str:
        known = self._cluster.state.nodes.get(node)
        return uuids_of(known.config, self._ownership.cards).get(index, "") if known is not None else ""

    def _told_until(self) -> dict[str, float]:
        """By node: until when its gatherer has told of it."""
        until: dict[str, float] = {}
        for gatherer in self.gatherers:
            for node in tuple(gatherer.nodes):
                until[node] = max(until.get(node, 0.0), gatherer.told_at)
        return until

    async def _keep(self) -> None:
        thinned_at = self._cluster.clock.now()
        while True:
            pause_s = _FLUSH_S
            try:
                await self._open_if_needed()
                self._well(await self._write())
                if self._cluster.clock.now() - thinned_at >= _THIN_OUT_S:
                    thinned_at = self._cluster.clock.now()
                    await self._aside(self._thin_out)
            except SeriesError as error:
                self._unwell(str(error))
                pause_s = _AGAIN_S
            except Exception as error:
                self._unwell(f"{type(error).__name__}: {error}", error)
                pause_s = _AGAIN_S
            await asyncio.sleep(pause_s)

    async def _open_if_needed(self) -> None:
        if self.series is not None:
            return
        known, waits = await self._aside(self._open)
        self._trail.take_up(waits)
        cards = self._ownership.cards
        self._ownership = Ownership(known)
        self._ownership.cards = cards
        self._unheld = self._ownership.all_changes(self._cluster.state, self._cluster.clock.now())
        self._changed.set()

    async def _write(self, *, everything: bool = False) -> dict[str, int]:
        """`everything`: also waits that have just begun. What could not be written stays with the series."""
        await self._hand_over(everything=everything)
        return await self._aside(self._flush)

    async def _hand_over(self, *, everything: bool = False) -> None:
        """Whose GPUs they are and what keeps jobs waiting, to the series: from then on whoever asks finds it there."""
        if self.series is None:
            return
        holdings, self._unheld = self._unheld, []
        waits = self._trail.take(self._cluster.clock.now(), everything=everything)
        if holdings or waits:
            await self._aside(lambda: self._note(holdings, waits))

    def _thin_out(self) -> None:
        assert self.series is not None, "it was opened"
        self.series.thin_out(self._cluster.clock.now())

    def _well(self, kept: dict[str, int]) -> None:
        if self.problem:
            log.info("telemetry is kept again")
        self.problem = ""
        self.writable.set()
        for told in tuple(self._flushed):
            told(kept)

    def _unwell(self, why: str, fault: Exception | None = None) -> None:
        self._tell(why, fault)
        self.writable.clear()

    def _tell(self, why: str, fault: Exception | None) -> None:
        """`fault`: one that nobody expected is told with its way through the code."""
        if why != self.problem:
            log.error("telemetry is not kept: %s", why, exc_info=fault)
        self.problem = why


def _happened(told: m.Happening) -> Happened:
    return Happened(told.at, told.node, told.kind, told.uuid, told.code, told.pid, told.task, told.text)
