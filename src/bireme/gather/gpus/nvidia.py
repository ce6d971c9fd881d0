"""NVIDIA GPUs and their MIG instances through NVML: what they measure, who uses them, Xid errors.

A source for `watching`. The library is passed in (`pynvml`, or a stand-in in tests). Real use is GPM's, else DCGM's
where its host engine runs. A question that a card or driver does not know is not asked again for an hour.

Invariant: an error of one question costs that answer. Only a card that answers nothing, or says that it is lost, is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bireme.gather.gpus import nvidia_gpm
from bireme.gather.gpus.dcgm import DcgmFields
from bireme.gather.gpus.kernel_log import bus_id
from bireme.gather.gpus.nvidia_questions import FIELDS, MIB, OF_A_GPU, OF_AN_INSTANCE, PCIE_TRAFFIC, QUICK, Question
from bireme.gather.gpus.source import DriverChanged, DriverGone, GpuEvent, GpuLost, GpuProcess, Values
from bireme.gather.messages import Device

ASK_AGAIN_S = 3600.0
"""A card may come to answer: another mode, another right."""
PCIE_EVERY_S = 60.0
_NVLINKS = 18
_NO_INSTANCE = 0xFFFFFFFF
_TYPED = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Where a field value has its number, by its type."""
_MPS_CLIENTS = "nvmlDeviceGetMPSComputeRunningProcesses"
_PROCESS_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    _MPS_CLIENTS,
)


@dataclass(slots=True)
class _Card:
    """A GPU or an instance, and what is remembered of asking it. Touched by its own thread alone once it is listed."""

    device: Device
    handle: Any
    gpu_handle: Any
    number: int
    """NVML's, which is DCGM's too."""
    silent_until: dict[str, float] = field(default_factory=dict)
    fields: dict[str, list[Any]] | None = None
    """Which field values (with their links) each metric is the sum of; None: not tried yet."""
    fields_tried_at: float = 0.0
    field_due: dict[str, float] = field(default_factory=dict)
    """Of the metrics that are not asked for every time: when the next is."""
    util: float | None = None
    """`gpu_util` of the latest sample."""
    gpm: nvidia_gpm.Pair | None = None
    pcie_due: float = 0.0
    utilization_seen_us: int = 0
    has_instances: bool = False


class NvidiaSource:
    """All NVIDIA GPUs of the machine."""

    def __init__(
        self,
        nvml: Any,
        *,
        dcgm: DcgmFields | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._nvml = nvml
        self._dcgm = dcgm
        self._clock = clock
        self._wall = wall
        self._open = False
        self._cards: dict[str, _Card] = {}
        self._retired: list[_Card] = []
        self._events: Any = None
        self._registered: set[str] = set()
        self._driver = ""
        names = ("GPU_IS_LOST", "GPU_NOT_FOUND", "UNINITIALIZED", "DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH")
        self._lost = {_code(nvml, name) for name in names}
        names = ("NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND", "INVALID_ARGUMENT", "DEPRECATED")
        self._unknown_to_it = {_code(nvml, name) for name in (*names, "ARGUMENT_VERSION_MISMATCH")}

    # -- the library ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.close()
        try:
            self._nvml.nvmlInit()
            self._open = True
            self._driver = _text(self._nvml.nvmlSystemGetDriverVersion())
            self._events = self._nvml.nvmlEventSetCreate()
        except self._nvml.NVMLError as error:
            self.close()
            raise self._gone(error) from error

    def close(self) -> None:
        if not self._open:
            return
        for card in (*self._cards.values(), *self._retired):
            if card.gpm is not None:
                self._quietly(card.gpm.free)
        self._cards, self._retired, self._registered = {}, [], set()
        if self._events is not None:
            self._quietly(lambda: self._nvml.nvmlEventSetFree(self._events))
            self._events = None
        self._open = False
        self._quietly(self._nvml.nvmlShutdown)

    def _quietly(self, call: Callable[[], object]) -> None:
        """For giving things back to a library that may have lost them."""
        with suppress(self._nvml.NVMLError):
            call()

    def _gone(self, error: Any) -> DriverGone:
        if error.value == _code(self._nvml, "LIB_RM_VERSION_MISMATCH"):
            return DriverChanged(f"NVML: {error}: the driver was replaced, and this process has its old library")
        return DriverGone(f"NVML: {error}")

    # -- what there is ----------------------------------------------------------------------------------------------

    def devices(self) -> Sequence[Device]:
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise self._gone(error) from error
        found = [card for number in range(count) if (card := self._gpu(number)) is not None]
        found.sort(key=lambda card: card.device.pci_bus_id)
        listed: dict[str, _Card] = {}
        for index, gpu in enumerate(found):
            instances = list(self._instances(gpu, index))
            for card in (gpu, *instances):
                known = self._cards.get(card.device.uuid, card)
                known.device = _numbered(card.device, index)
                known.has_instances = bool(instances) and card is gpu
                listed[known.device.uuid] = known
        # Not given back now: the thread of its GPU may be asking it.
        self._retired += [card for uuid, card in self._cards.items() if uuid not in listed]
        self._cards = listed
        self._register()
        return [card.device for card in listed.values()]

    def _gpu(self, number: int) -> _Card | None:
        """None: it does not even say which one it is."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            device = Device(
                uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                node="",
                index=number,
                vendor="nvidia",
                model=_text(nvml.nvmlDeviceGetName(handle)),
                memory_mib=self._total_mib(handle),
                pci_bus_id=bus_id(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
                minor=self._minor(handle),
                driver=self._driver,
            )
        except nvml.NVMLError:
            return None
        return _Card(device, handle, handle, number)

    def _instances(self, gpu: _Card, index: int) -> Iterable[_Card]:
        nvml = self._nvml
        try:
            if nvml.nvmlDeviceGetMigMode(gpu.handle)[0] != 1:
                return
            slots = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)
        except nvml.NVMLError:
            return
        for slot in range(slots):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, slot)
                profile = re.search(r"MIG (\S+)", _text(nvml.nvmlDeviceGetName(handle)))
                device = Device(
                    uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                    node="",
                    index=index,
                    vendor="nvidia",
                    model=gpu.device.model,
                    memory_mib=self._total_mib(handle),
                    pci_bus_id=gpu.device.pci_bus_id,
                    minor=gpu.device.minor,
                    driver=self._driver,
                    parent=gpu.device.uuid,
                    gpu_instance=int(nvml.nvmlDeviceGetGpuInstanceId(handle)),
                    compute_instance=int(nvml.nvmlDeviceGetComputeInstanceId(handle)),
                    profile=profile[1] if profile else "",
                )
            except nvml.NVMLError:
                continue  # a slot in which nobody made an instance
            yield _Card(device, handle, gpu.handle, gpu.number)

    def _total_mib(self, handle: Any) -> int:
        try:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total) // MIB
        except self._nvml.NVMLError:
            return 0

    def _minor(self, handle: Any) -> int | None:
        try:
            return int(self._nvml.nvmlDeviceGetMinorNumber(handle))
        except self._nvml.NVMLError:
            return None

    # -- what is measured -------------------------------------------------------------------------------------------

    def sample(self, uuid: str) -> Values:
        card = self._card(uuid)
        if card.device.parent:
            return self._answers(card, OF_AN_INSTANCE) | self._real_use(card)
        values = self._answers(card, OF_A_GPU) | self._field_values(card)
        card.util = values.get("gpu_util")
        real_use = self._real_use(card)
        if "gpu_pcie_sent" not in real_use and card.gpm is None:
            values |= self._pcie_traffic(card)
        return values | real_use

    def glance(self, uuid: str) -> Values:
        card = self._card(uuid)
        return {} if card.device.parent else self._answers(card, QUICK)

    def _card(self, uuid: str) -> _Card:
        try:
            return self._cards[uuid]
        except KeyError:
            raise GpuLost(f"{uuid} is not among the GPUs that the driver lists") from None

    def _answers(self, card: _Card, questions: Sequence[Question]) -> Values:
        """Raises GpuLost also where none of them has an answer that had one before."""
        values: Values = {}
        failed = ""
        for question in questions:
            if question.instead_of and question.instead_of not in card.silent_until:
                continue
            answer = self._ask(card, question.name, lambda q=question: q.ask(self._nvml, card.handle))  # type: ignore[misc]
            if isinstance(answer, str):
                failed = failed or answer
            elif answer is not None:
                values |= answer
        if failed and not values:
            raise GpuLost(failed)
        return values

    def _ask(self, card: _Card, name: str, call: Callable[[], Values]) -> Values | str | None:
        """None: it does not know this, for now and the next hour; a text: it failed this time. Raises GpuLost."""
        now = self._clock()
        if card.silent_until.get(name, 0.0) > now:
            return None
        try:
            answer = call()
        except AttributeError:  # an older pynvml
            card.silent_until[name] = now + ASK_AGAIN_S
            return None
        except self._nvml.NVMLError as error:
            return self._no_answer(card, name, error)
        card.silent_until.pop(name, None)
        return answer

    def _no_answer(self, card: _Card, name: str, error: Any) -> str | None:
        code = getattr(error, "value", None)
        if code in self._lost:
            raise GpuLost(str(error)) from error
        if code is None or code in self._unknown_to_it:
            card.silent_until[name] = self._clock() + ASK_AGAIN_S
            return None
        return str(error)

    def _field_values(self, card: _Card) -> Values:
        """All in one call, after a first one that finds out which of them this card has."""
        now = self._clock()
        is_first = card.fields is None or card.fields_tried_at + ASK_AGAIN_S <= now
        if is_first:
            card.fields, card.fields_tried_at = self._possible_fields(), now
        assert card.fields is not None
        due = {name: ones for name, ones in card.fields.items() if is_first or card.field_due.get(name, 0.0) <= now}
        numbers: dict[Any, float] = {}

        def call() -> Values:
            numbers.update(self._numbers(card.handle, [one for ones in due.values() for one in ones]))
            return {}

        if not due or not isinstance(self._ask(card, "nvmlDeviceGetFieldValues", call), dict):
            return {}
        chosen = {metric: _total_or_links([one for one in ones if one in numbers]) for metric, ones in due.items()}
        if is_first:
            card.fields = {metric: ones for metric, ones in chosen.items() if ones}
        card.field_due |= {each.metric: now + each.every_s for each in FIELDS if each.every_s and each.metric in due}
        return {metric: sum(numbers[one] for one in ones) for metric, ones in chosen.items() if ones}

    def _possible_fields(self) -> dict[str, list[Any]]:
        possible: dict[str, list[Any]] = {}
        for each in FIELDS:
            numbers: list[Any] = [getattr(self._nvml, each.name)] if hasattr(self._nvml, each.name) else []
            if each.by_link and hasattr(self._nvml, each.by_link):
                numbers += [(getattr(self._nvml, each.by_link), link) for link in range(_NVLINKS)]
            possible[each.metric] = numbers
        return possible

    def _numbers(self, handle: Any, asked: list[Any]) -> dict[Any, float]:
        answers = self._nvml.nvmlDeviceGetFieldValues(handle, asked)
        return {
            one: getattr(answer.value, _TYPED[answer.valueType])
            for one, answer in zip(asked, answers, strict=True)
            if answer.nvmlReturn == self._nvml.NVML_SUCCESS and answer.valueType < len(_TYPED)
        }

    def _real_use(self, card: _Card) -> Values:
        answer = self._ask(card, "nvmlGpmSampleGet", lambda: self._by_gpm(card))
        if isinstance(answer, dict):
            return answer
        if card.gpm is not None and answer is None:
            self._quietly(card.gpm.free)
            card.gpm = None
        if self._dcgm is not None and not card.device.parent:
            return self._dcgm.latest(card.number)
        return {}

    def _by_gpm(self, card: _Card) -> Values:
        if card.gpm is None:
            if not nvidia_gpm.is_supported(self._nvml, card.gpu_handle):
                raise self._nvml.NVMLError(self._nvml.NVML_ERROR_NOT_SUPPORTED)
            card.gpm = nvidia_gpm.Pair(self._nvml, lambda sample: self._take_gpm_sample(card, sample))
        return card.gpm.read()

    def _take_gpm_sample(self, card: _Card, sample: Any) -> None:
        if card.device.parent:
            self._nvml.nvmlGpmMigSampleGet(card.gpu_handle, card.device.gpu_instance, sample)
        else:
            self._nvml.nvmlGpmSampleGet(card.handle, sample)

    def _pcie_traffic(self, card: _Card) -> Values:
        if self._clock() < card.pcie_due:
            return {}
        card.pcie_due = self._clock() + PCIE_EVERY_S
        try:
            return self._answers(card, PCIE_TRAFFIC)
        except GpuLost:
            return {}

    # -- who uses it ------------------------------------------------------------------------------------------------

    def processes(self, uuid: str) -> list[GpuProcess] | None:
        card = self._card(uuid)
        memory: dict[int, float | None] = {}
        clients: set[int] = set()
        told = False
        for name in _PROCESS_LISTS:
            rows = self._listed(card, name)
            told = told or rows is not None
            for row in rows or ():
                mib = None if row.usedGpuMemory is None else row.usedGpuMemory / MIB
                memory[row.pid] = max((each for each in (mib, memory.get(row.pid)) if each is not None), default=None)
            clients |= {row.pid for row in rows or () if name == _MPS_CLIENTS}
        if not told:
            return None
        shares = self._shares(card, list(memory))
        return [GpuProcess(pid, mib, _share(shares, pid, clients)) for pid, mib in sorted(memory.items())]

    def _listed(self, card: _Card, name: str) -> list[Any] | None:
        """Processes of one list, but for those that are told of an instance of the GPU; None: it is not told."""
        rows: list[Any] = []

        def call() -> Values:
            rows.extend(getattr(self._nvml, name)(card.handle))
            return {}

        if not isinstance(self._ask(card, name, call), dict):
            return None
        if not card.has_instances:
            return rows
        return [row for row in rows if getattr(row, "gpuInstanceId", _NO_INSTANCE) in (None, _NO_INSTANCE)]

    def _shares(self, card: _Card, pids: list[int]) -> dict[int, float] | None:
        """Percent of the time by pid; None: not told. Who is alone has all of the GPU's: to ask takes 2 ms of CPU."""
        if len(pids) == 1 and card.util is not None:
            return {pids[0]: card.util}
        return self._utilization(card) if pids and not card.device.parent else None

    def _utilization(self, card: _Card) -> dict[int, float] | None:
        """Percent by pid; a process that had none since the last look is not listed. None: not told."""
        found: dict[int, list[float]] = {}

        def call() -> Values:
            try:
                rows = self._nvml.nvmlDeviceGetProcessUtilization(card.handle, card.utilization_seen_us)
            except self._nvml.NVMLError as error:
                if getattr(error, "value", None) == _code(self._nvml, "NOT_FOUND"):
                    return {}
                raise
            for row in rows:
                if row.timeStamp > card.utilization_seen_us and row.smUtil <= 100:
                    found.setdefault(row.pid, []).append(row.smUtil)
            card.utilization_seen_us = max([card.utilization_seen_us, *(row.timeStamp for row in rows)])
            return {}

        if not isinstance(self._ask(card, "nvmlDeviceGetProcessUtilization", call), dict):
            return None
        return {pid: sum(shares) / len(shares) for pid, shares in found.items()}

    # -- what befell it ---------------------------------------------------------------------------------------------

    def _register(self) -> None:
        """For Xid errors; not every card has events (GeForce, virtual machines)."""
        for card in self._cards.values():
            if card.device.parent or card.device.uuid in self._registered or self._events is None:
                continue
            self._registered.add(card.device.uuid)
            kind = self._nvml.nvmlEventTypeXidCriticalError
            self._quietly(lambda c=card, k=kind: self._nvml.nvmlDeviceRegisterEvents(c.handle, k, self._events))  # type: ignore[misc]

    def wait_happenings(self, timeout_s: float) -> list[GpuEvent]:
        nvml = self._nvml
        if self._events is None:
            raise DriverGone("NVML is not open")
        try:
            event = nvml.nvmlEventSetWait_v2(self._events, int(timeout_s * 1000))
            if event.eventType != nvml.nvmlEventTypeXidCriticalError:
                return []
            uuid = _text(nvml.nvmlDeviceGetUUID(event.device))
        except nvml.NVMLError as error:
            if getattr(error, "value", None) == _code(nvml, "TIMEOUT"):
                return []
            raise self._gone(error) from error
        part = self._instance_of(uuid, getattr(event, "gpuInstanceId", _NO_INSTANCE))
        return [GpuEvent(self._wall(), "xid", int(event.eventData), uuid=part or uuid, pci_bus_id=self._bus_of(uuid))]

    def _instance_of(self, uuid: str, number: int) -> str:
        parts = (card.device for card in self._cards.values() if card.device.parent == uuid)
        return next((part.uuid for part in parts if part.gpu_instance == number), "")

    def _bus_of(self, uuid: str) -> str:
        card = self._cards.get(uuid)
        return card.device.pci_bus_id if card else ""


def _total_or_links(ones: list[Any]) -> list[Any]:
    """The sum over links is for cards that have no total of them."""
    return ones[:1] if ones and isinstance(ones[0], int) else ones


def _share(shares: Mapping[int, float] | None, pid: int, clients: Collection[int]) -> float | None:
    """Who is not in `shares` had none; but of clients of MPS the driver counts all as its server's."""
    if shares is None or (pid in clients and pid not in shares):
        return None
    return shares.get(pid, 0.0)


def _numbered(device: Device, index: int) -> Device:
    """In PCI order, as nvidia-smi and Slurm count."""
    fields = {name: getattr(device, name) for name in device.__struct_fields__}
    return Device(**{**fields, "index": index})


def _code(nvml: Any, name: str) -> Any:
    """An object that equals no code, where the library does not know it."""
    return getattr(nvml, f"NVML_ERROR_{name}", object())


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
