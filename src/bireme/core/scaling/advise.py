"""How many replicas a service is to have: one pure function, in the shape of Knative's autoscaler.

In this order: each target says how many replicas its figure needs, and the largest counts; in a burst the short window
counts too, and nothing gets less; the standby is added; steps up and down are bounded; fewer come only when figures are
there and no more were needed for a while; the last replica stays until nobody has wanted it for a while; and whatever
all this says, it is within the bounds that hold now.

Who asks: the daemon's load keeper and `bireme sim serve`. Not: how many can run (`core/services`, the planner).
Invariants: never outside the bounds; never fewer than before because of figures that are not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

from bireme.core.model.serving.scaling import Scaling
from bireme.core.scaling.advice import Advice, Cause, Kept, Reading, Why
from bireme.core.scaling.readings import fresh_s, read_targets
from bireme.core.scaling.schedule import Bounds, UtcOffset, bounds_at, utc
from bireme.core.scaling.seen import Seen

AGAIN_S = 1.0
"""Averages of a window change with every second that passes."""
LOOK_AGAIN_S = 2.0
"""Figures that are missing may come, and nobody says when."""


@dataclass(slots=True)
class _Course:
    """A number on its way through the rules, and the rule that touched it last."""

    count: int
    cause: Cause
    window_s: float = 0.0
    ends_at: float | None = None
    rate: float = 0.0

    def set(self, count: int, cause: Cause, window_s: float, ends_at: float | None = None, rate: float = 0.0) -> None:
        self.count, self.cause = count, cause
        self.window_s, self.ends_at, self.rate = window_s, ends_at, rate


def advise(
    policy: Scaling,
    seen: Seen,
    *,
    ready: int,
    wanted: int,
    now: float,
    kept: Kept | None = None,
    utc_offset: UtcOffset = utc,
) -> Advice:
    """Says how many replicas are needed now: `ready` can take requests, `wanted` were asked for last, `kept` is the
    last advice's."""
    kept = kept if kept is not None else Kept()
    readings = read_targets(policy, seen, now)
    bounds = bounds_at(policy, now, utc_offset)

    course = _Course(max((each.need for each in readings), default=0), Cause.LOAD, policy.stable_window_s)
    kept = _burst(course, policy, readings, ready, now, kept)
    course.count += policy.standby
    needed = course.count
    _step(course, policy, ready, wanted)
    _believe(course, policy, seen, readings, wanted, now)
    last_may_go = not course.count
    kept = _delay(course, policy, now, kept)
    if last_may_go and course.count <= 1:
        _stay(course, policy, seen, wanted, now)
    _bound(course, bounds, needed)

    why = Why(
        cause=course.cause,
        wanted=course.count,
        needed=needed,
        ready=ready,
        readings=readings,
        bounds=bounds,
        standby=policy.standby,
        window_s=course.window_s,
        lasts_s=None if course.ends_at is None else max(course.ends_at - now, 0.0),
        rate=course.rate,
    )
    return Advice(course.count, why, _next_change(why, policy, seen, kept, course.ends_at, now), kept)


def _burst(course: _Course, policy: Scaling, readings: tuple[Reading, ...], ready: int, now: float, kept: Kept) -> Kept:
    """Many more are needed than are ready: the short window counts, and the most that it asked for stays."""
    need = max((each.burst_need for each in readings), default=0)
    over = need >= policy.panic_threshold * max(ready, 1)
    burst_at = now if over else kept.burst_at
    if burst_at is None or not burst_at <= now < burst_at + policy.stable_window_s:
        return Kept(None, 0, kept.asked)
    peak = max(kept.peak, need, course.count)
    if peak > course.count or over:
        course.set(peak, Cause.BURST, policy.panic_window_s, burst_at + policy.stable_window_s)
    return Kept(burst_at, peak, kept.asked)


def _step(course: _Course, policy: Scaling, ready: int, wanted: int) -> None:
    most = max(ceil(max(ready, 1) * policy.up_rate), wanted)
    least = floor(wanted / policy.down_rate)
    if course.count > most:
        course.set(most, Cause.STEP_UP, 0.0, rate=policy.up_rate)
    elif course.count < least:
        course.set(least, Cause.STEP_DOWN, policy.down_delay_s, rate=policy.down_rate)


def _believe(
    course: _Course, policy: Scaling, seen: Seen, readings: tuple[Reading, ...], wanted: int, now: float
) -> None:
    """Fewer than before only from figures that are there, of a whole window."""
    if course.count >= wanted:
        return
    if now < seen.since + policy.stable_window_s:
        course.set(wanted, Cause.UNSEEN, policy.stable_window_s, seen.since + policy.stable_window_s)
    elif any(each.trouble for each in readings):
        course.set(wanted, Cause.MISSING, policy.stable_window_s)


def _delay(course: _Course, policy: Scaling, now: float, kept: Kept) -> Kept:
    """No fewer than were needed at any time within the delay."""
    asked = [each for each in kept.asked if now - policy.down_delay_s < each[0] <= now]
    while asked and asked[-1][1] <= course.count:
        asked.pop()
    asked.append((now, course.count))
    at, most = asked[0]
    if most > course.count:
        course.set(most, Cause.DELAY, policy.down_delay_s, at + policy.down_delay_s)
    return Kept(kept.burst_at, kept.peak, tuple(asked))


def _stay(course: _Course, policy: Scaling, seen: Seen, wanted: int, now: float) -> None:
    """The last replica stays until nobody has wanted it for long enough, and that is known: its own delay."""
    if seen.active_at is not None and now < seen.active_at + policy.idle_s:
        course.set(1, Cause.RECENT if wanted else Cause.WOKEN, policy.idle_s, seen.active_at + policy.idle_s)
    elif not wanted:
        course.set(0, Cause.IDLE, policy.idle_s)
    elif now < seen.since + policy.idle_s:
        course.set(1, Cause.RECENT, policy.idle_s, seen.since + policy.idle_s)
    elif seen.heard_at is None or now - seen.heard_at > fresh_s(policy):
        course.set(1, Cause.MISSING, policy.idle_s)
    else:
        course.set(0, Cause.IDLE, policy.idle_s)


def _bound(course: _Course, bounds: Bounds, needed: int) -> None:
    if course.count < bounds.lower:
        course.set(bounds.lower, Cause.MINIMUM, 0.0, bounds.until)
    elif course.count > bounds.upper:
        if needed <= bounds.upper:
            course.count = bounds.upper  # more than that were needed before: why it has these is said
        else:
            course.set(bounds.upper, Cause.MAXIMUM, 0.0, bounds.until)


def _next_change(why: Why, policy: Scaling, seen: Seen, kept: Kept, ends_at: float | None, now: float) -> float | None:
    """The first moment at which time alone may change the advice."""
    if not all(each.quiet for each in why.readings):
        return now + AGAIN_S
    times = [why.bounds.until, ends_at]
    if why.cause is Cause.MISSING:
        times.append(now + LOOK_AGAIN_S)
    if kept.burst_at is not None:
        times.append(kept.burst_at + policy.stable_window_s)
    if len(kept.asked) > 1:
        times.append(kept.asked[0][0] + policy.down_delay_s)
    if why.wanted > why.bounds.lower:
        times += [seen.since + policy.stable_window_s, (seen.active_at or seen.since) + policy.idle_s]
    return min((at for at in times if at is not None and at > now), default=None)
