"""A report of users and accounts as CSV: one row a sum or run, every figure in seconds, joules and percent.

Empty is what was not measured. A text that a spreadsheet would take for a formula gets an apostrophe before it.
"""

from __future__ import annotations

import csv
import io
from typing import Any

_SUMS = (
    "starts", "measured", "gpu_held_s", "gpu_measured_s", "gpu_used_s", "gpu_unused_s", "gpu_unmeasured_s", "gpu_use",
    "cpu_held_s", "cpu_used_s", "cpu_use", "energy_j", "waited_s",
)  # fmt: skip
HEADER = ("kind", "name", "user", "account", "start", *_SUMS)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_of(told: dict[str, Any]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerow(_row("total", "", told["total"]))
    for kind, key in (("account", "accounts"), ("user", "users")):
        for row in told[key]:
            writer.writerow(_row(kind, row[kind], row, **{kind: row[kind]}))
    for row in told["periods"]:
        writer.writerow(_row("period", "", row, start=row["start"]))
    for job in told["jobs"]:
        had, used = job["had"], job["efficiency"]
        sums = {**used, "starts": 1, "measured": int(job["measured"]), "waited_s": had["waited_s"]}
        known = {"user": had["user"], "account": had["account"], "start": had["start"]}
        writer.writerow(_row("run", job["job"], {**sums, "energy_starts": 1}, **known))
    return out.getvalue()


def _row(kind: str, name: object, sums: dict[str, Any], **more: Any) -> list[str]:
    figures = [_figure(sums, key) for key in _SUMS]
    named = [_text(name), *(_text(more.get(key, "")) for key in ("user", "account")), _number(more.get("start"))]
    return [kind, *named, *figures]


def _figure(sums: dict[str, Any], key: str) -> str:
    unknown = {"gpu_used_s": "gpu_measured_s", "gpu_unused_s": "gpu_measured_s", "energy_j": "energy_starts"}
    return "" if key in unknown and not sums.get(unknown[key]) else _number(sums.get(key))


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _text(value: object) -> str:
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
