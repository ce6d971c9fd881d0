"""How long a GPU has been idle, and what breaks that: a busy step, a gap, a clock that jumps."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest

from bireme.core.idle.streaks import Figures, Measured, Streak, begun, extended, stale, together

GAP_S = 30.0


def figures(*percent: float, start: float = 1000.0, step_s: float = 10.0) -> Figures:
    return Figures(start, step_s, np.array(percent), ["gpu_util"] * len(percent))


def after(*percent: float, start: float = 1000.0, streak: Streak | None = None) -> Streak:
    return extended(streak or begun(1000.0), figures(*percent, start=start), 5.0, GAP_S)


@pytest.mark.parametrize(
    ("percent", "since"),
    [
        ((0, 0, 0), 1000.0),
        ((4.9, 0, 3), 1000.0),
        ((0, 5, 0, 0), 1020.0),
        ((0, 0, 90), None),
        ((), None),
        ((nan, nan, 0, 0), 1020.0),
        ((0, nan, nan, 0), 1000.0),
        ((0, nan, nan, nan, 0, 0), 1040.0),
    ],
    ids=["idle", "below", "one busy step resets", "busy now", "nothing known", "known later", "short gap", "long gap"],
)
def test_since_when_it_is_idle(percent: tuple[float, ...], since: float | None) -> None:
    assert after(*percent).since == since


def test_the_newest_step_is_looked_at_again() -> None:
    """It was not over when it was first read."""
    first = after(0, 0, 0)
    assert first.known_until == 1020.0
    again = after(80, start=1020.0, streak=first)
    assert (again.since, again.why) == (None, "gpu_util was 80%")


def test_what_was_read_before_is_passed_over() -> None:
    busy_before = after(0, 0)
    assert after(99, 0, 0, streak=busy_before).since == 1000.0


def test_a_clock_that_jumps_ahead_is_a_gap() -> None:
    streak = after(0, 0, 0)
    assert after(0, 0, start=1020.0 + 7200.0, streak=streak).since == 8220.0


@pytest.mark.parametrize(
    ("now", "is_stale"), [(1020.0, False), (1060.0, False), (1061.0, True), (980.0, True), (9e9, True)]
)
def test_what_is_not_of_now_is_stale(now: float, is_stale: bool) -> None:
    assert stale(after(0, 0, 0), now, 10.0, GAP_S) is is_stale


IDLE = Streak(1100.0, since=1000.0, percent=2.0, measure="gpu_util", why="")
LATER = Streak(1090.0, since=1050.0, percent=1.0, measure="gpu_util", why="")
BUSY = Streak(1100.0, why="gpu_util was 97%")
UNMEASURED = Measured(job_id=1, generation=1, gpus=2)


@pytest.mark.parametrize(
    ("streaks", "gpus", "since", "idle", "memory"),
    [
        ((IDLE, LATER), "all", 1050.0, 2, 30),
        ((IDLE, LATER), "any", 1000.0, 2, 30),
        ((IDLE, BUSY), "all", None, 1, 10),
        ((IDLE, BUSY), "any", 1000.0, 1, 10),
        ((BUSY, BUSY), "any", None, 0, 0),
    ],
)
def test_all_or_any_of_a_jobs_gpus(
    streaks: tuple[Streak, ...], gpus: str, since: float | None, idle: int, memory: int
) -> None:
    seen = together(UNMEASURED, streaks, (10, 20), gpus)
    assert (seen.since, seen.gpus_idle, seen.memory_mib) == (since, idle, memory)
    assert seen.at == min(each.known_until for each in streaks)
    assert bool(seen.why) is (since is None)
