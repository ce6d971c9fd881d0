"""What is wrong with a policy, in sentences that say what would work. Who asks: whoever takes a service.

Bounds of the windows are Knative's: what is shorter measures noise, what is longer is a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from bireme.core.model.serving.scaling import LONGEST_WINDOW_S, Measure, Scaling, ScalingTarget, Shift
from bireme.core.scaling.wording import counted, shift_words

MOST_REPLICAS = 10_000
MOST_TARGETS = 16
MOST_SHIFTS = 100
DAY_MINUTES = 24 * 60


def problems(policy: Scaling) -> list[str]:
    """Every reason why this is no policy; empty: it is one."""
    found = [*_bounds(policy.replicas_min, policy.replicas_max, "replicas"), *_times(policy)]
    if policy.standby < 0:
        found.append("standby: not below 0")
    if len(policy.targets) > MOST_TARGETS:
        found.append(f"at most {MOST_TARGETS} targets")
    if len(policy.shifts) > MOST_SHIFTS:
        found.append(f"at most {MOST_SHIFTS} shifts")
    for target in policy.targets:
        found += _target(target)
    for shift in policy.shifts:
        found += _shift(policy, shift)
    return found


def _bounds(lower: int, upper: int, name: str) -> Iterator[str]:
    if lower < 0 or upper < 0:
        yield f"{name}: not below 0"
    if lower > upper:
        yield f"{name}: the minimum ({lower}) is above the maximum ({upper})"
    if upper > MOST_REPLICAS:
        yield f"{name}: at most {MOST_REPLICAS}"


def _times(policy: Scaling) -> Iterator[str]:
    if not 6 <= policy.stable_window_s <= LONGEST_WINDOW_S:
        yield f"stable window: 6 s to {LONGEST_WINDOW_S} s"
    if not 1 <= policy.panic_window_s <= policy.stable_window_s:
        yield "panic window: 1 s to the stable window"
    if not 1.1 <= policy.panic_threshold <= 1000:
        yield "panic threshold: 1.1 to 1000 times the replicas that are ready"
    if not 1 < policy.up_rate <= MOST_REPLICAS:
        yield f"rate up: more than 1, at most {MOST_REPLICAS}"
    if not 1 < policy.down_rate <= MOST_REPLICAS:
        yield f"rate down: more than 1, at most {MOST_REPLICAS}"
    if not 0 <= policy.down_delay_s <= LONGEST_WINDOW_S:
        yield f"delay before down: 0 s to {LONGEST_WINDOW_S} s"
    if not 0 <= policy.idle_s < float("inf"):
        yield "idle time: not below 0 s"


def _target(target: ScalingTarget) -> Iterator[str]:
    if not isfinite(target.value) or target.value <= 0:
        yield f"target of {counted(target)}: a number above 0, not {target.value:g}"
    if target.measure in (Measure.METRIC, Measure.QUERY) and not target.name.strip():
        yield f"a target by {target.measure} needs a name"


def _shift(policy: Scaling, shift: Shift) -> Iterator[str]:
    if not shift.days or any(not 0 <= day < 7 for day in shift.days) or not 0 <= shift.minute < DAY_MINUTES:
        yield "a shift begins on a day from Mon to Sun, at a time from 00:00 to 23:59"
        return
    if shift.replicas_min is None and shift.replicas_max is None:
        yield f"shift {shift_words(shift)}: it says neither min nor max"
    lower = policy.replicas_min if shift.replicas_min is None else shift.replicas_min
    upper = policy.replicas_max if shift.replicas_max is None else shift.replicas_max
    yield from _bounds(lower, upper, f"shift {shift_words(shift)}")
