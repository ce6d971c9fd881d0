"""A stand-in for pynvml whose cards do what a script says: throttle, count errors, vanish, hang, be cut into instances.

For tests only. In a test's own process: `ScriptedNvml(cards)`, and change its cards. In another process (a gatherer
that a test starts) this module itself is the library: `BIREME_NVML_MODULE=bireme.testing.scripted_nvml`, and
`BIREME_NVML_SCRIPT` names a file of JSON, which is read again whenever it changes, so that a test writes the next scene
when it has seen the one before:

    {"init_error": 0, "cards": [{"uuid": "GPU-0", "values": {"gpu_util": 97, "gpu_power": 312.5, "gpu_sm_active": 40},
      "processes": [{"pid": 4711, "memory_mib": 2048, "util": 80}], "xids": [43], "lost": false, "hangs": [],
      "instances": [{"uuid": "MIG-0", "gpu_instance": 7, "values": {"gpu_memory_used": 10}, "processes": []}]}]}

Values are metrics in the units of `core/telemetry/metrics`; what is not among them the card does not support. `xids`
are told once each, in order. `hangs` lists calls that do not return while they are listed. `look_again_s` beside
`cards` says how soon who waits for an event looks into the file again (0.01 s): a benchmark does not want to count it.

Invariant: as of the real library, every call is a function `nvml...` that raises `NVMLError` with a `value`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from bireme.gather.gpus.nvidia_questions import FIELDS, GPM, MIB

SCRIPT = "BIREME_NVML_SCRIPT"
LOOK_AGAIN_S = 0.01
NVML_SUCCESS = 0
NOT_SUPPORTED, NOT_FOUND, TIMEOUT, GPU_IS_LOST, UNKNOWN = 3, 6, 10, 15, 999
_CODES = {
    "UNINITIALIZED": 1,
    "INVALID_ARGUMENT": 2,
    "NOT_SUPPORTED": NOT_SUPPORTED,
    "NO_PERMISSION": 4,
    "NOT_FOUND": NOT_FOUND,
    "DRIVER_NOT_LOADED": 9,
    "TIMEOUT": TIMEOUT,
    "FUNCTION_NOT_FOUND": 13,
    "GPU_IS_LOST": GPU_IS_LOST,
    "LIB_RM_VERSION_MISMATCH": 18,
    "GPU_NOT_FOUND": 28,
    "UNKNOWN": UNKNOWN,
}
_FIELD_NUMBERS = {each.name: 1000 + place for place, each in enumerate(FIELDS)}
_FIELD_METRICS = {_FIELD_NUMBERS[each.name]: each.metric for each in FIELDS}
_GPM_NUMBERS = {name: 1 + place for place, (name, _) in enumerate(GPM.values())}
_GPM_METRICS = {_GPM_NUMBERS[name]: (metric, factor) for metric, (name, factor) in GPM.items()}
_NO_INSTANCE = 0xFFFFFFFF


class NVMLError(Exception):
    """Any error of the library, by its number."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


@dataclass(slots=True)
class Instance:
    """A MIG instance."""

    uuid: str
    gpu_instance: int = 1
    compute_instance: int = 0
    profile: str = "1g.10gb"
    memory_mib: int = 9856
    values: dict[str, float] = field(default_factory=dict)
    processes: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Card:
    """A GPU."""

    uuid: str
    bus: str = "00000000:17:00.0"
    model: str = "NVIDIA H100 80GB HBM3"
    minor: int = 0
    memory_mib: int = 81559
    values: dict[str, float] = field(default_factory=dict)
    processes: list[dict[str, Any]] = field(default_factory=list)
    """Of each `pid`, `memory_mib` (None: not told), and `util`, `mps`, `graphics`, `gpu_instance` where they matter."""
    instances: list[Instance] = field(default_factory=list)
    xids: list[int] = field(default_factory=list)
    lost: bool = False
    error: int = 0
    """Every question is answered by this one."""
    hangs: list[str] = field(default_factory=list)
    gpm: bool = True


Part = Card | Instance

_READINGS: Mapping[str, Callable[[Mapping[str, float]], Any]] = {
    "nvmlDeviceGetUtilizationRates": lambda v: SimpleNamespace(gpu=v["gpu_util"], memory=v["gpu_copy_util"]),
    "nvmlDeviceGetPowerUsage": lambda v: int(v["gpu_power"] * 1000),
    "nvmlDeviceGetEnforcedPowerLimit": lambda v: int(v["gpu_power_limit"] * 1000),
    "nvmlDeviceGetTemperatureV": lambda v: v["gpu_temperature"],
    "nvmlDeviceGetCurrentClocksEventReasons": lambda v: v["gpu_throttle"],
    "nvmlDeviceGetCurrPcieLinkWidth": lambda v: v["gpu_pcie_width"],
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda v: v["gpu_pcie_generation"],
    "nvmlDeviceGetEncoderUtilization": lambda v: [v["gpu_encoder_util"], 100000],
    "nvmlDeviceGetDecoderUtilization": lambda v: [v["gpu_decoder_util"], 100000],
}
"""The calls that only read, and what they make of a card's values."""


class ScriptedNvml:
    """The library, over cards that a test holds. `reread` is called before every question."""

    NVMLError = NVMLError
    NVML_SUCCESS = NVML_SUCCESS
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    nvmlMemory_v2 = 2  # noqa: N815  (the library's names)
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self, cards: Sequence[Card], reread: Callable[[ScriptedNvml], None] = lambda nvml: None) -> None:
        self.cards = list(cards)
        self.init_error = 0
        self.look_again_s = LOOK_AGAIN_S
        self.asked: dict[str, int] = {}
        """How often each call was made."""
        self.opened = 0
        self._reread = reread
        self._told_xids: dict[str, int] = {}
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        """Constants of errors, fields and GPM, and the calls that only read."""
        for prefix, numbers in (("NVML_ERROR_", _CODES), ("", _FIELD_NUMBERS), ("", _GPM_NUMBERS)):
            if name.startswith(prefix) and name[len(prefix) :] in numbers:
                return numbers[name[len(prefix) :]]
        if name not in _READINGS:
            raise AttributeError(name)
        return lambda handle, *_: self._value(handle, name, _READINGS[name])

    # -- the library ------------------------------------------------------------------------------------------------

    def nvmlInit(self) -> None:  # noqa: N802
        self._count("nvmlInit")
        self._reread(self)
        if self.init_error:
            raise NVMLError(self.init_error)
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "999.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._reread(self)
        if self.init_error:
            raise NVMLError(self.init_error)
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        if self.cards[index].lost:
            raise NVMLError(GPU_IS_LOST)
        return self.cards[index].uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return handle

    def nvmlDeviceGetPciInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(busId=self._card(handle).bus)

    def nvmlDeviceGetMinorNumber(self, handle: str) -> int:  # noqa: N802
        return self._card(handle).minor

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        part = self._part(handle)
        return f"{self._card(handle).model} MIG {part.profile}" if isinstance(part, Instance) else part.model

    # -- instances --------------------------------------------------------------------------------------------------

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        return [int(bool(self._card(handle).instances))] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:  # noqa: N802
        instances = self._card(handle).instances
        if index >= len(instances):
            raise NVMLError(NOT_FOUND)
        return instances[index].uuid

    def nvmlDeviceGetGpuInstanceId(self, handle: str) -> int:  # noqa: N802
        return self._instance(handle).gpu_instance

    def nvmlDeviceGetComputeInstanceId(self, handle: str) -> int:  # noqa: N802
        return self._instance(handle).compute_instance

    # -- readings ---------------------------------------------------------------------------------------------------

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int = 0) -> SimpleNamespace:  # noqa: N802
        name = "nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo"
        if not version:
            return SimpleNamespace(total=self._part(handle).memory_mib * MIB)
        return SimpleNamespace(**self._value(handle, name, _memory))

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> float:  # noqa: N802
        name = "gpu_sm_clock" if kind == self.NVML_CLOCK_SM else "gpu_memory_clock"
        return float(self._value(handle, "nvmlDeviceGetClockInfo", lambda v: v[name]))

    def nvmlDeviceGetPcieThroughput(self, handle: str, way: int) -> float:  # noqa: N802
        name = "gpu_pcie_sent" if way == self.NVML_PCIE_UTIL_TX_BYTES else "gpu_pcie_received"
        return float(self._value(handle, "nvmlDeviceGetPcieThroughput", lambda v: v[name]))

    def nvmlDeviceGetFieldValues(self, handle: str, asked: Sequence[int]) -> list[SimpleNamespace]:  # noqa: N802
        values = self._enter(handle, "nvmlDeviceGetFieldValues").values
        return [field_answer(values.get(_FIELD_METRICS[each])) for each in asked]

    # -- GPM --------------------------------------------------------------------------------------------------------

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> SimpleNamespace:  # noqa: N802
        card = self._card(handle)
        return SimpleNamespace(isSupportedDevice=int(card.gpm))

    def nvmlGpmSampleAlloc(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(handle="")

    def nvmlGpmSampleFree(self, sample: SimpleNamespace) -> None:  # noqa: N802
        sample.handle = ""

    def nvmlGpmSampleGet(self, handle: str, sample: SimpleNamespace) -> None:  # noqa: N802
        self._enter(handle, "nvmlGpmSampleGet")
        if self._card(handle).instances:
            raise NVMLError(NOT_SUPPORTED)
        sample.handle = handle

    def nvmlGpmMigSampleGet(self, handle: str, number: int, sample: SimpleNamespace) -> None:  # noqa: N802
        self._enter(handle, "nvmlGpmMigSampleGet")
        sample.handle = next(each.uuid for each in self._card(handle).instances if each.gpu_instance == number)

    def c_nvmlGpmMetricsGet_t(self) -> SimpleNamespace:  # noqa: N802
        rows = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in GPM]
        return SimpleNamespace(version=0, numMetrics=0, sample1=None, sample2=None, metrics=rows)

    def nvmlGpmMetricsGet(self, asked: SimpleNamespace) -> None:  # noqa: N802
        assert asked.sample1.handle == asked.sample2.handle != "", "two samples of one device"
        values = self._part(asked.sample2.handle).values
        for row in asked.metrics[: asked.numMetrics]:
            metric, factor = _GPM_METRICS[row.metricId]
            row.nvmlReturn = NVML_SUCCESS if metric in values else NOT_SUPPORTED
            row.value = values.get(metric, 0.0) / factor

    # -- processes --------------------------------------------------------------------------------------------------

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:  # noqa: N802
        return self._listed(handle, lambda row: not row.get("graphics"))

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[SimpleNamespace]:  # noqa: N802
        return self._listed(handle, lambda row: bool(row.get("graphics")))

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:  # noqa: N802
        return self._listed(handle, lambda row: bool(row.get("mps")))

    def nvmlDeviceGetProcessUtilization(self, handle: str, since_us: int) -> list[SimpleNamespace]:  # noqa: N802
        part = self._enter(handle, "nvmlDeviceGetProcessUtilization")
        at = time.monotonic_ns() // 1000
        rows = [SimpleNamespace(pid=r["pid"], smUtil=r["util"], timeStamp=at) for r in part.processes if r.get("util")]
        if not rows:
            raise NVMLError(NOT_FOUND)
        return rows

    def _listed(self, handle: str, wanted: Callable[[dict[str, Any]], bool]) -> list[SimpleNamespace]:
        part = self._enter(handle, "nvmlDeviceGetComputeRunningProcesses")
        return [
            SimpleNamespace(
                pid=row["pid"],
                usedGpuMemory=None if row.get("memory_mib") is None else int(row["memory_mib"] * MIB),
                gpuInstanceId=row.get("gpu_instance", _NO_INSTANCE),
            )
            for row in part.processes
            if wanted(row)
        ]

    # -- events -----------------------------------------------------------------------------------------------------

    def nvmlEventSetCreate(self) -> set[str]:  # noqa: N802
        return set()

    def nvmlEventSetFree(self, events: set[str]) -> None:  # noqa: N802
        events.clear()

    def nvmlDeviceRegisterEvents(self, handle: str, kinds: int, events: set[str]) -> None:  # noqa: N802
        events.add(handle)

    def nvmlEventSetWait_v2(self, events: set[str], timeout_ms: int) -> SimpleNamespace:  # noqa: N802
        end = time.monotonic() + timeout_ms / 1000
        while True:
            self._reread(self)
            for card in self.cards:
                told = self._told_xids.get(card.uuid, 0)
                if card.uuid in events and told < len(card.xids):
                    self._told_xids[card.uuid] = told + 1
                    return SimpleNamespace(device=card.uuid, eventType=8, eventData=card.xids[told], gpuInstanceId=-1)
            if time.monotonic() >= end:
                raise NVMLError(TIMEOUT)
            time.sleep(self.look_again_s)

    # -- the cards --------------------------------------------------------------------------------------------------

    def _value(self, handle: str, name: str, read: Callable[[Mapping[str, float]], Any]) -> Any:
        try:
            return read(self._enter(handle, name).values)
        except KeyError:
            raise NVMLError(NOT_SUPPORTED) from None

    def _enter(self, handle: str, name: str) -> Part:
        """A call about a card: counted, held up, or refused, as the script says."""
        self._count(name)
        self._reread(self)
        while name in self._card(handle).hangs:
            time.sleep(self.look_again_s)
            self._reread(self)
        card = self._card(handle)
        if card.lost or card.error:
            raise NVMLError(card.error or GPU_IS_LOST)
        return self._part(handle)

    def _count(self, name: str) -> None:
        with self._lock:
            self.asked[name] = self.asked.get(name, 0) + 1

    def _card(self, handle: str) -> Card:
        for card in self.cards:
            if handle == card.uuid or any(each.uuid == handle for each in card.instances):
                return card
        raise NVMLError(GPU_IS_LOST)

    def _part(self, handle: str) -> Part:
        card = self._card(handle)
        return next((each for each in card.instances if each.uuid == handle), card)

    def _instance(self, handle: str) -> Instance:
        part = self._part(handle)
        if not isinstance(part, Instance):
            raise NVMLError(NOT_SUPPORTED)
        return part


def _memory(values: Mapping[str, float]) -> dict[str, int]:
    parts = {"used": values["gpu_memory_used"], "free": values.get("gpu_memory_free", 0)}
    return {name: int(mib) * MIB for name, mib in {**parts, "reserved": values.get("gpu_memory_reserved", 0)}.items()}


def field_answer(value: float | None) -> SimpleNamespace:
    """One of `nvmlDeviceGetFieldValues`; None: it is not supported."""
    code = NOT_SUPPORTED if value is None else NVML_SUCCESS
    return SimpleNamespace(nvmlReturn=code, valueType=3, value=SimpleNamespace(ullVal=int(value or 0)))


# -- a module that is the library ------------------------------------------------------------------------------------


class _Script:
    """The file that `BIREME_NVML_SCRIPT` names. A test replaces it whole (`os.replace`)."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read: tuple[int, int] | None = None

    def reread(self, nvml: ScriptedNvml) -> None:
        status = os.stat(self._path)
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp == self._read:
            return
        with open(self._path, encoding="utf-8") as file:
            script = json.load(file)
        nvml.init_error = script.get("init_error", 0)
        nvml.look_again_s = script.get("look_again_s", LOOK_AGAIN_S)
        nvml.cards = [_card(row) for row in script["cards"]]
        self._read = stamp


def _card(row: dict[str, Any]) -> Card:
    return Card(**{**row, "instances": [Instance(**each) for each in row.get("instances", [])]})


_library: list[ScriptedNvml] = []


def __getattr__(name: str) -> Any:
    """Whatever is asked of the module is asked of the cards in the script's file."""
    if not _library and SCRIPT in os.environ and not name.startswith("__"):
        _library.append(ScriptedNvml([], _Script(os.environ[SCRIPT]).reread))
    if not _library:
        raise AttributeError(name)
    return getattr(_library[0], name)
