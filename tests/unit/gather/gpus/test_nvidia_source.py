"""What is read of NVIDIA cards through NVML: every metric in its unit, and nothing that a card does not tell."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.core.telemetry.metrics import about
from bireme.gather.gpus.nvidia import ASK_AGAIN_S, PCIE_EVERY_S, NvidiaSource
from bireme.gather.gpus.nvidia_questions import GPM
from bireme.gather.gpus.source import PEAKS, DriverChanged, DriverGone, GpuLost, GpuProcess
from bireme.testing.scripted_nvml import Card, Instance, ScriptedNvml, field_answer

FOUND_ELSEWHERE = {"gpu_xid", "gpu_processes", "gpu_unowned_memory", "gpu_answers", *PEAKS.values()}
"""Metrics about GPUs that no call of the library gives: of events, of lists, of looking often."""
EVERYTHING = {metric.name: float(place) for place, metric in enumerate(about("gpu"), 1)}
EVERYTHING = {name: value for name, value in EVERYTHING.items() if name not in FOUND_ELSEWHERE}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def opened(*cards: Card, nvml: ScriptedNvml | None = None, clock: Clock | None = None) -> tuple[NvidiaSource, Any]:
    library = nvml or ScriptedNvml(cards)
    source = NvidiaSource(library, clock=clock or Clock(), wall=lambda: 5.0)
    source.open()
    source.devices()
    return source, library


def test_every_metric_about_gpus_is_read_in_its_unit() -> None:
    clock = Clock()
    source, _ = opened(Card("GPU-0", values=dict(EVERYTHING)), clock=clock)
    first = source.sample("GPU-0")
    assert first == {name: value for name, value in EVERYTHING.items() if name not in GPM}
    clock.now += 60
    assert source.sample("GPU-0") == pytest.approx(EVERYTHING), "GPM needs two samples"


def test_what_a_card_does_not_tell_is_absent_and_not_asked_every_time() -> None:
    clock = Clock()
    source, nvml = opened(Card("GPU-0", values={"gpu_power": 70.5, "gpu_ecc_corrected": 2}, gpm=False), clock=clock)
    assert [source.sample("GPU-0") for _ in range(3)] == [{"gpu_power": 70.5, "gpu_ecc_corrected": 2}] * 3
    assert nvml.asked["nvmlDeviceGetPowerUsage"] == 3
    assert nvml.asked["nvmlDeviceGetUtilizationRates"] == 1
    clock.now += ASK_AGAIN_S
    nvml.cards[0].values |= {"gpu_util": 5, "gpu_copy_util": 6, "gpu_ecc_uncorrected": 7}
    assert source.sample("GPU-0").keys() == {
        "gpu_power",
        "gpu_util",
        "gpu_copy_util",
        "gpu_ecc_corrected",
        "gpu_ecc_uncorrected",
    }


def test_energy_costs_much_and_is_asked_twice_a_minute() -> None:
    clock = Clock()
    source, _ = opened(Card("GPU-0", values={"gpu_power": 70, "gpu_energy": 5}), clock=clock)
    told = []
    for _ in range(7):
        told.append("gpu_energy" in source.sample("GPU-0"))
        clock.now += 10
    assert told == [True, False, False] * 2 + [True]


def test_what_gpm_cannot_say_of_a_moment_is_absent() -> None:
    source, nvml = opened(Card("GPU-0", values={"gpu_dram_active": 40.0, "gpu_sm_active": 1.0}))
    source.sample("GPU-0")
    nvml.cards[0].values["gpu_dram_active"] = float("nan")
    assert source.sample("GPU-0") == {"gpu_sm_active": 1.0}
    nvml.cards[0].values["gpu_dram_active"] = 41.0
    assert source.sample("GPU-0") == {"gpu_dram_active": 41.0, "gpu_sm_active": 1.0}


def test_who_is_alone_on_a_gpu_has_all_of_its_time() -> None:
    source, nvml = opened(
        Card("GPU-0", values={"gpu_util": 88, "gpu_copy_util": 1}, processes=[{"pid": 5, "memory_mib": 9}])
    )
    source.sample("GPU-0")
    assert source.processes("GPU-0") == [GpuProcess(5, 9.0, 88)]
    assert "nvmlDeviceGetProcessUtilization" not in nvml.asked


def test_a_question_that_fails_once_is_asked_again() -> None:
    class Moody(ScriptedNvml):
        fails = True

        def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> float:  # noqa: N802
            if self.fails:
                raise self.NVMLError(27)
            return super().nvmlDeviceGetClockInfo(handle, kind)

    nvml = Moody([Card("GPU-0", values={"gpu_power": 70, "gpu_sm_clock": 345, "gpu_memory_clock": 2619})])
    source, _ = opened(nvml=nvml)
    assert source.sample("GPU-0").keys() == {"gpu_power"}
    nvml.fails = False
    assert source.sample("GPU-0").keys() == {"gpu_power", "gpu_sm_clock", "gpu_memory_clock"}


def test_the_slow_question_of_pcie_traffic_is_for_cards_without_gpm_and_asked_once_a_minute() -> None:
    clock = Clock()
    traffic = {"gpu_pcie_sent": 10.0, "gpu_pcie_received": 20.0}
    source, nvml = opened(
        Card("GPU-0", values=dict(traffic), gpm=False), Card("GPU-1", values=dict(traffic)), clock=clock
    )
    assert source.sample("GPU-0") == traffic
    assert source.sample("GPU-0") == {}
    clock.now += PCIE_EVERY_S
    assert source.sample("GPU-0") == traffic
    asked = nvml.asked["nvmlDeviceGetPcieThroughput"]
    source.sample("GPU-1")
    assert source.sample("GPU-1") == traffic
    assert nvml.asked["nvmlDeviceGetPcieThroughput"] == asked


def test_nvlink_errors_are_summed_over_links_where_there_is_no_total() -> None:
    class Linked(ScriptedNvml):
        NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY = 161

        def nvmlDeviceGetFieldValues(self, handle: str, asked: Any) -> Any:  # noqa: N802
            plain = super().nvmlDeviceGetFieldValues(handle, [each for each in asked if isinstance(each, int)])
            answers = iter(plain)
            links = {0: 5, 1: 7}
            counted = {each: links.get(each[1]) for each in asked if not isinstance(each, int)}
            return [next(answers) if isinstance(each, int) else field_answer(counted[each]) for each in asked]

    source, _ = opened(nvml=Linked([Card("GPU-0", values={"gpu_power": 1.0})]))
    for _ in range(2):
        assert source.sample("GPU-0")["gpu_nvlink_replays"] == 12


@pytest.mark.parametrize("error", [15, 999], ids=["GPU_IS_LOST", "UNKNOWN"])
def test_a_card_that_is_gone_is_lost(error: int) -> None:
    source, nvml = opened(Card("GPU-0", values={"gpu_power": 70}), Card("GPU-1", values={"gpu_power": 71}))
    nvml.cards[0].error = error
    with pytest.raises(GpuLost):
        source.sample("GPU-0")
    assert source.sample("GPU-1")["gpu_power"] == 71


def test_cards_are_numbered_in_the_order_of_their_places() -> None:
    source, _ = opened(Card("GPU-b", bus="00000000:8A:00.0", minor=0), Card("GPU-a", bus="00000000:17:00.0", minor=1))
    listed = source.devices()
    assert [(each.uuid, each.index, each.minor, each.pci_bus_id) for each in listed] == [
        ("GPU-a", 0, 1, "0000:17:00.0"),
        ("GPU-b", 1, 0, "0000:8a:00.0"),
    ]


def test_a_card_that_cannot_be_named_does_not_hide_the_others() -> None:
    source, nvml = opened(Card("GPU-0"), Card("GPU-1"))
    nvml.cards[0].lost = True
    assert [each.uuid for each in source.devices()] == ["GPU-1"]


def test_mig_instances_are_devices_of_their_own() -> None:
    parts = [
        Instance(
            "MIG-7",
            7,
            values={"gpu_memory_used": 100, "gpu_tensor_active": 30.0},
            processes=[{"pid": 8, "memory_mib": 90}],
        ),
        Instance("MIG-9", 9, profile="3g.40gb", values={"gpu_memory_used": 200, "gpu_tensor_active": 60.0}),
    ]
    told_of_the_gpu = [{"pid": 8, "memory_mib": 90, "gpu_instance": 7}]
    source, _ = opened(Card("GPU-0", values={"gpu_power": 300.0}, instances=parts, processes=told_of_the_gpu))
    gpu, one, other = source.devices()
    assert [(each.parent, each.gpu_instance, each.profile) for each in (gpu, one, other)] == [
        ("", None, ""),
        ("GPU-0", 7, "1g.10gb"),
        ("GPU-0", 9, "3g.40gb"),
    ]
    source.sample("MIG-7")
    source.sample("MIG-9")
    assert source.sample("GPU-0") == {"gpu_power": 300.0}
    assert source.sample("MIG-7") == {
        "gpu_memory_used": 100,
        "gpu_memory_free": 0,
        "gpu_memory_reserved": 0,
        "gpu_tensor_active": 30.0,
    }
    assert source.sample("MIG-9")["gpu_tensor_active"] == 60.0
    assert source.processes("GPU-0") == [], "told of the instance, not twice"
    assert source.processes("MIG-7") == [GpuProcess(8, 90.0, None)]


def test_instances_come_and_go() -> None:
    source, nvml = opened(Card("GPU-0", instances=[Instance("MIG-1")]))
    nvml.cards[0].instances = [Instance("MIG-2", 2)]
    assert [each.uuid for each in source.devices()] == ["GPU-0", "MIG-2"]
    with pytest.raises(GpuLost):
        source.sample("MIG-1")


def test_processes_of_all_lists_count_once() -> None:
    rows = [
        {"pid": 5, "memory_mib": 300, "util": 40},
        {"pid": 6, "memory_mib": 100, "graphics": True},
        {"pid": 7, "memory_mib": None},
    ]
    source, _ = opened(Card("GPU-0", processes=rows))
    assert source.processes("GPU-0") == [
        GpuProcess(5, 300.0, 40.0),
        GpuProcess(6, 100.0, 0.0),
        GpuProcess(7, None, 0.0),
    ]


def test_what_clients_of_mps_use_is_told_of_its_server_alone() -> None:
    """As a real driver (580.159) lists them."""
    rows = [
        {"pid": 5, "memory_mib": 300, "mps": True},
        {"pid": 6, "memory_mib": 100, "mps": True},
        {"pid": 9, "memory_mib": 66, "util": 100},
    ]
    source, _ = opened(Card("GPU-0", processes=rows))
    assert source.processes("GPU-0") == [
        GpuProcess(5, 300.0, None),
        GpuProcess(6, 100.0, None),
        GpuProcess(9, 66.0, 100),
    ]


def test_no_process_and_not_told_are_not_the_same() -> None:
    class Secretive(ScriptedNvml):
        def _listed(self, handle: str, wanted: Any) -> Any:
            raise self.NVMLError(3)

    source, _ = opened(nvml=Secretive([Card("GPU-0")]))
    assert source.processes("GPU-0") is None
    source, _ = opened(Card("GPU-0"))
    assert source.processes("GPU-0") == []


def test_an_xid_is_told_once_with_its_gpu() -> None:
    source, nvml = opened(Card("GPU-0", bus="00000000:17:00.0"))
    assert source.wait_happenings(0.0) == []
    nvml.cards[0].xids.append(43)
    (event,) = source.wait_happenings(0.0)
    assert (event.kind, event.code, event.uuid, event.pci_bus_id, event.at) == ("xid", 43, "GPU-0", "0000:17:00.0", 5.0)
    assert source.wait_happenings(0.0) == []


def test_a_driver_that_is_not_there_and_one_that_was_replaced() -> None:
    nvml = ScriptedNvml([])
    nvml.init_error = 9
    with pytest.raises(DriverGone) as gone:
        NvidiaSource(nvml).open()
    assert not isinstance(gone.value, DriverChanged)
    nvml.init_error = 18
    with pytest.raises(DriverChanged, match="replaced"):
        NvidiaSource(nvml).open()
    assert nvml.opened == 0


def test_the_library_is_given_back_as_often_as_it_was_taken() -> None:
    source, nvml = opened(Card("GPU-0", values=dict(EVERYTHING)))
    source.sample("GPU-0")
    source.open()
    assert nvml.opened == 1
    source.close()
    source.close()
    assert nvml.opened == 0
