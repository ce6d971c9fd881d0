"""The tables of metrics in docs/telemetry.md, made from the one list: `python -m bireme.gather.metrics_table gpu`.

A test holds the page to what this prints. Each table stands between two comments that name it.

Invariant: a metric that is gathered is in a table.
"""

from __future__ import annotations

import sys
from typing import get_args

from bireme.core.telemetry.metrics import About, Metric, about


def table(what: About) -> str:
    """All metrics of one sort of subject, in the order of the list, between its two comments."""
    lines = [
        f"<!-- python -m bireme.gather.metrics_table {what} -->",
        "| metric | unit | what it is | source | in Prometheus |",
        "|---|---|---|---|---|",
        *(_row(metric) for metric in about(what)),
        f"<!-- end of {what} -->",
    ]
    return "\n".join(lines) + "\n"


def _row(metric: Metric) -> str:
    name = f"`{metric.name}`" + (" (counted)" if metric.kind == "counter" else "")
    exported = f"`{metric.prometheus}`" if metric.prometheus else ""
    return f"| {name} | {metric.unit} | {metric.meaning} | {metric.source} | {exported} |"


if __name__ == "__main__":
    subjects: tuple[About, ...] = get_args(About)
    if not set(sys.argv[1:]) <= set(subjects):
        sys.exit(f"there are tables about {', '.join(subjects)}")
    for subject in subjects:
        if subject in sys.argv[1:] or not sys.argv[1:]:
            print(table(subject), end="")
