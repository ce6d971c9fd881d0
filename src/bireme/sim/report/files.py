"""A report on disk: report.html, report.json, jobs.csv and plots/, in a folder of the user's choice.

The only module of the report that writes. Plots need matplotlib (the `sim` extra); without it the rest is written and
`missing_plots` says what to install. Invariant: files are complete or not there.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from bireme.sim.compare import Compared
from bireme.sim.metrics import Report
from bireme.sim.recorder import JobRun
from bireme.sim.replay import Result
from bireme.sim.report.page import compare_page, run_page

COLUMNS = (
    "job_id", "user", "account", "partition", "submit", "start", "end", "state", "nodes", "cpus", "gpus", "run_s",
    "limit_s", "wait_s", "turnaround_s", "slowdown", "restarts", "preempted", "trace_line",
)  # fmt: skip

Pictures = list[tuple[str, str, bool]]


def missing_plots() -> str:
    """What to do to get plots; empty if they can be drawn."""
    if find_spec("matplotlib") is not None:
        return ""
    return "no plots: they need matplotlib; pip install matplotlib"


def write_run(folder: str, result: Result, report: Report) -> list[str]:
    """Returns the paths that were written."""
    pictures, written = _plots(folder, [(result.policy.name, report)])
    return [
        _write(folder, "report.html", run_page(report, pictures)),
        _write(folder, "report.json", to_json(report.numbers)),
        _write(folder, "jobs.csv", jobs_csv(result.runs)),
        *written,
    ]


def write_comparison(folder: str, compared: Sequence[Compared]) -> list[str]:
    pictures, written = _plots(folder, [(each.case.name, each.reports[0]) for each in compared])
    return [
        _write(folder, "report.html", compare_page(compared, pictures)),
        _write(folder, "report.json", to_json(comparison_numbers(compared))),
        _write(folder, "comparison.csv", comparison_csv(compared)),
        *written,
    ]


def comparison_numbers(compared: Sequence[Compared]) -> list[dict[str, Any]]:
    return [
        {"name": each.case.name, "values": each.values, "seeds": [report.numbers for report in each.reports]}
        for each in compared
    ]


def to_json(numbers: Any) -> str:
    return json.dumps(numbers, indent=2) + "\n"


def jobs_csv(runs: Sequence[JobRun]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in runs:
        ran = run.first_start is not None and run.end is not None
        trace = run.trace
        writer.writerow((
            run.job_id, trace.user, trace.account, trace.partition, run.submit, _blank(run.start), _blank(run.end),
            run.state, run.nodes, run.cpus, f"{run.gpus:g}", trace.run_s, run.limit_s,
            _blank(run.wait_s if run.first_start is not None else None), run.turnaround_s if ran else "",
            f"{run.slowdown:.4f}" if ran else "", run.restarts, run.preempted, trace.line,
        ))  # fmt: skip
    return text.getvalue()


def comparison_csv(compared: Sequence[Compared]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("case", "measure", "mean", "spread", "difference", "difference_spread"))
    for each in compared:
        for name, value in each.values.items():
            writer.writerow(
                (
                    each.case.name,
                    name,
                    *(f"{value[key]:.6g}" for key in ("mean", "spread", "difference", "difference_spread")),
                )
            )
    return text.getvalue()


def _blank(value: float | None) -> float | str:
    return "" if value is None else value


def _plots(folder: str, cases: list[tuple[str, Report]]) -> tuple[Pictures, list[str]]:
    if missing_plots():
        return [], []
    from bireme.sim.report import charts

    pictures: Pictures = []
    written: list[str] = []
    os.makedirs(os.path.join(folder, "plots"), exist_ok=True)
    for plot in charts.plots_for(cases):
        figure = charts.draw(plot, cases)
        pictures.append((charts.svg(figure), plot.about, plot.size == charts.WIDE))
        for ending in ("svg", "png"):
            path = os.path.join(folder, "plots", f"{plot.name}.{ending}")
            figure.savefig(path, dpi=160, facecolor="white")
            written.append(path)
    return pictures, written


def _write(folder: str, name: str, text: str) -> str:
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)
    return path
