"""How sensitive detectors are, and which are off: made of the settings `detectors.*` by the daemon.

Where each default is from is said (`SOURCES`), and stands in docs/healing.md. Invariant: every default here is the
default of the setting of the same meaning (a test compares).
"""

from __future__ import annotations

from collections.abc import Mapping
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
    pcie_replays_per_min: float = 8.0
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


_JUDGED = "judged"
_DCGM = "NVIDIA's DCGM (dcgm_gpu_hardware_limits.h)"
SOURCES: Mapping[str, str] = {
    "throttle_s": f"{_JUDGED}: longer than a boost clock takes to settle",
    "throttle_percent": f"{_JUDGED}: less is within what cards of one model differ by",
    "pcie_s": f"{_JUDGED}: two readings of a counter that is read twice a minute",
    "pcie_replays_per_min": f"{_DCGM}: the most that is recommended",
    "nvlink_s": f"{_JUDGED}: as pcie_s",
    "nvlink_crc_per_s": f"{_DCGM}: fewer do not matter",
    "stray_mib": f"{_JUDGED}: above what a desktop or a monitoring tool takes",
    "stray_s": f"{_JUDGED}: longer than a job's processes take to go",
    "nic_s": f"{_JUDGED}: longer than a link takes to train again",
    "nic_flaps": f"{_JUDGED}: two may be one person at the cable",
    "filesystem_s": f"{_JUDGED}: longer than a server takes to fail over; the kernel itself waits 120 s",
    "clock_ms": "MUNGE and Kerberos: credentials fail at 300 s; at a sixtieth of that nothing has failed yet",
    "clock_s": f"{_JUDGED}: longer than a step of the time service",
    "lemon_days": f"{_JUDGED}: enough jobs to tell, and what was repaired is not blamed for long",
    "lemon_one_in": f"{_JUDGED}: one false alarm in a week of looks, once a minute",
    "hang_s": f"{_JUDGED}: with a round and a look at stacks, under a minute in all",
    "straggler_percent": f"{_JUDGED}: as throttle_percent",
    "straggler_s": f"{_JUDGED}: longer than a checkpoint or an evaluation leaves one rank behind",
}
"""By the field, where its default is from. `judged`: nobody has published one; what was played to the detectors
(tests/simulation/test_false_alarms.py) raised no alarm with it."""
