"""Licences: `Licenses=matlab:4,ansys` of slurm.conf and `sbatch -L matlab:2`, as counts by name.

Both are written alike, so one reader does. How many are in use is the ledger's (TRES `license/NAME`).
"""

from __future__ import annotations

import re
from functools import lru_cache

from bireme.core.model.accounts import TresMap

PREFIX = "license/"
_ITEM = re.compile(r"(?P<name>[^\s:=*,;|]+)(?:[:=*](?P<count>[0-9]+))?")


@lru_cache(maxsize=1024)
def parse_licences(text: str) -> TresMap | None:
    """Counts by TRES name (`license/matlab`), in the order written; None where the text is not a list of licences."""
    counts: dict[str, int] = {}
    for item in re.split("[,;]", text) if text else ():
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            return None
        name = PREFIX + match["name"]
        counts[name] = counts.get(name, 0) + int(match["count"] or 1)
    return tuple(counts.items())


def problem_with(asked: str, configured: str) -> str:
    """Why no job could ever hold these licences; empty if one could."""
    wanted, there = parse_licences(asked), dict(parse_licences(configured) or ())
    if wanted is None:
        return f"licences are NAME[:COUNT],..., not {asked!r}"
    known = ", ".join(name.removeprefix(PREFIX) for name in there) or "none"
    for tres, count in wanted:
        name = tres.removeprefix(PREFIX)
        if tres not in there:
            return f"there is no licence {name!r} here; there are: {known}"
        if count > there[tres]:
            return f"{count} licences {name} asked, there are {there[tres]}"
    return ""
