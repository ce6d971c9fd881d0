"""One GPU that is slower than the others of its job: all ranks of a gang wait for the slowest.

By its clock, against the middle of the gang's, while all of them work: time in use says nothing of it (the fast ones
wait in collectives, and waiting counts as use). Delay: `straggler_s`, and one round. Pure.

Invariant: a gang of fewer than three GPUs, of several models, or at rest has no straggler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_high

from bireme.core.faults.detection.gauges import Figures, Key
from bireme.core.faults.detection.streaks import Streak, extended
from bireme.core.faults.detection.thresholds import Thresholds
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Gravity, Quote, Trouble

DETECTOR = "straggler"
_FEWEST = 3
_BUSY_PERCENT = 50.0
_ALIKE = 0.95
"""The others have to agree so far: else it is the work that differs (pipelines, experts)."""


def judge(
    job: str, gang: Sequence[Figures], before: Mapping[Key, Streak], thresholds: Thresholds, gap_s: float
) -> tuple[dict[Key, Streak], list[o.Observation]]:
    """`gang`: the newest of all GPUs of a job. The streaks after, and what is seen or gone."""
    after: dict[Key, Streak] = {}
    found: list[o.Observation] = []
    if not thresholds.on(DETECTOR):
        return after, found
    slow = _slow(gang, thresholds)
    for each in gang:
        key = DETECTOR, each.place.key
        holds = None if slow is None else each.place.key in slow
        streak = extended(before.get(key), each.at, holds, gap_s)
        if streak is not None:
            after[key] = streak
            if holds and streak.lasted_s >= thresholds.straggler_s:
                found.append(o.TroubleSeen(_trouble(job, each, gang, streak), each.at))
        elif holds is False:
            why = "it is as fast as its gang"
            found.append(o.TroubleGone(detector=DETECTOR, place=each.place, at=each.at, why=why))
    return after, found


def _slow(gang: Sequence[Figures], thresholds: Thresholds) -> set[str] | None:
    """Keys of those that lag; None: nobody can tell."""
    if len(gang) < _FEWEST or len({each.model for each in gang}) > 1:
        return None
    if any("gpu_sm_clock" not in each.values or "gpu_util" not in each.values for each in gang):
        return None
    if any(each.values["gpu_util"] < _BUSY_PERCENT for each in gang):
        return None
    usual = median_high(each.values["gpu_sm_clock"] for each in gang)
    lag = usual * (1.0 - thresholds.straggler_percent / 100.0)
    slow = {each.place.key for each in gang if each.values["gpu_sm_clock"] < lag}
    others = [each.values["gpu_sm_clock"] for each in gang if each.place.key not in slow]
    if len(slow) * 2 >= len(gang) or min(others) < usual * _ALIKE:
        return set()
    return slow


def _trouble(job: str, one: Figures, gang: Sequence[Figures], streak: Streak) -> Trouble:
    usual = median_high(each.values["gpu_sm_clock"] for each in gang)
    own = one.values["gpu_sm_clock"]
    which = f"GPU {one.place.gpu}" if one.place.gpu is not None else f"GPU {one.place.uuid}"
    told = f"gpu_sm_clock={own:g} MHz, the middle of the {len(gang)} GPUs of job {job} is {usual:g} MHz"
    return Trouble(
        detector=DETECTOR,
        place=one.place,
        gravity=Gravity.DEGRADED,
        cause="slow_gpu",
        title=f"{which} holds up job {job}: it is {100.0 * (1.0 - own / usual):.0f}% slower than its gang",
        since=streak.since,
        slower=1.0 - own / usual,
        quotes=(Quote(text=told, source="series", at=one.at, node=one.place.node),),
        remedy="nvidia-smi -q -d CLOCK,PERFORMANCE on the node says what holds it down; --exclude its node meanwhile.",
        lasts=False,
    )
