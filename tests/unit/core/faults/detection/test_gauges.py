"""Detectors over single figures: each fires when it should, and neither else nor when a figure is missing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bireme.core.faults.detection.gauges import GPU_ROWS, NODE_ROWS, Figures, Key, Peers, judge, peers_of
from bireme.core.faults.detection.streaks import Streak, extended
from bireme.core.faults.detection.thresholds import Thresholds
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Gravity, Place

GPU = Place(node="n1", gpu=2, uuid="GPU-2")
LIKE = Peers(clock_mhz=1980.0, lanes=16.0, generation=5.0)
WELL = {
    "gpu_util": 97.0, "gpu_sm_clock": 1980.0, "gpu_throttle": 0x4, "gpu_pcie_width": 16.0, "gpu_pcie_generation": 5.0,
    "gpu_pcie_replays": 0.0, "gpu_nvlink_crc_errors": 0.0, "gpu_nvlink_recoveries": 0.0, "gpu_ecc_uncorrected": 0.0,
    "gpu_row_remap_failure": 0.0, "gpu_row_remap_pending": 0.0, "gpu_answers": 1.0,
}  # fmt: skip


def told(values: Mapping[str, float], *, for_s: float = 0.0, peers: Peers = LIKE) -> dict[str, o.TroubleSeen]:
    """What stands after these values were seen for so long, every ten seconds."""
    streaks: dict[Key, Streak] = {}
    seen: list[o.Observation] = []
    for at in range(1000, 1001 + int(for_s), 10):
        figures = Figures(place=GPU, at=float(at), values=values)
        streaks, seen = judge(GPU_ROWS, figures, peers, streaks, Thresholds(), 30.0)
    return {each.trouble.detector: each for each in seen if isinstance(each, o.TroubleSeen)}


CASES = {
    "ecc": ({"gpu_ecc_uncorrected": 0.1}, 0, Gravity.BROKEN),
    "ecc.remap": ({"gpu_row_remap_failure": 1.0}, 0, Gravity.BROKEN),
    "ecc.pending": ({"gpu_row_remap_pending": 1.0}, 0, Gravity.NOTE),
    "off_the_bus": ({"gpu_answers": 0.0}, 0, Gravity.BROKEN),
    "throttle": ({"gpu_throttle": 0x40, "gpu_sm_clock": 1200.0}, 60, Gravity.DEGRADED),
    "pcie.lanes": ({"gpu_pcie_width": 8.0}, 60, Gravity.DEGRADED),
    "pcie.generation": ({"gpu_pcie_generation": 3.0}, 60, Gravity.DEGRADED),
    "pcie.replays": ({"gpu_pcie_replays": 50.0}, 60, Gravity.DEGRADED),
    "nvlink.crc": ({"gpu_nvlink_crc_errors": 500.0}, 60, Gravity.DEGRADED),
    "nvlink": ({"gpu_nvlink_recoveries": 0.1}, 60, Gravity.DEGRADED),
    "stray": ({"gpu_unowned_memory": 501.0}, 60, Gravity.NOTE),
}


@pytest.mark.parametrize("detector", CASES)
def test_a_row_fires_after_its_time_and_not_before(detector: str) -> None:
    more, delay_s, gravity = CASES[detector]
    values = {**WELL, **more}
    if delay_s:
        assert detector not in told(values, for_s=delay_s - 10)
    found = told(values, for_s=delay_s)
    assert found.keys() == {detector}, "nothing else is wrong"
    trouble = found[detector].trouble
    assert trouble.gravity is gravity
    assert trouble.since == 1000.0
    assert trouble.remedy
    assert "GPU 2" in trouble.title
    assert all(f"{name}=" in trouble.quotes[0].text for name in more)


@pytest.mark.parametrize("row", GPU_ROWS, ids=lambda row: row.name)
def test_every_row_has_a_case(row: object) -> None:
    assert row.name in CASES  # type: ignore[attr-defined]


def test_a_healthy_gpu_and_one_of_which_nothing_is_known_have_no_trouble() -> None:
    assert told(WELL, for_s=600) == {}
    assert told({}, for_s=600) == {}
    assert told({"gpu_pcie_width": 0.0, "gpu_sm_clock": 300.0}, for_s=600) == {}


@pytest.mark.parametrize(
    ("values", "peers", "why"),
    [
        ({**WELL, "gpu_throttle": 0x4, "gpu_sm_clock": 1400.0}, LIKE, "the power cap is how busy GPUs work"),
        ({**WELL, "gpu_throttle": 0x40, "gpu_sm_clock": 1900.0}, LIKE, "hot, and hardly slower"),
        ({**WELL, "gpu_throttle": 0x40, "gpu_sm_clock": 300.0, "gpu_util": 0.0}, LIKE, "at rest"),
        ({**WELL, "gpu_throttle": 0x40, "gpu_sm_clock": 1200.0}, Peers(), "nobody knows how fast it should be"),
        ({**WELL, "gpu_pcie_generation": 1.0, "gpu_util": 0.0}, LIKE, "an idle link sleeps"),
        ({**WELL, "gpu_pcie_width": 8.0}, Peers(), "nobody knows how many it should have"),
        ({**WELL, "gpu_pcie_width": 8.0}, Peers(lanes=8.0), "as its like"),
    ],
)
def test_what_looks_bad_and_is_not(values: dict[str, float], peers: Peers, why: str) -> None:
    assert told(values, for_s=600, peers=peers) == {}, why


def test_a_detector_that_is_off_sees_nothing() -> None:
    figures = Figures(place=GPU, at=1000.0, values={**WELL, "gpu_ecc_uncorrected": 1.0})
    assert judge(GPU_ROWS, figures, LIKE, {}, Thresholds(off=frozenset({"ecc"})), 30.0)[1] != []
    seen = judge(GPU_ROWS, figures, LIKE, {}, Thresholds(off=frozenset({"ecc"})), 30.0)[1]
    assert not [each for each in seen if isinstance(each, o.TroubleSeen)]


def test_what_is_over_is_said_to_be_gone_and_a_missing_figure_is_not_an_end() -> None:
    hot = {**WELL, "gpu_throttle": 0x40, "gpu_sm_clock": 1200.0}
    streaks: dict[Key, Streak] = {}
    for at in (1000.0, 1030.0, 1060.0):
        streaks, seen = judge(GPU_ROWS, Figures(place=GPU, at=at, values=hot), LIKE, streaks, Thresholds(), 30.0)
    blind = {name: value for name, value in hot.items() if name != "gpu_sm_clock"}
    streaks, seen = judge(GPU_ROWS, Figures(place=GPU, at=1070.0, values=blind), LIKE, streaks, Thresholds(), 30.0)
    assert "throttle" not in {each.detector for each in seen if isinstance(each, o.TroubleGone)}
    streaks, seen = judge(GPU_ROWS, Figures(place=GPU, at=1080.0, values=WELL), LIKE, streaks, Thresholds(), 30.0)
    assert "throttle" in {each.detector for each in seen if isinstance(each, o.TroubleGone)}


def test_a_clock_that_is_off_for_a_minute() -> None:
    streaks: dict[Key, Streak] = {}
    node, seen = Place(node="n1"), list[o.Observation]()
    for at in range(1000, 1061, 10):
        figures = Figures(place=node, at=float(at), values={"node_load": 1.0, "node_clock_offset": -9000.0})
        assert not [each for each in seen if isinstance(each, o.TroubleSeen)]
        streaks, seen = judge(NODE_ROWS, figures, Peers(), streaks, Thresholds(), 30.0)
    assert [each.trouble.cause for each in seen if isinstance(each, o.TroubleSeen)] == ["clock_drift"]
    figures = Figures(place=node, at=1070.0, values={"node_load": 1.0})
    _, seen = judge(NODE_ROWS, figures, Peers(), streaks, Thresholds(), 30.0)
    assert [type(each) for each in seen] == [o.TroubleGone]


def test_the_usual_of_a_model_is_the_middle_of_at_least_three_busy_ones() -> None:
    def gpu(number: int, clock: float, util: float = 90.0) -> Figures:
        values = {"gpu_util": util, "gpu_sm_clock": clock, "gpu_pcie_width": 16.0, "gpu_pcie_generation": 5.0}
        return Figures(place=Place(node="n1", gpu=number), at=0.0, values=values, model="H100")

    assert peers_of([gpu(0, 1980.0), gpu(1, 1980.0)]) == {"H100": Peers()}
    known = peers_of([gpu(0, 1980.0), gpu(1, 1970.0), gpu(2, 900.0), gpu(3, 210.0, util=0.0)])
    assert known == {"H100": Peers(1970.0, 16.0, 5.0)}


def test_a_streak_ends_with_a_gap_and_with_a_clock_that_goes_back() -> None:
    streak = extended(extended(None, 100.0, True, 30.0), 120.0, True, 30.0)
    assert streak == Streak(100.0, 120.0)
    assert extended(streak, 160.0, True, 30.0) == Streak(160.0, 160.0), "nothing is known of 40 s"
    assert extended(streak, 110.0, True, 30.0) == Streak(110.0, 110.0)
    assert extended(streak, 130.0, None, 30.0) == streak
    assert extended(streak, 160.0, None, 30.0) is None
    assert extended(streak, 130.0, False, 30.0) is None
