"""How pages say times, lengths and sizes: as the commands do. Pure; used by the templates as filters.

Invariant: whatever the API answers, there is a text: what is not known is "–".
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from bireme.slurm.formats.visible import visible
from bireme.slurm.sizes import format_memory
from bireme.slurm.times import format_elapsed, format_time_limit

NOTHING = "–"


def moment(at: Any) -> str:
    """A time of day with its date, in UTC: pages say it in the reader's zone (`times.js`)."""
    if not _is_number(at):
        return NOTHING
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(at: Any) -> str:
    """For `<time datetime>`."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="seconds") if _is_number(at) else ""


def elapsed(seconds: Any) -> str:
    """`1-02:03:04`, as squeue writes it."""
    return format_elapsed(int(seconds)) if _is_number(seconds) else NOTHING


def limit(seconds: Any) -> str:
    """A time limit; None is no limit."""
    return format_time_limit(int(seconds)) if _is_number(seconds) else "UNLIMITED"


def memory(mib: Any) -> str:
    return format_memory(int(mib)) if _is_number(mib) else NOTHING


def percent(value: Any) -> str:
    return f"{value:.0f}%" if _is_number(value) else NOTHING


def hours(seconds: Any) -> str:
    """Of so many seconds."""
    return figure(seconds / 3600) if _is_number(seconds) else NOTHING


def figure(value: Any) -> str:
    """Three digits, and all of a large whole number's."""
    if not _is_number(value):
        return NOTHING
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


_LIMITS = {
    "grp_tres": "GrpTRES", "grp_tres_mins": "GrpTRESMins", "grp_tres_run_mins": "GrpTRESRunMins", "grp_jobs": "GrpJobs",
    "grp_submit": "GrpSubmitJobs", "grp_wall_s": "GrpWall", "max_tres_per_job": "MaxTRES", "max_wall_s": "MaxWall",
    "max_tres_per_node": "MaxTRESPerNode", "max_tres_mins_per_job": "MaxTRESMins",
    "max_tres_per_user": "MaxTRESPerUser", "max_jobs_per_user": "MaxJobs", "max_submit_per_user": "MaxSubmitJobs",
}  # fmt: skip


def limits(found: Mapping[str, Any]) -> str:
    """Of an account or a QOS, in sacctmgr's words."""
    told = []
    for name, value in found.items():
        if isinstance(value, Mapping):
            shown = ",".join(f"{tres}={most}" for tres, most in value.items())
        else:
            shown = limit(value) if name.endswith("_s") else str(value)
        told.append(f"{_LIMITS.get(name, name)}={shown}")
    return " ".join(told)


def counted(count: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shown(text: Any) -> str:
    """What a user wrote, with what a terminal or a reader of right-to-left text would obey made visible."""
    return visible(str(text)) if text not in (None, "") else NOTHING


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e11 < value < 1e11
