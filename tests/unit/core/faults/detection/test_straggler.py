"""A GPU that is slower than its gang: told after its time; not of small, mixed or resting gangs."""

from __future__ import annotations

from collections.abc import Sequence

from bireme.core.faults.detection.gauges import Figures, Key
from bireme.core.faults.detection.straggler import judge
from bireme.core.faults.detection.streaks import Streak
from bireme.core.faults.detection.thresholds import Thresholds
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Place

Gang = Sequence[tuple[float, float, str]]


def told(gang: Gang, for_s: int = 120) -> list[str]:
    streaks: dict[Key, Streak] = {}
    seen: list[o.Observation] = []
    for at in range(1000, 1001 + for_s, 10):
        figures = [
            Figures(
                place=Place(node="n1", gpu=number), at=float(at), model=model,
                values={"gpu_sm_clock": clock, "gpu_util": util},
            )
            for number, (clock, util, model) in enumerate(gang)
        ]  # fmt: skip
        streaks, seen = judge("42", figures, streaks, Thresholds(), 30.0)
    return [each.trouble.title for each in seen if isinstance(each, o.TroubleSeen)]


FAST, SLOW = (1980.0, 99.0, "H100"), (1400.0, 99.0, "H100")


def test_one_of_four_lags() -> None:
    assert told([FAST, FAST, SLOW, FAST]) == ["GPU 2 holds up job 42: it is 29% slower than its gang"]
    assert told([FAST, FAST, SLOW, FAST], for_s=110) == [], "it may be over in a moment"


def test_nobody_lags() -> None:
    assert told([FAST, FAST, FAST, (1900.0, 99.0, "H100")]) == [], "some percent are usual"
    assert told([FAST, SLOW]) == [], "of two nobody knows which"
    assert told([FAST, FAST, SLOW, SLOW]) == [], "of two halves neither"
    assert told([FAST, FAST, (1400.0, 99.0, "A100"), FAST]) == [], "another model"
    assert told([FAST, FAST, (1400.0, 3.0, "H100"), FAST]) == [], "it rests: it has other work"
    assert told([FAST, (1850.0, 99.0, "H100"), SLOW, FAST, FAST]) == [], "the others do not agree: the work differs"
