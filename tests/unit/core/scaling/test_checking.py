"""A policy that cannot be one is said to be none, with what would work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bireme.core.model.serving.scaling import Measure, Scaling, ScalingTarget, Shift
from bireme.core.scaling.checking import problems


def test_the_defaults_are_a_policy() -> None:
    assert problems(Scaling()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"replicas_min": 5, "replicas_max": 2}, "replicas: the minimum (5) is above the maximum (2)"),
        ({"replicas_min": -1}, "replicas: not below 0"),
        ({"replicas_max": 1_000_000}, "replicas: at most 10000"),
        ({"stable_window_s": 3.0, "panic_window_s": 1.0}, "stable window: 6 s to 3600 s"),
        ({"stable_window_s": float("nan"), "panic_window_s": 1.0}, "stable window: 6 s to 3600 s"),
        ({"panic_window_s": 61.0}, "panic window: 1 s to the stable window"),
        ({"panic_threshold": 1.0}, "panic threshold: 1.1 to 1000 times the replicas that are ready"),
        ({"up_rate": 1.0}, "rate up: more than 1, at most 10000"),
        ({"down_rate": 1.0}, "rate down: more than 1, at most 10000"),
        ({"down_delay_s": -1.0}, "delay before down: 0 s to 3600 s"),
        ({"idle_s": float("inf")}, "idle time: not below 0 s"),
        ({"standby": -1}, "standby: not below 0"),
        ({"targets": (ScalingTarget(Measure.RATE, 0.0),)}, "target of requests a second: a number above 0, not 0"),
        ({"targets": (ScalingTarget(Measure.METRIC, 1.0),)}, "a target by metric needs a name"),
        ({"shifts": (Shift((7,), 0, 1),)}, "a shift begins on a day from Mon to Sun, at a time from 00:00 to 23:59"),
        ({"shifts": (Shift((0, 1, 2), 480),)}, "shift Mon-Wed 08:00: it says neither min nor max"),
        (
            {"shifts": (Shift((5, 6), 480, 3),)},
            "shift Sat,Sun 08:00: the minimum (3) is above the maximum (1)",
        ),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], words: str) -> None:
    assert words in problems(replace(Scaling(), **changes))
