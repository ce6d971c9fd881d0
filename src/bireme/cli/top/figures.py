"""Figures as people read them, and curves as one row of letters. Shared by `bireme top` and `bireme timeline`."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN_BLOCKS = "_.-=+*%#"


def sparkline(values: Sequence[float | None], top: float, levels: str = BLOCKS) -> str:
    """A letter for each value, from nothing to `top`; a space where nothing was measured."""
    scale = top if top > 0 else 1.0
    last = len(levels) - 1
    return "".join(" " if value is None else levels[max(0, min(last, round(value / scale * last)))] for value in values)


def figure(value: float, unit: str) -> str:
    """`37%`, `62.1 GiB`, `312 W`, `1.9 CPUs`; without a unit as a program logged it."""
    if not unit:
        return f"{value:.4g}"
    if unit == "MiB":
        return f"{value / 1024:.1f} GiB" if value >= 1024 else f"{value:.0f} MiB"
    if unit == "KiB/s":
        return f"{value / 1024:.1f} MiB/s" if value >= 1024 else f"{value:.0f} KiB/s"
    if unit == "%":
        return f"{value:.0f}%"
    if unit == "CPUs":
        return f"{value:.2f} CPUs"
    return f"{value:.0f} {unit}".rstrip()
