"""GPUs that are played: busy while a job's tasks hold them, waiting while one of these is stopped, broken as asked.

`PlayedCards` is a `GpuSource` as the makers' libraries are; `PlayedOwners` are the agents of the virtual nodes, who
also say which tasks there are. A task's GPUs are those that its own environment names (SLURM_STEP_GPUS, else
SLURM_JOB_GPUS): nothing is calculated here, whoever holds a GPU is taken to use it.
Invariant: what a healthy card shows is the same for all of one model, so that only a fault makes one differ.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from bireme.agent.system.processes import environment_value, read_process
from bireme.gather.gpus.source import PEAKS, DriverGone, GpuEvent, GpuLost, GpuProcess, Values
from bireme.gather.messages import Device
from bireme.gather.owners import AgentOwners, OwnedTask
from bireme.gather.rehearsal.scene import PlayedCard, Scene

MEMORY_MIB = 81_559
_USED_MIB = 60_000.0
_WELL = {
    "gpu_ecc_uncorrected": 0.0, "gpu_row_remap_failure": 0.0, "gpu_pcie_width": 16.0, "gpu_pcie_generation": 5.0,
    "gpu_power_limit": 700.0,
}  # fmt: skip
_IDLE = {
    "gpu_util": 0.0, "gpu_copy_util": 0.0, "gpu_sm_active": 0.0, "gpu_tensor_active": 0.0, "gpu_sm_clock": 345.0,
    "gpu_throttle": 1.0, "gpu_power": 72.0, "gpu_temperature": 31.0, "gpu_memory_used": 0.0,
}  # fmt: skip
_BUSY = {
    "gpu_util": 98.0, "gpu_copy_util": 40.0, "gpu_sm_active": 82.0, "gpu_tensor_active": 46.0, "gpu_sm_clock": 1980.0,
    "gpu_throttle": 0.0, "gpu_power": 610.0, "gpu_temperature": 64.0, "gpu_memory_used": _USED_MIB,
}  # fmt: skip
_WAITING = {
    **_BUSY, "gpu_util": 100.0, "gpu_copy_util": 0.0, "gpu_sm_active": 9.0, "gpu_tensor_active": 0.0,
    "gpu_power": 190.0, "gpu_temperature": 48.0,
}  # fmt: skip
"""In a collective that does not end: a kernel runs all the time, and calculates nothing."""
_HOT = {"gpu_sm_clock": 1_100.0, "gpu_throttle": float(0x40), "gpu_temperature": 93.0, "gpu_power": 330.0}
"""Held down by heat, as the hardware sees it."""
_MOST_NUMBERS = 64


class Played(NamedTuple):
    """A task, and the GPUs of its node that it holds."""

    task: OwnedTask
    gpus: frozenset[int]


class Cast:
    """Which tasks play now: told by the owners once a round, read by the threads of the cards."""

    def __init__(self) -> None:
        self._known: dict[int, Played] = {}

    def come(self, tasks: Sequence[OwnedTask]) -> None:
        self._known = {task.pid: self._known.get(task.pid) or Played(task, _gpus_of(task.pid)) for task in tasks}

    def on(self, card: PlayedCard) -> list[OwnedTask]:
        """Who holds this card."""
        known = self._known.values()
        return [each.task for each in known if each.task.node == card.node and card.number in each.gpus]

    def is_stopped(self, tasks: Sequence[OwnedTask]) -> bool:
        """Whether any task of their jobs, anywhere, is stopped: the others wait for it."""
        starts = {_start_of(task) for task in tasks}
        gang = [each.task.pid for each in self._known.values() if _start_of(each.task) in starts]
        entries = [read_process(pid) for pid in gang]
        return any(entry is not None and entry.state == "T" for entry in entries)


class PlayedOwners(AgentOwners):
    """The agents of the virtual nodes; their GPUs are numbered as the configuration numbers them."""

    def __init__(self, agents: Path, cast: Cast) -> None:
        super().__init__(agents)
        self._cast = cast

    async def tasks(self) -> Sequence[OwnedTask]:
        found = await super().tasks()
        self._cast.come(found)
        return found

    async def slurm_files(self) -> list[str]:
        return [f"/dev/nvidia{number}" for number in range(_MOST_NUMBERS)]


class PlayedCards:
    """The cards of a scene."""

    def __init__(self, scene: Scene, cast: Cast, wall: Callable[[], float] = time.time) -> None:
        self._scene, self._cast, self._wall = scene, cast, wall
        self._cards: dict[str, PlayedCard] = {}
        self._closed = threading.Event()

    def open(self) -> None:
        try:
            self._cards = {card.uuid: card for card in self._scene.cards()}
        except (OSError, msgspec.DecodeError) as error:
            raise DriverGone(f"the scene of the rehearsal cannot be read: {error}") from error
        self._closed.clear()

    def close(self) -> None:
        self._closed.set()

    def devices(self) -> list[Device]:
        return [
            Device(
                uuid=card.uuid,
                node=card.node,
                index=card.number,
                model=card.model,
                memory_mib=MEMORY_MIB,
                pci_bus_id=card.bus,
                minor=card.number,
                driver="rehearsal",
            )
            for card in self._cards.values()
        ]

    def sample(self, uuid: str) -> Values:
        card = self._there(uuid)
        tasks = self._cast.on(card)
        doing = _IDLE if not tasks else _WAITING if self._cast.is_stopped(tasks) else _BUSY
        faults = self._faults_of(card)
        hot = _HOT if "throttle" in faults and doing is not _IDLE else {}
        return {**_WELL, **doing, **hot, **({"gpu_ecc_uncorrected": 1.0} if "ecc" in faults else {})}

    def glance(self, uuid: str) -> Values:
        return {name: value for name, value in self.sample(uuid).items() if name in PEAKS}

    def processes(self, uuid: str) -> list[GpuProcess]:
        tasks = self._cast.on(self._there(uuid))
        return [GpuProcess(task.pid, _USED_MIB / len(tasks)) for task in tasks]

    def wait_happenings(self, timeout_s: float) -> list[GpuEvent]:
        """All that happens here is told by the kernel's lines."""
        self._closed.wait(timeout_s)
        return []

    def _there(self, uuid: str) -> PlayedCard:
        card = self._cards[uuid]
        if "lost" in self._faults_of(card):
            raise GpuLost("it fell off the bus, in this rehearsal")
        return card

    def _faults_of(self, card: PlayedCard) -> set[str]:
        faults = self._scene.faults(self._wall())
        return {fault.kind for fault in faults if (fault.node, fault.gpu) == (card.node, card.number)}


def _gpus_of(pid: int) -> frozenset[int]:
    named = environment_value(pid, "SLURM_STEP_GPUS") or environment_value(pid, "SLURM_JOB_GPUS") or ""
    return frozenset(int(number) for number in named.split(",") if number.isdigit())


def _start_of(task: OwnedTask) -> tuple[str, ...]:
    """`JOB.GENERATION` of its `JOB.GENERATION.STEP.TASK`."""
    return tuple(task.id.split(".")[:2])
