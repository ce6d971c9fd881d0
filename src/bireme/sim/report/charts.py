"""The plots of a report, drawn with matplotlib: as SVG for the page, as SVG and PNG files for papers and slides.

matplotlib is the `sim` extra and is imported only here. One function per plot; each takes the numbers and series of one
or more cases, so that a comparison and a single run look alike.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bireme.sim.metrics import Floats, Report
from bireme.sim.report.words import duration

COLOURS = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#dc2626", "#0891b2", "#ca8a04", "#475569")
INK, FAINT, GRID = "#1e293b", "#64748b", "#e2e8f0"
WIDE, NARROW = (9.6, 3.1), (4.7, 3.3)
Case = tuple[str, Report]
Draw = Callable[[Axes, Sequence[Case]], None]
WAIT_TICKS_S = (1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400)

PAPER = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}

STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "bireme",
    "axes.edgecolor": GRID,
    "axes.labelcolor": FAINT,
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": FAINT,
    "ytick.labelcolor": FAINT,
    "legend.frameon": False,
    "legend.labelcolor": INK,
}


def draw(plot: Plot, cases: Sequence[Case]) -> Figure:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=plot.size, layout="constrained")
        axes = figure.subplots()
        plot.draw(axes, cases)
        axes.set_title(plot.title)
        figure.canvas.draw()  # inside the context: ticks take their style from it when they are made
    return figure


def svg(figure: Figure) -> str:
    """Without the XML heading, for a page."""
    with matplotlib.rc_context(STYLE):
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": "Bireme"}, transparent=True)
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]


# -- over time -------------------------------------------------------------------------------------------------------


def _days(seconds: Floats) -> Floats:
    """matplotlib counts days since the epoch."""
    return seconds / 86_400.0


def _middles(report: Report) -> Floats:
    edges = report.series["edges"]
    return _days((edges[:-1] + edges[1:]) / 2)


def _over_time(axes: Axes) -> None:
    locator: Any = AutoDateLocator(maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.margins(x=0)
    axes.set_ylim(bottom=0)


def _utilisation(axes: Axes, cases: Sequence[Case]) -> None:
    for colour, (name, report) in zip(COLOURS, cases):
        total = report.numbers["cluster"]["units"] or 1
        share = report.series["held"] / total * 100
        if len(cases) == 1:
            axes.fill_between(_middles(report), share, step="mid", color=colour, alpha=0.22, linewidth=0)
        axes.plot(_middles(report), share, drawstyle="steps-mid", color=colour, linewidth=1.3, label=name)
    mean = cases[0][1].numbers["utilisation"]["while_submitting"] * 100
    if len(cases) == 1:
        axes.axhline(mean, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.annotate(f"mean while jobs come {mean:.1f} %", (0.995, mean), xycoords=("axes fraction", "data"),
                      xytext=(-4, 5), textcoords="offset points", ha="right", color=INK, fontsize=8.5,
                      bbox=PAPER)  # fmt: skip
    _over_time(axes)
    axes.set_ylim(0, 104)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
    _legend(axes, cases)


def _queue(axes: Axes, cases: Sequence[Case]) -> None:
    for colour, (name, report) in zip(COLOURS, cases):
        axes.plot(
            _middles(report),
            report.series["waiting_jobs"],
            drawstyle="steps-mid",
            color=colour,
            linewidth=1.3,
            label=name,
        )
    _over_time(axes)
    axes.set_ylabel("jobs waiting")
    _legend(axes, cases)


def _stranded(axes: Axes, cases: Sequence[Case]) -> None:
    for colour, (name, report) in zip(COLOURS, cases):
        at = _days(report.series["stranded_at"])
        axes.plot(at, report.series["stranded"], drawstyle="steps-post", color=colour, linewidth=1.1, label=name)
    _over_time(axes)
    axes.set_ylabel("GPUs")
    _legend(axes, cases)


def _legend(axes: Axes, cases: Sequence[Case]) -> None:
    if len(cases) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.12), ncols=len(cases), fontsize=8.5, handlelength=1.4)


# -- jobs ------------------------------------------------------------------------------------------------------------


def _waits(axes: Axes, cases: Sequence[Case]) -> None:
    """Which share of the jobs has started after so long."""
    for colour, (name, report) in zip(COLOURS, cases):
        waits = np.sort(report.series["waits"])
        if len(waits):
            share = np.arange(1, len(waits) + 1) / len(waits) * 100
            axes.plot(np.maximum(waits, 1.0), share, color=colour, linewidth=1.5, label=name, drawstyle="steps-post")
    axes.set_xscale("log")
    longest = max((float(report.series["waits"].max(initial=1.0)) for _, report in cases), default=1.0)
    ticks = [tick for tick in WAIT_TICKS_S if tick <= longest * 3] or [1]
    axes.set_xticks(ticks, [duration(tick) if tick > 1 else "at once" for tick in ticks], rotation=35, ha="right")
    axes.minorticks_off()
    axes.set_ylim(0, 103)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
    if len(cases) > 1:
        axes.legend(loc="lower right", fontsize=8)


def _by_size(axes: Axes, cases: Sequence[Case]) -> None:
    names = [row["name"] for row in cases[0][1].numbers["by_size"]]
    width = 0.8 / len(cases)
    for position, (colour, (name, report)) in enumerate(zip(COLOURS, cases)):
        found = {row["name"]: row["slowdown"] for row in report.numbers["by_size"]}
        values = [found.get(each, {"mean": 0.0})["mean"] for each in names]
        at = np.arange(len(names)) + (position - (len(cases) - 1) / 2) * width
        axes.bar(at, values, width * 0.92, color=colour, label=name)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel(f"{cases[0][1].numbers['cluster']['unit']}s of the job")
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.9)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(visible=False, axis="x")
    if len(cases) > 1:
        axes.legend(fontsize=8)


def _shares(axes: Axes, cases: Sequence[Case]) -> None:
    rows = cases[0][1].numbers["fairness"]["share_and_use"][:12][::-1]
    axes.barh(range(len(rows)), [row["use"] * 100 for row in rows], 0.62, color=COLOURS[0], label="used")
    if rows:
        axes.axvline(rows[0]["share"] * 100, color=INK, linewidth=1, linestyle=(0, (4, 3)), label="equal share")
    axes.set_yticks(range(len(rows)), [row["account"] for row in rows])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
    axes.grid(visible=False, axis="y")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.1), ncols=2)


class Plot:
    def __init__(self, name: str, title: str, size: tuple[float, float], draw: Draw, about: str) -> None:
        self.name, self.title, self.size, self.draw, self.about = name, title, size, draw, about


PLOTS = (
    Plot("utilisation", "Utilisation", WIDE, _utilisation, "Share of the cluster that jobs held."),
    Plot("queue", "Queue", WIDE, _queue, "Jobs that waited."),
    Plot("waits", "How long jobs waited", NARROW, _waits, "Share of the jobs that had started after so long."),
    Plot("slowdown", "Mean bounded slowdown by size", NARROW, _by_size, "1 is a job that never waited."),
    Plot("shares", "Share and use by account", NARROW, _shares, "What accounts used, against equal shares."),
    Plot(
        "stranded",
        "Free GPUs on nodes partly in use",
        NARROW,
        _stranded,
        "No job that wants whole nodes can have them.",
    ),
)


def plots_for(cases: Sequence[Case]) -> list[Plot]:
    """Plots that say something about these cases."""
    numbers = cases[0][1].numbers
    without = set()
    if len(numbers["fairness"]["share_and_use"]) < 2 or len(cases) > 1:
        without.add("shares")
    if numbers["cluster"]["unit"] != "GPU":
        without.add("stranded")
    return [plot for plot in PLOTS if plot.name not in without]
