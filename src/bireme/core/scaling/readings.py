"""What each target of a policy needs, from its window. A figure that is missing needs nothing, and says that it is."""

from __future__ import annotations

from math import ceil

from bireme.core.model.serving.scaling import Measure, Scaling, ScalingTarget
from bireme.core.scaling.advice import Reading
from bireme.core.scaling.seen import Seen
from bireme.core.scaling.windows import Window

FRESH_S = 10.0
"""A figure is old when it is older than this and than the short window."""
MOST_NEEDED = 1_000_000
"""What a figure may ask for, however wild it is: bounds and rates come on top, and somebody reads the number."""
TOLERANCE = 0.02
"""Of a load that is just what the replicas take: so much too much asks for no other one."""
GAPS = 0.1
"""So much of a window may be missing."""


def fresh_s(policy: Scaling) -> float:
    """How old the newest figure may be."""
    return max(policy.panic_window_s, FRESH_S)


def read_targets(policy: Scaling, seen: Seen, now: float) -> tuple[Reading, ...]:
    """One reading for each target."""
    return tuple(_read(policy, target, window, seen, now) for target, window in seen.windows.items())


def _read(policy: Scaling, target: ScalingTarget, window: Window, seen: Seen, now: float) -> Reading:
    newest = window.newest_at
    if newest is None or now - newest > fresh_s(policy):
        words = seen.troubles.get(target) or _silence(target, newest, now)
        return Reading(target, None, None, trouble=words)
    latest = window.latest(now, policy.stable_window_s)
    stable, burst = latest.weighted(), latest.even(policy.panic_window_s)
    trouble = seen.troubles.get(target, "")
    missing = latest.missing if now >= seen.since + policy.stable_window_s else 0.0
    if not trouble and missing > GAPS:
        trouble = f"{missing:.0%} of the last {policy.stable_window_s:g} s were not measured"
    return Reading(target, stable, burst, _need(stable, target), _need(burst, target), trouble, latest.quiet)


def _silence(target: ScalingTarget, newest: float | None, now: float) -> str:
    if newest is not None:
        return f"nothing was measured for {now - newest:.0f} s"
    if target.measure is Measure.METRIC:
        return "no replica has told it yet"
    return "nothing was measured yet"


def _need(measured: float | None, target: ScalingTarget) -> int:
    """One replica for each `value`, rounded up; what is within the tolerance of measuring asks for none."""
    if measured is None:
        return 0
    return max(ceil(round(min(measured * (1.0 - TOLERANCE) / target.value, MOST_NEEDED), 6)), 0)
