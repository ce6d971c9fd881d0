"""The report as one HTML file that needs nothing else: numbers, tables and plots, no script and no network.

Text in, text out; `files.py` writes it. Everything that comes from a trace is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from bireme.sim.compare import MEASURES, Compared
from bireme.sim.metrics import Report
from bireme.sim.report.words import duration, measured, number, percent
from bireme.web import one_file

Numbers = dict[str, Any]

CSS = """
main { max-width: 1080px; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
header { border-bottom: 2px solid var(--ink); padding-bottom: 1.1rem; margin-bottom: 1.6rem; }
h1 { font-size: 1.8rem; margin: 0 0 .4rem; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; }
p { margin: .4rem 0; } .faint { color: var(--quiet); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: .75rem; }
.cards .card b { display: block; font-size: 1.25rem; font-weight: 650; white-space: nowrap; }
.cards .card span { color: var(--quiet); font-size: .85rem; }
.plots { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; margin-top: 1rem; }
figure { margin: 0; background: #fff; color: #1e293b; border: 1px solid var(--edge); border-radius: .6rem; }
figure { padding: .75rem .9rem; }
figure.wide { grid-column: 1 / -1; } figure svg { width: 100%; height: auto; display: block; }
figure svg text { font-family: system-ui, "Segoe UI", sans-serif !important; }
figcaption { color: #64748b; font-size: .85rem; margin-top: .25rem; }
.table { background: var(--card); border: 1px solid var(--edge); border-radius: .6rem; overflow-x: auto; }
th, td { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
thead th { white-space: normal; vertical-align: bottom; line-height: 1.3; }
td small { color: var(--quiet); } .good { color: var(--good); } .bad { color: var(--bad); }
details { margin-top: .75rem; } summary { cursor: pointer; color: var(--link); }
@media (max-width: 760px) { .plots { grid-template-columns: 1fr; } }
@media print { body { background: none; } main { max-width: none; } }
"""
"""After the pages' own. The plots are drawn for paper, so they stay on white."""


def run_page(report: Report, plots: Sequence[tuple[str, str, bool]]) -> str:
    """One simulation. `plots`: (SVG, caption, whether it is wide)."""
    numbers = report.numbers
    body = [
        _header(f"{numbers['policy']} on {_cluster(numbers)}", numbers),
        _cards(numbers),
        _figures(plots),
        "<h2>By size</h2>", _groups(numbers["by_size"], f"{numbers['cluster']['unit']}s"),
        _partitions(numbers["by_partition"]),
        "<h2>By account</h2>", _groups(numbers["by_account"], "account"),
        "<h2>By user</h2>", _groups(numbers["by_user"], "user"),
        _small_print(numbers),
    ]  # fmt: skip
    return document(f"Bireme simulation: {numbers['policy']}", body)


def compare_page(compared: Sequence[Compared], plots: Sequence[tuple[str, str, bool]]) -> str:
    first = compared[0].reports[0].numbers
    seeds = len(compared[0].reports)
    names = ", ".join(each.case.name for each in compared)
    body = [
        _header(f"{names} compared", first, seeds, one=False),
        comparison_table(compared),
        _figures(plots),
        *(f"<h2>{escape(each.case.name)}</h2><p class=faint>{escape(each.case.policy.about)}</p>"
          + _cards(each.reports[0].numbers) for each in compared),
        _small_print(first),
    ]  # fmt: skip
    return document(f"Bireme comparison: {names}", body)


def document(title: str, body: Iterable[str]) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{one_file.style()}{CSS}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _cluster(numbers: Numbers) -> str:
    cluster = numbers["cluster"]
    return f"{number(cluster['nodes'])} nodes, {number(cluster['units'])} {cluster['unit']}s"


def _header(title: str, numbers: Numbers, seeds: int = 1, *, one: bool = True) -> str:
    begin = datetime.fromtimestamp(numbers["first_submit"], UTC)
    jobs, workload = numbers["jobs"], numbers["workload"]
    about_policy = f" Policy: {escape(numbers['policy_about'])}." if one else ""
    over = f", over {seeds} seeds" if seeds > 1 else ""
    about = (
        f"{number(jobs['submitted'])} jobs of {escape(str(workload['source']))}, from {begin:%-d %B %Y} on for "
        f"{duration(numbers['makespan_s'])}; {_cluster(numbers)}{over}.{about_policy}"
    )
    return f"<header><h1>{escape(title)}</h1><p class=faint>{about}</p></header>"


def _cards(numbers: Numbers) -> str:
    cards = [
        (percent(numbers["utilisation"]["while_submitting"]), "utilisation while jobs come"),
        (duration(numbers["wait_s"]["mean"]), f"mean wait; half under {duration(numbers['wait_s']['p50'])}"),
        (duration(numbers["wait_s"]["p95"]), f"wait, 95th percentile; 99th {duration(numbers['wait_s']['p99'])}"),
        (duration(numbers["turnaround_s"]["mean"]), "mean turnaround"),
        (f"{numbers['slowdown']['mean']:.2f}", f"mean bounded slowdown; median {numbers['slowdown']['p50']:.2f}"),
        (f"{numbers['fairness']['jain_slowdown']:.2f}", "fairness: Jain's index of users' slowdowns"),
        (percent(numbers["fragmentation"]["stranded_mean"]), "GPUs stranded on nodes partly in use"),
        (number(numbers["preemptions"]), f"preemptions; {number(round(numbers['lost_gpu_hours'], 1))} GPU hours lost"),
    ]
    if numbers["cluster"]["unit"] != "GPU":
        cards = [card for card in cards if "GPUs" not in card[1]]
    if "energy" in numbers:
        cards.append(
            (
                f"{number(round(numbers['energy']['kwh']))} kWh",
                f"energy; idle GPUs {number(round(numbers['energy']['idle_gpu_kwh']))} kWh",
            )
        )
    cells = "".join(
        f"<div class=card><b>{escape(value)}</b><span>{escape(about)}</span></div>" for value, about in cards
    )
    return f"<div class=cards>{cells}</div>"


def _figures(plots: Sequence[tuple[str, str, bool]]) -> str:
    figures = "".join(
        f"<figure{' class=wide' if wide else ''}>{svg}<figcaption>{escape(about)}</figcaption></figure>"
        for svg, about, wide in plots
    )
    return f"<h2>Plots</h2><div class=plots>{figures}</div>" if figures else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Heads and cells are HTML already."""
    head = "".join(f"<th>{cell}</th>" for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=table><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _groups(rows: Sequence[Numbers], what: str) -> str:
    used = "gpu_hours" if any(row["gpu_hours"] for row in rows) else "cpu_hours"
    heads = (what, "jobs", used.replace("_", " ").replace("gpu", "GPU").replace("cpu", "CPU"), "mean wait", "median",
             "95 %", "99 %", "mean turnaround", "mean slowdown")  # fmt: skip
    cells = (
        (escape(str(row["name"])), number(row["jobs"]), number(round(row[used], 1)), duration(row["wait_s"]["mean"]),
         duration(row["wait_s"]["p50"]), duration(row["wait_s"]["p95"]), duration(row["wait_s"]["p99"]),
         duration(row["turnaround_s"]["mean"]), f"{row['slowdown']['mean']:.2f}")
        for row in rows
    )  # fmt: skip
    return table(heads, cells)


def _partitions(rows: Sequence[Numbers]) -> str:
    return "<h2>By partition</h2>" + _groups(rows, "partition") if len(rows) > 1 else ""


LESS_IS_BETTER = {
    "wait_mean_s",
    "wait_p95_s",
    "turnaround_mean_s",
    "slowdown_mean",
    "makespan_s",
    "stranded",
    "preemptions",
}


def comparison_table(compared: Sequence[Compared]) -> str:
    """One row for each case; the difference to the first below each value."""
    heads = ["", *(escape(words) for words, _ in MEASURES.values())]
    rows = []
    for position, each in enumerate(compared):
        cells = [f"<b>{escape(each.case.name)}</b>"]
        for name in MEASURES:
            value = each.values[name]
            cell = measured(name, value["mean"])
            if value["spread"]:
                cell += f" <small>± {measured(name, value['spread'])}</small>"
            if position:
                cell += f"<br>{_difference(name, value)}"
            cells.append(cell)
        rows.append(cells)
    note = f"<p class=faint>Below each value: the difference to {escape(compared[0].case.name)}"
    note += ", ± one standard deviation over seeds.</p>" if len(compared[0].reports) > 1 else ".</p>"
    return "<h2>Side by side</h2>" + table(heads, rows) + note


def _difference(name: str, value: dict[str, float]) -> str:
    difference = value["difference"]
    if not difference:
        return "<small>the same</small>"
    good = (difference < 0) == (name in LESS_IS_BETTER)
    clear = abs(difference) > 2 * value["difference_spread"]
    kind = ("good" if good else "bad") if clear else ""
    sign = "+" if difference > 0 else "-"
    spread = f" ± {measured(name, value['difference_spread'])}" if value["difference_spread"] else ""
    return f'<small class="{kind}">{sign}{measured(name, abs(difference))}{spread}</small>'


def _small_print(numbers: Numbers) -> str:
    workload, run = numbers["workload"], numbers["simulation"]
    notes = [*workload["remarks"]]
    if workload["rows_skipped"]:
        reasons = "; ".join(f"{count} because {reason}" for reason, count in list(workload["rows_skipped"].items())[:8])
        notes.append(f"{sum(workload['rows_skipped'].values())} rows of the trace were left out: {reasons}.")
    if workload["jobs_refused"]:
        notes.append(f"{workload['jobs_refused']} jobs were left out because this cluster can never run them.")
    if numbers["jobs"]["never_started"]:
        notes.append(f"{numbers['jobs']['never_started']} jobs never started.")
    notes.append(
        f"{number(run['events'])} events in {number(run['turns'])} turns of the real kernel, planner and journal, "
        f"in {run['wall_s']:.1f} s. Bounded slowdown: (wait + run) / run, at least 10 s of run. "
        "Utilisation is what jobs held."
    )
    return "<h2>Notes</h2>" + "".join(f"<p class=faint>{escape(note)}</p>" for note in notes)
