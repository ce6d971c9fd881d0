"""AMD GPUs by amdsmi: answers in the shape of that library's Python interface (7.0), as its documentation says."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from bireme.gather.gpus.amd import AmdSource
from bireme.gather.gpus.source import DriverGone, GpuLost, GpuProcess

NOT_SUPPORTED, BUSY = 2, 30


class AmdSmiException(Exception):  # noqa: N818  (the library's name)
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, err_code: int) -> None:
        super().__init__(f"error {err_code}")
        self.err_code = err_code


class Recorded:
    """An MI300X and one that answers little, listed against their bus order."""

    AmdSmiException = AmdSmiException
    AMDSMI_STATUS_NOT_SUPPORTED = NOT_SUPPORTED
    AmdSmiTemperatureType = IntEnum("AmdSmiTemperatureType", "EDGE HOTSPOT VRAM")
    AmdSmiTemperatureMetric = IntEnum("AmdSmiTemperatureMetric", "CURRENT")
    AmdSmiClkType = IntEnum("AmdSmiClkType", "GFX MEM")

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.lost = False
        self.is_open = 0

    def amdsmi_init(self) -> None:
        self.is_open += 1

    def amdsmi_shut_down(self) -> None:
        self.is_open -= 1

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["poor", "rich"]

    def amdsmi_get_gpu_device_bdf(self, handle: str) -> str:
        return {"rich": "0000:0C:00.0", "poor": "0000:22:00.0"}[handle]

    def amdsmi_get_gpu_device_uuid(self, handle: str) -> str:
        return f"uuid-{handle}"

    def __getattr__(self, name: str) -> Any:
        if name not in ANSWERS:
            raise AttributeError(name)

        def answer(handle: str, *words: Any) -> Any:
            self.asked.append(f"{handle} {name}")
            if self.lost:
                raise AmdSmiLibraryException(BUSY)
            told = ANSWERS[name].get(handle)
            if told is None:
                raise AmdSmiLibraryException(NOT_SUPPORTED)
            return told[words[0].name] if words else told

        return answer


ANSWERS: dict[str, dict[str, Any]] = {
    "amdsmi_get_gpu_asic_info": {
        "rich": {"market_name": "AMD Instinct MI300X", "asic_serial": "0x8D3F1AB7C0FFEE01", "vendor_id": 4098},
        "poor": {"market_name": "N/A", "asic_serial": "N/A"},
    },
    "amdsmi_get_gpu_enumeration_info": {"rich": {"drm_render": 128, "drm_card": 1, "hip_uuid": "GPU-8d3f1ab7c0ffee01"}},
    "amdsmi_get_gpu_driver_info": {"rich": {"driver_name": "amdgpu", "driver_version": "6.14.14"}},
    "amdsmi_get_gpu_vram_usage": {"rich": {"vram_total": 196288, "vram_used": 1024}},
    "amdsmi_get_power_info": {
        "rich": {"current_socket_power": 412, "average_socket_power": "N/A", "socket_power": 412},
        "poor": {"current_socket_power": "N/A", "average_socket_power": 21, "socket_power": 21},
    },
    "amdsmi_get_power_cap_info": {"rich": {"power_cap": 750000000, "default_power_cap": 750000000}},
    "amdsmi_get_energy_count": {"rich": {"energy_accumulator": 123659715, "counter_resolution": 15.3, "timestamp": 1}},
    "amdsmi_get_temp_metric": {"rich": {"HOTSPOT": 61, "VRAM": 48}, "poor": {"HOTSPOT": 41000, "VRAM": 38000}},
    "amdsmi_get_clock_info": {
        "rich": {"GFX": {"clk": 2100, "min_clk": 132, "clk_locked": "N/A"}, "MEM": {"clk": 1300}},
        "poor": {"GFX": {"clk": "N/A"}, "MEM": {"clk": 900}},
    },
    "amdsmi_get_gpu_activity": {
        "rich": {"gfx_activity": 97, "umc_activity": 33, "mm_activity": "N/A"},
        "poor": {"gfx_activity": "N/A", "umc_activity": "N/A", "mm_activity": "N/A"},
    },
    "amdsmi_get_violation_status": {
        "rich": {
            "active_ppt_pwr": True,
            "active_hbm_thrm": True,
            "active_prochot_thrm": False,
            "active_vr_thrm": "N/A",
        },
        "poor": {"active_ppt_pwr": "N/A"},
    },
    "amdsmi_get_gpu_total_ecc_count": {"rich": {"correctable_count": 3, "uncorrectable_count": 1, "deferred_count": 0}},
    "amdsmi_get_pcie_info": {
        "rich": {"pcie_static": {}, "pcie_metric": {"pcie_width": 16, "pcie_speed": 32000, "pcie_replay_count": 4}}
    },
    "amdsmi_get_gpu_process_list": {
        "rich": [
            {
                "name": "python3",
                "pid": 4711,
                "mem": 2147483648,
                "engine_usage": {"gfx": 0, "enc": 0},
                "memory_usage": {"gtt_mem": 4096, "cpu_mem": 4096, "vram_mem": 1073741824},
                "cu_occupancy": 304,
            }
        ]
    },
}

RICH, POOR = "GPU-8d3f1ab7c0ffee01", "uuid-poor"


def opened() -> tuple[AmdSource, Recorded]:
    library = Recorded()
    source = AmdSource(library)
    source.open()
    source.devices()
    return source, library


def test_cards_are_described_in_bus_order_and_named_as_the_kernel_names_them() -> None:
    source, _ = opened()
    rich, poor = source.devices()
    assert (rich.uuid, rich.index, rich.vendor, rich.model) == (RICH, 0, "amd", "AMD Instinct MI300X")
    assert (rich.memory_mib, rich.pci_bus_id, rich.minor, rich.driver) == (196288, "0000:0c:00.0", 128, "6.14.14")
    assert (poor.uuid, poor.index, poor.minor) == (POOR, 1, None)


def test_all_that_it_measures_in_our_units() -> None:
    source, _ = opened()
    assert source.sample(RICH) == pytest.approx(
        {
            "gpu_memory_used": 1024,
            "gpu_memory_free": 195264,
            "gpu_power": 412,
            "gpu_power_limit": 750.0,
            "gpu_energy": 123659715 * 15.3 / 1000,
            "gpu_temperature": 61,
            "gpu_memory_temperature": 48,
            "gpu_util": 97,
            "gpu_copy_util": 33,
            "gpu_sm_clock": 2100,
            "gpu_memory_clock": 1300,
            "gpu_throttle": 0x24,
            "gpu_ecc_corrected": 3,
            "gpu_ecc_uncorrected": 1,
            "gpu_pcie_width": 16,
            "gpu_pcie_generation": 5,
            "gpu_pcie_replays": 4,
        }
    )


def test_what_it_does_not_know_is_absent_and_not_asked_again() -> None:
    source, library = opened()
    expected = {"gpu_power": 21, "gpu_temperature": 41, "gpu_memory_temperature": 38, "gpu_memory_clock": 900}
    assert source.sample(POOR) == expected
    library.asked.clear()
    assert source.sample(POOR) == expected
    assert "poor amdsmi_get_energy_count" not in library.asked
    assert "poor amdsmi_get_power_info" in library.asked


def test_processes_by_their_memory_on_the_card() -> None:
    source, _ = opened()
    assert source.processes(RICH) == [GpuProcess(4711, 1024.0, None)]
    assert source.processes(POOR) is None


def test_a_card_that_answers_nothing_is_lost() -> None:
    source, library = opened()
    library.lost = True
    with pytest.raises(GpuLost):
        source.sample(RICH)
    with pytest.raises(GpuLost):
        source.glance("GPU-none")


def test_a_library_without_its_driver() -> None:
    class NoDriver(Recorded):
        def amdsmi_init(self) -> None:
            raise AmdSmiLibraryException(34)

    with pytest.raises(DriverGone, match="amdsmi: error 34"):
        AmdSource(NoDriver()).open()


def test_it_is_given_back() -> None:
    source, library = opened()
    source.open()
    assert library.is_open == 1
    source.close()
    assert library.is_open == 0
