"""Ids as Slurm shortens them: `0-3,8`, of array tasks, components, CPUs and devices alike.

Not host names (`hostlist`), nor the step notation of arrays (`arrays`). Loads nothing: commands that print import it.
"""

from collections.abc import Iterable


def id_ranges(ids: Iterable[int]) -> str:
    ranges: list[list[int]] = []
    for each in sorted(ids):
        if ranges and ranges[-1][1] + 1 == each:
            ranges[-1][1] = each
        else:
            ranges.append([each, each])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
