"""All GPUs of a machine, watched: a round of figures, who uses them, what befell them, and which there are.

`Gpus` is what the gatherer holds: `start`, then `round` every few seconds, then `stop`. Beside the threads of the cards
(`card_watch`) it has one that keeps the library open and the list of cards current (`_keep`), and one that waits for
the library's events (`_listen`). `round` itself never calls into a driver.

A card that is lost is told once ("gpu lost") and shown with `gpu_answers` 0 until it answers again ("gpu back");
meanwhile the library is opened anew, with growing pauses, when no call is inside it.

Invariant: `round` returns within `Pace.patience_s`, whatever drivers do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from bireme.gather.gpus.card_watch import CardWatch, Gate
from bireme.gather.gpus.source import DriverChanged, DriverGone, GpuEvent, GpuProcess, GpuSource, Values
from bireme.gather.gpus.xids import Xids
from bireme.gather.messages import Device, Frame, Happening

log = logging.getLogger(__name__)


class KernelLines(Protocol):
    """A kernel's log: `KernelLog`, or a rehearsal's."""

    def read(self) -> list[GpuEvent]:
        """What was told since the last time."""

    def wait(self, seconds: float) -> None:
        """Until there are new lines, or the time is over."""

    def close(self) -> None:
        """Nothing is read any more."""


_KERNEL_WAITS_S, _KERNEL_RESTS_S = 1.0, 0.2
"""How long is waited for a line, and how long after one: a kernel that writes all day costs a look five times a second.
"""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long is waited for what."""

    patience_s: float = 3.0
    """For all cards of a round together; a look takes some milliseconds."""
    glance_s: float = 5.0
    """Between two quick looks; each takes 0.2 ms of CPU on an H200."""
    relist_s: float = 30.0
    """How soon a new MIG instance is known."""
    first_pause_s: float = 5.0
    longest_pause_s: float = 300.0
    """Between two openings of a library that does not work, or that lost a card."""
    events_s: float = 2.0
    opening_s: float = 30.0
    """An opening that takes longer hangs: the cards do not answer."""


@dataclass(frozen=True, slots=True)
class GpuRound:
    """One look at all GPUs."""

    at: float
    devices: tuple[Device, ...]
    values: dict[str, Values]
    """By UUID."""
    processes: dict[str, list[GpuProcess]]
    """Of the GPUs and instances whose processes are known."""
    happenings: list[Happening] = field(default_factory=list)

    def node_of(self, uuid: str) -> str:
        return next((device.node for device in self.devices if device.uuid == uuid), "")

    def frames(self, more: Mapping[str, Values] | None = None) -> list[Frame]:
        """One for each node; `more` are figures that others found (`gpu_unowned_memory`)."""
        by_node: dict[str, list[str]] = {}
        for device in self.devices:
            if device.uuid in self.values:
                by_node.setdefault(device.node, []).append(device.uuid)
        frames = []
        for node, uuids in by_node.items():
            rows = [self.values[uuid] | (more or {}).get(uuid, {}) for uuid in uuids]
            names = dict.fromkeys(name for row in rows for name in row)
            columns = {name: [row.get(name) for row in rows] for name in names}
            frames.append(Frame(about="gpu", node=node, ids=uuids, columns=columns))
        return frames


class Gpus:
    """The GPUs of this machine."""

    def __init__(
        self,
        source: GpuSource,
        node_of: Callable[[Device], str],
        *,
        pace: Pace | None = None,
        kernel_log: KernelLines | None = None,
        machine: str = "",
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`node_of` says which node a GPU belongs to: a machine may be several virtual ones. `machine`: what is of no
        GPU is told of it."""
        self._source = source
        self._node_of = node_of
        self._pace = pace or Pace()
        self._kernel_log = kernel_log
        self._machine = machine
        self._wall = wall
        self._gate = Gate(self._pace.opening_s)
        self._lock = threading.Lock()
        self._devices: dict[str, Device] = {}
        self._watches: dict[str, CardWatch] = {}
        self._events: list[GpuEvent] = []
        self._xids = Xids()
        self._latest_xid: dict[str, int] = {}
        self._told_lost: set[str] = set()
        self._is_open = False
        self._rounds = 0
        self._was_opened = threading.Event()
        """Once, or it was tried."""
        self._ended = threading.Event()
        self._wake = threading.Event()
        self._threads: list[threading.Thread] = []
        self._by_kernel: list[GpuEvent] = []
        self._reading = threading.Lock()
        self.on_event: Callable[[], None] = lambda: None
        """Called, in a thread of ours, when something happened that the next round will tell."""
        self.problem = ""
        """Why there are no GPUs, or not all: for people."""
        self.is_stale = False
        """The driver was replaced: only a new process can read it."""

    def start(self) -> None:
        targets = [("gpu keeper", self._keep), ("gpu events", self._listen)]
        targets += [("kernel log", self._listen_to_kernel)] if self._kernel_log is not None else []
        for name, target in targets:
            self._threads.append(threading.Thread(target=target, name=name, daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        """Gives the library back if no call hangs in it; takes no longer than a round."""
        self._ended.set()
        self._wake.set()
        for watch in self._watches.values():
            watch.stop()
        deadline = time.monotonic() + self._pace.patience_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._gate.close(max(0.0, deadline - time.monotonic())):
            self._source.close()
        if self._kernel_log is not None:
            self._kernel_log.close()

    # -- a round ----------------------------------------------------------------------------------------------------

    def round(self) -> GpuRound:
        """Asks every card, waits a moment, and tells what came."""
        deadline = time.monotonic() + self._pace.patience_s
        self._was_opened.wait(self._pace.patience_s)
        with self._lock:
            watches = list(self._watches.values())
        for watch in watches:
            watch.ask()
        for watch in watches:
            watch.wait(deadline)
        self._rounds += 1
        at = self._wall()
        values: dict[str, Values] = {}
        processes: dict[str, list[GpuProcess]] = {}
        happenings: list[Happening] = []
        for watch in watches:
            happenings += self._take(watch, values, processes, at)
        happenings += self._happened(at)
        for uuid, row in values.items():
            if uuid in self._latest_xid and row.get("gpu_answers"):
                row["gpu_xid"] = self._latest_xid[uuid]
        with self._lock:
            devices = tuple(self._devices.values())
        return GpuRound(at, devices, values, processes, sorted(happenings, key=lambda each: each.at))

    def _take(
        self, watch: CardWatch, values: dict[str, Values], processes: dict[str, list[GpuProcess]], at: float
    ) -> list[Happening]:
        state, look = watch.seen()
        if state == "waits":
            return []
        if state == "answers":
            for uuid, row in look.values.items():
                counted = {"gpu_processes": len(look.processes[uuid])} if uuid in look.processes else {}
                values[uuid] = {**row, **counted, "gpu_answers": 1}
            processes.update(look.processes)
            if watch.uuid in self._told_lost:
                self._told_lost.discard(watch.uuid)
                return [self._happening(at, "gpu back", watch.uuid, "it answers again")]
            return []
        for uuid in watch.uuids:
            values[uuid] = {"gpu_answers": 0}
        if state == "lost" and watch.uuid not in self._told_lost:
            self._told_lost.add(watch.uuid)
            self._wake.set()
            return [self._happening(at, "gpu lost", watch.uuid, self.problem or look.lost)]
        return []

    def _happened(self, now: float) -> list[Happening]:
        with self._lock:
            by_nvml, self._events = self._events, []
        self._read_kernel()
        with self._lock:
            by_kernel, self._by_kernel = self._by_kernel, []
        told = []
        for event in self._xids.merge(by_nvml, by_kernel, now):
            uuid = event.uuid or self._uuid_at(event.pci_bus_id)
            if uuid and event.kind == "xid":
                self._latest_xid[uuid] = event.code
            told.append(
                Happening(
                    at=event.at,
                    node=event.node or (self._machine if event.kind == "kernel" else self._node_at(uuid)),
                    kind=event.kind,
                    uuid=uuid,
                    code=event.code,
                    pid=event.pid,
                    text=event.text,
                )
            )
        return told

    def _happening(self, at: float, kind: str, uuid: str, text: str) -> Happening:
        assert kind in ("gpu lost", "gpu back")
        return Happening(at=at, node=self._node_at(uuid), kind=kind, uuid=uuid, text=text)  # type: ignore[arg-type]

    def _uuid_at(self, bus_id: str) -> str:
        """Of the GPU there, not of an instance."""
        with self._lock:
            found = (each.uuid for each in self._devices.values() if each.pci_bus_id == bus_id and not each.parent)
            return next(found, "")

    def _node_at(self, uuid: str) -> str:
        """Of a switch, which is no GPU: that of the first GPU."""
        with self._lock:
            first = next(iter(self._devices.values()), None)
            device = self._devices.get(uuid, first)
        return device.node if device else ""

    # -- the keeper's thread ----------------------------------------------------------------------------------------

    def _keep(self) -> None:
        pause_s, looked_at = self._pace.first_pause_s, -1
        while not self._ended.is_set() and not self.is_stale:
            if self._is_open and not (self._told_lost and self._rounds > looked_at):
                pause_s = pause_s if self._told_lost else self._pace.first_pause_s
                self._relist()
                self._rest(self._pace.relist_s)
                continue
            if self._is_open:
                self._rest(pause_s)  # a card that was reset just now needs a moment
            if self._ended.is_set():
                return
            self._open_anew()
            looked_at = self._rounds
            if not self._is_open:
                self._rest(pause_s)
            pause_s = min(pause_s * 2, self._pace.longest_pause_s)

    def _rest(self, seconds: float) -> None:
        self._wake.wait(seconds)
        if not self._ended.is_set():
            self._wake.clear()

    def _open_anew(self) -> None:
        if not self._gate.close(self._pace.patience_s):
            return  # a call hangs: the library cannot be taken from under it
        self._is_open = False
        try:
            self._source.open()
            devices = self._source.devices()
        except DriverGone as error:
            self.is_stale = isinstance(error, DriverChanged)
            self._say(str(error))
        except Exception as error:  # a library of another release: tried again, as one that is not there
            log.exception("the library of the GPUs cannot be opened")
            self._say(f"{type(error).__name__}: {error}")
        else:
            self._is_open = True
            self._say("")
            self._take_list(devices)
        finally:
            self._gate.open()
            self._was_opened.set()

    def _relist(self) -> None:
        try:
            with self._gate.passing():
                devices = self._source.devices()
        except Exception as error:  # DriverGone, or a library of another release
            self._is_open = False
            self._say(str(error) or type(error).__name__)
        else:
            self._take_list(devices)

    def _take_list(self, devices: Sequence[Device]) -> None:
        placed = [msgspec.structs.replace(device, node=self._node_of(device)) for device in devices]
        parts: dict[str, tuple[str, ...]] = {}
        for device in placed:
            gpu = device.parent or device.uuid
            parts[gpu] = (*parts.get(gpu, (gpu,)), device.uuid) if device.parent else parts.get(gpu, (gpu,))
        with self._lock:
            known = {each.uuid: each for each in self._devices.values() if not each.parent}
            missing = {uuid: each for uuid, each in known.items() if uuid not in parts}
            self._devices = {each.uuid: each for each in [*placed, *missing.values()]}
            for uuid in missing:
                self._watches[uuid].has((uuid,))
            for uuid, uuids in parts.items():
                if uuid in self._watches:
                    self._watches[uuid].has(uuids)
                elif not self._ended.is_set():
                    self._watches[uuid] = CardWatch(self._source, uuids, self._gate, self._pace.glance_s)

    def _say(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.info("no GPUs are measured: %s", problem)
        self.problem = problem

    # -- the thread of events ---------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._ended.is_set() and not self.is_stale:
            try:
                with self._gate.passing():
                    events = self._source.wait_happenings(self._pace.events_s) if self._is_open else None
            except DriverGone:
                events = None
            if events is None:
                self._ended.wait(self._pace.events_s)
                continue
            with self._lock:
                self._events += events
            if events:
                self.on_event()

    def _listen_to_kernel(self) -> None:
        """New lines are read when the kernel says that there are some, so that a fault is told at once."""
        assert self._kernel_log is not None
        while not self._ended.is_set():
            self._kernel_log.wait(_KERNEL_WAITS_S)
            if self._read_kernel():
                self.on_event()
            self._ended.wait(_KERNEL_RESTS_S)

    def _read_kernel(self) -> bool:
        """Whether there was something to tell."""
        if self._kernel_log is None:
            return False
        with self._reading:
            found = self._kernel_log.read()
        with self._lock:
            self._by_kernel += found
        return bool(found)
