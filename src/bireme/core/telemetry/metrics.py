"""Every metric that is gathered: what it is about, its unit, its source, how it is kept and what Prometheus calls it.

The one list. `gather` fills what it can measure, `store/series` keeps it, the API, the commands, `/metrics`, the
dashboards and docs/telemetry.md read it from here; a test holds each of them to it.

Invariant: a value that was not measured is absent, never zero. A counter travels as the device or the kernel counts it
and is kept as what it grew by in a second, so that every series that is kept can be averaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

About = Literal["node", "gpu", "task", "use"]
"""What a series is of: a node; a GPU or a MIG instance of one; a task of a step (or a batch script); what the processes
of one task do on one GPU."""

Kind = Literal["gauge", "counter"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of one sort of subject."""

    name: str
    about: About
    unit: str
    """Of the value as it is kept: of a counter what it grows by in a second."""
    meaning: str
    source: str
    """Where it is read, in the words of the documentation of that source."""
    kind: Kind = "gauge"
    grain: float = 1.0
    """Differences smaller than this are not kept."""
    per_second: float = 1.0
    """Of a counter: what is kept, by what it counted in a second (bytes are counted, KiB/s kept)."""
    wraps_at: int = 0
    """Of a counter: it begins at 0 again here; 0: it does not, and one that fell was set back."""
    prometheus: str = ""
    """Its name there: dcgm-exporter's, where that has one. Empty: it is not exported."""
    prometheus_factor: float = 1.0
    """A gauge's value there by the value here; of a counter the exported total by the counted one."""
    prometheus_kind: Kind | None = None
    """Its type there, where that is another than its kind here."""


def _gpu(name: str, unit: str, meaning: str, source: str, prometheus: str = "", **more: object) -> Metric:
    return Metric(name, "gpu", unit, meaning, source, prometheus=prometheus, **more)  # type: ignore[arg-type]


def _real_use(name: str, meaning: str, gpm: str, field: str) -> Metric:
    """Measured by the GPU's own counters: by GPM (Hopper and later), or by DCGM where that runs."""
    source = f"NVML GPM {gpm}; DCGM {field}"
    return Metric(name, "gpu", "%", meaning, source, grain=0.1, prometheus=field, prometheus_factor=0.01)


_GPU = (
    _gpu("gpu_util", "%", "time in which some kernel ran, whatever it did",
         "NVML nvmlDeviceGetUtilizationRates; amdsmi_get_gpu_activity", "DCGM_FI_DEV_GPU_UTIL"),
    _gpu("gpu_copy_util", "%", "time in which memory was read or written",
         "NVML nvmlDeviceGetUtilizationRates; amdsmi_get_gpu_activity", "DCGM_FI_DEV_MEM_COPY_UTIL"),
    _real_use("gpu_engine_active", "time in which the graphics or compute engine worked", "GRAPHICS_UTIL",
              "DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
    _real_use("gpu_sm_active", "of the multiprocessors' cycles those with work", "SM_UTIL", "DCGM_FI_PROF_SM_ACTIVE"),
    _real_use("gpu_sm_occupancy", "of the warps that could be resident those that were", "SM_OCCUPANCY",
              "DCGM_FI_PROF_SM_OCCUPANCY"),
    _real_use("gpu_tensor_active", "of the cycles those in which tensor cores worked", "ANY_TENSOR_UTIL",
              "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
    _real_use("gpu_dram_active", "of the memory's bandwidth what was used", "DRAM_BW_UTIL",
              "DCGM_FI_PROF_DRAM_ACTIVE"),
    _real_use("gpu_fp64_active", "of the cycles those in which the FP64 pipe worked", "FP64_UTIL",
              "DCGM_FI_PROF_PIPE_FP64_ACTIVE"),
    _real_use("gpu_fp32_active", "of the cycles those in which the FP32 pipe worked", "FP32_UTIL",
              "DCGM_FI_PROF_PIPE_FP32_ACTIVE"),
    _real_use("gpu_fp16_active", "of the cycles those in which the FP16 pipe worked", "FP16_UTIL",
              "DCGM_FI_PROF_PIPE_FP16_ACTIVE"),
    _gpu("gpu_memory_used", "MiB", "memory in use", "NVML nvmlDeviceGetMemoryInfo_v2; amdsmi_get_gpu_vram_usage",
         "DCGM_FI_DEV_FB_USED"),
    _gpu("gpu_memory_peak", "MiB", "the most memory in use since the round before", "looks every 5 s"),
    _gpu("gpu_memory_free", "MiB", "memory that is free",
         "NVML nvmlDeviceGetMemoryInfo_v2; amdsmi_get_gpu_vram_usage", "DCGM_FI_DEV_FB_FREE"),
    _gpu("gpu_memory_reserved", "MiB", "memory that the driver keeps", "NVML nvmlDeviceGetMemoryInfo_v2",
         "DCGM_FI_DEV_FB_RESERVED"),
    _gpu("gpu_power", "W", "power drawn, the driver's mean of about a second",
         "NVML nvmlDeviceGetPowerUsage; amdsmi_get_power_info", "DCGM_FI_DEV_POWER_USAGE", grain=0.1),
    _gpu("gpu_power_peak", "W", "the most power drawn since the round before", "looks every 5 s", grain=0.1),
    _gpu("gpu_power_limit", "W", "power that it may draw",
         "NVML nvmlDeviceGetEnforcedPowerLimit; amdsmi_get_power_cap_info", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT"),
    _gpu("gpu_energy", "W", "energy used, in mJ; kept as the mean power between two samples",
         "NVML field TOTAL_ENERGY_CONSUMPTION; amdsmi_get_energy_count", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
         kind="counter", per_second=0.001, grain=0.1),
    _gpu("gpu_temperature", "C", "temperature of the chip",
         "NVML nvmlDeviceGetTemperatureV; amdsmi_get_temp_metric HOTSPOT", "DCGM_FI_DEV_GPU_TEMP"),
    _gpu("gpu_temperature_peak", "C", "the highest temperature of the chip since the round before",
         "looks every 5 s"),
    _gpu("gpu_memory_temperature", "C", "temperature of its memory",
         "NVML field MEMORY_TEMP; amdsmi_get_temp_metric VRAM", "DCGM_FI_DEV_MEMORY_TEMP"),
    _gpu("gpu_sm_clock", "MHz", "clock of the multiprocessors",
         "NVML nvmlDeviceGetClockInfo SM; amdsmi_get_clock_info GFX", "DCGM_FI_DEV_SM_CLOCK"),
    _gpu("gpu_memory_clock", "MHz", "clock of the memory",
         "NVML nvmlDeviceGetClockInfo MEM; amdsmi_get_clock_info MEM", "DCGM_FI_DEV_MEM_CLOCK"),
    _gpu("gpu_throttle", "flags", "why clocks are held down, as NVML's bits",
         "NVML nvmlDeviceGetCurrentClocksEventReasons; amdsmi_get_violation_status",
         "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"),
    _gpu("gpu_ecc_corrected", "errors/s", "single-bit errors since the driver was loaded",
         "NVML field ECC_SBE_VOL_TOTAL; amdsmi_get_gpu_total_ecc_count", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
         kind="counter", grain=0.001),
    _gpu("gpu_ecc_uncorrected", "errors/s", "double-bit errors since the driver was loaded",
         "NVML field ECC_DBE_VOL_TOTAL; amdsmi_get_gpu_total_ecc_count", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
         kind="counter", grain=0.001),
    _gpu("gpu_rows_remapped_corrected", "rows", "rows of memory remapped after corrected errors",
         "NVML field REMAPPED_COR", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
         prometheus_kind="counter"),
    _gpu("gpu_rows_remapped_uncorrected", "rows", "rows of memory remapped after uncorrected errors",
         "NVML field REMAPPED_UNC", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
         prometheus_kind="counter"),
    _gpu("gpu_row_remap_pending", "", "1: a remapping waits for a reset", "NVML field REMAPPED_PENDING",
         "DCGM_FI_DEV_ROW_REMAP_PENDING"),
    _gpu("gpu_row_remap_failure", "", "1: a remapping failed", "NVML field REMAPPED_FAILURE",
         "DCGM_FI_DEV_ROW_REMAP_FAILURE"),
    _gpu("gpu_pcie_replays", "replays/s", "packets sent again over PCIe",
         "NVML field PCIE_REPLAY_COUNTER; amdsmi_get_pcie_info", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", kind="counter",
         wraps_at=1 << 32, grain=0.001),
    _gpu("gpu_pcie_sent", "KiB/s", "sent over PCIe",
         "NVML GPM PCIE_TX_PER_SEC; DCGM; nvmlDeviceGetPcieThroughput once a minute",
         "DCGM_FI_PROF_PCIE_TX_BYTES", prometheus_factor=1024.0),
    _gpu("gpu_pcie_received", "KiB/s", "received over PCIe",
         "NVML GPM PCIE_RX_PER_SEC; DCGM; nvmlDeviceGetPcieThroughput once a minute",
         "DCGM_FI_PROF_PCIE_RX_BYTES", prometheus_factor=1024.0),
    _gpu("gpu_pcie_width", "lanes", "PCIe lanes in use",
         "NVML nvmlDeviceGetCurrPcieLinkWidth; amdsmi_get_pcie_info", "DCGM_FI_DEV_PCIE_LINK_WIDTH"),
    _gpu("gpu_pcie_generation", "", "PCIe generation in use",
         "NVML nvmlDeviceGetCurrPcieLinkGeneration; amdsmi_get_pcie_info", "DCGM_FI_DEV_PCIE_LINK_GEN"),
    _gpu("gpu_nvlink_sent", "KiB/s", "sent over all NVLinks", "NVML GPM NVLINK_TOTAL_TX_PER_SEC; DCGM",
         "DCGM_FI_PROF_NVLINK_TX_BYTES", prometheus_factor=1024.0),
    _gpu("gpu_nvlink_received", "KiB/s", "received over all NVLinks", "NVML GPM NVLINK_TOTAL_RX_PER_SEC; DCGM",
         "DCGM_FI_PROF_NVLINK_RX_BYTES", prometheus_factor=1024.0),
    _gpu("gpu_nvlink_crc_errors", "errors/s", "checksum errors of all NVLinks",
         "NVML field NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, else the sum of NVLINK_ERROR_DL_CRC",
         "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", kind="counter", grain=0.001),
    _gpu("gpu_nvlink_replays", "errors/s", "packets sent again over NVLinks",
         "NVML field NVLINK_REPLAY_ERROR_COUNT_TOTAL, else the sum of NVLINK_ERROR_DL_REPLAY",
         "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", kind="counter", grain=0.001),
    _gpu("gpu_nvlink_recoveries", "errors/s", "NVLinks that had to be trained again",
         "NVML field NVLINK_RECOVERY_ERROR_COUNT_TOTAL, else the sum of NVLINK_ERROR_DL_RECOVERY",
         "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", kind="counter", grain=0.001),
    _gpu("gpu_xid", "", "number of the latest Xid error", "NVML event set; kernel log", "DCGM_FI_DEV_XID_ERRORS"),
    _gpu("gpu_encoder_util", "%", "time in which the encoder worked", "NVML nvmlDeviceGetEncoderUtilization",
         "DCGM_FI_DEV_ENC_UTIL"),
    _gpu("gpu_decoder_util", "%", "time in which the decoder worked", "NVML nvmlDeviceGetDecoderUtilization",
         "DCGM_FI_DEV_DEC_UTIL"),
    _gpu("gpu_processes", "", "processes that use it",
         "NVML's lists of compute, graphics and MPS processes; amdsmi_get_gpu_process_list", "bireme_gpu_processes"),
    _gpu("gpu_unowned_memory", "MiB", "memory of processes that belong to no job",
         "the lists of processes, by their owners", "bireme_gpu_unowned_memory_mib"),
    _gpu("gpu_answers", "", "0: the driver does not answer for it, or it is off the bus", "bireme",
         "bireme_gpu_answers"),
)  # fmt: skip


def _node(name: str, unit: str, meaning: str, source: str, prometheus: str = "", **more: object) -> Metric:
    return Metric(name, "node", unit, meaning, source, prometheus=prometheus, **more)  # type: ignore[arg-type]


_NODE = (
    _node("node_cpu", "CPUs", "CPUs that are busy", "/proc/stat", "bireme_node_cpu_seconds_total",
          kind="counter", grain=0.01),
    _node("node_load", "", "load average of a minute", "/proc/loadavg", "bireme_node_load1", grain=0.01),
    _node("node_memory_used", "MiB", "memory that is not available", "/proc/meminfo MemTotal - MemAvailable",
          "bireme_node_memory_used_mib"),
    _node("node_memory_total", "MiB", "memory of the machine", "/proc/meminfo MemTotal",
          "bireme_node_memory_total_mib"),
    _node("node_network_received", "KiB/s", "received over all interfaces but loopback", "/proc/net/dev",
          "bireme_node_network_received_bytes_total", kind="counter", per_second=1 / 1024),
    _node("node_network_sent", "KiB/s", "sent over all interfaces but loopback", "/proc/net/dev",
          "bireme_node_network_sent_bytes_total", kind="counter", per_second=1 / 1024),
    _node("node_disk_read", "KiB/s", "read from block devices", "/proc/diskstats",
          "bireme_node_disk_read_bytes_total", kind="counter", per_second=1 / 1024),
    _node("node_disk_written", "KiB/s", "written to block devices", "/proc/diskstats",
          "bireme_node_disk_written_bytes_total", kind="counter", per_second=1 / 1024),
    _node("node_uninterruptible", "", "processes in uninterruptible sleep", "/proc/PID/stat",
          "bireme_node_uninterruptible_processes"),
    _node("node_clock_offset", "ms", "its clock, by that of the daemon; kept where they differ", "bireme",
          "bireme_node_clock_offset_ms"),
)  # fmt: skip


def _task(name: str, unit: str, meaning: str, source: str, **more: object) -> Metric:
    return Metric(name, "task", unit, meaning, source, **more)  # type: ignore[arg-type]


_TOTAL = "its counters, when it is over, and less and less often while it runs"
_TASK = (
    _task("cpu_user", "CPUs", "CPUs busy in the program", "/proc/PID/stat",
          kind="counter", grain=0.001),
    _task("cpu_system", "CPUs", "CPUs busy in the kernel for it", "/proc/PID/stat",
          kind="counter", grain=0.001),
    _task("memory", "MiB", "resident memory of its processes", "/proc/PID/stat"),
    _task("memory_peak", "MiB", "the most seen since it began", "the largest of the looks"),
    _task("page_faults", "faults/s", "major page faults", "/proc/PID/stat", kind="counter",
          grain=0.1),
    _task("io_read", "KiB/s", "read from files and devices", "/proc/PID/io rchar", kind="counter",
          per_second=1 / 1024),
    _task("io_written", "KiB/s", "written to files and devices", "/proc/PID/io wchar", kind="counter",
          per_second=1 / 1024),
    _task("disk_read", "KiB/s", "read from block devices", "/proc/PID/io read_bytes", kind="counter",
          per_second=1 / 1024),
    _task("disk_written", "KiB/s", "written to block devices", "/proc/PID/io write_bytes", kind="counter",
          per_second=1 / 1024),
    _task("switches", "switches/s", "voluntary and forced context switches", "/proc/PID/status", kind="counter"),
    _task("processes", "", "processes", "/proc"),
    _task("threads", "", "threads", "/proc/PID/stat"),
    _task("uninterruptible", "", "processes in uninterruptible sleep", "/proc/PID/stat"),
    _task("cpu_total", "s", "CPU time since it began", _TOTAL, grain=0.01),
    _task("page_faults_total", "faults", "major page faults since it began", _TOTAL),
    _task("io_read_total", "KiB", "read from files and devices since it began", _TOTAL),
    _task("io_written_total", "KiB", "written to files and devices since it began", _TOTAL),
    _task("output_position", "B", "how far its standard output has come in its file", "/proc/PID/fdinfo/1"),
    _task("error_position", "B", "the same of its standard error, where that is another file", "/proc/PID/fdinfo/2"),
)  # fmt: skip

_USE = (
    Metric("use_gpu_memory", "use", "MiB", "memory of its processes on the GPU",
           "NVML's lists of compute, graphics and MPS processes; amdsmi_get_gpu_process_list"),
    Metric("use_gpu_util", "use", "%", "of the multiprocessors' time what its processes had",
           "NVML nvmlDeviceGetProcessUtilization"),
)  # fmt: skip

METRICS: tuple[Metric, ...] = (*_GPU, *_NODE, *_TASK, *_USE)
BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}
TOTALS: dict[str, tuple[str, ...]] = {
    "cpu_total": ("cpu_user", "cpu_system"),
    "page_faults_total": ("page_faults",),
    "io_read_total": ("io_read",),
    "io_written_total": ("io_written",),
}
"""Of a task: the counters that each total is the sum of. Rates are kept for curves: added up they are only about what
was used, and least so of a task that lived for seconds."""


def about(what: About) -> tuple[Metric, ...]:
    """The metrics of one sort of subject, in the order of the list."""
    return tuple(metric for metric in METRICS if metric.about == what)
