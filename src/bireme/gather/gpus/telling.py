"""GPUs as the gatherer tells of them: rounds of `watching`, with the owners of processes put to them.

The gatherer calls `look` (which waits, in a thread apart) and then the others, which answer at once from that look.

Invariant: `frames` is called once for a look: who is a stray is counted in looks.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from bireme.gather.gpus.attribution import Unowned, attribute, servers_among, stray_happenings, use_frames
from bireme.gather.gpus.choosing import Whichever
from bireme.gather.gpus.kernel_log import KernelLog
from bireme.gather.gpus.source import Values
from bireme.gather.gpus.watching import GpuRound, Gpus
from bireme.gather.messages import Device, Frame, Happening
from bireme.gather.owners import OwnedTask

log = logging.getLogger("bireme.gather")

Owners = Mapping[int, OwnedTask]
"""By pid."""


class ToldGpus:
    """The GPUs of this machine, for rounds."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._round = GpuRound(0.0, (), {}, {})
        self._unowned = Unowned()
        self._owners_before: Owners = {}
        self._happenings: list[Happening] = []

    @property
    def is_stale(self) -> bool:
        """Only a new process can read the driver that is there now."""
        return self._gpus.is_stale

    async def look(self) -> None:
        self._round = await asyncio.to_thread(self._gpus.round)

    def devices(self) -> list[Device]:
        return list(self._round.devices)

    def frames(self, owner_of: Owners) -> list[Frame]:
        """Of the GPUs, and of what each task does on them."""
        seen = self._round
        nobodys = {uuid: [p for p in listed if p.pid not in owner_of] for uuid, listed in seen.processes.items()}
        ids = {pid: task.id for pid, task in owner_of.items()}
        found = attribute(seen.processes, ids.get, self._unowned, servers_among(nobodys, _name_of))
        self._unowned = found.unowned
        self._happenings += [_with_task(each, {**self._owners_before, **owner_of}) for each in seen.happenings]
        self._happenings += stray_happenings(found, nobodys, seen.node_of, _name_of, seen.at)
        self._owners_before = owner_of  # the process of a fault is often dead when the next round asks whose it is
        unowned: dict[str, Values] = {uuid: {"gpu_unowned_memory": mib} for uuid, mib in found.unowned_mib.items()}
        nodes = {task.id: task.node for task in owner_of.values()}
        return [*seen.frames(unowned), *use_frames(found, nodes.__getitem__)]

    def happenings(self) -> list[Happening]:
        told, self._happenings = self._happenings, []
        return told

    def on_event(self, call: Callable[[], None]) -> None:
        self._gpus.on_event = call

    def stop(self) -> None:
        self._gpus.stop()


def gpus_of(machine: str) -> ToldGpus:
    """Watched from now on; `machine` is the node that they are told of."""
    kernel_log = KernelLog()
    if kernel_log.problem:
        log.info("no faults of the kernel's log are told, and Xid errors without their process: %s", kernel_log.problem)
    gpus = Gpus(Whichever(os.environ), lambda device: machine, kernel_log=kernel_log, machine=machine)
    return told(gpus)


def told(gpus: Gpus) -> ToldGpus:
    """Watched from now on."""
    gpus.start()
    return ToldGpus(gpus)


def _with_task(told: Happening, owner_of: Owners) -> Happening:
    task = owner_of.get(told.pid)
    return msgspec.structs.replace(told, task=task.id, node=task.node) if task is not None else told


def _name_of(pid: int) -> str:
    """Its program, as the kernel calls it; empty: it is gone."""
    with suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()
    return ""
