"""What failures cost under each policy, as numbers, lines of text and one HTML page. Pure.

The share of effective training time is useful work over all of the gang's time; the rest is work done again, saving,
loading and waiting, and all five add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import inf
from statistics import median
from typing import Any

from bireme.sim.hardware.failures import Drawn, Hardware
from bireme.sim.hardware.playing import Outcome
from bireme.sim.report.page import document, table
from bireme.sim.report.words import duration, number, percent

_SHARES = (
    ("useful", "effective"), ("lost", "done again"), ("saving", "saving"), ("loading", "loading"),
    ("waiting", "waiting"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all cases share."""

    nodes: int
    gpus: int
    days: float
    seed: int
    rate: str
    """As it was asked for, with its source."""
    hardware: Hardware
    drawn: Drawn


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    outcome: Outcome


def numbers_of(setting: Setting, cases: Sequence[Case]) -> dict[str, Any]:
    hardware = setting.hardware
    return {
        "nodes": setting.nodes,
        "gpus_per_node": setting.gpus,
        "days": setting.days,
        "seed": setting.seed,
        "rate": setting.rate,
        "failures_per_1000_node_days": hardware.per_1000_node_days,
        "failures": len(setting.drawn.failures),
        "lemons": len(setting.drawn.lemons),
        "lemon_times": hardware.lemon_times,
        "mean_repair_s": hardware.repair_s,
        "causes": _causes(setting.drawn),
        "cases": [_case(each) for each in cases],
    }


def _causes(drawn: Drawn) -> dict[str, int]:
    found: dict[str, int] = {}
    for failure in drawn.failures:
        found[failure.cause.name] = found.get(failure.cause.name, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _case(case: Case) -> dict[str, Any]:
    outcome, training = case.outcome, case.outcome.training
    whole_s = outcome.span_s * training.jobs
    waits = [wait_s for progress in outcome.progress for wait_s in progress.waits]
    seconds = {name: sum(getattr(each, f"{name}_s") for each in outcome.progress) for name, _ in _SHARES}
    habits = training.habits
    return {
        "name": case.name,
        "policy": outcome.policy.name,
        "about": outcome.policy.about,
        "jobs": training.jobs,
        "nodes_each": training.nodes_each,
        "checkpoint_s": None if habits.checkpoint_s == inf else habits.checkpoint_s,
        "save_s": habits.save_s,
        "load_s": habits.load_s,
        "effective": seconds["useful"] / whole_s,
        "shares": {name: value / whole_s for name, value in seconds.items()},
        "gpu_hours_lost": (whole_s - seconds["useful"]) / 3600 * training.nodes_each * training.gpus_each,
        "hits": outcome.hits,
        "fenced": outcome.fenced,
        "by_people": outcome.by_people,
        "starts": sum(each.starts for each in outcome.progress),
        "median_wait_s": median(waits) if waits else 0.0,
        "most_lost_s": max((each.most_lost_s for each in outcome.progress), default=0.0),
    }


def lines(numbers: dict[str, Any]) -> Iterator[str]:
    rate = f"{numbers['failures_per_1000_node_days']:.2f} per 1,000 node-days ({numbers['rate']})"
    yield (
        f"{numbers['nodes']} nodes x {numbers['gpus_per_node']} GPUs, {numbers['days']:g} days, seed "
        f"{numbers['seed']}: {numbers['failures']} failures, {rate}"
    )
    yield (
        f"Assumed: {numbers['lemons']} lemons fail {numbers['lemon_times']:g} times as often; a repair takes "
        f"{duration(numbers['mean_repair_s'])} on average"
    )
    yield ""
    heads = ("CASE", *(word.upper() for _, word in _SHARES), "HITS", "BY PEOPLE", "MEDIAN WAIT")
    rows = [heads, *(_row(case) for case in numbers["cases"])]
    widths = [max(len(row[place]) for row in rows) for place in range(len(heads))]
    for row in rows:
        yield "  ".join(cell.ljust(width) if not place else cell.rjust(width)
                        for place, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()  # fmt: skip
    yield ""
    for case in numbers["cases"]:
        yield f"{case['name']}: {_about(case)}"


def _row(case: dict[str, Any]) -> tuple[str, ...]:
    shares = (percent(case["shares"][name]) for name, _ in _SHARES)
    return case["name"], *shares, str(case["hits"]), str(case["by_people"]), duration(case["median_wait_s"])


def _about(case: dict[str, Any]) -> str:
    one = f"a job of {case['nodes_each']} nodes"
    gangs = one if case["jobs"] == 1 else f"{case['jobs']} jobs of {case['nodes_each']} nodes"
    saves = "never saves" if case["checkpoint_s"] is None else f"saves every {duration(case['checkpoint_s'])}"
    return f"{case['about']}; {gangs}, which {saves} and loads for {duration(case['load_s'])}"


def page(numbers: dict[str, Any]) -> str:
    """One HTML file that needs nothing else."""
    first, assumed, *_ = lines(numbers)
    heads = ("case", *(word for _, word in _SHARES), "GPU-hours lost", "hits", "by people", "median wait")
    rows = (
        (escape(row[0]), *row[1:6], number(round(case["gpu_hours_lost"])), *row[6:])
        for case in numbers["cases"]
        for row in (_row(case),)
    )
    causes = ((escape(name), str(count)) for name, count in numbers["causes"].items())
    about = "".join(f"<p class=faint>{escape(case['name'])}: {escape(_about(case))}</p>" for case in numbers["cases"])
    head = f"<h1>Training on hardware that fails</h1><p>{escape(first)}</p><p class=faint>{escape(assumed)}</p>"
    body = [
        f"<header>{head}</header>",
        table(heads, rows),
        about,
        "<h2>What failed</h2>",
        table(("cause (as in Llama 3's table 5)", "failures"), causes),
    ]
    return document("Bireme simulation: hardware that fails", body)
