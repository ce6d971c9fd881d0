"""All GPUs watched: rounds go on whatever a driver does, and what befell a card is told once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

from bireme.gather.gpus.nvidia import NvidiaSource
from bireme.gather.gpus.source import NoGpus
from bireme.gather.gpus.watching import GpuRound, Gpus, Pace
from bireme.testing.scripted_nvml import Card, Instance, ScriptedNvml

QUICK = Pace(patience_s=0.2, glance_s=0.01, relist_s=0.05, first_pause_s=0.02, longest_pause_s=0.05, events_s=0.05)
UNHURRIED = Pace(patience_s=20.0, glance_s=60.0, relist_s=0.05, first_pause_s=0.02, longest_pause_s=0.05, events_s=0.05)


def card(number: int, **values: float) -> Card:
    return Card(f"GPU-{number}", bus=f"00000000:{number:02X}:00.0", values={"gpu_power": 70.0, **values})


@contextmanager
def watched(nvml: ScriptedNvml, pace: Pace = UNHURRIED) -> Iterator[Gpus]:
    gpus = Gpus(NvidiaSource(nvml), lambda device: "node1", pace=pace)
    gpus.start()
    try:
        yield gpus
    finally:
        for each in nvml.cards:
            each.hangs.clear()
        gpus.stop()


def until(gpus: Gpus, good: Callable[[GpuRound], object]) -> list[GpuRound]:
    """Rounds, the last of which is so."""
    rounds = []
    end = time.monotonic() + 60
    while time.monotonic() < end:
        rounds.append(gpus.round())
        if good(rounds[-1]):
            return rounds
        time.sleep(0.005)
    raise AssertionError(f"never: {rounds[-1]}")


def happened(rounds: list[GpuRound]) -> list[tuple[str, str]]:
    return [(each.kind, each.uuid) for one in rounds for each in one.happenings]


def answers(seen: GpuRound) -> dict[str, float]:
    return {uuid: row["gpu_answers"] for uuid, row in seen.values.items()}


def test_a_round_has_a_frame_of_all_cards() -> None:
    nvml = ScriptedNvml([card(1, gpu_temperature=40), card(2)])
    nvml.cards[0].processes = [{"pid": 5, "memory_mib": 10}]
    with watched(nvml) as gpus:
        seen = until(gpus, lambda seen: len(seen.values) == 2)[-1]
    (frame,) = seen.frames({"GPU-1": {"gpu_unowned_memory": 10.0}})
    assert (frame.about, frame.node, frame.ids) == ("gpu", "node1", ["GPU-1", "GPU-2"])
    assert frame.columns["gpu_power"] == [70.0, 70.0]
    assert frame.columns["gpu_temperature"] == [40, None], "not measured is absent"
    assert frame.columns["gpu_processes"] == [1, 0]
    assert frame.columns["gpu_unowned_memory"] == [10.0, None]
    assert [process.pid for process in seen.processes["GPU-1"]] == [5]
    assert [device.node for device in seen.devices] == ["node1", "node1"]


def test_a_call_that_hangs_costs_its_own_card_only() -> None:
    nvml = ScriptedNvml([card(1), card(2)])
    with watched(nvml, QUICK) as gpus:
        until(gpus, lambda seen: answers(seen) == {"GPU-1": 1, "GPU-2": 1})
        nvml.cards[0].hangs.append("nvmlDeviceGetPowerUsage")
        seen = until(gpus, lambda seen: answers(seen) == {"GPU-1": 0, "GPU-2": 1})[-1]
        assert seen.values["GPU-1"] == {"gpu_answers": 0}, "nothing else is said of it"
        assert "GPU-1" not in seen.processes
        hanging = nvml.asked["nvmlDeviceGetPowerUsage"]
        threads = threading.active_count()
        for _ in range(3):
            assert answers(gpus.round())["GPU-1"] == 0
        assert threading.active_count() == threads, "no second thread is made for it"
        others = nvml.asked["nvmlDeviceGetPowerUsage"] - hanging
        assert others >= 3, "the other card goes on"
        nvml.cards[0].hangs.clear()
        rounds = until(gpus, lambda seen: answers(seen) == {"GPU-1": 1, "GPU-2": 1})
        assert happened(rounds) == [], "it was never lost"


def test_a_card_that_vanishes_is_lost_once_and_back_once() -> None:
    nvml = ScriptedNvml([card(1), card(2)])
    with watched(nvml) as gpus:
        until(gpus, lambda seen: len(answers(seen)) == 2)
        nvml.cards[0].lost = True
        rounds = until(gpus, lambda seen: answers(seen).get("GPU-1") == 0)
        opened = nvml.asked["nvmlInit"]
        rounds += until(gpus, lambda seen: nvml.asked["nvmlInit"] > opened + 1 and answers(seen).get("GPU-1") == 0)
        assert happened(rounds) == [("gpu lost", "GPU-1")]
        assert [device.uuid for device in rounds[-1].devices] == ["GPU-2", "GPU-1"], "it is still known"
        nvml.cards[0].lost = False
        rounds = until(gpus, lambda seen: answers(seen) == {"GPU-1": 1, "GPU-2": 1})
        assert happened(rounds) == [("gpu back", "GPU-1")]
        rounds = until(gpus, lambda seen: nvml.opened == 1)
        assert happened(rounds) == []


def test_a_driver_that_goes_away_and_comes_again() -> None:
    nvml = ScriptedNvml([card(1)])
    with watched(nvml) as gpus:
        until(gpus, lambda seen: answers(seen) == {"GPU-1": 1})
        nvml.init_error = 9
        nvml.cards[0].error = 9
        assert happened(until(gpus, lambda seen: answers(seen) == {"GPU-1": 0})) == [("gpu lost", "GPU-1")]
        until(gpus, lambda seen: "error 9" in gpus.problem)
        nvml.init_error = nvml.cards[0].error = 0
        assert happened(until(gpus, lambda seen: answers(seen) == {"GPU-1": 1})) == [("gpu back", "GPU-1")]
        assert gpus.problem == ""


def test_a_driver_that_was_replaced_needs_a_new_process() -> None:
    nvml = ScriptedNvml([card(1)])
    with watched(nvml) as gpus:
        until(gpus, lambda seen: answers(seen) == {"GPU-1": 1})
        nvml.init_error = nvml.cards[0].error = 18
        until(gpus, lambda seen: gpus.is_stale)
        assert "replaced" in gpus.problem


def test_an_opening_that_hangs_leaves_rounds_that_say_so() -> None:
    class Slow(ScriptedNvml):
        may_open = threading.Event()

        def nvmlInit(self) -> None:  # noqa: N802
            self._count("nvmlInit")
            self.may_open.wait(60)
            self.opened += 1

    nvml = Slow([card(1), card(2)])
    with watched(nvml, replace(QUICK, opening_s=0.1)) as gpus:
        assert gpus.round().values == {}, "nothing is known yet"
        nvml.may_open.set()
        until(gpus, lambda seen: answers(seen) == {"GPU-1": 1, "GPU-2": 1})
        nvml.may_open.clear()
        nvml.cards[0].lost = True
        seen = until(gpus, lambda seen: answers(seen) == {"GPU-1": 0, "GPU-2": 0})[-1]
        assert seen.values["GPU-2"] == {"gpu_answers": 0}
        nvml.cards[0].lost = False
        nvml.may_open.set()
        until(gpus, lambda seen: answers(seen) == {"GPU-1": 1, "GPU-2": 1})


def test_a_library_that_surprises_does_not_end_the_watching() -> None:
    class Odd(ScriptedNvml):
        is_odd = True

        def nvmlDeviceGetPciInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
            if self.is_odd:
                raise ValueError("what is this?")
            return super().nvmlDeviceGetPciInfo(handle)

    nvml = Odd([card(1)])
    with watched(nvml) as gpus:
        until(gpus, lambda seen: "what is this?" in gpus.problem)
        nvml.is_odd = False
        until(gpus, lambda seen: answers(seen) == {"GPU-1": 1})


def test_cards_that_come_later_are_found() -> None:
    nvml = ScriptedNvml([])
    nvml.init_error = 9
    with watched(nvml) as gpus:
        until(gpus, lambda seen: gpus.problem)
        assert gpus.round().values == {}
        nvml.cards, nvml.init_error = [card(1)], 0
        until(gpus, lambda seen: answers(seen) == {"GPU-1": 1})
        nvml.cards[0].instances = [Instance("MIG-1", values={"gpu_memory_used": 3})]
        seen = until(gpus, lambda seen: "MIG-1" in seen.values)[-1]
        assert [device.parent for device in seen.devices] == ["", "GPU-1"]
        nvml.cards[0].instances = []
        rounds = until(gpus, lambda seen: [device.uuid for device in seen.devices] == ["GPU-1"])
        assert happened(rounds) == [], "an instance that was removed is not lost"


def test_an_xid_is_a_happening_and_a_figure() -> None:
    nvml = ScriptedNvml([card(1), card(2)])
    with watched(nvml) as gpus:
        until(gpus, lambda seen: len(answers(seen)) == 2)
        nvml.cards[1].xids += [31, 43]
        rounds = until(gpus, lambda seen: seen.values["GPU-2"].get("gpu_xid") == 43)
        told = [(each.kind, each.uuid, each.code, each.node) for one in rounds for each in one.happenings]
        assert told == [("xid", "GPU-2", 31, "node1"), ("xid", "GPU-2", 43, "node1")]
        assert "gpu_xid" not in rounds[-1].values["GPU-1"]


def test_the_most_between_two_rounds_is_kept() -> None:
    nvml = ScriptedNvml([card(1, gpu_memory_used=100)])
    with watched(nvml, Pace(patience_s=20.0, glance_s=0.005)) as gpus:
        until(gpus, lambda seen: seen.values)
        nvml.cards[0].values["gpu_memory_used"] = 900
        asked = nvml.asked["nvmlDeviceGetMemoryInfo_v2"]
        end = time.monotonic() + 60
        while nvml.asked["nvmlDeviceGetMemoryInfo_v2"] < asked + 3 and time.monotonic() < end:
            time.sleep(0.005)
        nvml.cards[0].values["gpu_memory_used"] = 200
        asked = nvml.asked["nvmlDeviceGetMemoryInfo_v2"]
        while nvml.asked["nvmlDeviceGetMemoryInfo_v2"] < asked + 2 and time.monotonic() < end:
            time.sleep(0.005)
        row = gpus.round().values["GPU-1"]
        assert (row["gpu_memory_used"], row["gpu_memory_peak"]) == (200, 900)
        row = gpus.round().values["GPU-1"]
        assert (row["gpu_memory_used"], row["gpu_memory_peak"]) == (200, 200)


def test_a_machine_without_gpus_has_empty_rounds() -> None:
    gpus = Gpus(NoGpus("nothing here"), lambda device: "node1", pace=QUICK)
    gpus.start()
    try:
        until(gpus, lambda seen: gpus.problem == "nothing here")
        assert (gpus.round().values, gpus.round().frames()) == ({}, [])
    finally:
        gpus.stop()
