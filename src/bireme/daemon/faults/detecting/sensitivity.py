"""The settings `detectors.*` as thresholds. Invariant: every field of `Thresholds` has its setting."""

from __future__ import annotations

from bireme.core.faults.detection.thresholds import DETECTORS, Thresholds
from bireme.daemon.settings import Settings


def thresholds_of(settings: Settings) -> Thresholds:
    """Settings are whole numbers; detectors reckon with fractions."""
    return Thresholds(
        off=frozenset(name for name in DETECTORS if getattr(settings, f"detect_{name}") == "off"),
        throttle_s=float(settings.detect_throttle_s),
        throttle_percent=float(settings.detect_throttle_percent),
        pcie_s=float(settings.detect_pcie_s),
        pcie_replays_per_min=float(settings.detect_pcie_replays_per_min),
        nvlink_s=float(settings.detect_nvlink_s),
        nvlink_crc_per_s=float(settings.detect_nvlink_crc_per_s),
        stray_mib=float(settings.detect_stray_mib),
        stray_s=float(settings.detect_stray_s),
        nic_s=float(settings.detect_nic_s),
        nic_flaps=max(1, settings.detect_nic_flaps),
        filesystem_s=float(settings.detect_filesystem_s),
        clock_ms=float(settings.detect_clock_ms),
        clock_s=float(settings.detect_clock_s),
        lemon_days=float(settings.detect_lemon_days),
        lemon_one_in=float(max(1, settings.detect_lemon_one_in)),
        hang_s=float(settings.detect_hang_s),
        straggler_percent=float(settings.detect_straggler_percent),
        straggler_s=float(settings.detect_straggler_s),
    )
