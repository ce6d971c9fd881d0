"""How sensitive detectors are, and which are off: made of the settings `detectors.*` by the daemon.

Invariant: every default here is the default of the setting of the same meaning (a test compares).
"""

from __future__ import annotations

from dataclasses import dataclass

DETECTORS = (
    "xid",
    "ecc",
    "off_the_bus",
    "throttle",
    "pcie",
    "nvlink",
    "stray",
    "nic",
    "filesystem",
    "clock",
    "lemon",
    "hang",
    "straggler",
    "loss",
    "health",
)
"""All of them, by the names that findings carry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """`off`: detectors that are not asked."""

    off: frozenset[str] = frozenset({"loss"})
    throttle_s: float = 60.0
    throttle_percent: float = 10.0
    """A clock that is so much below that of its like costs speed."""
    pcie_s: float = 60.0
    pcie_replays_per_s: float = 10.0
    nvlink_s: float = 60.0
    nvlink_crc_per_s: float = 100.0
    stray_mib: float = 500.0
    """What a desktop or a tool for monitoring takes of a GPU is no stray."""
    stray_s: float = 60.0
    nic_s: float = 10.0
    nic_flaps: int = 3
    filesystem_s: float = 60.0
    clock_ms: float = 5_000.0
    clock_s: float = 60.0
    lemon_days: float = 7.0
    lemon_one_in: float = 10_000.0
    """A pool in which no node is worse than another raises at most one false alarm in so many looks."""
    hang_s: float = 40.0
    straggler_percent: float = 10.0
    straggler_s: float = 120.0

    def on(self, detector: str) -> bool:
        assert detector in DETECTORS, detector
        return detector not in self.off
