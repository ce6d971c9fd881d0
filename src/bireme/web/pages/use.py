"""Use and money: who had how many GPU-hours, what became of them, how long they waited, and what budgets leave.

The figures are those of `bireme report` and of `scontrol show assoc_mgr`; there are no prices yet. Invariant: what was
not measured is shown as that, and never as nothing used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

from bireme.web.asking import Asking
from bireme.web.paging import Pages, Values

pages = Pages()
DAYS = (1, 7, 30, 90, 365)
_DAY_S = 86_400.0
_MOST_ROWS = 40


@pages.page("/use", "use.html", title="Use", nav="use")
async def use(asking: Asking) -> Values:
    days = asking.query.get("days", "7")
    length = int(days) if days in map(str, DAYS) else 7
    now = (await asking.get("/v1/ping"))["now"]
    asked = {name: asking.query.get(name, "").strip() for name in ("account", "user")}
    start = str(ceil((now - length * _DAY_S) / 60) * 60)  # so that what runs now is in the last whole day
    told, book = await asking.together(
        asking.get("/v1/report", {"start": start, "jobs": "15", **asked}),
        asking.get_or(None, "/v1/accounting/manager"),
    )
    by_gpu = told["total"]["gpu_held_s"] > 0
    return {
        "told": told,
        "days": length,
        "choices": DAYS,
        "asked": asked,
        "by_gpu": by_gpu,
        "parts": {
            "accounts": [_part(each["account"] or "(none)", each, by_gpu) for each in told["accounts"][:_MOST_ROWS]],
            "users": [_part(each["user"] or "(none)", each, by_gpu) for each in told["users"][:_MOST_ROWS]],
            "periods": [_part(each["start"], each, by_gpu) for each in told["periods"]],
        },
        "budgets": list(_budgets(book)) if book is not None else [],
    }


def _part(label: Any, row: Mapping[str, Any], by_gpu: bool) -> dict[str, Any]:
    """One row of a plot: what was used, unused and not measured, in seconds."""
    if by_gpu:
        used, unused, unknown = row["gpu_used_s"], row["gpu_unused_s"], row["gpu_unmeasured_s"]
    else:
        used = min(row["cpu_used_s"], row["cpu_counted_s"])
        unused, unknown = row["cpu_counted_s"] - used, row["cpu_held_s"] - row["cpu_counted_s"]
    return {"label": label, "used": used, "unused": unused, "unknown": unknown, "row": row}


def _budgets(book: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Limits that are used up over time, and limits at once, of accounts and QOS."""
    for row in (*book["associations"], *book["qos"]):
        whose = row.get("account") or row["name"]
        if row.get("user"):
            whose = f"{row['user']} in {whose}"
        kind = "account" if "account" in row else "QOS"
        limits, counts, usage = row["limits"], row["counts"], row["usage"]
        for tres, most in limits.get("grp_tres_mins", {}).items():
            yield _budget(whose, kind, f"{tres} hours", usage.get(tres, 0.0) / 60, most / 60)
        if "grp_wall_s" in limits:
            yield _budget(whose, kind, "wall hours", usage.get("wall", 0.0) / 60, limits["grp_wall_s"] / 3600)
        for tres, most in limits.get("grp_tres", {}).items():
            yield _budget(whose, kind, f"{tres} at once", counts["tres"].get(tres, 0), most)
        for field, name, used in (
            ("grp_jobs", "jobs that run", counts["jobs"]),
            ("grp_submit", "jobs in all", counts["submitted"]),
        ):
            if field in limits:
                yield _budget(whose, kind, name, used, limits[field])


def _budget(whose: str, kind: str, what: str, used: float, most: float) -> dict[str, Any]:
    part = 100.0 * used / most if most else (100.0 if used else 0.0)
    return {"whose": whose, "kind": kind, "what": what, "used": used, "most": most, "part": part}
