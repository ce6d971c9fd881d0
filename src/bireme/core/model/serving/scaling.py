"""How many replicas a service may have, and what decides how many it has: the policy of its autoscaler.

Values only; what follows from them and from what was measured is worked out in `core/scaling`.
Invariant: 0 <= replicas_min <= replicas_max (checked where a service is made, `core/services`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

LONGEST_WINDOW_S = 3600
"""Measurements are averaged over no longer a time. It stands here and not beside the windows, which need numpy:
`sbatch` reads `#BIREME` lines without it."""


class Measure(StrEnum):
    """What a target counts."""

    CONCURRENCY = "concurrency"
    """Requests in flight or queued, for each replica."""
    RATE = "rate"
    """Requests a second, for each replica."""
    METRIC = "metric"
    """A figure that the replicas themselves export, on average."""
    QUERY = "query"
    """What a Prometheus query answers, for each replica."""


@dataclass(frozen=True, slots=True)
class ScalingTarget:
    """One replica for each `value` of what is measured. Of several targets, the one that asks for most counts."""

    measure: Measure
    value: float
    name: str = ""
    """The metric's name, or the query."""


@dataclass(frozen=True, slots=True)
class Shift:
    """From this minute of these days on, other bounds (`--at 'Mon-Fri 08:00 min=4'`), until the next shift."""

    days: tuple[int, ...]
    """0 is Monday."""
    minute: int
    """Of the day, in the cluster's time zone."""
    replicas_min: int | None = None
    replicas_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The policy, in Knative's shape: a long window to follow the load, a short one for bursts."""

    replicas_min: int = 1
    replicas_max: int = 1
    targets: tuple[ScalingTarget, ...] = ()
    """None: by concurrency, at a default."""
    shifts: tuple[Shift, ...] = ()
    stable_window_s: float = 60.0
    panic_window_s: float = 6.0
    panic_threshold: float = 2.0
    """A burst: the short window asks for so many times the replicas that are ready."""
    up_rate: float = 1000.0
    """At most so many times as many replicas at once."""
    down_rate: float = 2.0
    """At most divided by this at once."""
    down_delay_s: float = 300.0
    """It has fewer only when it needed no more for so long. A replica that loads a model is dear to start: with a
    minute, requests that come at random make five times as many changes (docs/autoscaling.md)."""
    idle_s: float = 300.0
    """Without any request for so long, it may have none at all (if `replicas_min` is 0)."""
    standby: int = 0
    """So many replicas more than the load needs are kept ready."""
