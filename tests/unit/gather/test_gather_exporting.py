"""A gatherer's own page: its newest round, counters that are not read in every round, age."""

from __future__ import annotations

import pytest

from bireme.gather import exporting
from bireme.gather.exporting import COUNTED_S, FRESH_S, Newest
from bireme.gather.messages import Device, Frame, Round, Value

CARD = Device(uuid="GPU-a", node="n1", index=0, minor=2, model="H200")


class Clock:
    time = 1000.0

    def monotonic(self) -> float:
        return self.time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(exporting, "time", clock)
    return clock


def a_round(**columns: list[Value]) -> Round:
    gpu = Frame(about="gpu", node="n1", ids=["GPU-a"], columns=columns)
    node = Frame(about="node", node="n1", ids=["n1"], columns={"node_load": [0.5]})
    task = Frame(about="task", node="n1", ids=["7.1.0.0"], columns={"memory": [7]})
    return Round(no=1, at=1.0, interval_s=10.0, frames=[node, gpu, task])


def samples(newest: Newest) -> dict[str, str]:
    lines = [line for line in newest.text().splitlines() if not line.startswith("#")]
    return {line.split("{")[0].split(" ")[0]: line.rpartition(" ")[2] for line in lines}


def test_the_newest_round_is_told(clock: Clock) -> None:
    newest = Newest()
    newest.take(a_round(gpu_util=[97], gpu_temperature=[None]), [CARD])
    assert samples(newest) == {
        "bireme_gatherer_info": "1",
        "bireme_gatherer_rounds_total": "1",
        "DCGM_FI_DEV_GPU_UTIL": "97",
        "bireme_node_load1": "0.5",
    }
    assert 'device="nvidia2"' in newest.text()


def test_before_the_first_round_nothing_is_measured(clock: Clock) -> None:
    assert samples(Newest()) == {"bireme_gatherer_info": "1", "bireme_gatherer_rounds_total": "0"}


def test_a_counter_that_is_read_twice_a_minute_stays_and_a_gauge_does_not(clock: Clock) -> None:
    newest = Newest()
    newest.take(a_round(gpu_energy=[5000], gpu_temperature=[40]), [CARD])
    clock.time += 10
    newest.take(a_round(gpu_energy=[None]), [CARD])
    told = samples(newest)
    assert told["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == "5000"
    assert "DCGM_FI_DEV_GPU_TEMP" not in told
    clock.time += COUNTED_S
    newest.take(a_round(), [CARD])
    assert "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" not in samples(newest)


def test_a_gatherer_that_hangs_is_absent_and_not_frozen(clock: Clock) -> None:
    newest = Newest()
    newest.take(a_round(gpu_util=[97]), [CARD])
    clock.time += FRESH_S + 1
    assert samples(newest) == {"bireme_gatherer_info": "1", "bireme_gatherer_rounds_total": "1"}
