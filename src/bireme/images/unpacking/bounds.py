"""What unpacking one image may cost: bytes, entries, and how much may come out of how little.

Made for each image by `assembling`; every layer draws on it. Invariant: a bound is looked at before what it bounds is
written.
"""

from __future__ import annotations

from dataclasses import dataclass

from bireme.images.refusing import RefusedError

MOST_ENTRIES = 5_000_000
MOST_RATIO = 200
"""Programs and data come out three times as large, text ten times; zeros a thousand times."""
RATIO_FROM = 1 << 30
"""Below this a layer may be as dense as it likes: no disk is full of it."""


@dataclass(slots=True)
class Allowance:
    most_bytes: int
    most_entries: int = MOST_ENTRIES
    most_ratio: int = MOST_RATIO
    ratio_from: int = RATIO_FROM
    bytes_used: int = 0
    entries_used: int = 0

    def take_entry(self, size: int) -> None:
        """An entry that brings so many bytes to the disk."""
        self.entries_used += 1
        self.bytes_used += size
        if self.entries_used > self.most_entries:
            raise RefusedError(f"the image has more than {self.most_entries} files: it looks like a bomb")
        if self.bytes_used > self.most_bytes:
            raise RefusedError(
                f"the image unpacks to more than {shown(self.most_bytes)}: if that is meant, raise images.largest_gib"
            )

    def check_ratio(self, came: int, came_out: int) -> None:
        if came_out > self.ratio_from and came_out > came * self.most_ratio:
            raise RefusedError(
                f"a layer of {shown(came)} unpacks to more than {shown(came_out)}: it looks like a bomb and is given up"
            )


def shown(size: int) -> str:
    """As people read sizes."""
    value, units = float(size), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while value >= 1024 and unit != "TiB":
        value, unit = value / 1024, next(units)
    return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
