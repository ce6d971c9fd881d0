"""AMD GPUs through amdsmi: what they measure and who uses them.

A source for `watching`. The library is passed in (the `amdsmi` of ROCm, or a recording of its answers in tests). It has
no counters of tensor or memory-bandwidth activity like GPM's, and nothing like Xid events: these are absent.

Invariant: `N/A`, which is how the library says that it does not know, is never a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from bireme.gather.gpus.source import DriverGone, GpuEvent, GpuLost, GpuProcess, Values
from bireme.gather.messages import Device

_GENERATION = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}
"""Of PCIe, by the MT/s of a lane."""
_POWER_CAP, _SOFTWARE_THERMAL, _HARDWARE_THERMAL = 0x4, 0x20, 0x40
"""The bits of `gpu_throttle`, which are NVML's for all makers."""
_VIOLATIONS = {
    "active_ppt_pwr": _POWER_CAP,
    "active_socket_thrm": _SOFTWARE_THERMAL,
    "active_hbm_thrm": _SOFTWARE_THERMAL,
    "active_vr_thrm": _SOFTWARE_THERMAL,
    "active_prochot_thrm": _HARDWARE_THERMAL,
}
_MIB = 1 << 20


class AmdSource:
    """All AMD GPUs of the machine."""

    def __init__(self, amdsmi: Any) -> None:
        self._smi = amdsmi
        self._open = False
        self._handles: dict[str, Any] = {}
        self._silent: set[tuple[str, str]] = set()
        """(GPU, question) that it does not know; forgotten when the library is opened anew."""

    def open(self) -> None:
        self.close()
        try:
            self._smi.amdsmi_init()
        except self._smi.AmdSmiException as error:
            raise DriverGone(f"amdsmi: {error}") from error
        self._open = True

    def close(self) -> None:
        self._handles, self._silent = {}, set()
        if self._open:
            self._open = False
            with suppress(self._smi.AmdSmiException):
                self._smi.amdsmi_shut_down()

    def devices(self) -> Sequence[Device]:
        smi = self._smi
        try:
            found = [(smi.amdsmi_get_gpu_device_bdf(handle), handle) for handle in smi.amdsmi_get_processor_handles()]
        except smi.AmdSmiException as error:
            raise DriverGone(f"amdsmi: {error}") from error
        listed = [self._device(index, bdf, handle) for index, (bdf, handle) in enumerate(sorted(found, key=_first))]
        self._handles = {device.uuid: handle for device, handle in listed}
        return [device for device, _ in listed]

    def _device(self, index: int, bdf: str, handle: Any) -> tuple[Device, Any]:
        smi = self._smi
        asic = self._plain(lambda: smi.amdsmi_get_gpu_asic_info(handle))
        numbers = self._plain(lambda: smi.amdsmi_get_gpu_enumeration_info(handle))
        vram = self._plain(lambda: smi.amdsmi_get_gpu_vram_usage(handle))
        driver = self._plain(lambda: smi.amdsmi_get_gpu_driver_info(handle))
        render = numbers.get("drm_render")
        device = Device(
            uuid=_uuid(asic) or smi.amdsmi_get_gpu_device_uuid(handle),
            node="",
            index=index,
            vendor="amd",
            model=str(asic.get("market_name", "")),
            memory_mib=int(vram.get("vram_total", 0)),
            pci_bus_id=bdf.lower(),
            minor=render if isinstance(render, int) else None,
            driver=str(driver.get("driver_version", "")),
        )
        return device, handle

    def _plain(self, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Without what it does not know."""
        try:
            return {key: value for key, value in call().items() if value != "N/A"}
        except self._smi.AmdSmiException:
            return {}

    # -- what is measured -------------------------------------------------------------------------------------------

    def sample(self, uuid: str) -> Values:
        return self._answers(uuid, (*_QUICK, *_OTHERS))

    def glance(self, uuid: str) -> Values:
        return self._answers(uuid, _QUICK)

    def _answers(self, uuid: str, questions: Sequence[Callable[[Any, Any], dict[str, Any]]]) -> Values:
        handle = self._handles.get(uuid)
        if handle is None:
            raise GpuLost(f"{uuid} is not among the GPUs that amdsmi lists")
        values: Values = {}
        failed = ""
        for question in questions:
            if (uuid, question.__name__) in self._silent:
                continue
            try:
                answer = question(self._smi, handle)
            except (AttributeError, KeyError):  # another release of the library
                self._silent.add((uuid, question.__name__))
                continue
            except self._smi.AmdSmiException as error:
                if _is_unknown_to_it(self._smi, error):
                    self._silent.add((uuid, question.__name__))
                else:
                    failed = failed or str(error)
                continue
            values |= {name: value for name, value in answer.items() if isinstance(value, int | float)}
        if failed and not values:
            raise GpuLost(failed)
        return values

    def processes(self, uuid: str) -> list[GpuProcess] | None:
        handle = self._handles.get(uuid)
        if handle is None:
            raise GpuLost(f"{uuid} is not among the GPUs that amdsmi lists")
        try:
            rows = self._smi.amdsmi_get_gpu_process_list(handle)
        except self._smi.AmdSmiException:
            return None
        memory = {int(row["pid"]): row["memory_usage"]["vram_mem"] / _MIB for row in rows}
        return [GpuProcess(pid, mib) for pid, mib in sorted(memory.items())]

    def wait_happenings(self, timeout_s: float) -> list[GpuEvent]:
        """The library has none of this sort. Raises DriverGone, so that nobody asks often."""
        raise DriverGone("amdsmi has no events of errors")


def _memory(smi: Any, handle: Any) -> dict[str, Any]:
    usage = smi.amdsmi_get_gpu_vram_usage(handle)
    used, total = usage["vram_used"], usage["vram_total"]
    return {"gpu_memory_used": used, "gpu_memory_free": total - used}


def _power(smi: Any, handle: Any) -> dict[str, Any]:
    told = smi.amdsmi_get_power_info(handle)
    now, mean = told["current_socket_power"], told["average_socket_power"]
    return {"gpu_power": now if isinstance(now, int) and now else mean}


def _temperature(smi: Any, handle: Any) -> dict[str, Any]:
    return {"gpu_temperature": _degrees(smi, handle, smi.AmdSmiTemperatureType.HOTSPOT)}


def _memory_temperature(smi: Any, handle: Any) -> dict[str, Any]:
    return {"gpu_memory_temperature": _degrees(smi, handle, smi.AmdSmiTemperatureType.VRAM)}


def _degrees(smi: Any, handle: Any, sensor: Any) -> float:
    told = float(smi.amdsmi_get_temp_metric(handle, sensor, smi.AmdSmiTemperatureMetric.CURRENT))
    return told / 1000 if told >= 1000 else told  # older releases say thousandths


def _activity(smi: Any, handle: Any) -> dict[str, Any]:
    told = smi.amdsmi_get_gpu_activity(handle)
    return {"gpu_util": told["gfx_activity"], "gpu_copy_util": told["umc_activity"]}


def _power_limit(smi: Any, handle: Any) -> dict[str, Any]:
    return {"gpu_power_limit": smi.amdsmi_get_power_cap_info(handle)["power_cap"] / 1_000_000}


def _energy(smi: Any, handle: Any) -> dict[str, Any]:
    """Counted in units of so many µJ."""
    told = smi.amdsmi_get_energy_count(handle)
    return {"gpu_energy": told["energy_accumulator"] * told["counter_resolution"] / 1000}


def _sm_clock(smi: Any, handle: Any) -> dict[str, Any]:
    return {"gpu_sm_clock": smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)["clk"]}


def _memory_clock(smi: Any, handle: Any) -> dict[str, Any]:
    return {"gpu_memory_clock": smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.MEM)["clk"]}


def _throttle(smi: Any, handle: Any) -> dict[str, Any]:
    told = smi.amdsmi_get_violation_status(handle)
    known = {name: bit for name, bit in _VIOLATIONS.items() if isinstance(told.get(name), bool)}
    if not known:
        return {}
    bits = 0
    for name, bit in known.items():
        bits |= bit if told[name] else 0
    return {"gpu_throttle": bits}


def _ecc(smi: Any, handle: Any) -> dict[str, Any]:
    told = smi.amdsmi_get_gpu_total_ecc_count(handle)
    return {"gpu_ecc_corrected": told["correctable_count"], "gpu_ecc_uncorrected": told["uncorrectable_count"]}


def _pcie(smi: Any, handle: Any) -> dict[str, Any]:
    told = smi.amdsmi_get_pcie_info(handle)["pcie_metric"]
    return {
        "gpu_pcie_width": told["pcie_width"],
        "gpu_pcie_generation": _GENERATION.get(told["pcie_speed"]),
        "gpu_pcie_replays": told["pcie_replay_count"],
    }


_QUICK = (_memory, _power, _temperature)
_OTHERS = (
    _memory_temperature,
    _activity,
    _power_limit,
    _energy,
    _sm_clock,
    _memory_clock,
    _throttle,
    _ecc,
    _pcie,
)


def _uuid(asic: dict[str, Any]) -> str:
    """As `agent/devices/kfd` makes it of the same number, so that both mean one GPU by it; empty: it has none."""
    try:
        return f"GPU-{int(str(asic.get('asic_serial', '')), 16):016x}"
    except ValueError:
        return ""


def _is_unknown_to_it(smi: Any, error: Any) -> bool:
    names = ("NOT_SUPPORTED", "NOT_YET_IMPLEMENTED", "NO_PERM", "INVAL")
    codes = {getattr(getattr(smi, "amdsmi_wrapper", smi), f"AMDSMI_STATUS_{name}", None) for name in names}
    return getattr(error, "err_code", None) in codes - {None}


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]
