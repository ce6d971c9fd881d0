"""What the autoscaler says: how many replicas, why (as data), when to ask again, and what it keeps for then.

Values only. `core/scaling/wording.py` makes a sentence of a `Why`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bireme.core.model.serving.scaling import ScalingTarget
from bireme.core.scaling.schedule import Bounds


class Cause(StrEnum):
    """The rule that settled the number: the last of them that changed it."""

    LOAD = "load"
    """A target asks for so many."""
    BURST = "burst"
    """The short window asks for many more than are ready, or did so within the long window."""
    STEP_UP = "step_up"
    """More are needed, and it gets them in steps."""
    STEP_DOWN = "step_down"
    """Fewer are enough, and it gets there in steps."""
    UNSEEN = "unseen"
    """Fewer seem enough, but it has not been watched for a whole window yet."""
    MISSING = "missing"
    """Fewer seem enough, but figures are missing."""
    DELAY = "delay"
    """Fewer are enough now; more were needed a moment ago."""
    WOKEN = "woken"
    """It had none, and somebody wants it."""
    RECENT = "recent"
    """Nothing is to do; somebody wanted it not long ago."""
    IDLE = "idle"
    """Nobody wants it."""
    MINIMUM = "minimum"
    MAXIMUM = "maximum"


@dataclass(frozen=True, slots=True)
class Reading:
    """One target: what was measured, and how many replicas that needs."""

    target: ScalingTarget
    stable: float | None
    """Over the long window; None: nothing is known."""
    burst: float | None
    """Over the short one."""
    need: int = 0
    burst_need: int = 0
    trouble: str = ""
    """Why fewer replicas must not follow from it: what is missing."""
    quiet: bool = True
    """No figure of the window is above zero: time alone changes no average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Why a service is to have so many replicas."""

    cause: Cause
    wanted: int
    needed: int
    """What the load needs, with the standby."""
    ready: int
    readings: tuple[Reading, ...]
    bounds: Bounds
    standby: int = 0
    window_s: float = 0.0
    """The window, delay, idle time or part of it that the cause is about ..."""
    lasts_s: float | None = None
    """... and how long it holds on, if nothing changes."""
    rate: float = 0.0
    """Of a step."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What one advice leaves for the next. Small: it has no more entries than there are replicas."""

    burst_at: float | None = None
    """When there was last a burst ..."""
    peak: int = 0
    """... and how many replicas it needed at most, since it began."""
    asked: tuple[tuple[float, int], ...] = ()
    """When how many were needed, within the delay before down: fewer and fewer; a larger one makes those before it
    unimportant."""


@dataclass(frozen=True, slots=True)
class Advice:
    """How many replicas a service is to have now, and why."""

    wanted: int
    why: Why
    next_change_at: float | None
    """If nothing is measured until then, ask again; None: never."""
    kept: Kept
