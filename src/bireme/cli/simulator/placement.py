"""bireme sim placement: how well placement policies pack pods onto a cluster, and how that compares with publications.

Arguments in, a table out; the study itself is `bireme.sim.placement`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bireme.commands.voice import CommandFailure
from bireme.core.placement.scores import POLICIES
from bireme.sim.placement import READ_AT
from bireme.sim.placement_table import METRICS, Measured, measure, read_published

WORDS = {"allo": "GPUs allocated", "frag": "GPUs free but fragmented"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodes", help="nodes as in openb: sn,cpu_milli,memory_mib,gpu,model")
    parser.add_argument(
        "pods", nargs="+", help="pods as in openb: name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"
    )
    parser.add_argument("-p", "--policy", action="append", metavar="NAME", help=f"one of {', '.join(POLICIES)}; repeat")
    parser.add_argument("--seeds", type=int, default=10, help="so many runs of each, shuffled differently (default 10)")
    parser.add_argument("--published", metavar="FILE", help="published means to compare with")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="runs at a time")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    policies = [name.lower() for name in given.policy or POLICIES]
    unknown = [name for name in policies if name not in POLICIES]
    if unknown:
        raise CommandFailure(f"--policy {unknown[0]}: there are {', '.join(POLICIES)}")
    if given.seeds < 1 or given.processes < 1:
        raise CommandFailure("--seeds and --processes: at least 1")
    published = read_published(given.published) if given.published else {}
    console = Console(stderr=True)
    with console.status("placing pods ...") if console.is_terminal else _Quiet() as status:
        found = list(measure(given.nodes, given.pods, policies, given.seeds, published, given.processes, status.update))
    if given.json:
        sys.stdout.write(json.dumps([_numbers(each) for each in found], indent=1) + "\n")
    else:
        _show(found, policies, given.seeds)
    return 0


class _Quiet:
    """Stands in for the status line where nobody sees it."""

    def __enter__(self) -> _Quiet:
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self, status: str) -> None: ...


def _numbers(each: Measured) -> dict[str, object]:
    return {
        "list": each.list_name,
        "policy": each.policy,
        "metric": each.metric,
        "demand": each.demand,
        "mean": round(each.mean, 3),
        "min": round(min(each.values), 3),
        "max": round(max(each.values), 3),
        "published": each.published,
    }


def _show(found: Sequence[Measured], policies: Sequence[str], seeds: int) -> None:
    cells = {(each.metric, each.demand, each.list_name, each.policy): each for each in found}
    lists = list(dict.fromkeys(each.list_name for each in found))
    console = Console()
    for metric in METRICS:
        for demand in READ_AT:
            title = f"{WORDS[metric]}, % of all, at {demand}% demand (mean of {seeds}; in brackets: off the published)"
            table = Table(title=title, title_justify="left")
            table.add_column("list")
            for policy in policies:
                table.add_column(policy, justify="right")
            for name in lists:
                table.add_row(name, *(_cell(cells[metric, demand, name, policy]) for policy in policies))
            console.print(table)


def _cell(each: Measured) -> str:
    return f"{each.mean:.2f}" if each.off is None else f"{each.mean:.2f} ({each.off:+.2f})"
