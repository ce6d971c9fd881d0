"""What is asked of an NVIDIA card through NVML, one question a call, and what its answers are called here.

Tables for `nvidia`: each question takes the library and a handle and gives metrics in their units. Field values are
asked all in one call (`FIELDS`).

Invariant: a question asks one call of the library, so that what a card cannot answer costs no other answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bireme.gather.gpus.source import Values

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Question:
    """One call of the library; `name` is that call."""

    name: str
    ask: Callable[[Any, Any], Values]
    instead_of: str = ""
    """Asked only where the card, or an older library, does not answer that one."""


def _utilization(nvml: Any, handle: Any) -> Values:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"gpu_util": rates.gpu, "gpu_copy_util": rates.memory}


def _memory(nvml: Any, handle: Any) -> Values:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    return {
        "gpu_memory_used": memory.used // MIB,
        "gpu_memory_free": memory.free // MIB,
        "gpu_memory_reserved": memory.reserved // MIB,
    }


def _memory_by_the_older_call(nvml: Any, handle: Any) -> Values:
    """Counts what the driver keeps as used."""
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"gpu_memory_used": memory.used // MIB, "gpu_memory_free": memory.free // MIB}


def _power(nvml: Any, handle: Any) -> Values:
    return {"gpu_power": nvml.nvmlDeviceGetPowerUsage(handle) / 1000}


def _power_limit(nvml: Any, handle: Any) -> Values:
    return {"gpu_power_limit": nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000}


def _temperature(nvml: Any, handle: Any) -> Values:
    return {"gpu_temperature": nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU)}


def _temperature_by_the_older_call(nvml: Any, handle: Any) -> Values:
    return {"gpu_temperature": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)}


def _sm_clock(nvml: Any, handle: Any) -> Values:
    return {"gpu_sm_clock": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)}


def _memory_clock(nvml: Any, handle: Any) -> Values:
    return {"gpu_memory_clock": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)}


def _throttle(nvml: Any, handle: Any) -> Values:
    return {"gpu_throttle": nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)}


def _throttle_by_the_older_name(nvml: Any, handle: Any) -> Values:
    return {"gpu_throttle": nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)}


def _pcie_width(nvml: Any, handle: Any) -> Values:
    return {"gpu_pcie_width": nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)}


def _pcie_generation(nvml: Any, handle: Any) -> Values:
    return {"gpu_pcie_generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)}


def _encoder(nvml: Any, handle: Any) -> Values:
    return {"gpu_encoder_util": nvml.nvmlDeviceGetEncoderUtilization(handle)[0]}


def _decoder(nvml: Any, handle: Any) -> Values:
    return {"gpu_decoder_util": nvml.nvmlDeviceGetDecoderUtilization(handle)[0]}


def _pcie_sent(nvml: Any, handle: Any) -> Values:
    return {"gpu_pcie_sent": nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES)}


def _pcie_received(nvml: Any, handle: Any) -> Values:
    return {"gpu_pcie_received": nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES)}


MEMORY = (
    Question("nvmlDeviceGetMemoryInfo_v2", _memory),
    Question("nvmlDeviceGetMemoryInfo", _memory_by_the_older_call, instead_of="nvmlDeviceGetMemoryInfo_v2"),
)
QUICK = (
    *MEMORY,
    Question("nvmlDeviceGetPowerUsage", _power),
    Question("nvmlDeviceGetTemperatureV", _temperature),
    Question("nvmlDeviceGetTemperature", _temperature_by_the_older_call, instead_of="nvmlDeviceGetTemperatureV"),
)
"""Those that are asked between two rounds too, for the most that was reached."""

OF_A_GPU = (
    *QUICK,
    Question("nvmlDeviceGetUtilizationRates", _utilization),
    Question("nvmlDeviceGetEnforcedPowerLimit", _power_limit),
    Question("nvmlDeviceGetClockInfo SM", _sm_clock),
    Question("nvmlDeviceGetClockInfo MEM", _memory_clock),
    Question("nvmlDeviceGetCurrentClocksEventReasons", _throttle),
    Question(
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        _throttle_by_the_older_name,
        instead_of="nvmlDeviceGetCurrentClocksEventReasons",
    ),
    Question("nvmlDeviceGetCurrPcieLinkWidth", _pcie_width),
    Question("nvmlDeviceGetCurrPcieLinkGeneration", _pcie_generation),
    Question("nvmlDeviceGetEncoderUtilization", _encoder),
    Question("nvmlDeviceGetDecoderUtilization", _decoder),
)
OF_AN_INSTANCE = MEMORY
"""NVML tells nothing else of a MIG instance but by GPM: power, clocks and temperatures are its GPU's."""

PCIE_TRAFFIC = (
    Question("nvmlDeviceGetPcieThroughput TX", _pcie_sent),
    Question("nvmlDeviceGetPcieThroughput RX", _pcie_received),
)
"""Each measures for 20 ms, and waits so long: for cards without GPM, and seldom."""


@dataclass(frozen=True, slots=True)
class Field:
    """A metric that NVML has as a field value: of the card, else the sum of one of each NVLink."""

    metric: str
    name: str
    by_link: str = ""
    every_s: float = 0.0
    """Not asked more often, for one that costs much; absent in between."""


FIELDS = (
    Field("gpu_memory_temperature", "NVML_FI_DEV_MEMORY_TEMP"),
    Field("gpu_energy", "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION", every_s=30.0),  # 4 ms of CPU time on an H200
    Field("gpu_ecc_corrected", "NVML_FI_DEV_ECC_SBE_VOL_TOTAL"),
    Field("gpu_ecc_uncorrected", "NVML_FI_DEV_ECC_DBE_VOL_TOTAL"),
    Field("gpu_rows_remapped_corrected", "NVML_FI_DEV_REMAPPED_COR"),
    Field("gpu_rows_remapped_uncorrected", "NVML_FI_DEV_REMAPPED_UNC"),
    Field("gpu_row_remap_pending", "NVML_FI_DEV_REMAPPED_PENDING"),
    Field("gpu_row_remap_failure", "NVML_FI_DEV_REMAPPED_FAILURE"),
    Field("gpu_pcie_replays", "NVML_FI_DEV_PCIE_REPLAY_COUNTER", every_s=30.0),  # 0.2 ms
    Field("gpu_nvlink_crc_errors", "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVML_FI_DEV_NVLINK_ERROR_DL_CRC"),
    Field("gpu_nvlink_replays", "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY"),
    Field(
        "gpu_nvlink_recoveries",
        "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
    ),
)

GPM = {
    "gpu_engine_active": ("NVML_GPM_METRIC_GRAPHICS_UTIL", 1.0),
    "gpu_sm_active": ("NVML_GPM_METRIC_SM_UTIL", 1.0),
    "gpu_sm_occupancy": ("NVML_GPM_METRIC_SM_OCCUPANCY", 1.0),
    "gpu_tensor_active": ("NVML_GPM_METRIC_ANY_TENSOR_UTIL", 1.0),
    "gpu_dram_active": ("NVML_GPM_METRIC_DRAM_BW_UTIL", 1.0),
    "gpu_fp64_active": ("NVML_GPM_METRIC_FP64_UTIL", 1.0),
    "gpu_fp32_active": ("NVML_GPM_METRIC_FP32_UTIL", 1.0),
    "gpu_fp16_active": ("NVML_GPM_METRIC_FP16_UTIL", 1.0),
    "gpu_pcie_sent": ("NVML_GPM_METRIC_PCIE_TX_PER_SEC", 1024.0),
    "gpu_pcie_received": ("NVML_GPM_METRIC_PCIE_RX_PER_SEC", 1024.0),
    "gpu_nvlink_sent": ("NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", 1024.0),
    "gpu_nvlink_received": ("NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", 1024.0),
}
"""By metric: GPM's name of it, and how much of the metric's unit one of GPM's is (it has MiB/s)."""
