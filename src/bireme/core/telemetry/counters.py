"""What a counter grew by in a second, from two readings of it. Called where rounds of samples are taken in.

Invariant: what cannot be known is None: the first reading (unless it is known when the counter was nothing), one that
is not later than the one before, and one after the counter was set back (a driver loaded anew, another process under
the same number).
"""

from __future__ import annotations

from dataclasses import dataclass

from bireme.core.telemetry.metrics import Metric


@dataclass(frozen=True, slots=True)
class Reading:
    """What a counter said at a time."""

    at: float
    value: float


def growth(metric: Metric, before: Reading | None, now: Reading) -> float | None:
    """In the metric's unit: what it grew by in each second between two readings."""
    assert metric.kind == "counter", f"{metric.name} does not count"
    if before is None or now.at <= before.at:
        return None
    grown = now.value - before.value
    if grown < 0 and _wrapped(metric, before.value, now.value):
        grown += metric.wraps_at
    return grown / (now.at - before.at) * metric.per_second if grown >= 0 else None


def _wrapped(metric: Metric, before: float, now: float) -> bool:
    """Told from one that was set back: it was in its last quarter, and is in its first."""
    return metric.wraps_at > 0 and before > 0.75 * metric.wraps_at and now < 0.25 * metric.wraps_at
